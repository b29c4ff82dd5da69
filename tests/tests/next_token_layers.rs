//! Files may end with layers that predict later tokens (`nextn_predict_layers`). Every architecture loads these files
//! as if the layers were absent.

use std::path::Path;

use engine::gguf::{Array, Gguf, GgufWriter, Metadata, Value};
use engine::model::{ModelError, TableRow, declare_header};
use tests::{fixture, fixture_names};

#[test]
fn extra_layers_change_nothing() {
    let names = fixture_names();
    assert!(names.len() > 50);
    for name in names {
        let plain = Gguf::open_header(fixture(&name).header).expect("the fixture is readable");
        let Some(n_layer) = n_layer(&plain) else { continue };
        let want = declared(&plain).unwrap_or_else(|e| panic!("{name}: {e}"));
        let found = declared(&lengthened(&plain, n_layer, true)).unwrap_or_else(|e| panic!("{name}: {e}"));
        // Offsets are unchanged, because the additional tensors come last.
        assert_eq!(found, want, "{name}");
        assert!(
            declared(&lengthened(&plain, n_layer, false)).is_err(),
            "{name}: loading depends on the key"
        );
    }
}

fn prefix(header: &Gguf) -> String {
    header
        .require("general.architecture")
        .expect("the fixture names its architecture")
}

fn n_layer(header: &Gguf) -> Option<usize> {
    let count = header.metadata.get(&format!("{}.block_count", prefix(header)))?;
    usize::try_from(count.as_u64()?).ok()
}

fn declared(header: &Gguf) -> Result<Vec<TableRow>, ModelError> {
    let prefix = prefix(header);
    let arch = archs::find(&prefix)
        .expect("the fixture's architecture is declared")
        .arch;
    declare_header(header, Path::new("lengthened.gguf"), arch, &prefix).map(|(_, _, rows)| rows)
}

/// Returns the file with one more layer and an unused projection. With `told`, the metadata declares the
/// layer as a next-token layer.
fn lengthened(header: &Gguf, n_layer: usize, told: bool) -> Gguf {
    let prefix = prefix(header);
    let mut metadata: Metadata = (header.metadata.iter())
        .map(|(key, value)| (key.to_owned(), one_more(value, n_layer)))
        .collect();
    metadata.insert(format!("{prefix}.block_count"), Value::U32(n_layer as u32 + 1));
    metadata.insert(format!("{prefix}.nextn_predict_layers"), Value::U32(told.into()));
    let mut writer = GgufWriter::with_metadata(metadata);
    let extra = (format!("blk.{n_layer}.nextn.eh_proj.weight"), vec![8, 4]);
    let tensors = header.tensors().iter().map(|t| (t.name.clone(), t.shape().to_vec()));
    for (name, ne) in tensors.chain([extra]) {
        let bytes = vec![0; 4 * ne.iter().product::<usize>()];
        writer
            .add_tensor(name, kernels::GgmlType::F32, &ne, bytes)
            .expect("a sound tensor");
    }
    Gguf::parse_header(&writer.to_bytes().expect("a valid file")).expect("a valid file")
}

/// Extends a per-layer list by one entry.
fn one_more(value: &Value, n_layer: usize) -> Value {
    match value.clone() {
        Value::Array(Array::U32(mut v)) if v.len() == n_layer => {
            v.push(0);
            Value::Array(Array::U32(v))
        }
        Value::Array(Array::Bool(mut v)) if v.len() == n_layer => {
            v.push(true);
            Value::Array(Array::Bool(v))
        }
        Value::Array(Array::F32(mut v)) if v.len() == n_layer => {
            v.push(0.0);
            Value::Array(Array::F32(v))
        }
        other => other,
    }
}
