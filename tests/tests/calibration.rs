//! Rounding with error feedback on whole models.

use std::collections::BTreeMap;

use engine::gguf::{GgufFile, GgufSet};
use engine::model::LoadParams;
use engine::quantize::{CalibratedRounding, Calibration, Mixture, Options, PrunedLayers, QuantizePlan, QuantizedFile};

/// Size of the moment of `ffn_down`, the matrix with most columns, in bytes. With less, its columns are divided into ranges.
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
