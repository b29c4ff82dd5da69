//! Whole models whose weights are stored in another layout than the file's: the same bits come out, and what is read back is the file.

use std::sync::Arc;

use engine::backend::reference::ReferenceDevice;
use engine::context::Context;
use engine::model::{Consumer, DeviceLayers, LoadParams, Model, SplitMode};
use kernels::GgmlType;
use tests::layouts::{NAMES, assert_as_in_file, lora, model, repacked};
use tests::{exact, fixture, seeded_file};

/// All layers on a device that has weights interleaved if `repack` says so.
fn on_device(repack: bool) -> LoadParams {
    let mut load = exact().load;
    load.placement.devices = vec![Arc::new(ReferenceDevice::interleaving(1 << 28))];
    load.placement.n_layers = DeviceLayers::Count(usize::MAX);
    load.placement.repack = repack;
    load
}

/// As [`on_device`], with the rows of matrices divided between the device and the CPU.
fn divided(repack: bool) -> LoadParams {
    let mut load = on_device(repack);
    load.placement
        .devices
        .insert(0, engine::backend::device("cpu").unwrap());
    load.placement.split_mode = SplitMode::Row;
    load.placement.tensor_split = vec![1.0, 1.0];
    load
}

fn logits(name: &str, model: &Arc<Model>) -> Vec<f32> {
    let logits = engine::conformance::all_logits(model.clone(), &tests::tokens(name), &exact().context);
    logits.unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn repacked_weights_give_the_same_bits() {
    for name in NAMES {
        for ty in [None, Some(GgmlType::Q4_0)] {
            let bytes = seeded_file(name, ty);
            let plain = model(&bytes, &on_device(false));
            assert!(repacked(&plain).is_empty());
            let packed = model(&bytes, &on_device(true));
            let rows = repacked(&packed);
            assert!(rows.len() > 2, "{name}: {} repacked", rows.len());
            for &i in &rows {
                let row = &packed.tensors()[i];
                assert!(
                    matches!(row.consumer, Consumer::MulMat | Consumer::MulMatId),
                    "{name}: {row:?}"
                );
                assert!(row.ne[1].is_multiple_of(4), "{name}: {row:?}");
            }
            assert_as_in_file(name, &bytes, &packed);
            let (expected, found) = (logits(name, &plain), logits(name, &packed));
            let same = expected.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && !found.is_empty(), "{name}: other logits");
        }
    }
}

/// Each part of a divided matrix has the layout that its device likes.
#[test]
fn parts_of_a_matrix_have_layouts_of_their_own() {
    let name = "llama-dense";
    let bytes = seeded_file(name, Some(GgmlType::Q4_0));
    let packed = model(&bytes, &divided(true));
    let is_mixed = |i: &usize| {
        let parts = &packed.placement().parts[*i];
        parts.len() == 2 && parts[0].layout != parts[1].layout
    };
    assert!(repacked(&packed).iter().any(is_mixed));
    assert_as_in_file(name, &bytes, &packed);
    assert_eq!(logits(name, &packed), logits(name, &model(&bytes, &divided(false))));
}

/// A table whose rows are read and that is also the output's matrix is stored twice: plain, and as products like it.
#[test]
fn a_tied_table_is_read_plain_and_multiplied_repacked() {
    let bytes = seeded_file("gemma2-dense", None);
    let packed = model(&bytes, &on_device(true));
    let rows = packed.tensors().iter().enumerate();
    let tied: Vec<_> = rows.filter(|(_, row)| row.name == "token_embd.weight").collect();
    let [(read, _), (multiplied, _)] = tied[..] else {
        panic!("{} uses of the table", tied.len());
    };
    let layout = |i: usize| packed.placement().parts[i][0].layout;
    assert!(layout(read).is_plain() && !layout(multiplied).is_plain());
    assert_eq!(
        packed.tensor_data(read).unwrap(),
        packed.tensor_data(multiplied).unwrap()
    );
}

/// From a mapped file, from one that is read, from several; with every value checked.
#[test]
fn any_way_of_loading_repacks() {
    let dir = tempfile::tempdir().unwrap();
    let name = "llama-moe";
    let expected = logits(name, &model(&seeded_file(name, None), &on_device(false)));
    for (n_files, mmap) in [(1, true), (1, false), (3, true), (3, false)] {
        let first = fixture(name).write_files(dir.path(), 1, n_files).unwrap();
        let mut load = on_device(true);
        load.mmap = mmap;
        load.check_tensors = true;
        let packed = Arc::new(Model::load(&first, archs::ALL, &load).unwrap());
        assert!(!repacked(&packed).is_empty());
        assert_eq!(logits(name, &packed), expected, "{n_files} files, mapped: {mmap}");
    }
}

/// Low-rank terms are added to the products of a repacked matrix as to any other.
#[test]
fn adapters_apply_to_repacked_weights() {
    let name = "llama-dense";
    let bytes = seeded_file(name, None);
    let run = |repack: bool| {
        let model = model(&bytes, &on_device(repack));
        let adapter = lora(&model, "blk.0.attn_q.weight");
        let mut params = exact().context;
        params.n_ctx = 96;
        let mut ctx = Context::new(model, &params).unwrap();
        let tokens = tests::tokens(name);
        let without = tests::decode_last(&mut ctx, &tokens, 0, 0);
        ctx.clear();
        ctx.set_adapters(&[(adapter, 1.0)]).unwrap();
        (without, tests::decode_last(&mut ctx, &tokens, 0, 0))
    };
    let (plain, packed) = (run(false), run(true));
    assert_ne!(packed.0, packed.1, "the adapter changes something");
    assert_eq!(plain, packed);
}

/// A state is the model's, wherever and however its weights are stored.
#[test]
fn a_saved_state_goes_on_with_another_layout() {
    let name = "llama-dense";
    let bytes = seeded_file(name, None);
    let tokens = tests::tokens(name);
    let (first, rest) = tokens.split_at(tokens.len() / 2);
    let mut one = tests::context(&model(&bytes, &on_device(false)), |_| ());
    tests::decode_last(&mut one, first, 0, 0);
    let mut state = Vec::new();
    one.save_state(&mut state).unwrap();
    let mut other = tests::context(&model(&bytes, &on_device(true)), |_| ());
    other.load_state(&state).unwrap();
    let go_on = |ctx: &mut Context| tests::decode_last(ctx, rest, first.len(), 0);
    assert_eq!(go_on(&mut other), go_on(&mut one));
}
