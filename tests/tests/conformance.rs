//! Logits of seeded models against recorded ones, whatever the ubatch size, cache type, device and mix of sequences.

use engine::conformance::CheckError;
use engine::context::{Batch, ContextError, SeqSet};
use kernels::GgmlType;
use tests::{context, exact, fixture, nmse, place_on, recorded_model};

/// Every configuration of the project's own data; its architecture must be declared.
fn names() -> Vec<String> {
    let all = engine::conformance::fixtures(&tests::data_dir().join("archs")).expect("the folder is readable");
    all.into_iter().map(|f| f.name).collect()
}

/// What takes long is done for these alone: six with attention, one with states, one with both.
const CORE: [&str; 8] = [
    "falcon-h1-dense",
    "gemma3-dense",
    "internlm2-dense",
    "llama-dense",
    "llama-moe",
    "mamba2-dense",
    "qwen2-dense",
    "qwen3-dense",
];

fn check(name: &str, limit: f64, change: impl FnOnce(&mut engine::conformance::CheckParams)) {
    let mut params = exact();
    change(&mut params);
    let found = fixture(name)
        .compare(archs::ALL, &params, limit)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(found.passes(), "{name}: {found:?}");
}

/// Layers on two devices: the borders are where a scheduler goes wrong.
#[test]
fn layers_split_between_devices_meet_them() {
    for name in &names() {
        for n_layers in [1, 2] {
            check(name, 1e-8, |p| place_on(&mut p.load, "reference", n_layers));
        }
        check(name, 1e-8, |p| {
            place_on(&mut p.load, "reference", 3);
            p.load.placement.offload_kv = false;
        });
    }
}

#[test]
fn recorded_logits_are_met_for_every_ubatch_size() {
    for name in &names() {
        for n_ubatch in [1, 7, 512] {
            check(name, 1e-8, |p| p.context.n_ubatch = n_ubatch);
        }
    }
}

#[test]
fn rounded_caches_cost_little() {
    for name in CORE {
        for (ty, limit) in [(GgmlType::F16, 1e-4), (GgmlType::BF16, 1e-3), (GgmlType::Q8_0, 1e-3)] {
            check(name, limit, |p| (p.context.type_k, p.context.type_v) = (ty, ty));
        }
    }
}

/// Caches of 4 bits, where heads are whole blocks; where not, the context is refused.
#[test]
fn caches_of_four_bits_keep_the_shape_of_the_logits() {
    let mut met = 0;
    for name in CORE {
        for n_reference in [0, 3] {
            let mut params = exact();
            (params.context.type_k, params.context.type_v) = (GgmlType::Q4_0, GgmlType::Q4_0);
            place_on(&mut params.load, "reference", n_reference);
            match fixture(name).nmse(archs::ALL, &params) {
                Ok(found) => {
                    println!("{name}, {n_reference} on reference: NMSE {found:.3e}");
                    assert!(found < 2e-1, "{name}: NMSE {found:.3e}");
                    met += 1;
                }
                Err(CheckError::Context(ContextError::KvType { head_dim, .. })) => {
                    assert!(!head_dim.is_multiple_of(GgmlType::Q4_0.block_size()), "{name}");
                }
                Err(e) => panic!("{name}: {e}"),
            }
        }
    }
    assert!(met > 0, "some fixture has heads of whole blocks");
}

#[test]
fn the_reference_device_meets_them_too() {
    for name in &names() {
        check(name, 1e-8, |p| place_on(&mut p.load, "reference", 3));
    }
}

/// Two sequences in one batch, their tokens taking turns; the second holds the same tokens backwards.
#[test]
fn interleaved_sequences_do_not_see_each_other() {
    for name in CORE {
        let recorded = fixture(name).recorded().unwrap();
        let tokens = tests::tokens(name);
        for n_ubatch in [7, 512] {
            let mut ctx = context(&recorded_model(name), |p| {
                p.n_ctx = 2 * tokens.len();
                p.n_seq_max = 2;
                p.n_ubatch = n_ubatch;
                p.n_outputs_max = n_ubatch;
            });
            let mut batch = Batch::new();
            for (i, &t) in tokens.iter().enumerate() {
                batch.push(t, i, SeqSet::one(0), true);
                batch.push(tokens[tokens.len() - 1 - i], i, SeqSet::one(1), true);
            }
            ctx.decode(&batch).unwrap();
            let first: Vec<f32> = (0..tokens.len())
                .flat_map(|i| ctx.logits(2 * i).expect("output").to_vec())
                .collect();
            let found = nmse(recorded.values(), &first);
            assert!(found < 1e-8, "{name} ubatch {n_ubatch}: NMSE {found:.3e}");
        }
    }
}

#[test]
fn wanted_rows_are_the_rows_of_all() {
    for name in CORE {
        let recorded = fixture(name).recorded().unwrap();
        let tokens = tests::tokens(name);
        let mut ctx = context(&recorded_model(name), |p| p.n_outputs_max = 8);
        let mut batch = Batch::new();
        let wanted = |i: usize| [3, 40, 41, 95].contains(&i);
        for (i, &t) in tokens.iter().enumerate() {
            batch.push(t, i, SeqSet::one(0), wanted(i));
        }
        ctx.decode(&batch).unwrap();
        for i in 0..tokens.len() {
            assert_eq!(ctx.logits(i).is_some(), wanted(i));
            if let Some(l) = ctx.logits(i) {
                let found = nmse(recorded.row(i), l);
                assert!(found < 1e-8, "{name} token {i}: NMSE {found:.3e}");
            }
        }
    }
}
