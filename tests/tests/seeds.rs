//! Every declaration's `test { … }` block produces a model file that loads and passes its self-checks, with
//! all optional tensors and biases.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::conformance::{Draft, self_check};
use engine::gguf::{GgufFile, Value, seeded};
use engine::model::{Model, Registered};
use tests::exact;

/// Architectures that amplify rounding errors with normal weights, and the factor used for their weights.
const SMALLER_WEIGHTS: &[(&str, f32)] = &[("gemma3n", 0.5), ("gemma4", 0.5)];

#[allow(clippy::result_large_err, reason = "CheckError is only returned once per file")]
fn check(registered: &Registered) -> Result<(), String> {
    let (arch, text) = (registered.arch, |e: &dyn std::error::Error| e.to_string());
    let bare = Draft::of_declaration(arch, archs::ALL, false).map_err(|e| format!("without optional tensors: {e}"))?;
    let mut draft = Draft::of_declaration(arch, archs::ALL, true).map_err(|e| text(&e))?;
    if bare.tensors.len() > draft.tensors.len() {
        return Err("the bare model has more tensors than the full model".to_owned());
    }
    draft.add_biases(arch, archs::ALL, |_| true);
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
    let failures: Vec<_> = findings.iter().filter(|f| !f.passes()).collect();
    if failures.is_empty() {
        Ok(())
    } else {
        Err(format!("{failures:?}"))
    }
}

#[test]
fn every_declaration_passes_self_check() {
    let only = std::env::var("LLAMA_ARCH").unwrap_or_default();
    let chosen: Vec<_> = archs::ALL.iter().filter(|r| r.arch.name.contains(&only)).collect();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(r) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(e) = check(r) {
                failures
                    .lock()
                    .expect("no thread panics while holding the lock")
                    .push(format!("{}: {e}", r.arch.name));
            }
        }
    };
    std::thread::scope(|s| (0..2).for_each(|_| drop(s.spawn(work))));
    let failures = failures.into_inner().expect("no thread panics while holding the lock");
    assert!(
        failures.is_empty(),
        "{} of {}:\n{}",
        failures.len(),
        chosen.len(),
        failures.join("\n")
    );
}
