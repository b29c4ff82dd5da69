//! Builds malicious model files from keys and tensors, and runs the engine on them.

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

/// Memory in bytes, beyond the file and a copy, that loading and decoding a few tokens may use.
const MEMORY_MAX: usize = 32 << 20;
/// Time limit per file, far above normal run times.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Result for files that the writer rejects.
pub const NOT_WRITTEN: &str = "the file cannot be written";

/// A model file under construction.
#[derive(Clone)]
pub struct Draft {
    /// Architecture of the model, which is also the key prefix.
    pub arch: String,
    pub metadata: Metadata,
    /// Name, type, and shape of each tensor.
    pub tensors: Vec<(String, GgmlType, Vec<usize>)>,
}

/// Outcome of loading a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The model loaded and decoded a few tokens.
    Ran,
    /// Loading failed with this error message.
    Refused(String),
}

impl Draft {
    /// Returns an unmodified fixture.
    pub fn full(name: &str) -> Draft {
        let header = Gguf::open_header(fixture(name).header).expect("the fixture is readable");
        let tensors = header.tensors().iter();
        Draft {
            arch: header
                .require("general.architecture")
                .expect("the fixture names its architecture"),
            tensors: tensors.map(|t| (t.name.clone(), t.ty, t.shape().to_vec())).collect(),
            metadata: header.metadata,
        }
    }

    /// Returns a fixture with all sizes from 64 divided by four, which leaves a sixteenth of the bytes.
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

    /// Returns the draft without a key.
    pub fn without(&self, key: &str) -> Draft {
        let kept = self.metadata.iter().filter(|(k, _)| *k != key);
        Draft {
            metadata: kept.map(|(k, v)| (k.to_owned(), v.clone())).collect(),
            ..self.clone()
        }
    }

    /// Returns the draft with a changed key.
    pub fn with(&self, key: &str, value: impl Into<Value>) -> Draft {
        let mut draft = self.clone();
        draft.metadata.insert(key, value);
        draft
    }

    /// Returns the file with every weight byte set to `byte`, or `None` if the writer rejects it.
    pub fn bytes(&self, byte: u8) -> Option<Vec<u8>> {
        // A file that aligns tensors to a million bytes is valid, but too large for a test.
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

    /// Runs the engine on the file.
    pub fn outcome(&self, what: &str) -> Outcome {
        self.bytes(0).map_or_else(
            || Outcome::Refused(NOT_WRITTEN.to_owned()),
            |bytes| outcome(what, &bytes),
        )
    }
}

/// Loads a file and, if that succeeds, decodes a few tokens and tokenizes a text. Panics if the engine panics or
/// exceeds the time or memory limit. `what` names the case.
pub fn outcome(what: &str, bytes: &[u8]) -> Outcome {
    outcome_with(what, bytes, 32)
}

/// Like [`outcome`], with a context of `n_ctx` cells.
pub fn outcome_with(what: &str, bytes: &[u8], n_ctx: usize) -> Outcome {
    load_on_this_thread();
    let start = Instant::now();
    let (result, memory) = peak_of(|| catch_unwind(AssertUnwindSafe(|| run(bytes, n_ctx))));
    let time = start.elapsed();
    let Ok(result) = result else {
        panic!("{what}: the engine panicked");
    };
    // Accounts for the file itself and for weights converted to another type.
    let memory_max = 6 * bytes.len() + MEMORY_MAX;
    assert!(
        memory <= memory_max,
        "{what}: used {memory} bytes for a file of {}: {result:?}",
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
        // Bidirectional models need the whole batch in one ubatch.
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

/// Makes the current thread its own thread pool for loading, because memory is counted per thread. A context
/// with one thread starts no other threads.
fn load_on_this_thread() {
    thread_local! {
        static POOL: rayon::ThreadPool = (rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread())
            .build()
            .expect("the thread is not in a pool yet");
    }
    POOL.with(|_| ());
}
