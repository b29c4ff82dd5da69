//! Multi-head latent attention and indexers: caches without values, indexer keys, and sparse attention.

use std::sync::Arc;

use engine::conformance::all_logits;
use engine::gguf::{Gguf, GgufFile, GgufWriter, Value, seeded};
use engine::model::{LoadParams, Model};
use kernels::GgmlType;
use tests::{context, decode_last, decode_one, exact, fixture, model, nmse, place_on, tokens};

/// Returns a model whose layers attend to `n_selected` cells. With `shared`, the second layer reuses the
/// selection of the first.
fn sparse(name: &str, n_selected: u32, shared: bool, device: Option<&str>) -> Arc<Model> {
    let mut params = exact();
    let arch = name.trim_end_matches("-moe");
    let key = |k: &str| format!("{arch}.attention.indexer.{k}");
    params.load.overrides.push((key("top_k"), Value::U32(n_selected)));
    if shared {
        params.load.overrides.push((key("types"), Value::from(vec![1u32, 0])));
    }
    if let Some(device) = device {
        place_on(&mut params.load, device, 3);
    }
    fixture(name).model(archs::ALL, &params).expect("the model loads")
}

#[test]
fn selection_is_independent_of_ubatches() {
    for (name, shared) in [
        ("deepseek32-moe", false),
        ("glm-dsa-moe", false),
        ("glm-dsa-moe", true),
        ("dots3note-moe", false),
    ] {
        let t = tokens(name);
        let m = sparse(name, 8, shared, None);
        let whole = decode_last(&mut context(&m, |_| {}), &t[..60], 0, 0);
        let mut ctx = context(&m, |p| p.n_ubatch = 7);
        decode_last(&mut ctx, &t[..50], 0, 0);
        let steps = (50..60)
            .map(|i| decode_one(&mut ctx, t[i], i, 0))
            .last()
            .expect("ten tokens");
        assert!(nmse(&whole, &steps) < 1e-10, "{name}: {:.3e}", nmse(&whole, &steps));
        let dense = decode_last(&mut context(&sparse(name, 1000, shared, None), |_| {}), &t[..60], 0, 0);
        assert!(nmse(&dense, &whole) > 1e-6, "{name}: most cells are skipped");
    }
}

#[test]
fn selection_matches_definition() {
    let (name, t) = ("glm-dsa-moe", tokens("glm-dsa-moe"));
    let of = |device| decode_last(&mut context(&sparse(name, 8, true, device), |_| {}), &t[..40], 0, 0);
    let (fast, plain) = (of(None), of(Some("reference")));
    assert!(nmse(&plain, &fast) < 1e-10, "{:.3e}", nmse(&plain, &fast));
}

#[test]
fn shift_rotates_latent_keys() {
    let (m, t) = (model("deepseek2-moe"), tokens("deepseek2-moe"));
    let mut ctx = context(&m, |_| {});
    decode_last(&mut ctx, &t[..30], 0, 0);
    ctx.seq_add(0, .., 7).expect("the keys can be shifted");
    let moved = decode_one(&mut ctx, t[30], 37, 0);
    let expected = decode_last(&mut context(&m, |_| {}), &t[..31], 0, 0);
    assert!(nmse(&expected, &moved) < 1e-8, "{:.3e}", nmse(&expected, &moved));
}

#[test]
fn latent_keys_are_stored_once() {
    let m = model("deepseek2-moe");
    // The cache has two layers of 96 cells with 512 + 64 floats and no values.
    assert_eq!(context(&m, |_| {}).sizes().kv, 2 * 96 * 576 * size_of::<f32>());
}

/// Returns a file in which the projections of keys and values are one matrix. Each head has its key rows,
/// which are columns of the absorbed query projection, followed by its value rows.
fn joined(name: &str) -> Vec<u8> {
    let header = Gguf::open_header(fixture(name).header).expect("the fixture is readable");
    let whole = seeded::seeded_model(&header, 1).expect("the fixture accepts seeded weights");
    let file = GgufFile::from_bytes("split.gguf", &whole).expect("a valid file");
    let floats = |name: &str| -> Vec<f32> {
        let info = file.tensor(name).expect("the tensor exists");
        let bytes = file.tensor_data(info).as_chunks::<4>().0;
        bytes.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let mut writer = GgufWriter::with_metadata(file.metadata().clone());
    let mut add = |name: String, ne: &[usize], bytes: Vec<u8>| {
        writer
            .add_tensor(name, GgmlType::F32, ne, bytes)
            .expect("a sound tensor");
    };
    for t in file.tensors() {
        let Some(layer) = t.name.strip_suffix("attn_k_b.weight") else {
            if !t.name.ends_with("attn_v_b.weight") {
                add(t.name.clone(), t.shape(), file.tensor_data(t).to_vec());
            }
            continue;
        };
        let value = file
            .tensor(&format!("{layer}attn_v_b.weight"))
            .expect("both projections exist");
        let ([n_nope, rank, n_head, _], d_value) = (t.ne, value.ne[1]);
        let (keys, values) = (floats(&t.name), floats(&value.name));
        let mut rows: Vec<f32> = Vec::new();
        for h in 0..n_head {
            for i in 0..n_nope {
                rows.extend(
                    keys[h * rank * n_nope..][..rank * n_nope]
                        .iter()
                        .skip(i)
                        .step_by(n_nope),
                );
            }
            rows.extend(&values[h * d_value * rank..][..d_value * rank]);
        }
        let bytes = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
        add(
            format!("{layer}attn_kv_b.weight"),
            &[rank, n_head * (n_nope + d_value)],
            bytes,
        );
    }
    writer.to_bytes().expect("a valid file")
}

/// If whole heads rotate, the projection of keys would be empty, so splitting is rejected.
#[test]
fn empty_projection_is_rejected() {
    let mut params = exact();
    let all_rotates = ("deepseek2.rope.dimension_count".to_owned(), Value::U32(192));
    params.load.overrides.push(all_rotates);
    let refused = fixture("deepseek2-moe").model(archs::ALL, &params).err();
    let sentence = refused.expect("heads are 192 wide").to_string();
    let expected =
        "tensor `blk.0.attn_k_b.weight` has shape [128, 512], but the metadata implies an empty shape: [0, 512, 1]";
    assert!(sentence.contains(expected), "{sentence}");
}

#[test]
fn expanded_heads_match_latent_attention() {
    for name in ["kimi-linear-moe", "bailingmoe3-moe"] {
        let file = GgufFile::from_bytes("joined.gguf", &joined(name)).expect("a valid file");
        let heads = Model::from_file(file, archs::ALL, &LoadParams::default()).expect("the model loads");
        let of = |m: Arc<Model>| all_logits(m, &tokens(name)[..40], &exact().context).expect("the model runs");
        let (latent, heads) = (of(model(name)), of(Arc::new(heads)));
        assert!(nmse(&latent, &heads) < 1e-9, "{name}: {:.3e}", nmse(&latent, &heads));
    }
}
