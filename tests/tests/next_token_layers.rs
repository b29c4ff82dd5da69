//! Layers that predict tokens beyond the next (`nextn_predict_layers`): every architecture's files may end in some, and load as if
//! they did not.

use std::path::Path;

use engine::gguf::{Array, Gguf, GgufWriter, Metadata, Value};
use engine::model::{ModelError, TableRow, declare_header};
use tests::{fixture, fixture_names};

#[test]
fn layers_behind_the_graph_change_nothing() {
    let names = fixture_names();
    assert!(names.len() > 50);
    for name in names {
        let plain = Gguf::open_header(fixture(&name).header).expect("the fixture is readable");
        let Some(n_layer) = n_layer(&plain) else { continue };
        let want = declared(&plain).unwrap_or_else(|e| panic!("{name}: {e}"));
        let found = declared(&lengthened(&plain, n_layer, true)).unwrap_or_else(|e| panic!("{name}: {e}"));
        // Positions in the file are the same, since the additions stand behind.
        assert_eq!(found, want, "{name}");
        assert!(
            declared(&lengthened(&plain, n_layer, false)).is_err(),
            "{name}: the key makes the difference"
        );
    }
}

fn prefix(header: &Gguf) -> String {
    header.require("general.architecture").expect("the fixture names it")
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

/// The file with one more layer, which has a projection that no graph uses; it is declared as one of those if `told`.
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
    Gguf::parse_header(&writer.to_bytes().expect("a sound file")).expect("a sound file")
}

/// Lists per layer get an entry for the new layer.
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
