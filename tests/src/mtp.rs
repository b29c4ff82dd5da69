//! Tiny models with a multi-token prediction (MTP) layer and modifiable weights.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::conformance::Draft;
use engine::context::{Context, ContextParams};
use engine::gguf::{Gguf, GgufFile, GgufWriter, Metadata};
use engine::model::{LoadParams, Model, Registered};
use engine::speculate::MAX_DRAFTS;
use engine::vocab::Token;
use kernels::GgmlType;

use crate::exact;

/// Returns the architectures that declare MTP layers.
pub fn architectures() -> impl Iterator<Item = &'static Registered> {
    archs::ALL.iter().filter(|r| r.arch.mtp)
}

/// A model file with f32 tensors.
#[derive(Clone)]
pub struct ModelFile {
    pub metadata: Metadata,
    /// Shape and elements of each tensor, by name.
    pub tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl ModelFile {
    /// Creates the seeded model of a declaration's `test { … }` block with all optional tensors and one MTP
    /// layer.
    pub fn seeded(registered: &Registered) -> ModelFile {
        let sizes = [registered.arch.test, &[("n_mtp", 1.0)]].concat();
        let draft = Draft::of_sizes(registered.arch, archs::ALL, &sizes, |_| true);
        let draft = draft.unwrap_or_else(|e| panic!("{}: {e}", registered.arch.name));
        Self::read(&draft.seeded(1).expect("seeded weights"))
    }

    fn read(bytes: &[u8]) -> ModelFile {
        let header = Gguf::parse_header(bytes).expect("a valid file");
        let read = |t: &engine::gguf::TensorInfo| {
            assert_eq!(t.ty, GgmlType::F32, "{}", t.name);
            let data = &bytes[header.data_offset() + t.offset..][..t.bytes];
            let floats = data.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
            (t.name.clone(), (t.shape().to_vec(), floats))
        };
        ModelFile {
            tensors: header.tensors().iter().map(read).collect(),
            metadata: header.metadata,
        }
    }

    /// Creates a model whose next token is [`follower`] of the current one, and whose MTP layer predicts it.
    /// The prediction uses the token's embedding, or with `from_hidden` the preceding hidden state.
    pub fn predictable(registered: &Registered, from_hidden: bool) -> ModelFile {
        let mut file = Self::seeded(registered);
        // Zero the layers' outputs, so that the residual stream is the embedding.
        let outputs = [
            "attn_output.",
            "ffn_down.",
            "ffn_down_exps.",
            "ffn_down_shexp.",
            "ssm_out.",
        ];
        for (name, (_, values)) in &mut file.tensors {
            let is_output = outputs.iter().any(|o| name.contains(o));
            if is_output {
                values.fill(0.0);
            }
            let is_norm = ["output_norm.", "enorm.", "hnorm.", "shared_head_norm."];
            if is_norm.iter().any(|n| name.contains(n)) {
                values.fill(1.0);
            }
        }
        let embd = file.tensor("token_embd.weight").to_vec();
        *file.find("nextn.embed_tokens.weight") = embd;
        let n_vocab = file.n_vocab();
        *file.find("output.weight") = file.behind(|token| follower(n_vocab, token));
        let steps = if from_hidden { 2 } else { 1 };
        *file.find("nextn.shared_head_head.weight") =
            file.behind(|token| (0..steps).fold(token, |t, _| follower(n_vocab, t)));
        let n_embd = file.n_embd();
        let from = if from_hidden { n_embd } else { 0 };
        let projection = file.find("nextn.eh_proj.weight");
        projection.fill(0.0);
        (0..n_embd).for_each(|i| projection[i * 2 * n_embd + from + i] = 1.0);
        file
    }

    /// Returns an output matrix that gives `next(token)` a logit of 40 for the embedding of `token`.
    fn behind(&self, next: impl Fn(Token) -> Token) -> Vec<f32> {
        let n_embd = self.n_embd();
        let embd = self.tensor("token_embd.weight");
        let mut output = vec![0.0; embd.len()];
        for (token, row) in embd.chunks_exact(n_embd).enumerate() {
            let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
            let at = next(token as Token) as usize * n_embd;
            let scale = 40.0 / (length * (n_embd as f32).sqrt());
            let to = &mut output[at..at + n_embd];
            to.iter_mut().zip(row).for_each(|(y, x)| *y = scale * x);
        }
        output
    }

    /// Returns the width of the residual stream.
    pub fn n_embd(&self) -> usize {
        self.tensors["token_embd.weight"].0[0]
    }

    /// Returns the vocabulary size.
    pub fn n_vocab(&self) -> usize {
        self.tensors["token_embd.weight"].0[1]
    }

    /// Returns the elements of the tensor whose name has this suffix.
    pub fn tensor(&self, name: &str) -> &[f32] {
        let found = self.tensors.iter().find(|(n, _)| is_called(n, name));
        &found.unwrap_or_else(|| panic!("no {name}")).1.1
    }

    fn find(&mut self, name: &str) -> &mut Vec<f32> {
        let found = self.tensors.iter_mut().find(|(n, _)| is_called(n, name));
        &mut found.unwrap_or_else(|| panic!("no {name}")).1.1
    }

    /// Loads the model, optionally with its MTP layer.
    pub fn load(&self, mtp: bool) -> Arc<Model> {
        let params = LoadParams { mtp, ..exact().load };
        let mut writer = GgufWriter::with_metadata(self.metadata.clone());
        for (name, (ne, values)) in &self.tensors {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            writer
                .add_tensor(name.clone(), GgmlType::F32, ne, bytes)
                .expect("a sound tensor");
        }
        let file = GgufFile::from_bytes("mtp.gguf", &writer.to_bytes().expect("a valid file")).expect("a valid file");
        Arc::new(Model::from_file(file, archs::ALL, &params).unwrap_or_else(|e| panic!("{e}")))
    }
}

fn is_called(full: &str, name: &str) -> bool {
    full == name || full.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'))
}

/// Returns the successor of a token in a [predictable](ModelFile::predictable) model. If the vocabulary size
/// is a power of two, the sequence visits all tokens.
pub fn follower(n_vocab: usize, token: Token) -> Token {
    ((token as usize * 5 + 3) % n_vocab) as Token
}

/// Creates a context that can verify drafts of the model's own MTP layer.
pub fn speculating(model: &Arc<Model>, change: impl FnOnce(&mut ContextParams)) -> Context {
    crate::context(model, |p| {
        (p.n_rollback, p.n_outputs_max, p.hidden) = (MAX_DRAFTS, MAX_DRAFTS + 1, true);
        change(p);
    })
}
