//! Latent attention and indexers: caches of keys alone, of an indexer's keys, and attention to a few cells.

use std::sync::Arc;

use engine::gguf::Value;
use engine::model::Model;
use tests::{context, decode_last, decode_one, exact, fixture, model, nmse, place_on, tokens};

/// A model whose layers attend to `n_selected` cells; where `shared`, the second layer to those that the first one chose.
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
fn a_selection_is_the_same_however_a_sequence_is_cut() {
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
        assert!(nmse(&dense, &whole) > 1e-6, "{name}: most cells are left out");
    }
}

#[test]
fn a_selection_is_what_the_definition_says() {
    let (name, t) = ("glm-dsa-moe", tokens("glm-dsa-moe"));
    let of = |device| decode_last(&mut context(&sparse(name, 8, true, device), |_| {}), &t[..40], 0, 0);
    let (fast, plain) = (of(None), of(Some("reference")));
    assert!(nmse(&plain, &fast) < 1e-10, "{:.3e}", nmse(&plain, &fast));
}

#[test]
fn the_rotated_part_of_latent_keys_moves_with_positions() {
    let (m, t) = (model("deepseek2-moe"), tokens("deepseek2-moe"));
    let mut ctx = context(&m, |_| {});
    decode_last(&mut ctx, &t[..30], 0, 0);
    ctx.seq_add(0, .., 7).expect("they can move");
    let moved = decode_one(&mut ctx, t[30], 37, 0);
    let expected = decode_last(&mut context(&m, |_| {}), &t[..31], 0, 0);
    assert!(nmse(&expected, &moved) < 1e-8, "{:.3e}", nmse(&expected, &moved));
}

#[test]
fn latent_keys_are_stored_once() {
    let m = model("deepseek2-moe");
    // Two layers of 96 cells with 512 + 64 floats, and no values.
    assert_eq!(context(&m, |_| {}).sizes().kv, 2 * 96 * 576 * size_of::<f32>());
}
