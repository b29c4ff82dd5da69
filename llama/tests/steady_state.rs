//! Checks that generation allocates no heap memory after the first tokens. Allocations of all threads are counted.

#[path = "../../engine/tests/counting/mod.rs"]
mod counting;

use std::sync::atomic::Ordering;

use counting::{ALLOCATIONS, ignore_harness};
use llama::Model;

/// This file has a single test, because allocations of all threads are counted.
#[test]
fn pieces_allocate_nothing() {
    ignore_harness();
    // Rayon starts some of its threads lazily, which allocates.
    rayon::broadcast(|_| ());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.gguf");
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    std::fs::write(&path, tests::text_model("llama", Some(template))).unwrap();
    let model = Model::options().threads(2).open(path).unwrap();
    let mut chat = model
        .chat()
        .seed(1)
        .ignore_eos(true)
        .loop_detection(false)
        .start()
        .unwrap();
    let mut response = chat.ask("one two").unwrap();
    // The first tokens size the buffers of the samplers.
    response.by_ref().take(40).for_each(|piece| drop(piece.unwrap()));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let n_bytes: usize = response.by_ref().take(50).map(|piece| piece.unwrap().len()).sum();
    assert_eq!(
        ALLOCATIONS.load(Ordering::Relaxed) - before,
        0,
        "allocations in 50 pieces"
    );
    assert!(n_bytes >= 50);
}
