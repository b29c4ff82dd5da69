//! Where and how a model is computed does not change what it says: placement, loading, restored states, numbers of threads.

use engine::conformance::CheckParams;
use engine::context::{Batch, Context, SeqSet};
use engine::vocab::Token;
use tests::{exact, fixture, nmse, place_on};

/// Every configuration of the project's own data.
fn names() -> Vec<String> {
    let all = engine::conformance::fixtures(&tests::data_dir().join("archs")).expect("the folder is readable");
    all.into_iter().map(|f| f.name).collect()
}

/// What fixtures are run with here. GELU is not rounded: rounding would make of the last bit of a sum, which depends on the device
/// and on where cells lie, a thousandth of an activation.
fn params() -> CheckParams {
    let mut params = exact();
    params.context.half_gelu = false;
    params
}

/// Loads a fixture's model and computes the logits of all its tokens, `[n_tokens, n_vocab]`. With `restore`, the first half is
/// decoded in one context, and the second half in another one that was given the first one's state.
fn logits(name: &str, mut params: CheckParams, restore: bool) -> Vec<f32> {
    let model = (fixture(name).model(archs::ALL, &params)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let tokens = tests::tokens(name);
    params.context.n_ctx = tokens.len();
    params.context.n_outputs_max = tokens.len();
    let context = || Context::new(model.clone(), &params.context).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut ctx = context();
    // Without a memory there is no state, and no part of a batch on its own.
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

/// Logits of each of `tokens`, which continue sequence 0 at position `pos`.
fn decode(ctx: &mut Context, tokens: &[Token], pos: usize) -> Vec<f32> {
    let mut batch = Batch::new();
    for (i, &t) in tokens.iter().enumerate() {
        batch.push(t, pos + i, SeqSet::one(0), true);
    }
    ctx.decode(&batch).expect("the batch is decoded");
    let rows = (0..tokens.len()).map(|i| ctx.logits(i).expect("every token has output"));
    rows.flatten().copied().collect()
}

/// Runs every fixture in some way twice: the logits are those of the plain run, and the same bits both times.
fn check(way: &str, restore: bool, change: impl Fn(&str, &mut CheckParams)) {
    for name in &names() {
        let run = || {
            let mut params = params();
            change(name, &mut params);
            logits(name, params, restore)
        };
        let (plain, found) = (logits(name, params(), false), run());
        let error = nmse(&plain, &found);
        assert!(error < 1e-6, "{name}, {way}: NMSE {error:.3e}");
        let is_same = bits(&run()).eq(bits(&found));
        assert!(is_same, "{name}, {way}: other bits in a second run");
    }
}

fn bits(logits: &[f32]) -> impl Iterator<Item = u32> + '_ {
    logits.iter().map(|x| x.to_bits())
}

/// Layers of a fixture's model.
fn n_layers(name: &str) -> usize {
    let model = (fixture(name).model(archs::ALL, &exact())).unwrap_or_else(|e| panic!("{name}: {e}"));
    model.base().n_layer()
}

#[test]
fn half_of_the_layers_on_another_device() {
    check("half on reference", false, |name, p| {
        place_on(&mut p.load, "reference", 1 + n_layers(name) / 2);
    });
}

#[test]
fn all_layers_on_another_device() {
    check("all on reference", false, |name, p| {
        place_on(&mut p.load, "reference", 1 + n_layers(name));
    });
}

#[test]
fn weights_that_are_read_and_not_mapped() {
    check("without mmap", false, |_, p| p.load.mmap = false);
}

#[test]
fn states_restored_in_the_middle() {
    check("restored", true, |_, _| ());
    check("half on reference, restored", true, |name, p| {
        place_on(&mut p.load, "reference", 1 + n_layers(name) / 2);
    });
}

/// Every number is computed by one thread in one order, whichever thread it is.
#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for name in &names() {
        let run = |n: usize| {
            let mut params = params();
            (params.context.n_threads, params.context.n_threads_batch) = (n, n);
            // Prompts of several tokens and, restored, what follows them.
            logits(name, params, true)
        };
        let one = run(1);
        for n in [2, 3] {
            assert!(bits(&run(n)).eq(bits(&one)), "{name}: other bits with {n} threads");
        }
    }
}
