//! Malicious model files: missing, mistyped, absurd, or contradictory keys and tensors. Each file is either rejected
//! with an error, or loads and decodes. The engine never panics, and time and memory stay proportional to the file
//! size.

#[path = "../../../engine/tests/counting/mod.rs"]
mod counting;
mod draft;
mod vocabularies;

use draft::{Draft, NOT_WRITTEN, Outcome, outcome, outcome_with};
use engine::gguf::{Array, Gguf, StringArray, Value};
use engine::random::SplitMix64;
use kernels::GgmlType;
use tests::{Runs, fixture_names, in_every_way, in_one_way_each};

/// Returns values to set keys to, regardless of their type.
fn lies() -> Vec<Value> {
    let mut values: Vec<Value> = [0, 1, 2, 3, 5, 7, 48, 1 << 16, 1 << 20, 1 << 28, u32::MAX >> 1, u32::MAX]
        .map(Value::U32)
        .to_vec();
    values.extend([1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX].map(Value::U64));
    values.extend([-1, i64::MIN].map(Value::I64));
    values.extend([0.0, -1.0, 1e-40, 1e38, f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(Value::F32));
    values.extend([f64::MAX, f64::NAN].map(Value::F64));
    values.extend([true, false].map(Value::Bool));
    values.extend(["", "x", "yarn"].map(Value::from));
    values.push(Value::String(b"\xff\xfe"[..].into()));
    values.extend([
        Value::Array(Array::U32(vec![])),
        Value::Array(Array::U32(vec![u32::MAX; 2])),
        Value::Array(Array::U32(vec![2, 0])),
        Value::Array(Array::I32(vec![-1, 1])),
        Value::Array(Array::F32(vec![f32::NAN, -1.0])),
        Value::Array(Array::String(["a", "b", "c"].iter().collect::<StringArray>())),
        Value::Array(Array::Nested(vec![Array::U8(vec![1]), Array::U8(vec![])])),
    ]);
    values
}

/// Returns the keys of a draft, and keys that no fixture has but an architecture may read.
fn keys(draft: &Draft) -> Vec<String> {
    let extra = [
        "rope.scaling.factor",
        "rope.scale_linear",
        "attention.scale",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "final_logit_softcapping",
        "expert_count",
        "expert_used_count",
        "rope.freq_base_swa",
    ];
    let mut keys: Vec<String> = draft.metadata.iter().map(|(key, _)| key.to_owned()).collect();
    keys.extend(extra.map(|key| format!("{}.{key}", draft.arch)));
    keys.push("general.alignment".to_owned());
    keys.push("tokenizer.chat_template".to_owned());
    keys.sort();
    keys.dedup();
    keys
}

/// Returns true if an error names the key, or a tensor or key that conflicts with it.
fn names_something(sentence: &str, key: &str) -> bool {
    let bare = key.split_once('.').map_or(key, |(_, bare)| bare);
    // The writer itself rejects some alignments.
    let named = [bare, "tensor `", "tensor \"", "key `", "key \""];
    sentence == NOT_WRITTEN || named.iter().any(|n| sentence.contains(n))
}

#[test]
fn unmodified_drafts_load() {
    for name in &fixture_names() {
        assert_eq!(Draft::full(name).outcome(name), Outcome::Ran, "{name}");
        assert_eq!(Draft::small(name).outcome(name), Outcome::Ran, "{name}, small");
    }
}

#[test]
fn missing_or_absurd_keys_are_rejected_or_harmless() {
    lie_about_keys(1);
}

#[test]
#[ignore = "tests eight values of each key of each fixture"]
fn missing_or_absurd_keys_are_rejected_or_harmless_in_many_ways() {
    lie_about_keys(8);
}

/// Removes each key and sets it to bad values, limited to `n_lies` per fixture.
fn lie_about_keys(n_lies: usize) {
    let (mut n_refused, mut n_ran) = (0, 0);
    let mut silent = Vec::new();
    for (i, name) in fixture_names().iter().enumerate() {
        let draft = Draft::small(name);
        for (k, key) in keys(&draft).into_iter().enumerate() {
            let values = lies();
            let n_values = values.len();
            let told = |(l, _): &(usize, Value)| (i + k + l) % n_values < n_lies;
            let lying = values.into_iter().enumerate().filter(told);
            let lying = lying.map(|(_, v)| (v.describe(), draft.with(&key, v)));
            let missing = ("missing".to_owned(), draft.without(&key));
            for (value, draft) in lying.chain([missing]) {
                let what = format!("{name}: {key} = {value}");
                match draft.outcome(&what) {
                    Outcome::Ran => n_ran += 1,
                    Outcome::Refused(sentence) => {
                        n_refused += 1;
                        if !names_something(&sentence, &key) {
                            silent.push(format!("{what}: {sentence}"));
                        }
                    }
                }
            }
        }
    }
    println!("{n_refused} rejected, {n_ran} harmless");
    assert!(silent.is_empty(), "{}", silent.join("\n"));
    assert!(n_refused > 1000 && n_ran > 1000);
}

/// Combines several bad values, because one error can hide another.
#[test]
fn combined_bad_values_are_rejected_or_harmless() {
    combine_bad_values(1000);
}

#[test]
#[ignore = "tests 3000 combinations"]
fn combined_bad_values_are_rejected_or_harmless_in_many_ways() {
    combine_bad_values(3000);
}

fn combine_bad_values(n_cases: usize) {
    let (values, names) = (lies(), fixture_names());
    let mut random = SplitMix64(0x9e37_79b9_7f4a_7c15);
    for case in 0..n_cases {
        let name = &names[case % names.len()];
        let mut draft = Draft::small(name);
        let keys = keys(&draft);
        let hparams: Vec<&String> = keys.iter().filter(|k| k.starts_with(&draft.arch)).collect();
        let mut what = format!("case {case}, {name}:");
        for _ in 0..2 + random.below(3) {
            let (key, value) = (
                hparams[random.below(hparams.len())],
                &values[random.below(values.len())],
            );
            what += &format!(" {key} = {}", value.describe());
            draft.metadata.insert(key.as_str(), value.clone());
        }
        draft.outcome(&what);
    }
}

#[test]
fn huge_training_context_is_rejected() {
    for length in [1 << 31, 1 << 40, (1u64 << 62) - 1, u64::MAX >> 1] {
        let draft = Draft::small("llama-dense").with("llama.context_length", length);
        let Outcome::Refused(sentence) = outcome_with(&length.to_string(), &draft.bytes(0).unwrap(), 0) else {
            panic!("allocating {length} cells succeeded");
        };
        assert!(
            sentence.contains("n_ctx") && sentence.contains(&length.to_string()),
            "{sentence}"
        );
    }
}

#[test]
fn invalid_tensors_are_rejected() {
    lie_about_tensors(4);
}

#[test]
#[ignore = "tests every change of each tensor of each fixture"]
fn invalid_tensors_are_rejected_in_every_variant() {
    lie_about_tensors(1);
}

/// Removes each tensor, and applies every `step`-th of the other changes.
fn lie_about_tensors(step: usize) {
    for (fixture, name) in fixture_names().iter().enumerate() {
        let draft = Draft::small(name);
        for i in 0..draft.tensors.len() {
            let tensor = draft.tensors[i].0.clone();
            let mut lies: Vec<(&str, Draft)> = Vec::new();
            let mut lie = |what, change: &dyn Fn(&mut Draft)| {
                let mut lying = draft.clone();
                change(&mut lying);
                lies.push((what, lying));
            };
            lie("missing", &|d| drop(d.tensors.remove(i)));
            lie("renamed", &|d| d.tensors[i].0.insert(0, 'x'));
            lie("in another layer", &|d| {
                d.tensors[i].0 = d.tensors[i].0.replace("blk.0", "blk.7").replace("blk.1", "blk.0")
            });
            lie("transposed", &|d| d.tensors[i].2.reverse());
            lie("flat", &|d| d.tensors[i].2 = vec![d.tensors[i].2.iter().product()]);
            lie("of one element", &|d| d.tensors[i].2 = vec![1]);
            lie("of 4 dimensions", &|d| d.tensors[i].2.resize(4, 2));
            for dim in 0..draft.tensors[i].2.len() {
                lie("longer", &|d| d.tensors[i].2[dim] += 1);
                lie("shorter", &|d| d.tensors[i].2[dim] = (d.tensors[i].2[dim] - 1).max(1));
                lie("twice as long", &|d| d.tensors[i].2[dim] *= 2);
            }
            // Always remove each tensor, because the required tensors depend on the architecture.
            let told = |l: usize| l == 0 || (fixture + i + l).is_multiple_of(step);
            for (_, (lie, lying)) in lies.into_iter().enumerate().filter(|(l, _)| told(*l)) {
                let what = format!("{name}: {tensor} {lie}");
                if let Outcome::Refused(sentence) = lying.outcome(&what) {
                    let bare = tensor.trim_end_matches(".weight").trim_end_matches(".bias");
                    let bare = bare.rsplit('.').next().unwrap_or(bare);
                    // Without a fused tensor, its parts are reported as missing; for `attn_kv_b`, both.
                    let parts = bare
                        .strip_suffix("kv_b")
                        .map(|s| [format!("{s}k_b"), format!("{s}v_b")]);
                    let has_parts = parts.is_some_and(|parts| parts.iter().all(|part| sentence.contains(part)));
                    let bare = bare.strip_suffix("kv").unwrap_or(bare);
                    let named = sentence == NOT_WRITTEN || has_parts || sentence.contains(bare);
                    assert!(named, "{what}: {sentence}");
                }
            }
        }
    }
}

/// Tests fused projections whose parts or bias may be too short.
#[test]
fn mismatched_fused_projections_are_rejected() {
    let mut draft = Draft::small("llama-dense");
    for il in 0..2 {
        let part = |name: &str| format!("blk.{il}.{name}");
        let gone = ["attn_q", "attn_k", "attn_v"].map(|n| [part(&format!("{n}.weight")), part(&format!("{n}.bias"))]);
        draft.tensors.retain(|(name, ..)| !gone.as_flattened().contains(name));
        draft
            .tensors
            .push((part("attn_qkv.weight"), GgmlType::F32, vec![64, 192]));
        draft.tensors.push((part("attn_qkv.bias"), GgmlType::F32, vec![192]));
    }
    assert_eq!(draft.outcome("sound"), Outcome::Ran);
    let last = draft.tensors.len() - 1;
    for (tensor, shapes) in [
        (
            last,
            &[&[1][..], &[191], &[193], &[64], &[192, 2], &[1, 192], &[3, 64]][..],
        ),
        (
            last - 1,
            &[
                &[64, 191],
                &[64, 193],
                &[64],
                &[192, 64],
                &[64, 192, 2],
                &[64, 64, 3],
                &[32, 192],
            ],
        ),
    ] {
        for shape in shapes {
            let mut lying = draft.clone();
            lying.tensors[tensor].2 = shape.to_vec();
            let what = format!("{} {shape:?}", lying.tensors[tensor].0);
            let Outcome::Refused(sentence) = lying.outcome(&what) else {
                panic!("{what} was accepted");
            };
            assert!(sentence.contains("blk.1.attn_qkv"), "{what}: {sentence}");
        }
    }
    for value in lies() {
        for key in ["head_count", "head_count_kv", "key_length", "value_length"] {
            let key = format!("llama.attention.{key}");
            draft
                .with(&key, value.clone())
                .outcome(&format!("fused, {key} = {}", value.describe()));
        }
    }
}

/// Sets every tensor of a layer to every type, with bytes that give huge, tiny, and NaN scales.
#[test]
fn other_tensor_types_are_rejected_or_harmless() {
    for name in ["llama-moe", "gemma3-dense"] {
        let draft = Draft::full(name);
        for i in 0..draft.tensors.len() {
            if draft.tensors[i].0.starts_with("blk.1") {
                continue;
            }
            for &ty in GgmlType::ALL {
                let mut lying = draft.clone();
                lying.tensors[i].1 = ty;
                let what = format!("{name}: {} of type {ty}", lying.tensors[i].0);
                let Some(bytes) = lying.bytes(0xff) else { continue };
                if let Outcome::Refused(sentence) = outcome(&what, &bytes) {
                    assert!(sentence.contains(&lying.tensors[i].0), "{what}: {sentence}");
                }
            }
        }
    }
}

/// Tests shapes, types, and offsets that the writer never produces.
#[test]
fn corrupted_tensor_infos_are_rejected_or_harmless() {
    for name in ["llama-moe", "gemma3-dense"] {
        let draft = Draft::small(name);
        let bytes = draft.bytes(0).unwrap();
        let header = Gguf::parse_header(&bytes).unwrap();
        for t in header.tensors() {
            let at = bytes
                .windows(t.name.len())
                .position(|w| w == t.name.as_bytes())
                .unwrap()
                + t.name.len();
            let n_dims = t.shape().len();
            let ty_at = at + 4 + 8 * n_dims;
            let mut lies: Vec<(usize, Vec<u8>)> = Vec::new();
            for n_dims in [0u32, 1, 2, 3, 4, 5, u32::MAX] {
                lies.push((at, n_dims.to_le_bytes().to_vec()));
            }
            let numbers = [0u64, 1, 31, 32, 33, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, u64::MAX];
            for place in (0..n_dims).map(|d| at + 4 + 8 * d).chain([ty_at + 4]) {
                lies.extend(numbers.map(|n| (place, n.to_le_bytes().to_vec())));
            }
            for ty in (0..64).chain([u32::MAX]) {
                lies.push((ty_at, ty.to_le_bytes().to_vec()));
            }
            for (place, with) in lies {
                let mut lying = bytes.clone();
                lying[place..place + with.len()].copy_from_slice(&with);
                outcome(&format!("{name}: {} {} bytes in: {with:?}", t.name, place - at), &lying);
            }
        }
    }
}

const ALIGNMENTS: [u32; 7] = [1, 2, 4, 8, 16, 64, 4096];

/// Weights may be at addresses that are not aligned for their types.
#[test]
fn unaligned_tensors_load_and_decode() {
    align_tensors(in_one_way_each(&ALIGNMENTS));
}

#[test]
#[ignore = "aligns each fixture in 28 ways"]
fn unaligned_tensors_of_every_fixture_load_and_decode() {
    align_tensors(in_every_way(&ALIGNMENTS));
}

fn align_tensors(runs: Runs<'_, u32>) {
    for (name, alignments) in runs {
        let draft = Draft::small(&name);
        for &alignment in alignments {
            for pad in 0..4 {
                // A longer name shifts all data by one byte.
                let draft = draft
                    .with("general.alignment", alignment)
                    .with("general.name", "x".repeat(pad));
                let what = format!("{name}: alignment {alignment}, {pad} extra bytes");
                assert_eq!(draft.outcome(&what), Outcome::Ran, "{what}");
            }
        }
    }
}

#[test]
fn truncated_files_are_rejected() {
    let bytes = Draft::small("qwen3-dense").bytes(0).unwrap();
    let data = Gguf::parse_header(&bytes).unwrap().data_offset();
    for len in (0..data)
        .step_by(61)
        .chain((data..bytes.len()).step_by(9973))
        .chain([bytes.len() - 1])
    {
        let what = format!("{len} of {} bytes", bytes.len());
        assert!(matches!(outcome(&what, &bytes[..len]), Outcome::Refused(_)), "{what}");
    }
}

/// Truncating a mapped file invalidates its pages, and accessing them would kill the process. Decoding checks
/// the file size first.
#[test]
#[cfg(unix)]
fn truncated_mapped_file_is_an_error() {
    use engine::context::{Batch, Context, ContextParams};
    use engine::model::{LoadParams, Model};

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shrinks.gguf");
    let bytes = Draft::small("qwen3-dense").bytes(0).unwrap();
    for mmap in [true, false] {
        std::fs::write(&path, &bytes).unwrap();
        let params = LoadParams {
            mmap,
            ..LoadParams::default()
        };
        let model = Model::load(&path, archs::ALL, &params).unwrap();
        let params = ContextParams {
            n_ctx: 32,
            ..ContextParams::default()
        };
        let mut context = Context::new(model.into(), &params).unwrap();
        let mut decode = |pos| {
            let mut batch = Batch::new();
            batch.push_prompt(&[0, 1], pos, 0);
            context.decode(&batch).map_err(|e| e.to_string())
        };
        decode(0).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(100).unwrap();
        let expected = format!(
            "{}: file was truncated while in use: expected {} bytes, found 100",
            path.display(),
            bytes.len()
        );
        assert_eq!(decode(2), if mmap { Err(expected) } else { Ok(()) });
        // The contents of a rewritten file may differ, so a mapped model keeps returning the error.
        std::fs::write(&path, &bytes).unwrap();
        let changed = format!(
            "{}: the file was changed while in use; load the model again",
            path.display()
        );
        assert_eq!(
            decode(if mmap { 2 } else { 4 }),
            if mmap { Err(changed) } else { Ok(()) }
        );
    }
}
