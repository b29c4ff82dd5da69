//! Matmuls with many columns on GeForce GPUs, which sum products in f16: accuracy.

use engine::backend::cuda::{Counters, Specialization, loaded};
use kernels::{GgmlType, Precision};
use tests::emulator::with_settings;

use crate::cuda::card;
use crate::cuda_fusion::Sketch;
use crate::cuda_stream::{
    TYPES, check_column, check_experts, check_matmul, floats, incomplete_sizes, product, weights_of,
};

/// Calls `body` on an emulated GeForce RTX 4090. With `LLAMA_CUDA=here`, GPUs that sum in f32 are skipped, unless
/// `LLAMA_CUDA_F16_SUMS=1` is set.
fn on_geforce(name: &str, body: impl FnOnce()) {
    on_gpu(name, "sm=89,geforce=1", body);
}

/// Like [`on_geforce`], with settings of the emulated driver.
fn on_gpu(name: &str, settings: &str, body: impl FnOnce()) {
    with_settings(name, settings, || {
        let description = engine::backend::device(&card()).expect("the GPU exists").description();
        let is_set = std::env::var("LLAMA_CUDA_F16_SUMS").is_ok_and(|value| value == "1");
        let is_emulated = Counters::find().is_some();
        if is_emulated || is_set || description.contains("GeForce") {
            body();
        } else {
            eprintln!("{name}: skipped on {description}");
        }
    });
}

/// Asserts that a kernel with this type and mark was used.
fn assert_used(ty: GgmlType, marks: &[&str]) {
    let used: Vec<String> = loaded().iter().map(Specialization::describe).collect();
    let of_type = format!("TYPE={}", ty.name());
    let is_meant = |name: &&String| name.starts_with("mul_mat_halves") && name.contains(&of_type);
    let has_all = |name: &String| marks.iter().all(|mark| name.contains(mark));
    assert!(used.iter().filter(is_meant).any(has_all), "{ty}, {marks:?}: {used:?}");
}

/// Rows and columns that end within a tile, with several steps per row.
#[test]
fn matmuls_with_f16_sums_match_double_precision() {
    let name = "cuda_halves::matmuls_with_f16_sums_match_double_precision";
    on_geforce(name, || {
        for (ty, unit) in TYPES {
            check_matmul(ty, [unit.max(512), 70, 150]);
            assert_used(ty, &["COLUMNS=64", "IDS=0"]);
        }
    });
}

/// Rows whose last step is incomplete, and rows that are padded to multiples of 16 bytes.
#[test]
fn incomplete_steps_with_f16_sums_match_double_precision() {
    let name = "cuda_halves::incomplete_steps_with_f16_sums_match_double_precision";
    on_geforce(name, || {
        for (ty, _) in TYPES {
            for k in incomplete_sizes(ty) {
                check_matmul(ty, [k, 70, 130]);
            }
            assert_used(ty, &["COLUMNS=64", "IDS=0"]);
        }
        // The size of gpt-oss.
        check_experts(GgmlType::MXFP4, [2880, 700], [165, 1]);
        assert_used(GgmlType::MXFP4, &["COLUMNS=64", "IDS=1"]);
    });
}

/// Enough rows and columns for the larger tile, with incomplete tiles of both.
#[test]
fn large_tiles_with_f16_sums_match_double_precision() {
    let name = "cuda_halves::large_tiles_with_f16_sums_match_double_precision";
    on_geforce(name, || {
        for ty in [GgmlType::Q4_K, GgmlType::Q8_0] {
            check_matmul(ty, [256, 12200, 150]);
            assert_used(ty, &["COLUMNS=128", "IDS=0"]);
        }
    });
}

/// Experts with enough rows and columns for a tile, with columns shared by the experts of a token, and without.
#[test]
fn experts_with_f16_sums_match_double_precision() {
    let name = "cuda_halves::experts_with_f16_sums_match_double_precision";
    on_geforce(name, || {
        for (ty, k) in [(GgmlType::Q4_K, 256), (GgmlType::Q8_0, 512), (GgmlType::Q2_K, 1024)] {
            for of_token in [1, 2] {
                check_experts(ty, [k, 1300], [135, of_token]);
            }
            assert_used(ty, &["COLUMNS=64", "IDS=1"]);
        }
    });
}

/// GPUs of compute capability 7.5 have no asynchronous copies, and smaller products.
#[test]
fn matmuls_with_f16_sums_match_double_precision_on_turing() {
    let name = "cuda_halves::matmuls_with_f16_sums_match_double_precision_on_turing";
    on_gpu(name, "sm=75,geforce=1", || {
        for (ty, unit) in TYPES {
            check_matmul(ty, [unit.max(512), 70, 150]);
            assert_used(ty, &["COLUMNS=64", "IDS=0"]);
        }
        check_matmul(GgmlType::Q4_0, [288, 12200, 150]);
        assert_used(GgmlType::Q4_0, &["COLUMNS=128", "IDS=0"]);
        check_matmul(GgmlType::F16, [480, 70, 150]);
        check_experts(GgmlType::Q4_K, [256, 1300], [135, 1]);
        assert_used(GgmlType::Q4_K, &["COLUMNS=64", "IDS=1"]);
    });
}

/// Floats of 16 bits in small and in large tiles, with an incomplete step, and experts.
#[test]
fn floats_with_f16_sums_match_double_precision() {
    let name = "cuda_halves::floats_with_f16_sums_match_double_precision";
    on_geforce(name, || {
        for ty in [GgmlType::F16, GgmlType::BF16] {
            check_matmul(ty, [480, 70, 150]);
            check_matmul(ty, [128, 12200, 150]);
            check_experts(ty, [480, 1300], [135, 2]);
            for marks in [
                ["COLUMNS=64", "IDS=0"],
                ["COLUMNS=128", "IDS=0"],
                ["COLUMNS=64", "IDS=1"],
            ] {
                assert_used(ty, &marks);
            }
        }
    });
}

/// Groups of a row with the largest and the smallest floats, all of the same sign, times the largest values of columns.
#[test]
fn largest_and_smallest_floats_do_not_overflow() {
    let name = "cuda_halves::largest_and_smallest_floats_do_not_overflow";
    on_geforce(name, || {
        // The largest f16 value, and 2^100 times the largest mantissa, so that f32 results are finite. Subnormal values.
        for (ty, extremes) in [(GgmlType::F16, [0x7bff, 0x0001]), (GgmlType::BF16, [0x71ff, 0x0080])] {
            for rows in [[extremes[0]; 2], [extremes[1]; 2], extremes] {
                let [k, m, n] = [128, 64, 130];
                // Each half of a group has another value.
                let values = (0..k * m).map(|i| rows[i / 16 % 2] as u16);
                let bytes: Vec<u8> = values.flat_map(u16::to_le_bytes).collect();
                check_largest_columns(ty, [k, m, n], &bytes);
                assert_used(ty, &["IDS=0"]);
            }
        }
    });
}

/// Multiplies weights by columns with the largest mantissa.
fn check_largest_columns(ty: GgmlType, [k, m, n]: [usize; 3], bytes: &[u8]) {
    let mut s = Sketch::new(Precision::Fast);
    let (w, weights) = weights_of(&mut s, ty, [k, m, 1, 1], bytes);
    // The largest float below a power of two.
    let columns = vec![f32::from_bits(0x3fff_ffff); k * n];
    let x = columns.iter().flat_map(|x| x.to_le_bytes()).collect();
    let x = s.leaf(GgmlType::F32, [k, n, 1, 1], x);
    let node = s.graph.mul_mat(w, x).expect("the shapes match");
    s.graph.expand(node);
    let [found, _] = s.both(&[node]);
    check_column(&product(&weights, &columns, k), &floats(&found.0[0]), &ty.to_string());
}

/// Returns blocks whose integers have the largest magnitude, with scales of 2^-10 and minimums of 0.
fn largest_blocks(ty: GgmlType, n: usize) -> Vec<u8> {
    const SCALE: [u8; 2] = [0x00, 0x14];
    const NONE: [u8; 2] = [0, 0];
    // The byte of all values, and fields that follow.
    let (fill, fields): (u8, Vec<(usize, &[u8])>) = match ty {
        GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::IQ4_NL | GgmlType::IQ4_XS => (0, vec![(0, &SCALE)]),
        GgmlType::Q8_0 => (0x80, vec![(0, &SCALE)]),
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => (0xff, vec![(0, &SCALE), (2, &NONE)]),
        GgmlType::Q2_K => (0xff, vec![(80, &SCALE), (82, &NONE)]),
        GgmlType::Q3_K => (0, vec![(108, &SCALE)]),
        GgmlType::Q6_K => (0, vec![(192, &[0x80; 16]), (208, &SCALE)]),
        GgmlType::MXFP4 => (0x77, vec![(0, &[127])]),
        _ => panic!("{ty} is not converted to f16 integers"),
    };
    let mut bytes = vec![fill; n];
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for (at, field) in &fields {
            block[*at..at + field.len()].copy_from_slice(field);
        }
    }
    bytes
}

/// The largest integers of a type times the largest values of columns, all of the same sign.
#[test]
fn largest_f16_sums_do_not_overflow() {
    let name = "cuda_halves::largest_f16_sums_do_not_overflow";
    on_geforce(name, || {
        for (ty, unit) in TYPES {
            let [k, m, n] = [unit.max(256), 64, 130];
            let bytes = largest_blocks(ty, m * ty.row_bytes(k).expect("rows are whole blocks"));
            check_largest_columns(ty, [k, m, n], &bytes);
            assert_used(ty, &["IDS=0"]);
        }
    });
}
