//! Compares the logits of seeded models with recorded logits for all ubatch sizes, cache types, devices, and mixes of
//! sequences.

use engine::conformance::CheckError;
use engine::context::{Batch, ContextError, SeqSet};
use kernels::GgmlType;
use tests::{
    CORE, Runs, context, exact, fixture, fixture_names, in_every_way, in_one_way_each, nmse, place_on, recorded_model,
};

fn check(name: &str, limit: f64, change: impl FnOnce(&mut engine::conformance::CheckParams)) {
    let mut params = exact();
    change(&mut params);
    let found = fixture(name)
        .compare(archs::ALL, &params, limit)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(found.passes(), "{name}: {found:?}");
}

/// Split of the last layers onto the reference device.
struct Split {
    /// Number of layers; the output counts as one.
    n_layers: usize,
    offload_kv: bool,
}

const SPLITS: [Split; 3] = [
    Split {
        n_layers: 1,
        offload_kv: true,
    },
    Split {
        n_layers: 2,
        offload_kv: true,
    },
    Split {
        n_layers: 3,
        offload_kv: false,
    },
];

fn check_splits(runs: Runs<'_, Split>) {
    for (name, splits) in runs {
        for split in splits {
            check(&name, 1e-8, |p| {
                place_on(&mut p.load, "reference", split.n_layers);
                p.load.placement.offload_kv = split.offload_kv;
            });
        }
    }
}

/// Splits layers between two devices; schedulers tend to fail at the boundaries.
#[test]
fn split_layers_match_recorded_logits() {
    check_splits(in_one_way_each(&SPLITS));
}

#[test]
#[ignore = "splits every fixture in three ways"]
fn split_layers_match_recorded_logits_in_every_split() {
    check_splits(in_every_way(&SPLITS));
}

const UBATCHES: [usize; 3] = [1, 7, 512];

fn check_ubatches(runs: Runs<'_, usize>) {
    for (name, ubatches) in runs {
        for &n_ubatch in ubatches {
            check(&name, 1e-8, |p| p.context.n_ubatch = n_ubatch);
        }
    }
}

#[test]
fn recorded_logits_match_for_every_ubatch_size() {
    check_ubatches(in_one_way_each(&UBATCHES));
}

#[test]
#[ignore = "runs every fixture with three ubatch sizes"]
fn recorded_logits_of_every_fixture_match_for_every_ubatch_size() {
    check_ubatches(in_every_way(&UBATCHES));
}

#[test]
fn rounded_caches_have_small_error() {
    for name in CORE {
        for (ty, limit) in [(GgmlType::F16, 1e-4), (GgmlType::BF16, 1e-3), (GgmlType::Q8_0, 1e-3)] {
            check(name, limit, |p| (p.context.type_k, p.context.type_v) = (ty, ty));
        }
    }
}

/// 4-bit caches require heads of whole blocks; other models must reject them.
#[test]
fn four_bit_caches_have_bounded_error() {
    let mut met = 0;
    for name in CORE {
        for n_reference in [0, 3] {
            let mut params = exact();
            (params.context.type_k, params.context.type_v) = (GgmlType::Q4_0, GgmlType::Q4_0);
            place_on(&mut params.load, "reference", n_reference);
            match fixture(name).nmse(archs::ALL, &params) {
                Ok(found) => {
                    println!("{name}, {n_reference} layers on reference: NMSE {found:.3e}");
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
fn reference_device_matches_recorded_logits() {
    for name in &fixture_names() {
        check(name, 1e-8, |p| place_on(&mut p.load, "reference", 3));
    }
}

/// Decodes two interleaved sequences in one batch. The second sequence contains the tokens in reverse.
#[test]
fn interleaved_sequences_are_independent() {
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
fn selected_output_rows_match_all_rows() {
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
