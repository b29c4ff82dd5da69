//! Prompts with images. The rows of an image are decoded together, independently of other requests.

use std::sync::Arc;

use engine::context::MediaRows;

use super::*;

const N_ROWS: usize = 40;

/// A model whose rows attend to earlier positions only, and one whose rows attend to all rows of their image.
const IMAGE_MODELS: [&str; 2] = ["llama-dense", "gemma3-dense"];

fn scheduler_with_images(name: &str, n_parallel: usize, n_ctx: usize) -> (Scheduler, Batcher) {
    let change = |p: &mut ContextParams| {
        (p.n_ctx, p.n_seq_max, p.n_batch, p.n_ubatch) = (n_ctx, 2 * n_parallel, 64, 64);
        p.media_rows = N_ROWS;
    };
    let settings = Settings {
        n_parallel,
        max_waiting: 64,
        ..Settings::default()
    };
    Scheduler::with_batcher(context(&model(name), change), settings, None).unwrap()
}

fn image(name: &str, id: u128) -> Arc<MediaRows> {
    let width = model(name).base().n_embd();
    let value = |i: usize| ((i * 37 + id as usize * 11) % 17) as f32 / 17.0 - 0.5;
    Arc::new(MediaRows::new(id, width, (0..N_ROWS * width).map(value).collect()))
}

/// Returns a request for `n` tokens: `n_text` tokens, then images with three tokens after each.
fn with_images(of: usize, images: &[Arc<MediaRows>], n_text: usize, n: usize) -> Request {
    let mut tokens = prompt(of, n_text);
    for image in images {
        tokens.extend_from_slice(image.tokens());
        tokens.extend(prompt(of + 7, 3));
    }
    Request {
        images: images.to_vec(),
        ..greedy(tokens, n)
    }
}

fn requests(name: &str) -> Vec<Request> {
    let [a, b] = [1, 2].map(|id| image(name, id));
    vec![
        greedy(prompt(0, 9), 24),
        with_images(1, std::slice::from_ref(&a), 5, 8),
        with_images(2, &[a.clone(), b.clone()], 70, 8),
        with_images(3, &[b, a], 1, 8),
        greedy(prompt(4, 90), 8),
    ]
}

#[test]
fn completions_with_images_are_independent_of_other_requests() {
    for name in IMAGE_MODELS {
        let alone: Vec<Output> = (requests(name).into_iter())
            .map(|request| {
                let (scheduler, mut batcher) = scheduler_with_images(name, 1, 512);
                complete(&scheduler, &mut batcher, request)
            })
            .collect();
        // With few cells, requests are preempted and computed again.
        for n_ctx in [1024, 256] {
            let (scheduler, mut batcher) = scheduler_with_images(name, 4, n_ctx);
            let events = requests(name)
                .into_iter()
                .map(|request| scheduler.submit(request).unwrap());
            let events = events.collect();
            for (i, (output, alone)) in finish(&mut batcher, events).iter().zip(&alone).enumerate() {
                assert_eq!(output.tokens, alone.tokens, "{name}, {n_ctx} cells, request {i}");
                assert_eq!(output.failed, None);
            }
        }
    }
}

#[test]
fn cancelled_requests_with_images_release_their_cells() {
    for name in IMAGE_MODELS {
        let (scheduler, mut batcher) = scheduler_with_images(name, 2, 512);
        for n_steps in 0..5 {
            let request = with_images(1, &[image(name, 1), image(name, 2)], 70, 8);
            let events = scheduler.submit(request).unwrap();
            (0..n_steps).for_each(|_| _ = batcher.step(false));
            drop(events);
            batcher.step(false);
            let gauges = scheduler.gauges();
            assert_eq!((gauges.n_running, gauges.n_waiting, gauges.n_busy), (0, 0, 0), "{name}");
        }
    }
}

#[test]
fn cached_rows_without_image_are_rejected() {
    let (scheduler, _) = scheduler_with_images("llama-dense", 1, 512);
    let request = Request {
        images: Vec::new(),
        ..with_images(1, &[image("llama-dense", 1)], 5, 1)
    };
    assert!(matches!(scheduler.submit(request), Err(SubmitError::Token { .. })));
}
