//! Tests the conversion of published checkpoints: values of the written tensors, and error messages for each kind of
//! invalid input.

mod adapters;
mod quantized;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use engine::checkpoint::{
    CheckpointError, Conversion, OutputType, open_model, open_model_header, parse_safetensors, write,
};
use engine::gguf::{GgufFile, GgufSet};
use engine::model::{LoadParams, Model};
use kernels::GgmlType;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::counting::peak_of;

/// A tensor of a checkpoint: name, element type, shape, and data.
type Source = (String, &'static str, Vec<usize>, Vec<u8>);

/// Encodes a safetensors file.
fn safetensors(tensors: &[Source]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, ty, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(
            name.clone(),
            json!({"dtype": ty, "shape": shape, "data_offsets": offsets}),
        );
        data.extend(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Returns a tensor whose elements count from `first`.
fn counting(name: &str, shape: &[usize], first: usize) -> Source {
    let n: usize = shape.iter().product();
    let values = (0..n).map(|i| (first + i) as f32);
    (name.to_owned(), "F32", shape.to_vec(), f32s(values))
}

/// Tensors of a Llama model with one layer, two heads of four elements, and 8 tokens.
fn llama() -> Vec<Source> {
    let layer = |name: &str, shape: &[usize], first| counting(&format!("model.layers.0.{name}"), shape, first);
    vec![
        counting("model.embed_tokens.weight", &[8, 8], 0),
        counting("model.norm.weight", &[8], 100),
        counting("lm_head.weight", &[8, 8], 200),
        layer("input_layernorm.weight", &[8], 300),
        layer("post_attention_layernorm.weight", &[8], 310),
        layer("self_attn.q_proj.weight", &[8, 8], 400),
        layer("self_attn.k_proj.weight", &[4, 8], 500),
        layer("self_attn.v_proj.weight", &[4, 8], 600),
        layer("self_attn.o_proj.weight", &[8, 8], 700),
        layer("mlp.gate_proj.weight", &[16, 8], 800),
        layer("mlp.up_proj.weight", &[16, 8], 1000),
        layer("mlp.down_proj.weight", &[8, 16], 1200),
    ]
}

fn config() -> Json {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}, "tie_word_embeddings": false,
    })
}

fn tokenizer(n: usize) -> Json {
    let vocab: serde_json::Map<String, Json> = (0..n).map(|i| (format!("t{i}"), json!(i))).collect();
    json!({"added_tokens": [], "model": {"type": "BPE", "vocab": vocab, "merges": []}})
}

/// Writes a checkpoint to a new directory.
fn directory(config: &Json, tensors: &[Source]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
    fs::write(directory.path().join("tokenizer.json"), tokenizer(8).to_string()).unwrap();
    fs::write(directory.path().join("model.safetensors"), safetensors(tensors)).unwrap();
    directory
}

fn convert_as(path: &Path, ty: OutputType) -> Result<GgufFile, CheckpointError> {
    let conversion = Conversion::open(path, archs::ALL, ty)?;
    let mut bytes = Vec::new();
    write(&conversion, &mut bytes, &|_| true)?;
    Ok(GgufFile::from_bytes("converted.gguf", &bytes).unwrap())
}

fn convert(directory: &TempDir) -> Result<GgufFile, CheckpointError> {
    convert_as(directory.path(), OutputType::Auto)
}

/// Returns the message of a failed conversion, without the directory.
fn fault(directory: &TempDir) -> String {
    let message = convert(directory).expect_err("the conversion fails").to_string();
    assert!(!message.contains('\n'), "{message}");
    message.replace(&format!("{}/", directory.path().display()), "")
}

fn values(file: &GgufFile, name: &str) -> Vec<f32> {
    let info = file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    let mut values = vec![0.0; info.n_elements()];
    kernels::dequantize_row(info.ty, file.tensor_data(info), &mut values);
    values
}

#[test]
fn llama_checkpoint_has_keys_and_rotated_rows() {
    let file = convert(&directory(&config(), &llama())).unwrap();
    let number = |key: &str| file.require::<u32>(key).unwrap();
    assert_eq!(number("llama.embedding_length"), 8);
    assert_eq!(number("llama.attention.head_count_kv"), 1);
    assert_eq!(number("llama.rope.dimension_count"), 4);
    assert_eq!(file.require::<f32>("llama.rope.freq_base").unwrap(), 5000.0);
    assert_eq!(values(&file, "blk.0.attn_norm.weight")[..2], [300.0, 301.0]);
    // Rows 0, 2, 1, 3 of each head: neighbors rotate instead of halves.
    let q = values(&file, "blk.0.attn_q.weight");
    let firsts: Vec<f32> = q.chunks(8).map(|row| row[0]).collect();
    assert_eq!(firsts, [400.0, 416.0, 408.0, 424.0, 432.0, 448.0, 440.0, 456.0]);
    assert_eq!(values(&file, "blk.0.attn_v.weight")[..3], [600.0, 601.0, 602.0]);
}

#[test]
fn types_follow_the_option() {
    let directory = directory(&config(), &llama());
    for (option, expected) in [
        (OutputType::Auto, GgmlType::F32),
        (OutputType::F16, GgmlType::F16),
        (OutputType::Bf16, GgmlType::BF16),
    ] {
        let file = convert_as(directory.path(), option).unwrap();
        assert_eq!(file.tensor("blk.0.ffn_up.weight").unwrap().ty, expected);
        assert_eq!(file.tensor("output_norm.weight").unwrap().ty, GgmlType::F32);
    }
}

#[test]
fn eight_bit_floats_are_multiplied_by_block_scales() {
    let mut tensors = llama();
    let up = tensors.iter_mut().find(|t| t.0.contains("up_proj")).unwrap();
    // 0x38 is 1.0 and 0x40 is 2.0 in E4M3.
    (up.1, up.3) = ("F8_E4M3", [[0x38; 64], [0x40; 64]].concat());
    let scale = "model.layers.0.mlp.up_proj.weight_scale_inv";
    tensors.push((scale.to_owned(), "F32", vec![2, 1], f32s([0.5, 3.0])));
    let file = convert(&directory(&config(), &tensors)).unwrap();
    let up = values(&file, "blk.0.ffn_up.weight");
    assert!(up[..64].iter().all(|&x| x == 0.5), "{up:?}");
    assert!(up[64..].iter().all(|&x| x == 6.0), "{up:?}");
}

#[test]
fn damaged_files_are_reported_in_one_sentence() {
    let whole = safetensors(&llama());
    let path = |d: &TempDir| d.path().join("model.safetensors");
    let d = directory(&config(), &llama());
    fs::write(path(&d), &whole[..whole.len() - 4]).unwrap();
    assert!(
        fault(&d).starts_with("model.safetensors: the file is truncated: tensor `model.layers.0.mlp.down_proj.weight`")
    );
    fs::write(path(&d), &whole[..100]).unwrap();
    assert!(fault(&d).starts_with("model.safetensors: the file ends inside its header"));
    fs::write(path(&d), b"").unwrap();
    assert!(convert(&d).is_err());
}

#[test]
fn contradictory_shards_are_reported() {
    let d = directory(&config(), &llama());
    let tensors = llama();
    let (first, second) = tensors.split_at(6);
    fs::remove_file(d.path().join("model.safetensors")).unwrap();
    let write = |name: &str, tensors: &[Source]| fs::write(d.path().join(name), safetensors(tensors)).unwrap();
    write("a.safetensors", first);
    write("b.safetensors", second);
    assert!(convert(&d).is_ok());
    write("b.safetensors", &[second, &first[..1]].concat());
    assert!(fault(&d).contains("b.safetensors: tensor `model.embed_tokens.weight` is also in a.safetensors"));
    write("b.safetensors", second);
    let index = |file: &str| {
        let map: serde_json::Map<String, Json> = first.iter().map(|t| (t.0.clone(), json!(file))).collect();
        let text = json!({ "weight_map": map }).to_string();
        fs::write(d.path().join("model.safetensors.index.json"), text).unwrap();
    };
    index("c.safetensors");
    assert!(fault(&d).contains("names c.safetensors, which is missing"));
    index("../a.safetensors");
    assert!(fault(&d).contains("which is not a file of this directory"));
    index("b.safetensors");
    assert!(fault(&d).contains("in b.safetensors, which does not contain the tensor"));
}

#[test]
fn values_that_are_not_finite_are_located() {
    let mut tensors = llama();
    let up = tensors.iter_mut().find(|t| t.0.contains("up_proj")).unwrap();
    up.3[4 * (3 * 8 + 5)..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let message = fault(&directory(&config(), &tensors));
    assert!(
        message.contains("tensor `model.layers.0.mlp.up_proj.weight` has the value NaN at row 3, column 5"),
        "{message}"
    );
}

#[test]
fn settings_that_contradict_tensors_are_reported() {
    let with = |key: &str, value: Json| {
        let mut config = config();
        config[key] = value;
        fault(&directory(&config, &llama()))
    };
    assert!(
        with("intermediate_size", json!(24))
            .contains("tensor `blk.0.ffn_gate.weight` has shape [8, 16], expected [8, 24]")
    );
    assert!(with("num_hidden_layers", json!(2)).contains("tensor `blk.1.attn_norm.weight` [8] is missing"));
    assert!(
        with("hidden_size", json!(null))
            .contains("`hidden_size` is missing, which `llama.embedding_length` follows from")
    );
    assert!(with("sliding_window", json!(8)).contains("sliding windows of this class are not supported"));
    assert!(
        with("architectures", json!(["LlamaForCausalML"]))
            .contains("no architecture reads checkpoints of class `LlamaForCausalML` (did you mean LlamaForCausalLM")
    );
    assert!(with("quantization_config", json!({"quant_method": "hqq"})).contains("weights quantized with `hqq`"));
    assert!(with("num_hidden_layers", json!(2000)).contains("the number of layers"));
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let mut changed = config();
    changed["rope_parameters"] = scaling;
    changed["head_dim"] = json!(1 << 20);
    let message = fault(&directory(&changed, &llama()));
    assert!(
        message.contains("heads have 1048576 rotated elements; the maximum is 65536"),
        "{message}"
    );
}

#[test]
fn settings_that_change_results_are_rejected_if_unread() {
    let with = |changes: Json| {
        let mut config = config();
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        fault(&directory(&config, &llama()))
    };
    let message = with(json!({"hidden_act": "gelu"}));
    let expected = "`hidden_act` is gelu, which the graph of `llama` does not compute";
    assert!(message.contains(expected), "{message}");
    let message = with(json!({"partial_rotary_factor": 0.5}));
    let expected = "`partial_rotary_factor` is 0.5, which architecture `llama` does not support";
    assert!(message.contains(expected), "{message}");
    let mut changed = config();
    changed["hidden_act"] = json!("silu");
    changed["partial_rotary_factor"] = json!(1.0);
    convert(&directory(&changed, &llama())).unwrap();
}

#[test]
fn yarn_attention_factor_follows_mscale() {
    let attention = |mscale: Json| {
        let mut config = config();
        let mut scaling = json!({"rope_type": "yarn", "factor": 4.0, "rope_theta": 5000.0});
        for (key, value) in mscale.as_object().unwrap() {
            scaling[key] = value.clone();
        }
        config["rope_parameters"] = scaling;
        let file = convert(&directory(&config, &llama())).unwrap();
        file.optional::<f32>("llama.rope.scaling.attn_factor").unwrap()
    };
    let usual = 0.1 * 4f32.ln() + 1.0;
    assert_eq!(attention(json!({})), None);
    let equal = attention(json!({"mscale": 0.7, "mscale_all_dim": 0.7})).unwrap();
    assert!((equal * usual - 1.0).abs() < 1e-6, "{equal}");
    let half = attention(json!({"mscale": 1.0, "mscale_all_dim": 0.5})).unwrap();
    assert!((half - 1.0 / (0.05 * 4f32.ln() + 1.0)).abs() < 1e-6, "{half}");
    assert_eq!(attention(json!({"attention_factor": 0.5})), Some(0.5 / usual));
}

#[test]
fn unread_tensors_and_surplus_tokens_are_errors() {
    let extra = [llama(), vec![counting("model.layers.0.mlp.extra.weight", &[2], 0)]].concat();
    assert!(
        fault(&directory(&config(), &extra))
            .contains("does not read `model.layers.0.mlp.extra.weight`, which would be lost")
    );
    // A scale of unquantized weights would also be lost.
    for suffix in ["weight_scale", "weight_scale_inv", "weight_scale_2", "g_idx"] {
        let name = format!("model.layers.0.mlp.up_proj.{suffix}");
        let extra = [llama(), vec![counting(&name, &[1], 2)]].concat();
        let message = fault(&directory(&config(), &extra));
        assert!(message.contains(&format!("does not read `{name}`")), "{message}");
    }
    let of_inputs = [
        llama(),
        vec![counting("model.layers.0.mlp.up_proj.input_scale", &[1], 2)],
    ]
    .concat();
    assert!(convert(&directory(&config(), &of_inputs)).is_ok());
    let d = directory(&config(), &llama());
    fs::write(d.path().join("tokenizer.json"), tokenizer(9).to_string()).unwrap();
    assert!(fault(&d).contains("the tokenizer has 9 tokens, but the token embedding has 8 rows"));
    fs::write(d.path().join("tokenizer.json"), tokenizer(6).to_string()).unwrap();
    assert!(convert(&d).is_ok());
}

fn in_place(directory: &TempDir) -> GgufSet {
    open_model(directory.path(), archs::ALL).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn tensors_in_place_have_bytes_of_converted_file() {
    let mut tensors = llama();
    let down = tensors.iter_mut().find(|t| t.0.contains("down_proj")).unwrap();
    (down.1, down.3) = ("BF16", (0..128u16).flat_map(|i| (0x3f80 + i).to_le_bytes()).collect());
    let up = tensors.iter_mut().find(|t| t.0.contains("up_proj")).unwrap();
    (up.1, up.3) = ("F8_E4M3", [[0x38; 64], [0x40; 64]].concat());
    let scale = "model.layers.0.mlp.up_proj.weight_scale_inv";
    tensors.push((scale.to_owned(), "F32", vec![2, 1], f32s([0.5, 3.0])));
    let directory = directory(&config(), &tensors);
    let (file, set) = (convert(&directory).unwrap(), in_place(&directory));
    assert_eq!(set.n_tensors(), file.tensors().len());
    assert_eq!(set.metadata(), file.metadata());
    let mut n_in_place = 0;
    for info in file.tensors() {
        let expected = file.tensor_data(info);
        assert!(set.read_tensor(&info.name).unwrap() == expected, "{}", info.name);
        let (shard, found) = set.tensor(&info.name).unwrap();
        assert_eq!((found.shape(), found.ty), (info.shape(), info.ty), "{}", info.name);
        n_in_place += usize::from(shard > 0);
        // Any byte range is read correctly, even within an element.
        let (mapping, start) = (set.shards()[shard].mapping(), found.offset);
        for range in [0..1, 1..7, 3..expected.len(), expected.len() - 3..expected.len()] {
            let mut scratch = Vec::new();
            let bytes = mapping
                .view(start + range.start..start + range.end, &mut scratch)
                .unwrap();
            assert_eq!(bytes, &expected[range.clone()], "{} {range:?}", info.name);
        }
    }
    // All but the rotated queries and keys, and the 8-bit floats.
    assert_eq!(n_in_place, file.tensors().len() - 3);
    let header = open_model_header(directory.path(), archs::ALL).unwrap();
    assert_eq!(&header, file.header());
}

#[test]
fn models_in_place_report_faults_of_checkpoints() {
    let load = |tensors: &[Source], checks: bool| {
        let d = directory(&config(), tensors);
        let load = LoadParams {
            check_tensors: checks,
            ..LoadParams::default()
        };
        let model = open_model(d.path(), archs::ALL).and_then(|set| Model::from_set(set, archs::ALL, &load));
        let message = model.map(|_| ()).map_err(|e| e.to_string());
        message.map_err(|text| text.replace(&format!("{}/", d.path().display()), ""))
    };
    let damaged = |name: &str| {
        let mut tensors = llama();
        let found = tensors.iter_mut().find(|t| t.0.contains(name)).unwrap();
        found.3[4 * (3 * 8 + 5)..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        tensors
    };
    assert_eq!(load(&llama(), true), Ok(()));
    // A converted tensor is always checked.
    let message = load(&damaged("q_proj"), false).unwrap_err();
    // Row 3 keeps its position when two heads of four rows are permuted for RoPE.
    let expected = "tensor `model.layers.0.self_attn.q_proj.weight` has the value NaN at row 3, column 5";
    assert!(
        message.starts_with(&format!("model.safetensors: {expected}")),
        "{message}"
    );
    assert_eq!(load(&damaged("up_proj"), false), Ok(()));
    let message = load(&damaged("up_proj"), true).unwrap_err();
    assert!(
        message.contains("blk.0.ffn_up.weight") && message.contains("NaN"),
        "{message}"
    );
    let extra = [llama(), vec![counting("model.layers.0.mlp.extra.weight", &[2], 0)]].concat();
    assert!(
        load(&extra, false)
            .unwrap_err()
            .contains("does not read `model.layers.0.mlp.extra.weight`")
    );
}

#[test]
fn opening_checkpoint_converts_no_tensor() {
    let d = directory(&config(), &llama());
    let ((set, header), peak) = peak_of(|| {
        let header = open_model_header(d.path(), archs::ALL).unwrap();
        (in_place(&d), header)
    });
    assert_eq!(set.n_tensors(), header.tensors().len());
    assert!(peak < 1 << 20, "{peak} bytes");
}

#[test]
fn hostile_headers_take_little_memory_and_time() {
    let entry = |i: usize| format!("\"{i}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    let many: Vec<String> = (0..300_000).map(entry).collect();
    let cases = [
        format!("{{{}}}", many.join(",")),
        format!("{{\"a\":{{\"dtype\":\"U8\",\"shape\":[{}1],\"data_offsets\":[0,0]}}}}", "1,".repeat(4 << 20)),
        "[".repeat(8 << 20),
        format!("{{\"__metadata__\":{}", "{\"a\":".repeat(1 << 20)),
        "{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}".to_owned(),
        // Sizes of 0 hide those that overflow.
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[0,18446744073709551615,3],\"data_offsets\":[0,0]}}".to_owned(),
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[0,4194304,4194304,2],\"data_offsets\":[0,0]}}".to_owned(),
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[18446744073709551608,18446744073709551615]}}".to_owned(),
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}".to_owned(),
    ];
    for case in cases {
        let file = [&(case.len() as u64).to_le_bytes()[..], case.as_bytes()].concat();
        let start = Instant::now();
        let (result, peak) = peak_of(|| parse_safetensors(&file));
        assert!(result.is_err(), "{}", &case[..case.len().min(80)]);
        assert!(peak < 64 << 20, "{peak} bytes for {}", &case[..case.len().min(80)]);
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
    let claims = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    assert!(parse_safetensors(&claims).unwrap_err().contains("the maximum is"));
}
