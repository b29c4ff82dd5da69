//! Rounding with error feedback on whole models.

use std::collections::BTreeMap;

use engine::conformance::all_logits;
use engine::gguf::{GgufFile, GgufSet, GgufWriter};
use engine::model::{LoadParams, Model};
use engine::quantize::{CalibratedRounding, Calibration, Mixture, Options, PrunedLayers, QuantizePlan, QuantizedFile};
use kernels::GgmlType;
use regex_lite::Regex;
use tests::{exact, nmse};

/// Size of the moment of `ffn_down`, the matrix with most columns, in bytes. With less, its columns are divided into
/// ranges.
const ONE_MATRIX: usize = 384 * 384 * 4;

fn options() -> Options {
    Options {
        mixture: Mixture::find("q4_0").unwrap(),
        by_role: false,
        pure: true,
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

fn calibration(text: &str) -> Calibration<'_> {
    Calibration {
        archs: archs::ALL,
        load: LoadParams::default(),
        text,
        n_ctx: 64,
        n_chunks: 3,
        n_batch: 64,
        n_threads: 2,
        n_layers: 1,
    }
}

fn written(source: &GgufSet, plan: &QuantizePlan, rounding: Option<&CalibratedRounding<'_>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = QuantizedFile::new(source, plan, &[]).rounded_by(rounding);
    file.write(None, &mut bytes, &|_| true).unwrap();
    bytes
}

/// A pass collects the moments of as many tensors as fit in memory, so that the number of passes must not matter.
#[test]
fn calibration_in_one_or_many_passes_writes_the_same_file() {
    let file = GgufFile::from_bytes("model.gguf", &tests::text_model("gpt2", None)).unwrap();
    let source = GgufSet::from_file(file).unwrap();
    let plan = QuantizePlan::new(&source, &options()).unwrap();
    let text = "The ships sail on the wide sea. ".repeat(20);
    let calibration = calibration(&text);
    let rounding = || CalibratedRounding::new(&source, &plan, &calibration).unwrap();
    assert_eq!(rounding().n_tokens(), 3 * 64);
    let plain = written(&source, &plan, None);
    let calibrated = written(&source, &plan, Some(&rounding()));
    assert!(calibrated != plain && calibrated.len() == plain.len());
    assert!(calibrated == written(&source, &plan, Some(&rounding().with_max_bytes(ONE_MATRIX))));
}

/// Later tokens of a chunk need the caches of all layers, even if a pass collects the moments of the first layers.
#[test]
fn calibration_in_many_passes_reads_chunks_in_several_batches() {
    let file = GgufFile::from_bytes("model.gguf", &tests::text_model("gpt2", None)).unwrap();
    let source = GgufSet::from_file(file).unwrap();
    let plan = QuantizePlan::new(&source, &options()).unwrap();
    let text = "The ships sail on the wide sea. ".repeat(20);
    let calibration = Calibration {
        n_batch: 24,
        ..calibration(&text)
    };
    let rounding = || CalibratedRounding::new(&source, &plan, &calibration).unwrap();
    let one_pass = written(&source, &plan, Some(&rounding()));
    assert!(one_pass == written(&source, &plan, Some(&rounding().with_max_bytes(ONE_MATRIX))));
}

/// Returns a model whose token embedding is also the output matrix.
fn tied_model() -> Vec<u8> {
    let file = GgufFile::from_bytes("model.gguf", &tests::text_model("gpt2", None)).unwrap();
    let mut writer = GgufWriter::with_metadata(file.metadata().clone());
    for tensor in file.tensors().iter().filter(|tensor| tensor.name != "output.weight") {
        let data = file.tensor_data(tensor);
        writer
            .add_tensor(tensor.name.as_str(), tensor.ty, tensor.shape(), data)
            .unwrap();
    }
    writer.to_bytes().unwrap()
}

/// Only an embedding that is also the output matrix is multiplied with inputs, which its rounding errors depend on.
#[test]
fn calibration_changes_a_token_embedding_that_is_the_output_matrix() {
    let text = "The ships sail on the wide sea. ".repeat(20);
    for (bytes, is_tied) in [(tests::text_model("gpt2", None), false), (tied_model(), true)] {
        let source = GgufSet::from_file(GgufFile::from_bytes("model.gguf", &bytes).unwrap()).unwrap();
        let plan = QuantizePlan::new(&source, &options()).unwrap();
        let calibration = calibration(&text);
        let rounding = || CalibratedRounding::new(&source, &plan, &calibration).unwrap();
        let embedding = |rounding: Option<&CalibratedRounding<'_>>| {
            let file = GgufFile::from_bytes("quantized.gguf", &written(&source, &plan, rounding)).unwrap();
            let tensor = file.tensor("token_embd.weight").unwrap();
            (tensor.ty, file.tensor_data(tensor).to_vec())
        };
        let (plain, calibrated) = (embedding(None), embedding(Some(&rounding())));
        assert_eq!(plain.0, GgmlType::Q4_0);
        assert_eq!(plain != calibrated, is_tied);
        assert!(calibrated == embedding(Some(&rounding().with_max_bytes(ONE_MATRIX))));
    }
}

/// First tokens have a larger weight in the inputs of attention. Values of the first token therefore change less than
/// with rounding by the other tokens alone.
#[test]
fn calibration_keeps_values_of_first_tokens() {
    let bytes = tests::text_model_with("gpt2", None, |metadata| {
        metadata.insert("tokenizer.ggml.add_bos_token", true);
    });
    let source = GgufSet::from_file(GgufFile::from_bytes("model.gguf", &bytes).unwrap()).unwrap();
    let options = Options {
        rules: vec![
            (Regex::new("attn_v").unwrap(), GgmlType::Q4_0),
            (Regex::new("").unwrap(), GgmlType::F32),
        ],
        ..options()
    };
    let plan = QuantizePlan::new(&source, &options).unwrap();
    let text = "The ships sail on the wide sea. ".repeat(20);
    let calibration = calibration(&text);
    let rounding = CalibratedRounding::new(&source, &plan, &calibration).unwrap();
    let logits = |bytes: &[u8]| {
        let file = GgufFile::from_bytes("model.gguf", bytes).unwrap();
        let model = Model::from_file(file, archs::ALL, &exact().load).unwrap();
        all_logits(model.into(), &[1], &exact().context).unwrap()
    };
    let expected = logits(&bytes);
    let error = |rounding| nmse(&expected, &logits(&written(&source, &plan, rounding)));
    let (plain, calibrated) = (error(None), error(Some(&rounding)));
    // Without the larger weight, the ratio is 0.04.
    assert!(calibrated < 0.01 * plain, "{calibrated:e} is not far below {plain:e}");
}
