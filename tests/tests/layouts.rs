//! Models with repacked weights give bit-identical results, and their tensors read back as in the file.

use std::sync::Arc;

use engine::backend::reference::ReferenceDevice;
use engine::context::Context;
use engine::model::{Consumer, DeviceLayers, LoadParams, Model, SplitMode};
use kernels::GgmlType;
use tests::layouts::{NAMES, assert_as_in_file, lora, model, repacked};
use tests::{exact, fixture, seeded_file};

/// Places all layers on a device, which repacks the weights if `repack` is set.
fn on_device(repack: bool) -> LoadParams {
    let mut load = exact().load;
    load.placement.devices = vec![Arc::new(ReferenceDevice::interleaving(1 << 28))];
    load.placement.n_layers = DeviceLayers::Count(usize::MAX);
    load.placement.repack = repack;
    load
}

/// Like [`on_device`], with matrix rows split between the device and the CPU.
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
fn repacked_weights_are_bit_identical() {
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
            assert!(same && !found.is_empty(), "{name}: logits differ");
        }
    }
}

/// Each part of a split matrix has the layout of its device.
#[test]
fn matrix_parts_have_separate_layouts() {
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

/// A tied embedding is stored twice: in the file's layout for lookups, and repacked for matmuls.
#[test]
fn tied_embedding_has_two_layouts() {
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

/// Covers mapped, read, and sharded files, with and without value checks.
#[test]
fn every_load_mode_repacks() {
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

/// Low-rank terms apply to repacked matrices.
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
    assert_ne!(packed.0, packed.1, "the adapter changes the logits");
    assert_eq!(plain, packed);
}

/// A saved state does not depend on the weight layout and device.
#[test]
fn saved_state_restores_with_other_layout() {
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
