//! A small model that can be made to lie: its keys and tensors as plain data, and what the engine does with the file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::context::{Batch, Context, ContextParams};
use engine::gguf::{Gguf, GgufFile, GgufWriter, Metadata, Value};
use engine::model::{LoadParams, Model};
use kernels::GgmlType;
use tests::fixture;
use tests::variation::Configuration;

use super::counting::peak_of;

/// Memory beyond the file and a copy of it that loading and a few tokens may take.
const MEMORY_MAX: usize = 32 << 20;
/// Far more than any case takes, far less than a hang.
const TIME_MAX: Duration = Duration::from_secs(20);

/// What becomes of files that the writer would not write.
pub const NOT_WRITTEN: &str = "no such file can be written";

/// A file yet to be written.
#[derive(Clone)]
pub struct Draft {
    /// Architecture, and prefix of its keys.
    pub arch: String,
    /// Keys.
    pub metadata: Metadata,
    /// Name, type and shape of each tensor.
    pub tensors: Vec<(String, GgmlType, Vec<usize>)>,
}

/// What came of a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was loaded and decoded a few tokens.
    Ran,
    /// The sentence that it was refused with.
    Refused(String),
}

impl Draft {
    /// A fixture as it is.
    pub fn full(name: &str) -> Draft {
        let header = Gguf::open_header(fixture(name).header).expect("the fixture is readable");
        let tensors = header.tensors().iter();
        Draft {
            arch: header.require("general.architecture").expect("the fixture names it"),
            tensors: tensors.map(|t| (t.name.clone(), t.ty, t.shape().to_vec())).collect(),
            metadata: header.metadata,
        }
    }

    /// A fixture with all sizes from 64 on divided by four: a sixteenth of the bytes.
    pub fn small(name: &str) -> Draft {
        let header = Gguf::open_header(fixture(name).header).expect("the fixture is readable");
        let small = Configuration::of(&header).small();
        Draft {
            arch: small.arch.clone(),
            metadata: small.metadata.clone(),
            tensors: (small.tensors.iter())
                .map(|(name, ne)| (name.clone(), GgmlType::F32, ne.clone()))
                .collect(),
        }
    }

    /// Without a key.
    pub fn without(&self, key: &str) -> Draft {
        let kept = self.metadata.iter().filter(|(k, _)| *k != key);
        Draft {
            metadata: kept.map(|(k, v)| (k.to_owned(), v.clone())).collect(),
            ..self.clone()
        }
    }

    /// With a key of another value.
    pub fn with(&self, key: &str, value: impl Into<Value>) -> Draft {
        let mut draft = self.clone();
        draft.metadata.insert(key, value);
        draft
    }

    /// The whole file; every byte of the weights is `byte`. `None` if no such file can be written.
    pub fn bytes(&self, byte: u8) -> Option<Vec<u8>> {
        // A file in which every tensor starts at a multiple of a million bytes is sound, but too large for a test.
        if self
            .metadata
            .get("general.alignment")
            .is_some_and(|a| a.as_u64() > Some(1 << 16))
        {
            return None;
        }
        let mut writer = GgufWriter::with_metadata(self.metadata.clone());
        for (name, ty, ne) in &self.tensors {
            let n = ty.row_bytes(*ne.first()?)? * ne[1..].iter().product::<usize>();
            writer.add_tensor(name.clone(), *ty, ne, vec![byte; n]).ok()?;
        }
        writer.to_bytes().ok()
    }

    /// What the engine makes of the file.
    pub fn outcome(&self, what: &str) -> Outcome {
        self.bytes(0).map_or_else(
            || Outcome::Refused(NOT_WRITTEN.to_owned()),
            |bytes| outcome(what, &bytes),
        )
    }
}

/// Loads a file and, if that is possible, decodes a few tokens and writes a text in tokens and back. Fails on a panic, and on time and
/// memory out of proportion. `what` names the case.
pub fn outcome(what: &str, bytes: &[u8]) -> Outcome {
    outcome_with(what, bytes, 32)
}

/// As [`outcome`], with a context of `n_ctx` cells.
pub fn outcome_with(what: &str, bytes: &[u8], n_ctx: usize) -> Outcome {
    load_on_this_thread();
    let start = Instant::now();
    let (result, memory) = peak_of(|| catch_unwind(AssertUnwindSafe(|| run(bytes, n_ctx))));
    let time = start.elapsed();
    let Ok(result) = result else {
        panic!("{what}: the engine panicked");
    };
    // The file itself, and weights that are kept in another type than the file's.
    let memory_max = 6 * bytes.len() + MEMORY_MAX;
    assert!(
        memory <= memory_max,
        "{what}: {memory} bytes for a file of {}: {result:?}",
        bytes.len()
    );
    assert!(time < TIME_MAX, "{what}: took {time:?}: {result:?}");
    match result {
        Ok(()) => Outcome::Ran,
        Err(sentence) => {
            let one_sentence = !sentence.is_empty() && !sentence.contains(['\n', '\r', '\0']) && sentence.len() < 4000;
            assert!(one_sentence, "{what}: {sentence:?}");
            Outcome::Refused(sentence)
        }
    }
}

fn run(bytes: &[u8], n_ctx: usize) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let file = GgufFile::from_bytes("lie.gguf", bytes).map_err(|e| text(&e))?;
    let model = Arc::new(Model::from_file(file, archs::ALL, &LoadParams::default()).map_err(|e| text(&e))?);
    let vocab = model.vocab();
    let tokens = vocab.tokenize("A text <s> of several w\u{f6}rds.\n\u{1f600}", true, true);
    vocab.detokenize(&tokens, false, true);
    vocab.detokenize(&[0, vocab.n_tokens(), u32::MAX], true, false);
    let params = ContextParams {
        n_ctx,
        n_batch: 8,
        // Without a memory a batch is computed whole.
        n_ubatch: if model.bidirectional() { 8 } else { 4 },
        n_threads: 1,
        n_threads_batch: 1,
        ..ContextParams::default()
    };
    let mut context = Context::new(model, &params).map_err(|e| text(&e))?;
    let mut batch = Batch::new();
    batch.push_prompt(&[0, 0, 0, 0, 0], 0, 0);
    if context.model().arch().encoder {
        context.encode(&batch).map_err(|e| text(&e))?;
    }
    context.decode(&batch).map_err(|e| text(&e))
}

/// Makes the present thread all of the thread pool that loading would otherwise share its work with: memory is counted by thread, and a
/// context of one thread starts no other.
fn load_on_this_thread() {
    thread_local! {
        static POOL: rayon::ThreadPool = (rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread())
            .build()
            .expect("a thread that is in no pool yet");
    }
    POOL.with(|_| ());
}
