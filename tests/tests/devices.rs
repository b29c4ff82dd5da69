//! Logits do not depend on placement, loading mode, restored states, and thread counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::backend::Device;
use engine::backend::reference::ReferenceDevice;
use engine::conformance::CheckParams;
use engine::context::{Batch, Context, SeqSet};
use engine::model::{LoadParams, Model, ModelError};
use engine::vocab::Token;
use tests::{Runs, divide_rows, encode, exact, fixture, in_every_way, in_one_way_each, nmse, place_on};

/// Parameters with one thread each, because configurations run in parallel.
fn params() -> CheckParams {
    let mut params = exact();
    (params.context.n_threads, params.context.n_threads_batch) = (1, 1);
    params
}

/// A variant of running a configuration that must not change its logits.
struct Way {
    what: &'static str,
    /// Changes the load parameters, given the number of layers.
    load: Option<fn(&mut LoadParams, usize)>,
    /// Number of files to load from; 0 loads from memory.
    n_files: u16,
    /// Decode the first half of the tokens in one context, and the second half in another after restoring its
    /// state.
    restore: bool,
}

const WAYS: &[Way] = &[
    Way {
        what: "half of the layers on cpu, half on reference",
        load: Some(|load, n_layers| place_on(load, "reference", 1 + n_layers / 2)),
        n_files: 0,
        restore: false,
    },
    Way {
        what: "all layers on reference, matrices repacked",
        load: Some(|load, n_layers| {
            place_on(load, "reference", 1 + n_layers);
            load.placement.devices = vec![Arc::new(ReferenceDevice::interleaving(1 << 30))];
        }),
        n_files: 0,
        restore: false,
    },
    Way {
        what: "matrix rows split between cpu and reference",
        load: Some(|load, n_layers| divide_rows(load, 1 + n_layers, &[1.0, 1.0])),
        n_files: 0,
        restore: false,
    },
    Way {
        what: "read instead of mapped",
        load: Some(|load, _| load.mmap = false),
        n_files: 1,
        restore: false,
    },
    Way {
        what: "from three files",
        load: None,
        n_files: 3,
        restore: false,
    },
    Way {
        what: "saved and restored in the middle",
        load: None,
        n_files: 0,
        restore: true,
    },
    Way {
        what: "half on reference, saved and restored in the middle, read from three files",
        load: Some(|load, n_layers| {
            place_on(load, "reference", 1 + n_layers / 2);
            load.mmap = false;
        }),
        n_files: 3,
        restore: true,
    },
];

fn load(name: &str, params: &CheckParams, n_files: u16) -> Arc<Model> {
    let fixture = fixture(name);
    if n_files == 0 {
        return (fixture.model(archs::ALL, params)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let dir = tempfile::tempdir().expect("the temporary directory is writable");
    let first = (fixture.write_files(dir.path(), 1, n_files)).unwrap_or_else(|e| panic!("{name}: {e}"));
    Arc::new(Model::load(first, archs::ALL, &params.load).unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// Returns the logits of all tokens of a fixture, `[n_tokens, n_vocab]`.
fn logits(name: &str, model: &Arc<Model>, params: &CheckParams, restore: bool) -> Vec<f32> {
    let tokens = tests::tokens(name);
    let context = || {
        let context = engine::conformance::context_for(model.clone(), tokens.len(), &params.context);
        let mut context = context.unwrap_or_else(|e| panic!("{name}: {e}"));
        // A saved state does not include the encoder's output.
        encode(&mut context, &tokens);
        context
    };
    let mut ctx = context();
    // Bidirectional models have no state, and batches cannot be split.
    if !restore || model.bidirectional() {
        return decode(&mut ctx, &tokens, 0);
    }
    let (first, second) = tokens.split_at(tokens.len() / 2);
    let mut all = decode(&mut ctx, first, 0);
    let mut state = Vec::new();
    (ctx.save_state(&mut state)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut restored = context();
    (restored.load_state(&state)).unwrap_or_else(|e| panic!("{name}: {e}"));
    all.extend(decode(&mut restored, second, first.len()));
    all
}

/// Returns the logits of `tokens`, which continue sequence 0 at position `pos`.
fn decode(ctx: &mut Context, tokens: &[Token], pos: usize) -> Vec<f32> {
    let mut batch = Batch::new();
    for (i, &t) in tokens.iter().enumerate() {
        batch.push(t, pos + i, SeqSet::one(0), true);
    }
    ctx.decode(&batch).expect("the batch is decoded");
    let rows = (0..tokens.len()).map(|i| ctx.logits(i).expect("every token has output"));
    rows.flatten().copied().collect()
}

fn bits(logits: &[f32]) -> impl Iterator<Item = u32> + '_ {
    logits.iter().map(|x| x.to_bits())
}

/// Runs `f` for each fixture and its variants on all cores.
fn for_each_run<Way: Sync>(runs: &Runs<'_, Way>, f: impl Fn(&str, &[&Way]) + Sync) {
    let next = AtomicUsize::new(0);
    let n = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..n {
            scope.spawn(|| {
                while let Some((name, ways)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    f(name, ways);
                }
            });
        }
    });
}

/// Asserts that the logits match the plain run, and are bit-identical in a second run.
fn check_ways(runs: &Runs<'_, Way>) {
    for_each_run(runs, |name, ways| {
        let plain_model = load(name, &params(), 0);
        let plain = logits(name, &plain_model, &params(), false);
        let n_layers = plain_model.base().n_layer();
        for way in ways {
            let mut params = params();
            if let Some(change) = way.load {
                change(&mut params.load, n_layers);
            }
            let model = load(name, &params, way.n_files);
            let found = logits(name, &model, &params, way.restore);
            let error = nmse(&plain, &found);
            assert!(error < 1e-6, "{name}, {}: NMSE {error:.3e}", way.what);
            let again = logits(name, &model, &params, way.restore);
            let is_same = bits(&again).eq(bits(&found));
            assert!(is_same, "{name}, {}: a second run gives different bits", way.what);
        }
    });
}

#[test]
fn every_variant_gives_equal_logits() {
    check_ways(&in_one_way_each(WAYS));
}

#[test]
#[ignore = "runs every fixture twice in every variant"]
fn every_variant_gives_equal_logits_for_every_fixture() {
    check_ways(&in_every_way(WAYS));
}

/// Matrix rows are split by shares; the rest of the layer is on the main device.
#[test]
fn rows_are_split_by_shares() {
    let run = |shares: Option<&[f32]>| {
        let mut params = params();
        match shares {
            Some(shares) => divide_rows(&mut params.load, 3, shares),
            None => place_on(&mut params.load, "reference", 3),
        }
        let model = load("llama-dense", &params, 0);
        let summary = model.placement_summary();
        let bytes = |name: &str| summary.bytes.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| *n);
        let bytes = (bytes("reference"), bytes("CPU"));
        (bytes, logits("llama-dense", &model, &params, false))
    };
    let ((whole, on_cpu), expected) = run(None);
    for (shares, least, most) in [
        ([1.0, 3.0], 0.70, 0.80),
        ([3.0, 1.0], 0.20, 0.30),
        ([0.0, 1.0], 1.0, 1.0),
    ] {
        let ((reference, cpu), found) = run(Some(&shares));
        assert_eq!(
            reference + cpu,
            whole + on_cpu,
            "{shares:?}: parts overlap or are missing"
        );
        let share = reference as f64 / whole as f64;
        assert!((least..=most).contains(&share), "{shares:?}: {share} of the bytes");
        assert!(nmse(&expected, &found) < 1e-9, "{shares:?}");
    }
}

/// Cancelling a load at any point returns an error and frees all memory.
#[test]
fn load_can_be_cancelled_at_any_point() {
    let dir = tempfile::tempdir().unwrap();
    let first = fixture("llama-dense").write_files(dir.path(), 1, 3).unwrap();
    for mmap in [true, false] {
        let device = Arc::new(ReferenceDevice::with_memory(64 << 20));
        let load = |limit: usize| {
            let asked = Arc::new(AtomicUsize::new(0));
            let count = asked.clone();
            let mut params = params().load;
            place_on(&mut params, "reference", 2);
            params.placement.devices = vec![device.clone()];
            params.mmap = mmap;
            params.progress = Some(Arc::new(move |part| {
                assert!((0.0..=1.0).contains(&part), "{part}");
                count.fetch_add(1, Ordering::Relaxed) < limit
            }));
            let model = Model::load(&first, archs::ALL, &params);
            (model, asked.load(Ordering::Relaxed))
        };
        let (model, n_asked) = load(usize::MAX);
        assert!(model.is_ok() && n_asked > 8, "{n_asked}");
        drop(model);
        for limit in 0..n_asked {
            let (model, _) = load(limit);
            assert!(
                matches!(model, Err(ModelError::Cancelled { .. })),
                "cancelled at {limit} of {n_asked}"
            );
            let (free, total) = device.memory();
            assert_eq!(free, total, "cancelled at {limit} of {n_asked}");
        }
    }
}

/// Each element is computed in a fixed order by one thread, so results do not depend on the thread count.
#[test]
fn thread_count_does_not_change_logits() {
    check_threads(&in_one_way_each(&[2, 3]));
}

#[test]
#[ignore = "runs every fixture with two thread counts"]
fn thread_count_does_not_change_logits_of_every_fixture() {
    check_threads(&in_every_way(&[2, 3]));
}

fn check_threads(runs: &Runs<'_, usize>) {
    for (name, numbers) in runs {
        let model = load(name, &params(), 0);
        let run = |n: usize| {
            let mut params = params();
            (params.context.n_threads, params.context.n_threads_batch) = (n, n);
            // Includes prompts, restored states, and the tokens after them.
            logits(name, &model, &params, true)
        };
        let one = run(1);
        for &&n in numbers {
            assert!(bits(&run(n)).eq(bits(&one)), "{name}: different bits with {n} threads");
        }
    }
}
