//! Matmuls of prompts on GPUs with and without matrix instructions of warpgroups (`wgmma`).

use engine::backend::cuda::{Counters, loaded};
use engine::graph::TensorId;
use kernels::{GgmlType, Precision};
use tests::emulator::{with_device, with_settings};

use crate::cuda::card;
use crate::cuda_fusion::Sketch;

/// Rows and number of matrices. Enough matrices occupy the GPU with the largest tiles.
const ROWS: usize = 5;
const MATRICES: usize = 50;

/// Number of experts, and of experts per token.
const EXPERTS: usize = 100;
const USED: usize = 2;

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks::<4>();
    values.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// Rounds to 8 significant bits, ties to even.
fn bfloat(x: f32) -> f64 {
    let bits = x.to_bits();
    let rounded = bits + 0x7fff + (bits >> 16 & 1);
    f64::from(f32::from_bits(rounded & 0xffff_0000))
}

/// Returns the NMSE of products, with operands rounded to bf16 and sums of 64 bits as reference.
fn error_of(ty: GgmlType, k: usize, n: usize) -> f64 {
    let mut s = Sketch::new(Precision::Fast);
    let w = s.values(ty, [k, ROWS, MATRICES, 1]);
    let x = s.values(GgmlType::F32, [k, n, MATRICES, 1]);
    let product = s.graph.mul_mat(w, x).expect("the shapes match");
    let place = |i: usize| (i % ROWS + i / ROWS / n * ROWS, i / ROWS);
    error_of_product(s, [w, x, product], k, place)
}

/// Like [`error_of`], for `n` columns of each expert in arbitrary order.
fn error_of_experts(ty: GgmlType, k: usize, n: usize) -> f64 {
    let mut s = Sketch::new(Precision::Fast);
    let w = s.values(ty, [k, ROWS, EXPERTS, 1]);
    let n_tokens = n * EXPERTS / USED;
    let x = s.values(GgmlType::F32, [k, 1, n_tokens, 1]);
    let expert = |pair: usize| pair * 37 % EXPERTS;
    let ids: Vec<i32> = (0..USED * n_tokens).map(|pair| expert(pair) as i32).collect();
    let ids = s.ints(&ids, [USED, n_tokens, 1, 1]);
    let product = s.graph.mul_mat_id(w, x, ids).expect("the shapes match");
    let place = |i: usize| (i % ROWS + expert(i / ROWS) * ROWS, i / ROWS / USED);
    error_of_product(s, [w, x, product], k, place)
}

/// Returns the NMSE of a product. `place` returns the row of the weights and the column of each result.
fn error_of_product(
    mut s: Sketch,
    [w, x, product]: [TensorId; 3],
    k: usize,
    place: impl Fn(usize) -> (usize, usize),
) -> f64 {
    s.graph.expand(product);
    let weights_of = s.graph.tensor(w);
    let mut weights = vec![0.0; weights_of.nelements()];
    kernels::dequantize_row(weights_of.ty, s.contents(w), &mut weights);
    let columns = floats(s.contents(x));
    let [(results, _), _] = s.both(&[product]);
    let (mut error, mut total) = (0.0, 0.0);
    for (i, found) in floats(&results[0]).into_iter().enumerate() {
        let (row, column) = place(i);
        let products = weights[row * k..].iter().zip(&columns[column * k..]).take(k);
        let want: f64 = products.map(|(a, b)| bfloat(*a) * bfloat(*b)).sum();
        error += (f64::from(found) - want).powi(2);
        total += want * want;
    }
    error / total
}

/// Checks matmuls with both large tiles, more steps than stages, and an incomplete step. Returns the descriptions of
/// the kernels.
fn check() -> Vec<String> {
    for (ty, k, n) in [
        (GgmlType::Q4_K, 512, 300),
        (GgmlType::Q8_0, 64, 131),
        (GgmlType::BF16, 328, 131),
    ] {
        let error = error_of(ty, k, n);
        assert!(error < 1e-6, "{ty}, {k} x {n}: NMSE {error:.3e}");
    }
    loaded().iter().map(|kernel| kernel.describe()).collect()
}

/// The largest tile of experts has 256 columns, and a smaller one 128. The last columns of both are missing.
#[test]
fn warpgroups_multiply_prompts_of_experts() {
    with_device("cuda_wgmma::warpgroups_multiply_prompts_of_experts", || {
        for (ty, k, n) in [(GgmlType::Q4_K, 512, 206), (GgmlType::BF16, 328, 104)] {
            let error = error_of_experts(ty, k, n);
            assert!(error < 1e-6, "{ty}, {k} x {n}: NMSE {error:.3e}");
        }
        if is_hopper() {
            let kernels: Vec<String> = loaded().iter().map(|kernel| kernel.describe()).collect();
            assert_eq!(count(&kernels, "mul_mat_wgmma"), 2, "{kernels:?}");
        }
    });
}

/// The smaller tile of each type of weights, with more steps than stages.
#[test]
#[ignore = "compiles and emulates the matmuls of warpgroups of every type"]
fn warpgroups_multiply_all_types() {
    with_device("cuda_wgmma::warpgroups_multiply_all_types", || {
        let types = GgmlType::ALL.iter().filter(|ty| kernels::can_dequantize(**ty));
        for &ty in types.filter(|ty| **ty != GgmlType::F32) {
            let error = error_of(ty, 512, 131);
            assert!(error < 1e-6, "{ty}: NMSE {error:.3e}");
        }
    });
}

/// Returns true if the GPU has the matrix instructions of warpgroups.
fn is_hopper() -> bool {
    let device = engine::backend::device(&card()).expect("the GPU exists");
    device.description().contains("compute capability 9.0")
}

fn count(kernels: &[String], name: &str) -> usize {
    kernels.iter().filter(|kernel| kernel.starts_with(name)).count()
}

#[test]
fn warpgroups_multiply_prompts() {
    with_device("cuda_wgmma::warpgroups_multiply_prompts", || {
        let kernels = check();
        if is_hopper() {
            let counts = ["mul_mat_wgmma", "mul_mat_tensor"].map(|name| count(&kernels, name));
            assert_eq!(counts, [3, 0], "{kernels:?}");
        }
    });
}

/// Kernels of warpgroups that do not load or do not launch are replaced, and later plans do not try them again.
#[test]
fn warps_multiply_prompts_if_kernels_of_warpgroups_fail() {
    let name = "cuda_wgmma::warps_multiply_prompts_if_kernels_of_warpgroups_fail";
    for settings in ["no_products=1", "fail_products=1"] {
        with_settings(name, settings, || {
            if Counters::find().is_none() {
                eprintln!("skipped: only the emulated driver has settings");
                return;
            }
            let kernels = check();
            let are_loaded = std::env::var("LLAMA_CUDA_EMU").is_ok_and(|settings| settings.starts_with("fail"));
            let counts = ["mul_mat_wgmma", "mul_mat_tensor"].map(|name| count(&kernels, name));
            assert_eq!(counts, [if are_loaded { 3 } else { 0 }, 3], "{kernels:?}");
            assert_eq!(check(), kernels);
        });
        if std::env::var_os("LLAMA_CUDA").is_some() {
            return;
        }
    }
}

/// Tensor cores without bf16 multiply the same values as f16, with a power of two for each row and column.
#[test]
fn gpus_without_bf16_multiply_prompts() {
    let name = "cuda_wgmma::gpus_without_bf16_multiply_prompts";
    with_settings(name, "sm=75", || {
        if Counters::find().is_none() {
            eprintln!("skipped: only the emulated driver has settings");
            return;
        }
        for (ty, k, n) in [
            (GgmlType::Q8_0, 64, 131),
            (GgmlType::BF16, 328, 131),
            (GgmlType::F16, 64, 20),
        ] {
            let error = error_of(ty, k, n);
            assert!(error < 1e-9, "{ty}, {k} x {n}: NMSE {error:.3e}");
        }
        let kernels: Vec<String> = loaded().iter().map(|kernel| kernel.describe()).collect();
        assert_eq!(count(&kernels, "mul_mat_tensor"), 3, "{kernels:?}");
    });
}

/// Kernels for compute capability 9.0 run on no other GPU, and need a driver that supports CUDA 12.
#[test]
fn other_gpus_and_old_drivers_multiply_prompts_by_warps() {
    let name = "cuda_wgmma::other_gpus_and_old_drivers_multiply_prompts_by_warps";
    for settings in ["sm=89", "sm=100", "driver=11080"] {
        with_settings(name, settings, || {
            if Counters::find().is_none() {
                eprintln!("skipped: only the emulated driver has settings");
                return;
            }
            let kernels = check();
            let counts = ["mul_mat_wgmma", "mul_mat_tensor"].map(|name| count(&kernels, name));
            assert_eq!(counts, [0, 3], "{kernels:?}");
        });
        if std::env::var_os("LLAMA_CUDA").is_some() {
            return;
        }
    }
}
