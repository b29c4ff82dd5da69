//! Rounding of sums on a GPU: sums of long rows, and a model that magnifies rounding errors.

use std::path::Path;
use std::sync::Arc;

use engine::conformance::{CheckParams, Draft, KEY_GELU};
use engine::gguf::GgufFile;
use engine::model::Model;
use engine::random::SplitMix64;
use kernels::{GgmlType, Precision};
use tests::emulator::with_device;
use tests::{context, decode_last, exact, nmse, place_on};

use crate::cuda::{card, params};
use crate::cuda_fusion::Sketch;

/// Checks sums of long rows. A chain of `n` additions has an NMSE of about `n / 2` times the NMSE of a rounding (`2^-48
/// / 3`). For 4096 products, this is 2e-12. Sums in steps have less than a tenth of that.
#[test]
fn long_rows_are_summed_in_steps() {
    const WIDTH: usize = 4096;
    const COLUMNS: usize = 12;
    with_device("cuda_sums::long_rows_are_summed_in_steps", || {
        let mut s = Sketch::new(Precision::Exact);
        let w = s.values(GgmlType::F32, [WIDTH, 64, 1, 1]);
        let x = s.values(GgmlType::F32, [WIDTH, COLUMNS, 1, 1]);
        let product = s.graph.mul_mat(w, x).expect("the shapes match");
        s.graph.expand(product);
        let (weights, columns) = (floats(s.contents(w)), floats(s.contents(x)));
        let [_, (results, _)] = s.both(&[product]);
        let (mut error, mut total) = (0.0, 0.0);
        for (i, found) in floats(&results[0]).into_iter().enumerate() {
            let (row, column) = (&weights[i % 64 * WIDTH..], &columns[i / 64 * WIDTH..]);
            let products = row.iter().zip(column).take(WIDTH);
            let want: f64 = products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            error += (f64::from(found) - want).powi(2);
            total += want * want;
        }
        let error: f64 = error / total;
        assert!(error < 2e-13, "NMSE {error:.3e}");
    });
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks::<4>();
    values.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Returns the logits of a model file after some tokens.
fn logits(path: &Path, bytes: &[u8], params: &CheckParams) -> Vec<f32> {
    let file = GgufFile::from_bytes(path, bytes).expect("the model is valid");
    let model = Model::from_file(file, archs::ALL, &params.load).expect("the model loads");
    let mut ctx = context(&Arc::new(model), |_| {});
    let tokens: Vec<u32> = (0..12).map(|i| 3 + i * i % 100).collect();
    decode_last(&mut ctx, &tokens, 0, 0)
}

/// Weights without a scale make Gemma 3n magnify an error in the first layer by eight orders of magnitude. On the
/// GPU, its logits differ no more than after a change of the last bit of some weights.
#[test]
fn model_that_magnifies_errors_differs_as_by_rounding() {
    let name = "cuda_sums::model_that_magnifies_errors_differs_as_by_rounding";
    with_device(name, || {
        let arch = archs::find("gemma3n").expect("the architecture is declared").arch;
        let mut draft = Draft::of_declaration(arch, archs::ALL, true).expect("the declaration has sizes");
        draft.metadata.insert(KEY_GELU, "exact");
        let begin = draft.header_bytes().expect("the header is valid").len();
        let mut reference = exact();
        place_on(&mut reference.load, "reference", usize::MAX);
        for seed in [1, 3, 5] {
            let bytes = draft.seeded(seed).expect("the weights are seeded");
            let path = Path::new("gemma3n.gguf");
            let want = logits(path, &bytes, &reference);
            let flipped = (0..4).map(|i| {
                let mut random = SplitMix64(i);
                let mut bytes = bytes.clone();
                for weight in bytes[begin..].chunks_exact_mut(4) {
                    weight[0] ^= u8::from(random.next_u64().is_multiple_of(100));
                }
                nmse(&want, &logits(path, &bytes, &reference))
            });
            let rounding = flipped.fold(0.0, f64::max);
            let error = nmse(&want, &logits(path, &bytes, &params(&card(), usize::MAX)));
            assert!(rounding > 1e-10, "seed {seed} magnifies nothing: NMSE {rounding:.3e}");
            assert!(
                error < 10.0 * rounding,
                "seed {seed}: NMSE {error:.3e} on the GPU, and {rounding:.3e} by rounding"
            );
            eprintln!("seed {seed}: NMSE {error:.3e} on the GPU, and {rounding:.3e} by rounding");
        }
    });
}
