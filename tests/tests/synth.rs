//! Synthetic models of every architecture, as written by `llama synth`.

use std::path::Path;
use std::sync::{Arc, Mutex};

use engine::conformance::all_logits;
use engine::context::ContextParams;
use engine::model::{LoadParams, Model, Registered};
use engine::synth::{Mix, ModelShape, Synth, SynthParams};

/// Prompt length in byte tokens, long enough for multi-column matmuls.
const N_TOKENS: u32 = 40;

/// Writes the smallest model of an architecture, loads it, and computes logits. `ty` is a type of the mix.
fn check(registered: &Registered, directory: &Path, mix: &str, ty: &str) -> Result<(), String> {
    let arch = registered.arch;
    let params = SynthParams {
        shape: *ModelShape::find("tiny").expect("the shape is known"),
        settings: Vec::new(),
        mix: Mix::find(mix).expect("the mix is known"),
        output: None,
        seed: 3,
    };
    let path = directory.join(arch.name).with_extension("gguf");
    let synth = Synth::new(arch, archs::ALL, &params).map_err(|e| e.to_string())?;
    synth.write(&path).map_err(|e| e.to_string())?;
    let model = Model::load(&path, archs::ALL, &LoadParams::default()).map_err(|e| e.to_string())?;
    let is_quantized = |name: &str| synth.types().contains_key(name);
    if model.arch().name != arch.name || !is_quantized(ty) {
        return Err(format!("{} with {:?}", model.arch().name, synth.types()));
    }
    let tokens: Vec<u32> = (0..N_TOKENS).map(|i| 3 + i * 37 % 256).collect();
    let params = ContextParams {
        n_threads: 1,
        n_threads_batch: 1,
        ..ContextParams::default()
    };
    let logits = all_logits(Arc::new(model), &tokens, &params).map_err(|e| e.to_string())?;
    let is_some = logits.len().is_multiple_of(tokens.len()) && logits.iter().any(|x| *x != logits[0]);
    match logits.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(format!("logit {at} is {}", logits[at])),
        None if !is_some => Err(format!("{} logits, all {:?}", logits.len(), logits.first())),
        None => Ok(()),
    }
}

#[test]
fn synth_models_of_every_architecture_run() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (left, failures) = (Mutex::new(archs::ALL.iter()), Mutex::new(Vec::new()));
    let next = || left.lock().expect("no thread panics while holding the lock").next();
    let work = || {
        while let Some(registered) = next() {
            if let Err(e) = check(registered, directory.path(), "q4_k_m", "q4_K") {
                let failure = format!("{}: {e}", registered.arch.name);
                failures
                    .lock()
                    .expect("no thread panics while holding the lock")
                    .push(failure);
            }
        }
    };
    std::thread::scope(|s| (0..2).for_each(|_| drop(s.spawn(work))));
    let failures = failures.into_inner().expect("no thread panics while holding the lock");
    let (n, all) = (failures.len(), archs::ALL.len());
    assert!(all > 100 && n == 0, "{n} of {all}:\n{}", failures.join("\n"));
}

#[test]
fn synth_models_with_row_headers_run() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let is_llama = |registered: &&Registered| registered.arch.name == "llama";
    let llama = archs::ALL.iter().find(is_llama).expect("llama is declared");
    for ty in ["iq4_ks", "iq5_ks"] {
        assert_eq!(check(llama, directory.path(), ty, ty), Ok(()));
    }
}
