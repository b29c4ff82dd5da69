//! Logits of seeded models against recorded ones, whatever the ubatch size, cache type, device and mix of sequences.

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

/// Where the last layers are the reference device's.
struct Split {
    /// How many, the output counting as one.
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

/// Layers on two devices: the borders are where a scheduler goes wrong.
#[test]
fn layers_split_between_devices_meet_them() {
    check_splits(in_one_way_each(&SPLITS));
}

#[test]
#[ignore = "splits every fixture in three ways"]
fn layers_split_between_devices_in_every_way_meet_them() {
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
fn recorded_logits_are_met_for_every_ubatch_size() {
    check_ubatches(in_one_way_each(&UBATCHES));
}

#[test]
#[ignore = "runs every fixture with three sizes of ubatches"]
fn recorded_logits_of_every_fixture_are_met_for_every_ubatch_size() {
    check_ubatches(in_every_way(&UBATCHES));
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
    for name in &fixture_names() {
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
