//! Models with repacked CPU weights. Logits match the original layout up to rounding, generated text is identical, and
//! results are bit-identical for any number of threads.

use std::path::Path;
use std::sync::Arc;

use engine::context::{Context, ContextParams};
use engine::model::{Consumer, LoadParams, Model, TensorOverride};
use engine::synth::{Mix, ModelShape, Synth, SynthParams};
use kernels::GgmlType::{self, Q4_0, Q8_0};
use kernels::{Precision, interleaved};
use tests::layouts::{NAMES, assert_as_in_file, lora, model, repacked};
use tests::{decode_last, decode_one, divide_rows, nmse, seeded_file, tokens};

/// NMSE allowed for a different summation order.
const ROUNDING: f64 = 1e-9;

fn loading(repack: bool) -> LoadParams {
    let mut load = LoadParams::default();
    load.placement.repack = repack;
    load
}

fn settings(precision: Precision, n_threads: usize) -> ContextParams {
    ContextParams {
        n_threads,
        n_threads_batch: n_threads,
        precision,
        type_k: GgmlType::F32,
        type_v: GgmlType::F32,
        ..ContextParams::default()
    }
}

fn logits(name: &str, model: &Arc<Model>, precision: Precision, n_threads: usize) -> Vec<f32> {
    let params = settings(precision, n_threads);
    let logits = engine::conformance::all_logits(model.clone(), &tokens(name), &params);
    logits.unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn repacked_matrices_match_logits() {
    for name in NAMES {
        for ty in [Q4_0, Q8_0] {
            let bytes = seeded_file(name, Some(ty));
            let (plain, packed) = (model(&bytes, &loading(false)), model(&bytes, &loading(true)));
            assert!(repacked(&plain).is_empty());
            let rows = repacked(&packed);
            for (i, row) in packed.tensors().iter().enumerate() {
                let is_matrix = matches!(row.consumer, Consumer::MulMat | Consumer::MulMatId);
                let can_be = interleaved::can_interleave(row.ty, row.ne[0]) && row.ne[1].is_multiple_of(8);
                assert!(is_matrix || !rows.contains(&i), "{name}: {row:?}");
                assert!(can_be || !rows.contains(&i), "{name}: {row:?}");
            }
            assert!(rows.len() > 2, "{name}: {} repacked", rows.len());
            for precision in [Precision::High, Precision::Fast] {
                let expected = logits(name, &plain, precision, 2);
                let found = logits(name, &packed, precision, 2);
                let error = nmse(&expected, &found);
                assert!(error <= ROUNDING, "{name}, {ty}, {precision:?}: {error:.2e}");
            }
        }
    }
}

#[test]
fn logits_are_independent_of_thread_count() {
    for name in ["llama-dense", "llama-moe", "deepseek2-moe"] {
        let packed = model(&seeded_file(name, Some(Q4_0)), &loading(true));
        for precision in [Precision::High, Precision::Fast, Precision::Exact] {
            let expected = logits(name, &packed, precision, 1);
            for n_threads in [2, 3] {
                let found = logits(name, &packed, precision, n_threads);
                assert!(found == expected, "{name}, {precision:?}, {n_threads} threads");
            }
        }
    }
}

/// Writes a random model with the type mix of a published file.
fn synth(dir: &Path, arch: &str, mix: &str, settings: &[(&str, f64)]) -> std::path::PathBuf {
    let params = SynthParams {
        shape: *ModelShape::find("tiny").unwrap(),
        settings: settings.iter().map(|(name, x)| ((*name).to_owned(), *x)).collect(),
        mix: Mix::find(mix).unwrap(),
        output: None,
        seed: 7,
    };
    let path = dir.join(format!("{arch}-{mix}.gguf"));
    let synth = Synth::new(archs::find(arch).unwrap().arch, archs::ALL, &params).unwrap();
    synth.write(&path).unwrap();
    path
}

/// Returns the greedy tokens after a prompt.
fn greedy(model: &Arc<Model>) -> Vec<u32> {
    let params = ContextParams {
        n_ctx: 64,
        ..settings(Precision::High, 2)
    };
    let mut ctx = Context::new(model.clone(), &params).unwrap();
    let prompt: Vec<u32> = (300..320).collect();
    let mut row = decode_last(&mut ctx, &prompt, 0, 0);
    let mut text = Vec::new();
    for pos in prompt.len()..prompt.len() + 32 {
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        text.push(best as u32);
        row = decode_one(&mut ctx, best as u32, pos, 0);
    }
    text
}

#[test]
fn greedy_text_matches_plain_layout() {
    let dir = tempfile::tempdir().unwrap();
    let experts: &[(&str, f64)] = &[("n_expert", 8.0), ("n_expert_used", 2.0)];
    for (arch, mix, settings) in [
        ("llama", "q4_k_m", &[][..]),
        ("llama", "q4_0", experts),
        ("qwen3", "q8_0", &[]),
        ("gemma3", "q5_k_m", &[]),
    ] {
        let path = synth(dir.path(), arch, mix, settings);
        let load = |repack| Arc::new(Model::load(&path, archs::ALL, &loading(repack)).unwrap());
        let packed = load(true);
        assert!(!repacked(&packed).is_empty(), "{arch}, {mix}");
        assert_eq!(greedy(&packed), greedy(&load(false)), "{arch}, {mix}");
    }
}

/// A tied embedding has two copies: rows are looked up in the mapped file, and matmuls use the repacked copy.
#[test]
fn tied_embedding_is_mapped_and_repacked() {
    let dir = tempfile::tempdir().unwrap();
    let path = synth(dir.path(), "llama", "q4_k_m", &[]);
    let model = Model::load(&path, archs::ALL, &loading(true)).unwrap();
    let table = |consumer| {
        let mut rows = model.tensors().iter();
        rows.position(|row| row.name == "token_embd.weight" && row.consumer == consumer)
            .unwrap()
    };
    let (read, multiplied) = (table(Consumer::GetRows), table(Consumer::MulMat));
    let layout = |i: usize| model.placement().parts[i][0].layout;
    assert!(layout(read).is_plain() && !layout(multiplied).is_plain());
    assert_eq!(model.tensor_data(read).unwrap(), model.tensor_data(multiplied).unwrap());
    // Only repacked weights take additional memory.
    let of_repacked: usize = repacked(&model).iter().map(|&i| model.tensors()[i].file_bytes()).sum();
    assert_eq!(model.own_bytes(), of_repacked);
}

/// Without memory mapping, a single copy of a tied embedding serves lookups and matmuls, in any type and
/// layout.
#[test]
fn unmapped_tied_embedding_has_one_copy() {
    let dir = tempfile::tempdir().unwrap();
    for mix in ["q4_k_m", "q8_0", "q4_0"] {
        let path = synth(dir.path(), "llama", mix, &[]);
        let load = |mmap, repack| {
            let load = LoadParams {
                mmap,
                ..loading(repack)
            };
            Arc::new(Model::load(&path, archs::ALL, &load).unwrap())
        };
        let (mapped, read) = (load(true, true), load(false, true));
        let is_table = |i: &usize| read.tensors()[*i].name == "token_embd.weight";
        let tables: Vec<usize> = repacked(&read).into_iter().filter(is_table).collect();
        assert_eq!(tables.len(), 2, "{mix}: looked up and multiplied");
        assert_eq!(
            read.tensor_data(tables[0]).unwrap(),
            read.tensor_data(tables[1]).unwrap()
        );
        let slack = 64 * read.tensors().len();
        assert!(read.own_bytes() < read.n_bytes() + slack, "{mix}: {}", read.own_bytes());
        let plain = load(false, false);
        assert!(plain.own_bytes() < plain.n_bytes() + slack);
        assert_eq!(greedy(&read), greedy(&mapped), "{mix}");
        assert_eq!(greedy(&plain), greedy(&mapped), "{mix}, file layout");
    }
}

/// Covers mapped, read, and sharded files. Without mapping, no part of the file stays in memory in addition to the
/// copies.
#[test]
fn every_load_mode_repacks() {
    let dir = tempfile::tempdir().unwrap();
    let path = synth(dir.path(), "llama", "q4_k_m", &[]);
    let load = |mmap, check_tensors| {
        let load = LoadParams {
            mmap,
            check_tensors,
            ..loading(true)
        };
        Arc::new(Model::load(&path, archs::ALL, &load).unwrap())
    };
    let mapped = load(true, false);
    let text = greedy(&mapped);
    for (mmap, check_tensors) in [(true, true), (false, false), (false, true)] {
        let model = load(mmap, check_tensors);
        assert_eq!(greedy(&model), text, "mapped: {mmap}, checked: {check_tensors}");
        assert_eq!(model.fingerprint(), mapped.fingerprint());
        if !mmap {
            let stored: usize = model.placement_summary().bytes.iter().map(|(_, n)| n).sum();
            assert!(model.own_bytes() >= stored && model.own_bytes() < stored + 64 * model.tensors().len());
        }
    }
}

/// Returns the resident bytes of a mapped file, or `None` if it is not mapped.
#[cfg(target_os = "linux")]
fn resident(path: &Path) -> Option<usize> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines();
    lines.find(|line| line.ends_with(path.to_str().unwrap()))?;
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let kib: usize = rss.trim().strip_suffix("kB").unwrap().trim().parse().unwrap();
    Some(kib << 10)
}

#[cfg(target_os = "linux")]
#[test]
fn repacked_pages_of_file_are_released() {
    let dir = tempfile::tempdir().unwrap();
    let path = synth(dir.path(), "llama", "q4_0", &[("n_ff", 8192.0)]);
    let size = std::fs::metadata(&path).unwrap().len() as usize;
    assert!(size > 6 << 20);
    let load = |repack, mmap, check_tensors| {
        let load = LoadParams {
            mmap,
            check_tensors,
            ..loading(repack)
        };
        Model::load(&path, archs::ALL, &load).unwrap()
    };
    for check_tensors in [false, true] {
        let model = load(true, true, check_tensors);
        let left = resident(&path).unwrap();
        assert!(left < size / 8, "{left} of {size} bytes remain resident");
        assert!(model.own_bytes() < size);
        drop(model);
        let model = load(true, false, check_tensors);
        assert_eq!(resident(&path), None, "not mapped");
        assert!(model.own_bytes() < size + size / 8);
    }
    let in_place = load(false, true, true);
    assert_eq!(in_place.own_bytes(), 0);
}

/// A tensor with an explicit placement is repacked for that memory, or keeps its layout if none fits.
#[test]
fn explicitly_placed_tensors_are_repacked() {
    let mut load = loading(true);
    load.placement.overrides = vec![TensorOverride {
        pattern: "ffn|token_embd".parse().unwrap(),
        buffer_type: "CPU".to_owned(),
    }];
    let bytes = seeded_file("llama-moe", Some(Q4_0));
    let (placed, anyhow) = (model(&bytes, &load), model(&bytes, &loading(true)));
    assert_eq!(repacked(&placed), repacked(&anyhow));
    let expected = logits("llama-moe", &anyhow, Precision::High, 2);
    assert!(logits("llama-moe", &placed, Precision::High, 2) == expected);
}

/// The parts of a split matrix have the layouts of their devices.
#[test]
fn split_matrices_are_repacked_in_part() {
    let name = "llama-dense";
    let bytes = seeded_file(name, Some(Q4_0));
    let divided = |repack| {
        let mut load = loading(repack);
        divide_rows(&mut load, usize::MAX, &[1.0, 1.0]);
        model(&bytes, &load)
    };
    let packed = divided(true);
    let is_divided = |i: &usize| packed.placement().parts[*i].len() == 2;
    assert!(repacked(&packed).iter().any(is_divided));
    let expected = logits(name, &divided(false), Precision::High, 2);
    let error = nmse(&expected, &logits(name, &packed, Precision::High, 2));
    assert!(error <= ROUNDING, "{error:.2e}");
}

/// Adapters apply and states restore regardless of the weight layout.
#[test]
fn adapters_and_states_are_independent_of_layout() {
    let name = "llama-dense";
    let bytes = seeded_file(name, Some(Q8_0));
    let text = tokens(name);
    let (first, rest) = text.split_at(text.len() / 2);
    let run = |repack_first: bool, repack_then: bool| {
        let models = [repack_first, repack_then].map(|repack| model(&bytes, &loading(repack)));
        let open = |model: &Arc<Model>| {
            let params = ContextParams {
                n_ctx: 96,
                ..settings(Precision::High, 2)
            };
            let mut ctx = Context::new(model.clone(), &params).unwrap();
            ctx.set_adapters(&[(lora(model, "blk.0.attn_q.weight"), 1.0)]).unwrap();
            ctx
        };
        let mut ctx = open(&models[0]);
        let before = decode_last(&mut ctx, first, 0, 0);
        let mut state = Vec::new();
        ctx.save_state(&mut state).unwrap();
        let mut ctx = open(&models[1]);
        ctx.load_state(&state).unwrap();
        [before, decode_last(&mut ctx, rest, first.len(), 0)].concat()
    };
    let expected = run(false, false);
    for (first, then) in [(true, true), (false, true), (true, false)] {
        let error = nmse(&expected, &run(first, then));
        assert!(error <= ROUNDING, "repacked: {first}, then {then}: {error:.2e}");
    }
}

/// Every row of the table reads back as in the file.
#[test]
fn repacked_tensors_read_back_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    for mix in [
        "q4_k_m", "q5_k_m", "q4_0", "q8_0", "q5_0", "iq4_nl", "q3_K", "q2_K", "mxfp4",
    ] {
        let path = synth(dir.path(), "llama", mix, &[]);
        let bytes = std::fs::read(&path).unwrap();
        let model = Model::load(&path, archs::ALL, &loading(true)).unwrap();
        assert_as_in_file(mix, &bytes, &model);
    }
}
