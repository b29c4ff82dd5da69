//! The tiny models that declarations describe: every `test { … }` gives a file that loads, and whose results hold together.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::conformance::{Draft, self_check};
use engine::gguf::{GgufFile, Value, seeded};
use engine::model::{Model, Registered};
use tests::exact;

/// Architectures whose graphs magnify rounding with weights of the usual size, and the factor that their weights are given here.
const SMALLER_WEIGHTS: &[(&str, f32)] = &[("gemma3n", 0.5), ("gemma4", 0.5)];

#[allow(clippy::result_large_err, reason = "what loads a model fails as checks do, once")]
fn check(registered: &Registered) -> Result<(), String> {
    let (arch, text) = (registered.arch, |e: &dyn std::error::Error| e.to_string());
    let bare = Draft::of_declaration(arch, archs::ALL, false).map_err(|e| format!("without optional tensors: {e}"))?;
    let mut draft = Draft::of_declaration(arch, archs::ALL, true).map_err(|e| text(&e))?;
    if bare.tensors.len() > draft.tensors.len() {
        return Err("there are more tensors without optional ones".to_owned());
    }
    if let Some((_, scale)) = SMALLER_WEIGHTS.iter().find(|(name, _)| *name == arch.name) {
        draft.metadata.insert(seeded::KEY_SCALE, Value::F32(*scale));
    }
    let bytes = draft.seeded(1).map_err(|e| text(&e))?;
    let mut params = exact();
    (params.context.n_threads, params.context.n_threads_batch) = (1, 1);
    let load = |params: &_| {
        let file = GgufFile::from_bytes("seeded.gguf", &bytes)?;
        Ok(Model::from_file(file, archs::ALL, params)?)
    };
    let findings = self_check(&load, &params, 1e-8).map_err(|e| text(&e))?;
    let faults: Vec<_> = findings.iter().filter(|f| !f.passes()).collect();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(format!("{faults:?}"))
    }
}

#[test]
fn every_declaration_makes_a_model_whose_results_hold_together() {
    let only = std::env::var("LLAMA_ARCH").unwrap_or_default();
    let chosen: Vec<_> = archs::ALL.iter().filter(|r| r.arch.name.contains(&only)).collect();
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(r) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(e) = check(r) {
                faults
                    .lock()
                    .expect("no thread panics")
                    .push(format!("{}: {e}", r.arch.name));
            }
        }
    };
    std::thread::scope(|s| (0..2).for_each(|_| drop(s.spawn(work))));
    let faults = faults.into_inner().expect("no thread panics");
    assert!(
        faults.is_empty(),
        "{} of {}:\n{}",
        faults.len(),
        chosen.len(),
        faults.join("\n")
    );
}
