//! Models with rows that start with the scale of all their blocks: IQ4_KS and IQ5_KS.

use std::sync::Arc;

use engine::conformance::all_logits;
use engine::context::ContextParams;
use engine::gguf::{Gguf, GgufError, GgufFile, GgufWriter};
use engine::model::{LoadParams, Model, ModelError, TensorTable};
use engine::synth::{Mix, ModelShape, Synth, SynthParams};
use kernels::GgmlType::{self, F32, IQ4_KS, IQ5_KS};
use kernels::Precision;
use tests::emulator::with_device;
use tests::{divide_rows, exact, nmse, place_on};

use crate::cuda::card;

const TYPES: [GgmlType; 2] = [IQ4_KS, IQ5_KS];

const N_TOKENS: u32 = 40;

/// A tensor that most tests change: a matrix with rows of 256 elements.
const MATRIX: &str = "blk.0.attn_q.weight";

/// Values of 4-bit and 5-bit indices.
const TABLE_4: [i32; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
const TABLE_5: [i32; 32] = [
    -126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6, -1, 5, 11, 17, 23, 29, 36, 43,
    51, 59, 68, 77, 87, 97, 109, 121,
];

/// Returns the values of a row by the definition of its type.
fn values(ty: GgmlType, row: &[u8]) -> Vec<f32> {
    let d = f32::from_le_bytes(row[..4].try_into().unwrap());
    let mut values = Vec::new();
    for block in row[4..].chunks_exact(if ty == IQ4_KS { 136 } else { 168 }) {
        let (scales, indices) = block.split_at(8);
        for i in 0..256 {
            let (g, l) = (i / 32, i % 32);
            let (scale, is_shifted) = (i32::from(scales[g] & 254) - 127, i32::from(scales[g] & 1));
            let value = if ty == IQ4_KS {
                let q = indices[16 * g + l % 16] >> (l / 16 * 4) & 15;
                TABLE_4[usize::from(q)] + 4 * is_shifted
            } else {
                let q = indices[g / 2 * 32 + l] >> (g % 2 * 4) & 15 | (indices[128 + l] >> g & 1) << 4;
                TABLE_5[usize::from(q)] + 2 * is_shifted
            };
            values.push(d * scale as f32 * value as f32);
        }
    }
    values
}

/// Returns random rows with scales of either sign and different magnitudes.
fn random_rows(ty: GgmlType, n: usize, n_rows: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let mut rows = Vec::new();
    for _ in 0..n_rows {
        let d = (f32::from(next()) - 128.5) * 2e-7;
        rows.extend(d.to_le_bytes());
        rows.extend((4..ty.row_bytes(n).unwrap()).map(|_| next()));
    }
    rows
}

/// Returns a tiny model whose matrices have random rows of a type, and the model with their values as floats.
fn models(ty: GgmlType) -> [Vec<u8>; 2] {
    let llama = archs::ALL.iter().find(|registered| registered.arch.name == "llama");
    let params = SynthParams {
        shape: *ModelShape::find("tiny").expect("the shape is known"),
        settings: Vec::new(),
        mix: Mix::Plain(F32),
        output: None,
        seed: 5,
    };
    let synth = Synth::new(llama.expect("the architecture exists").arch, archs::ALL, &params).unwrap();
    let path = tempfile::NamedTempFile::new().unwrap();
    synth.write(path.path()).unwrap();
    let source = std::fs::read(path.path()).unwrap();
    let header = Gguf::parse_header(&source).unwrap();
    let mut writers = [(); 2].map(|()| GgufWriter::with_metadata(header.metadata.clone()));
    let mut n_matrices = 0;
    for (i, t) in header.tensors().iter().enumerate() {
        let [n, n_rows, ..] = t.ne;
        if n_rows == 1 {
            let data = &source[header.data_offset() + t.offset..][..t.bytes];
            for writer in &mut writers {
                writer
                    .add_tensor(t.name.as_str(), t.ty, t.shape(), data.to_vec())
                    .unwrap();
            }
            continue;
        }
        let rows = random_rows(ty, n, n_rows, i as u64);
        let floats = rows
            .chunks_exact(ty.row_bytes(n).unwrap())
            .flat_map(|row| values(ty, row));
        let floats: Vec<u8> = floats.flat_map(f32::to_le_bytes).collect();
        for (writer, (ty, data)) in writers.iter_mut().zip([(ty, rows), (F32, floats)]) {
            writer.add_tensor(t.name.as_str(), ty, t.shape(), data).unwrap();
        }
        n_matrices += 1;
    }
    assert_eq!(n_matrices, 2 * 7 + 1);
    writers.map(|writer| writer.to_bytes().unwrap())
}

fn logits(bytes: &[u8], load: &LoadParams, context: &ContextParams) -> Vec<f32> {
    let file = GgufFile::from_bytes("model.gguf", bytes).unwrap();
    let model = Arc::new(Model::from_file(file, archs::ALL, load).unwrap());
    let tokens: Vec<u32> = (0..N_TOKENS).map(|i| 3 + i * 37 % 256).collect();
    all_logits(model, &tokens, context).unwrap()
}

#[test]
fn row_header_models_match_models_of_decoded_rows() {
    type Change = fn(&mut LoadParams);
    let ways: [(&str, Precision, Change); 5] = [
        ("file layout", Precision::Exact, |_| {}),
        ("matrices in two layers on reference", Precision::Exact, |load| {
            place_on(load, "reference", 2)
        }),
        ("rows divided", Precision::Exact, |load| {
            divide_rows(load, 3, &[1.0, 1.0])
        }),
        ("file layout, integers", Precision::High, |_| {}),
        ("repacked, integers", Precision::High, |load| {
            load.placement.repack = true
        }),
    ];
    for ty in TYPES {
        let [rows, floats] = models(ty);
        let params = exact();
        let expected = logits(&floats, &params.load, &params.context);
        assert!(expected.iter().all(|x| x.is_finite()) && expected.iter().any(|x| *x != expected[0]));
        for (what, precision, change) in ways {
            let mut params = exact();
            change(&mut params.load);
            params.context.precision = precision;
            let error = nmse(&expected, &logits(&rows, &params.load, &params.context));
            let bound = if precision == Precision::Exact { 1e-10 } else { 1e-7 };
            assert!(error < bound, "{ty}, {what}: NMSE {error:.2e}");
        }
    }
}

#[test]
fn row_header_models_match_models_of_decoded_rows_on_gpu() {
    with_device(
        "row_headers::row_header_models_match_models_of_decoded_rows_on_gpu",
        || {
            for ty in TYPES {
                let [rows, floats] = models(ty);
                let mut params = exact();
                let expected = logits(&floats, &params.load, &params.context);
                place_on(&mut params.load, &card(), usize::MAX);
                let error = nmse(&expected, &logits(&rows, &params.load, &params.context));
                assert!(error < 1e-6, "{ty}: NMSE {error:.2e}");
            }
        },
    );
}

#[test]
fn matrices_with_row_header_are_repacked() {
    let [rows, _] = models(IQ4_KS);
    let file = GgufFile::from_bytes("model.gguf", &rows).unwrap();
    let model = Model::from_file(file, archs::ALL, &LoadParams::default()).unwrap();
    for (row, parts) in model.tensors().iter().zip(&model.placement().parts) {
        let is_matrix = row.ty == IQ4_KS;
        assert_eq!(
            row.stored_type(),
            if is_matrix { GgmlType::IQ4_KS_D } else { F32 },
            "{}",
            row.name
        );
        assert!(
            !is_matrix || parts.iter().all(|part| !part.layout.is_plain()),
            "{}",
            row.name
        );
        if is_matrix {
            assert_eq!(row.file_bytes(), row.ne[1] * (4 + row.ne[0] / 256 * 136));
            assert_eq!(row.bytes(), row.ne[1] * (row.ne[0] / 256 * 140));
        }
    }
}

/// Replaces a tensor of a file.
fn with_tensor(bytes: &[u8], name: &str, ty: GgmlType, ne: &[usize], data: &[u8]) -> Vec<u8> {
    let header = Gguf::parse_header(bytes).unwrap();
    let mut writer = GgufWriter::with_metadata(header.metadata.clone());
    for t in header.tensors() {
        if t.name == name {
            writer.add_tensor(name, ty, ne, data.to_vec()).unwrap();
        } else {
            let data = &bytes[header.data_offset() + t.offset..][..t.bytes];
            writer
                .add_tensor(t.name.as_str(), t.ty, t.shape(), data.to_vec())
                .unwrap();
        }
    }
    writer.to_bytes().unwrap()
}

fn error_of(bytes: &[u8], load: &LoadParams) -> String {
    let file = GgufFile::from_bytes("model.gguf", bytes).map_err(ModelError::from);
    let model = file.and_then(|file| Model::from_file(file, archs::ALL, load));
    model.map(|_| ()).expect_err("the file is invalid").to_string()
}

#[test]
fn damaged_files_are_rejected() {
    for ty in TYPES {
        let [rows, _] = models(ty);
        let load = LoadParams {
            check_tensors: true,
            ..LoadParams::default()
        };
        let truncated = error_of(&rows[..rows.len() - 40], &load);
        assert!(truncated.contains("truncated"), "{truncated}");
        let mut data = random_rows(ty, 256, 256, 1);
        let row_bytes = data.len() / 256;
        data[3 * row_bytes..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        let damaged = error_of(&with_tensor(&rows, MATRIX, ty, &[256, 256], &data), &load);
        assert!(damaged.contains(MATRIX) && damaged.contains("element 768"), "{damaged}");
        let wide = with_tensor(&rows, MATRIX, ty, &[512, 128], &random_rows(ty, 512, 128, 1));
        assert!(error_of(&wide, &load).contains(MATRIX));
    }
}

#[test]
fn norms_with_row_header_are_read() {
    let name = "blk.0.attn_norm.weight";
    let row = random_rows(IQ4_KS, 256, 1, 9);
    let floats: Vec<u8> = values(IQ4_KS, &row).into_iter().flat_map(f32::to_le_bytes).collect();
    let [_, model] = models(IQ4_KS);
    let [rows, floats] = [(IQ4_KS, &row), (F32, &floats)].map(|(ty, data)| {
        let params = exact();
        logits(
            &with_tensor(&model, name, ty, &[256], data),
            &params.load,
            &params.context,
        )
    });
    assert_eq!(rows, floats);
}

/// Vectors may be stored with other dimensions, but not if that joins or splits rows with a header.
#[test]
fn joined_rows_with_header_are_rejected() {
    for (ty, is_accepted) in [(GgmlType::IQ4_XS, true), (IQ4_KS, false)] {
        let mut writer = GgufWriter::new();
        let data = vec![0; ty.row_bytes(512).unwrap()];
        writer.add_tensor("scale", ty, &[512], data).unwrap();
        let bytes = writer.to_bytes().unwrap();
        let header = Gguf::parse_header(&bytes).unwrap();
        let mut table = TensorTable::new(&header);
        table.raw("scale", &[256, 2]);
        assert_eq!(table.finish().is_ok(), is_accepted, "{ty}");
    }
}

#[test]
fn types_in_memory_are_rejected_in_files() {
    let [rows, _] = models(IQ4_KS);
    let mut writer = GgufWriter::new();
    let written = writer.add_tensor("w", GgmlType::IQ4_KS_D, &[256], vec![0; 140]);
    assert!(matches!(written, Err(GgufError::UnknownTensorType { .. })));
    // The name is followed by the number of dimensions, two dimensions, and the type.
    let name = rows
        .windows(MATRIX.len())
        .position(|bytes| bytes == MATRIX.as_bytes())
        .unwrap();
    let id = name + MATRIX.len() + 4 + 16;
    assert_eq!(rows[id..id + 4], IQ4_KS.id().to_le_bytes());
    let mut changed = rows.clone();
    changed[id..id + 4].copy_from_slice(&GgmlType::IQ4_KS_D.id().to_le_bytes());
    assert!(matches!(
        Gguf::parse_header(&changed),
        Err(GgufError::UnknownTensorType { id: 0x8000_0090, .. })
    ));
}

#[test]
fn sizes_of_rows_with_header_do_not_overflow() {
    for ty in TYPES {
        for ne in [[1 << 62, 4], [256, 1 << 56], [1 << 40, 1 << 40]] {
            let added = GgufWriter::new().add_tensor_with("w", ty, &ne, |_| Ok(())).map(|_| ());
            assert!(
                matches!(added, Err(GgufError::ShapeOverflow { .. })),
                "{ty} {ne:?}: {added:?}"
            );
        }
        let partial = GgufWriter::new()
            .add_tensor_with("w", ty, &[128, 2], |_| Ok(()))
            .map(|_| ());
        assert!(
            matches!(partial, Err(GgufError::PartialBlock { .. })),
            "{ty}: {partial:?}"
        );
    }
}
