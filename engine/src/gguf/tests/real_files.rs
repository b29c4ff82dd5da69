//! Tests with real model headers, generated models, and split models.

use std::path::Path;

use super::{data_dir, files_in};
use crate::gguf::logits::Logits;
use crate::gguf::seeded::{KEY_SCALE, fill_f32, seeded_model, weights_of};
use crate::gguf::split::{KEY_COUNT, KEY_NO, KEY_TENSORS_COUNT, SplitName, part_path};
use crate::gguf::*;
use kernels::GgmlType;

fn llama_dense() -> Gguf {
    Gguf::open_header(data_dir().join("llama-dense.header.gguf")).unwrap()
}

#[test]
fn header_has_expected_values() {
    let header = llama_dense();
    assert_eq!(header.require::<&str>("general.architecture").unwrap(), "llama");
    let n_layer = header.require::<usize>("llama.block_count").unwrap();
    let n_embd = header.require::<usize>("llama.embedding_length").unwrap();
    let n_ff = header.require::<usize>("llama.feed_forward_length").unwrap();
    for i in 0..n_layer {
        let up = header.tensor(&format!("blk.{i}.ffn_up.weight")).unwrap();
        assert_eq!(
            (up.shape(), up.ty, up.bytes),
            (&[n_embd, n_ff][..], GgmlType::F32, 4 * n_embd * n_ff)
        );
    }
    assert!(header.tensor("blk.0.nothing").is_none());
    let tokens = header.require::<&StringArray>("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.get_str(1), Some("tok_1"));
    assert_eq!(tokens.iter().len(), tokens.len());
    assert_eq!(tokens.get(tokens.len()), None);
}

/// Rewrites a parsed header and expects identical bytes, so reader and writer agree with the tool that
/// produced the file.
fn check_rewritten(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    let header = Gguf::parse_header(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut writer = GgufWriter::with_metadata(header.metadata.clone());
    for t in header.tensors() {
        writer
            .add_tensor_with(t.name.clone(), t.ty, t.shape(), |_| Ok(()))
            .unwrap();
    }
    // Files without tensors may omit the final padding.
    let (written, name) = (writer.header().unwrap(), path.display());
    assert!(written.starts_with(&bytes), "{name}");
    assert!(header.tensors().is_empty() || written.len() == bytes.len(), "{name}");
}

#[test]
fn rewritten_header_is_identical() {
    for (dir, at_least) in [("archs", 149), ("headers", 4), ("vocabs", 16)] {
        let headers = files_in(data_dir().with_file_name(dir), ".gguf");
        assert!(headers.len() >= at_least, "{dir}: {}", headers.len());
        headers.iter().for_each(|path| check_rewritten(path));
    }
}

#[test]
fn seeded_model_is_complete() {
    for path in files_in(data_dir(), ".header.gguf") {
        let header = Gguf::open_header(&path).unwrap();
        assert!(matches!(
            GgufFile::open(&path).unwrap_err().kind(),
            GgufError::DataTruncated { .. }
        ));
        let model = seeded_model(&header, 1).unwrap();
        assert!(model.starts_with(&std::fs::read(&path).unwrap()));
        let file = GgufFile::from_bytes(&path, &model).unwrap();
        for t in file.tensors() {
            let expected = weights_of(&header.metadata, &t.name, t.n_elements(), 1).unwrap();
            let data: &[f32] = bytemuck::cast_slice(file.tensor_data(t));
            assert!(data == expected, "{}", t.name);
        }
        if let Some(output) = file.tensor("output.weight") {
            let data: &[f32] = bytemuck::cast_slice(file.tensor_data(output));
            let scale: f32 = header.optional(KEY_SCALE).unwrap().unwrap_or(1.0);
            assert_eq!(data[0], 0.090_198_6 * scale);
        }

        let logits = Logits::read(path.to_string_lossy().replace(".header.gguf", ".logits")).unwrap();
        // Decoders have one logit per vocabulary entry; encoders have an embedding.
        assert_eq!(logits.tokens().len(), 96);
        assert_eq!(logits.values().len(), 96 * logits.n_vocab());
        assert!(logits.n_vocab() >= 128);
        assert_eq!(logits.nmse(logits.values()), 0.0);
    }
}

#[test]
fn seeded_model_rejects_huge_and_quantized_headers() {
    let mut writer = GgufWriter::new();
    writer
        .add_tensor_with("huge", GgmlType::F32, &[1 << 60], |_| Ok(()))
        .unwrap();
    let huge = Gguf::parse_header(&writer.header().unwrap()).unwrap();
    assert!(matches!(seeded_model(&huge, 1), Err(GgufError::ModelTooLarge { .. })));

    let mut writer = GgufWriter::new();
    writer.add_tensor("q", GgmlType::Q8_0, &[32], vec![0; 34]).unwrap();
    let quantized = Gguf::parse_header(&writer.header().unwrap()).unwrap();
    assert_eq!(
        seeded_model(&quantized, 1).unwrap_err().to_string(),
        "tensor \"q\": expected type f32, found q8_0"
    );
}

#[test]
fn mapped_and_read_files_are_equal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, seeded_model(&llama_dense(), 7).unwrap()).unwrap();
    let (mapped, read) = (GgufFile::open(&path).unwrap(), GgufFile::read(&path).unwrap());
    assert_eq!(mapped.header(), read.header());
    assert_eq!(mapped.mapping().bytes(), read.mapping().bytes());
    for file in [mapped, read] {
        assert!((file.mapping().bytes().as_ptr() as usize).is_multiple_of(64));
        let error = file.require::<u32>("llama.no_such_key").unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: missing key \"llama.no_such_key\"", path.display())));
    }
}

/// Distributes the tensors of `header` round-robin over `count` files; `change` can corrupt the metadata of
/// each part.
fn write_shards(header: &Gguf, prefix: &Path, count: u16, change: impl Fn(u16, &mut Metadata)) {
    for no in 0..count {
        let mut metadata = if no == 0 {
            header.metadata.clone()
        } else {
            Metadata::default()
        };
        metadata.insert(KEY_NO, no);
        metadata.insert(KEY_COUNT, count);
        metadata.insert(KEY_TENSORS_COUNT, header.tensors().len() as i32);
        change(no, &mut metadata);
        let mut writer = GgufWriter::with_metadata(metadata);
        for t in header.tensors().iter().skip(no.into()).step_by(count.into()) {
            let mut data = vec![0.0; t.n_elements()];
            fill_f32(&t.name, 1, &mut data);
            let bytes = data.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
            writer.add_tensor(t.name.clone(), t.ty, t.shape(), bytes).unwrap();
        }
        writer.write_file(part_path(prefix, no, count)).unwrap();
    }
}

#[test]
fn shards_open_as_one_model() {
    let header = llama_dense();
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("mini-of-1-model");
    write_shards(&header, &prefix, 3, |_, _| {});
    let set = GgufSet::open(part_path(&prefix, 0, 3)).unwrap();
    assert_eq!((set.shards().len(), set.n_tensors()), (3, header.tensors().len()));
    assert_eq!(set.tensors().count(), set.n_tensors());
    assert_eq!(set.require::<&str>("general.architecture").unwrap(), "llama");
    let whole = GgufFile::from_bytes("whole", &seeded_model(&header, 1).unwrap()).unwrap();
    for t in whole.tensors() {
        assert_eq!(set.tensor_data(&t.name), Some(whole.tensor_data(t)), "{}", t.name);
    }
    let single = GgufSet::from_file(whole).unwrap();
    assert_eq!((single.shards().len(), single.n_tensors()), (1, header.tensors().len()));
}

#[test]
fn open_rejects_mismatched_shards() {
    let header = llama_dense();
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("m");
    let part = |no| part_path(&prefix, no, 3);
    let error_message = |path: &Path| GgufSet::open(path).unwrap_err().to_string();
    let named = |no: u16, message: &str| format!("{}: {message}", part(no).display());

    write_shards(&header, &prefix, 3, |_, _| {});
    assert_eq!(
        error_message(&part(2)),
        named(
            2,
            &format!(
                "cannot open part 3 of 3 of a split model directly; open the first part, {}",
                part(0).display()
            )
        )
    );
    let renamed = dir.path().join("renamed.gguf");
    std::fs::copy(part(0), &renamed).unwrap();
    assert!(error_message(&renamed).contains("expected a file name that ends in -00001-of-00003.gguf"));
    std::fs::remove_file(part(1)).unwrap();
    assert!(error_message(&part(0)).starts_with(&named(1, "cannot open the file")));
    std::fs::copy(part(2), part(1)).unwrap();
    assert_eq!(
        error_message(&part(0)),
        named(
            1,
            "key \"split.no\": expected 1 (from the first part and the file name), found 2"
        )
    );

    write_shards(&header, &prefix, 3, |no, m| {
        drop((no == 1).then(|| m.insert(KEY_COUNT, 4u16)))
    });
    assert!(error_message(&part(0)).contains("key \"split.count\": expected 3"));
    write_shards(&header, &prefix, 3, |_, m| drop(m.insert(KEY_TENSORS_COUNT, 1i32)));
    assert!(error_message(&part(0)).contains("expected 1 tensors across all parts"));
    write_shards(&header, &prefix, 3, |_, m| drop(m.insert(KEY_COUNT, "three")));
    assert!(error_message(&part(0)).contains("key \"split.count\": expected an integer"));
}

#[test]
fn split_name_parses_and_formats() {
    let parse = |s: &str| SplitName::parse(Path::new(s));
    let name = parse("dir/a-b-00002-of-00003.gguf").unwrap();
    assert_eq!((name.no, name.count), (1, 3));
    assert_eq!(name.part(0), Path::new("dir/a-b-00001-of-00003.gguf"));
    assert_eq!(name.part(1), Path::new("dir/a-b-00002-of-00003.gguf"));
    for bad in [
        "a.gguf",
        "a-00002-of-00003.bin",
        "a-00004-of-00003.gguf",
        "a-00000-of-00003.gguf",
        "a-0002-of-0003.gguf",
        "a-+0002-of-00003.gguf",
        "a-00002-of-99999.gguf",
        "00002-of-00003.gguf",
        "",
    ] {
        assert_eq!(parse(bad), None, "{bad}");
    }
}
