use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use kernels::GgmlType::{self, *};
use regex_lite::Regex;

use super::role_mixture::part;
use super::*;
use crate::gguf::{Gguf, GgufFile, GgufSet, GgufWriter};
use crate::importance::{Entry, ImportanceMatrix};

#[allow(clippy::duplicate_mod)]
#[path = "../../../tests/src/root.rs"]
mod root;

/// Returns a model with 16 layers whose matrices have rows of `n_in` elements.
fn model(n_in: usize, change: impl Fn(&str, &mut [f32])) -> GgufSet {
    let mut writer = GgufWriter::new();
    writer
        .set("general.architecture", "llama")
        .set("llama.block_count", 16u32);
    writer
        .set("llama.attention.head_count", 8u32)
        .set("llama.attention.head_count_kv", 4u32);
    let mut add = |name: &str, shape: &[usize]| {
        let n: usize = shape.iter().product();
        let mut x: Vec<f32> = (0..n).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 504.0).collect();
        change(name, &mut x);
        writer
            .add_tensor(name, F32, shape, bytemuck::cast_slice(&x).to_vec())
            .unwrap();
    };
    add("token_embd.weight", &[n_in, 8]);
    add("output.weight", &[n_in, 8]);
    add("output_norm.weight", &[n_in]);
    for layer in 0..16 {
        for kind in [
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_output",
            "ffn_up",
            "ffn_down",
            "ffn_gate_inp",
        ] {
            add(&format!("blk.{layer}.{kind}.weight"), &[n_in, 4]);
        }
        add(&format!("blk.{layer}.ffn_down_exps.weight"), &[n_in, 2, 2]);
        add(&format!("blk.{layer}.attn_norm.weight"), &[n_in]);
    }
    set(writer)
}

fn set(writer: GgufWriter<'_>) -> GgufSet {
    let file = GgufFile::from_bytes("model.gguf", &writer.to_bytes().unwrap()).unwrap();
    GgufSet::from_file(file).unwrap()
}

fn options(mixture: &str) -> Options {
    Options {
        mixture: Mixture::find(mixture).unwrap(),
        by_role: false,
        pure: false,
        keep_output: false,
        output: None,
        embedding: None,
        rules: Vec::new(),
        types: BTreeMap::new(),
        pruned: PrunedLayers::default(),
        allow_requantize: false,
        importance: None,
    }
}

fn type_of(plan: &QuantizePlan, name: &str) -> GgmlType {
    plan.tensors.iter().find(|tensor| tensor.name == name).unwrap().to
}

/// Writes and reads a file.
fn quantized(source: &GgufSet, options: &Options) -> Result<GgufSet, QuantizeError> {
    let plan = QuantizePlan::new(source, options)?;
    let mut bytes = Vec::new();
    QuantizedFile::new(source, &plan, &[]).write(None, &mut bytes, &|_| true)?;
    let file = GgufFile::from_bytes("quantized.gguf", &bytes)?;
    Ok(GgufSet::from_file(file)?)
}

/// The expected layers come from llama.cpp b11434 for a model with 16 layers.
#[test]
fn mixtures_give_sensitive_tensors_more_bits() {
    let source = model(256, |_, _| ());
    let layers = |mixture: &str, kind: &str, ty: GgmlType| -> Vec<usize> {
        let plan = QuantizePlan::new(&source, &options(mixture)).unwrap();
        let is = |layer: &usize| type_of(&plan, &format!("blk.{layer}.{kind}.weight")) == ty;
        (0..16).filter(is).collect()
    };
    let sensitive = [0, 1, 4, 7, 10, 13, 14, 15];
    assert_eq!(layers("q4_k_m", "attn_v", Q6_K), sensitive);
    assert_eq!(layers("q4_k_m", "ffn_down", Q6_K), sensitive);
    assert_eq!(layers("q4_k_m", "ffn_down_exps", Q6_K), sensitive);
    assert_eq!(layers("Q5_K_M", "ffn_down", Q6_K), sensitive);
    assert_eq!(layers("q4_k_s", "attn_v", Q5_K), [0, 1, 2, 3]);
    assert_eq!(layers("q4_k_s", "ffn_down", Q5_K), [0, 1]);
    assert_eq!(layers("q3_k_m", "attn_v", Q5_K), [0, 1]);
    assert_eq!(layers("q3_k_m", "ffn_down", Q5_K), [0]);
    assert_eq!(layers("q3_k_m", "attn_output", Q4_K).len(), 16);
    assert_eq!(layers("q3_k_l", "ffn_down", Q5_K).len(), 16);
    assert_eq!(layers("q2_k", "attn_v", Q3_K).len(), 16);
    assert_eq!(layers("q2_k_s", "ffn_down", Q4_K), [0, 1]);
    assert_eq!(layers("iq4_xs", "ffn_down", Q5_K), [0, 1]);
    assert_eq!(layers("iq4_k", "attn_v", Q5_K).len(), 16);
    assert_eq!(layers("iq4_ks", "ffn_down", Q5_K), [0, 1]);
    assert_eq!(layers("iq2_xxs", "attn_v", Q2_K).len(), 16);
    assert_eq!(layers("iq2_xxs", "ffn_down", Q2_K), [0, 1]);
    assert_eq!(layers("iq2_m", "attn_output", IQ3_S).len(), 16);
    assert_eq!(layers("iq1_s", "attn_output", IQ2_XXS).len(), 16);
    assert_eq!(layers("iq3_xxs", "ffn_down", Q4_K), [0, 1]);
    assert_eq!(layers("iq3_xxs", "attn_q", IQ2_S).len(), 16);
    assert_eq!(layers("iq3_xs", "ffn_up", IQ3_S), [0, 1, 14, 15]);
    assert_eq!(layers("mxfp4_moe", "ffn_down_exps", MXFP4).len(), 16);
    assert_eq!(layers("mxfp4_moe", "ffn_down", Q8_0).len(), 16);
    assert_eq!(layers("q4_k_m", "ffn_gate_inp", F32).len(), 16);
    for (mixture, output, embedding) in [
        ("q4_0", Q6_K, Q4_0),
        ("q8_0", Q8_0, Q8_0),
        ("tq1_0", Q6_K, Q4_K),
        ("iq1_m", Q5_K, Q2_K),
        ("iq3_m", Q6_K, IQ3_S),
        ("f16", F16, F16),
    ] {
        let plan = QuantizePlan::new(&source, &options(mixture)).unwrap();
        assert_eq!(type_of(&plan, "output.weight"), output, "{mixture}");
        assert_eq!(type_of(&plan, "token_embd.weight"), embedding, "{mixture}");
        assert_eq!(type_of(&plan, "output_norm.weight"), F32, "{mixture}");
    }
}

#[test]
fn options_override_the_mixture() {
    let source = model(256, |_, _| ());
    let mut options = options("q4_k_m");
    options.rules = vec![
        (Regex::new(r"^blk\.0\.ffn_down\.").unwrap(), Q8_0),
        (Regex::new("ffn_down").unwrap(), Q5_1),
    ];
    options.embedding = Some(Q5_0);
    options.output = Some(F16);
    let plan = QuantizePlan::new(&source, &options).unwrap();
    assert_eq!(type_of(&plan, "blk.0.ffn_down.weight"), Q8_0);
    assert_eq!(type_of(&plan, "blk.0.ffn_down_exps.weight"), Q5_1);
    assert_eq!(type_of(&plan, "token_embd.weight"), Q5_0);
    assert_eq!(type_of(&plan, "output.weight"), F16);
    options.pure = true;
    options.keep_output = true;
    let plan = QuantizePlan::new(&source, &options).unwrap();
    assert_eq!(type_of(&plan, "blk.1.attn_v.weight"), Q4_K);
    assert_eq!(type_of(&plan, "output.weight"), F32);
}

#[test]
fn rows_without_whole_blocks_get_the_next_type() {
    let plan = QuantizePlan::new(&model(96, |_, _| ()), &options("q4_k_m")).unwrap();
    let tensor = plan
        .tensors
        .iter()
        .find(|tensor| tensor.name == "blk.3.ffn_up.weight")
        .unwrap();
    assert_eq!((tensor.to, tensor.wanted), (Q5_0, Some(Q4_K)));
    assert_eq!(tensor.bytes, 4 * 3 * 22);
    assert_eq!(type_of(&plan, "output.weight"), Q8_0);
    let plan = QuantizePlan::new(&model(40, |_, _| ()), &options("q4_k_m")).unwrap();
    assert_eq!(type_of(&plan, "blk.3.ffn_up.weight"), F16);
}

#[test]
fn written_file_has_planned_types_and_close_weights() {
    let source = model(256, |_, _| ());
    for mixture in Mixture::names() {
        let options = options(mixture);
        let plan = QuantizePlan::new(&source, &options).unwrap();
        let file = quantized(&source, &options).unwrap();
        assert_eq!(file.n_tensors(), source.n_tensors());
        let file_type: u32 = file.metadata().require("general.file_type").unwrap();
        assert_eq!(file_type, options.mixture.file_type());
        assert_eq!(
            file.metadata().require::<u32>("general.quantization_version").unwrap(),
            2
        );
        for tensor in &plan.tensors {
            let (_, info) = file.tensor(&tensor.name).unwrap();
            assert_eq!(
                (info.ty, info.bytes, info.shape()),
                (tensor.to, tensor.bytes, &tensor.shape[..])
            );
            let mut floats = vec![0.0; info.n_elements()];
            let n_in = info.shape()[0];
            let rows = file.tensor_data(&tensor.name).unwrap();
            for (row, floats) in rows
                .chunks_exact(info.ty.row_bytes(n_in).unwrap())
                .zip(floats.chunks_exact_mut(n_in))
            {
                kernels::dequantize_row(info.ty, row, floats);
            }
            let original: &[f32] = bytemuck::cast_slice(source.tensor_data(&tensor.name).unwrap());
            let error: f32 = floats.iter().zip(original).map(|(a, b)| (a - b).powi(2)).sum();
            let size: f32 = original.iter().map(|x| x * x).sum();
            // One bit explains three quarters of a uniform distribution.
            assert!(error < 0.26 * size, "{mixture}, {}: {error} of {size}", tensor.name);
        }
    }
}

#[test]
fn non_finite_weights_are_rejected_with_position() {
    for (name, value) in [
        ("blk.2.ffn_down_exps.weight", f32::NAN),
        ("output_norm.weight", f32::INFINITY),
    ] {
        let source = model(256, |tensor, x| {
            if tensor == name {
                let at = x.len() - 3;
                x[at] = value;
            }
        });
        let error = quantized(&source, &options("q4_k_m")).unwrap_err();
        let row = if value.is_nan() { 3 } else { 0 };
        let expected =
            format!("tensor {name} has the value {value} in row {row}, column 253; the source file is damaged");
        assert_eq!(error.to_string(), expected);
    }
}

/// Returns an importance matrix with data for the queries and experts of all layers.
fn importance(n_in: usize) -> ImportanceMatrix {
    let mut matrix = ImportanceMatrix::default();
    let value = |i: usize| if i.is_multiple_of(7) { 100.0 } else { 0.1 };
    for layer in 0..16 {
        for (kind, counts) in [("attn_q", vec![3]), ("ffn_down_exps", vec![3, 0])] {
            let n = n_in * counts.len();
            let entry = Entry {
                squares: (0..n).map(|i| if i < n_in { value(i) } else { 0.0 }).collect(),
                sums: Vec::new(),
                counts,
            };
            matrix.entries.insert(format!("blk.{layer}.{kind}.weight"), entry);
        }
    }
    matrix
}

#[test]
fn importance_lowers_the_error_of_important_columns() {
    let source = model(256, |_, _| ());
    let mut weighted = options("q4_k_s");
    weighted.importance = Some(Arc::new(importance(256)));
    let files = [
        quantized(&source, &options("q4_k_s")).unwrap(),
        quantized(&source, &weighted).unwrap(),
    ];
    let error = |file: &GgufSet, name: &str| -> f64 {
        let (_, info) = file.tensor(name).unwrap();
        let mut floats = vec![0.0; info.n_elements()];
        kernels::dequantize_row(info.ty, file.tensor_data(name).unwrap(), &mut floats);
        let original: &[f32] = bytemuck::cast_slice(source.tensor_data(name).unwrap());
        let pairs = floats
            .iter()
            .zip(original)
            .enumerate()
            .filter(|(i, _)| i % 256 % 7 == 0);
        pairs.map(|(_, (a, b))| f64::from(a - b).powi(2)).sum()
    };
    // Keys have the input of queries. The second expert has no data.
    for name in [
        "blk.5.attn_q.weight",
        "blk.5.attn_k.weight",
        "blk.5.ffn_down_exps.weight",
    ] {
        let [plain, weighted] = [0, 1].map(|i| error(&files[i], name));
        assert!(weighted < 0.8 * plain, "{name}: {weighted} {plain}");
    }
    let name = "blk.5.ffn_up.weight";
    assert_eq!(files[0].tensor_data(name), files[1].tensor_data(name));
    let plan = QuantizePlan::new(&source, &weighted).unwrap();
    let planned = |name: &str| plan.tensors.iter().find(|tensor| tensor.name == name).unwrap();
    let experts = planned("blk.5.ffn_down_exps.weight");
    assert_eq!(
        (experts.n_filled, experts.weighted_by.as_ref()),
        (1, Some(&experts.name))
    );
    assert_eq!(
        planned("blk.5.attn_k.weight").weighted_by.as_deref(),
        Some("blk.5.attn_q.weight")
    );
}

#[test]
fn importance_of_another_model_is_rejected() {
    let source = model(256, |_, _| ());
    let refused = |matrix: ImportanceMatrix| {
        let mut options = options("q4_0");
        options.importance = Some(Arc::new(matrix));
        QuantizePlan::new(&source, &options).unwrap_err().to_string()
    };
    let error = refused(importance(512));
    assert!(
        error.contains("has 256 columns") && error.contains("another model"),
        "{error}"
    );
    let mut foreign = ImportanceMatrix::default();
    foreign
        .entries
        .insert("blk.99.attn_q.weight".to_owned(), Entry::default());
    assert!(refused(foreign).contains("none of the model's tensors"));
}

#[test]
fn quantized_sources_are_rejected_unless_allowed() {
    let source = quantized(&model(256, |_, _| ()), &options("q8_0")).unwrap();
    let error = QuantizePlan::new(&source, &options("q4_k_m")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("tensor token_embd.weight is already quantized (q8_0)"),
        "{error}"
    );
    let mut allowed = options("q4_k_m");
    allowed.allow_requantize = true;
    assert_eq!(
        quantized(&source, &allowed)
            .unwrap()
            .tensor("blk.2.ffn_up.weight")
            .unwrap()
            .1
            .ty,
        Q4_K
    );
    // Equal types are copied.
    let copied = quantized(&source, &options("q8_0")).unwrap();
    assert_eq!(copied.tensor_data("output.weight"), source.tensor_data("output.weight"));
}

#[test]
fn write_stops_on_request_and_reports_failed_writes() {
    let source = model(256, |_, _| ());
    let plan = QuantizePlan::new(&source, &options("q4_0")).unwrap();
    let file = QuantizedFile::new(&source, &plan, &[]);
    let error = file.write(None, &mut io::sink(), &|done| done < 5000).unwrap_err();
    assert!(matches!(error, QuantizeError::Stopped));
    let mut full = [0u8; 4096];
    let error = file.write(None, &mut &mut full[..], &|_| true).unwrap_err();
    assert!(matches!(error, QuantizeError::Gguf(_)), "{error}");
}

#[test]
fn write_continues_a_file_after_any_tensor() {
    let source = model(256, |_, _| ());
    let plan = QuantizePlan::new(&source, &options("q4_0")).unwrap();
    let file = QuantizedFile::new(&source, &plan, &[]);
    let mut whole = Vec::new();
    file.write(None, &mut whole, &|_| true).unwrap();
    let (header, ends) = file.layout().unwrap();
    assert_eq!(ends.len(), plan.tensors.len() + 1);
    assert_eq!(
        (ends[0], ends.last()),
        (header.len() as u64, Some(&(whole.len() as u64)))
    );
    assert!(whole.starts_with(&header));
    for n_done in [0, 1, 50, plan.tensors.len()] {
        let mut resumed = whole[..ends[n_done] as usize].to_vec();
        file.write(Some(n_done), &mut resumed, &|_| true).unwrap();
        assert_eq!(resumed, whole, "{n_done}");
    }
}

#[test]
fn types_of_tensors_replace_those_of_the_mixture_and_must_fit() {
    let source = model(256, |_, _| ());
    let mut options = options("q4_k_m");
    let name = "blk.3.ffn_up.weight";
    options.types = [(name.to_owned(), IQ3_S), ("output_norm.weight".to_owned(), F32)].into();
    let plan = QuantizePlan::new(&source, &options).unwrap();
    assert_eq!(type_of(&plan, name), IQ3_S);
    assert_eq!(type_of(&plan, "blk.4.ffn_up.weight"), Q4_K);
    options.rules = vec![(Regex::new("ffn_up").unwrap(), Q8_0)];
    assert_eq!(type_of(&QuantizePlan::new(&source, &options).unwrap(), name), Q8_0);
    for (name, ty) in [("blk.3.other.weight", Q4_K), ("blk.3.attn_q.weight", I32)] {
        options.types = [(name.to_owned(), ty)].into();
        let error = QuantizePlan::new(&source, &options).unwrap_err();
        assert!(error.to_string().contains("belongs to another model"), "{error}");
    }
}

#[test]
fn recipe_counts_tensors_of_fixed_types_in_the_budget() {
    let source = model(256, |_, _| ());
    let mut options = options("q4_k_m");
    let plan = QuantizePlan::new(&source, &options).unwrap();
    let mut costs = measure_errors(&source, &plan, &[Q4_K, Q8_0], &|_| true).unwrap();
    for cost in costs.iter_mut().flat_map(|costs| &mut costs.types) {
        cost.divergence = cost.error;
    }
    options.rules = vec![(Regex::new("ffn_up").unwrap(), F16)];
    let plan = QuantizePlan::new(&source, &options).unwrap();
    let budget = plan.bytes();
    let recipe = Recipe::choose(None, costs, &plan, budget).unwrap();
    assert!(!recipe.types.contains_key("blk.3.ffn_up.weight"));
    options.types = recipe.types;
    let plan = QuantizePlan::new(&source, &options).unwrap();
    assert_eq!(type_of(&plan, "blk.3.ffn_up.weight"), F16);
    assert!(plan.bytes() <= budget, "{} of {budget}", plan.bytes());
}

#[test]
fn pruned_layers_are_removed_and_later_layers_renumbered() {
    let source = model(256, |_, _| ());
    let mut options = options("q4_0");
    options.pruned = PrunedLayers::new([0, 7]);
    let pruned = quantized(&source, &options).unwrap();
    assert_eq!(pruned.metadata().require::<u32>("llama.block_count").unwrap(), 14);
    options.pruned = PrunedLayers::default();
    let whole = quantized(&source, &options).unwrap();
    let data = |file: &GgufSet, layer: usize| {
        file.tensor_data(&format!("blk.{layer}.ffn_up.weight"))
            .map(<[u8]>::to_vec)
    };
    assert_eq!(
        (data(&pruned, 0), data(&pruned, 13)),
        (data(&whole, 1), data(&whole, 15))
    );
    assert_eq!(data(&pruned, 14), None);
    options.pruned = PrunedLayers::new([16]);
    let error = QuantizePlan::new(&source, &options).unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no layer 16 to prune; the model has 16 layers, numbered from 0"
    );
    options.pruned = PrunedLayers::new(0..16);
    assert!(matches!(
        QuantizePlan::new(&source, &options),
        Err(QuantizeError::AllPruned)
    ));
}

#[test]
fn parts_change_types_only_with_experts_or_mixers() {
    let source = model(256, |_, _| ());
    let types = |options: &Options| -> BTreeMap<String, GgmlType> {
        let plan = QuantizePlan::new(&source, options).unwrap();
        plan.tensors
            .into_iter()
            .map(|tensor| (tensor.name, tensor.to))
            .collect()
    };
    for mixture in Mixture::names() {
        let mut options = options(mixture);
        let of_peer = types(&options);
        options.by_role = true;
        for (name, ty) in types(&options) {
            // The metadata has no number of experts, so the model counts as dense.
            assert!(name.contains("_exps") || ty == of_peer[&name], "{mixture} {name}");
        }
    }
    let mut source = model(256, |_, _| ());
    source.metadata_mut().insert("llama.expert_count", 2u32);
    let mut options = options("q4_k_m");
    options.by_role = true;
    let plan = QuantizePlan::new(&source, &options).unwrap();
    assert_eq!(type_of(&plan, "blk.5.ffn_down_exps.weight"), Q4_K);
    assert_eq!(type_of(&plan, "blk.0.ffn_down_exps.weight"), Q5_K);
    assert_eq!(type_of(&plan, "blk.5.attn_k.weight"), Q5_K);
    assert_eq!(type_of(&plan, "blk.0.attn_v.weight"), Q6_K);
}

#[test]
fn every_matrix_of_every_architecture_belongs_to_a_part() {
    let mut n_files = 0;
    for entry in std::fs::read_dir(root::root().join("tests/data/archs")).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_string_lossy().ends_with(".header.gguf") {
            continue;
        }
        n_files += 1;
        for info in Gguf::open_header(&path).unwrap().tensors() {
            let (_, kind) = role::split(&info.name);
            let has_part = role::is_kept(&info.name, info.n_dims) || part(kind).is_some();
            assert!(has_part, "{}: {}", path.display(), info.name);
        }
    }
    assert!(n_files > 140, "{n_files}");
}
