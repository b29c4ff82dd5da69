//! Tests of sessions whose prompts contain rows of images.

use std::sync::Arc;

use engine::context::{Context, ContextParams, MediaRows};
use engine::model::{LoadParams, Model};
use engine::sample::SamplerParams;
use llama::parts::{ARCHITECTURES, GenerationParams, Session};
use llama::{Error, engine};

use crate::common::TinyModel;

/// Width of the tiny model's embeddings.
const N_EMBD: usize = 256;

fn image(id: u128, n_rows: usize) -> Arc<MediaRows> {
    let value = |i: usize| ((i * 37 + id as usize * 11) % 17) as f32 / 17.0 - 0.5;
    Arc::new(MediaRows::new(id, N_EMBD, (0..n_rows * N_EMBD).map(value).collect()))
}

fn session(tiny: &TinyModel, n_batch: usize, media_rows: usize) -> Session {
    let model = Model::load(tiny.path(), ARCHITECTURES, &LoadParams::default()).unwrap();
    let params = ContextParams {
        n_ctx: 96,
        n_batch,
        n_ubatch: 8,
        n_threads: 2,
        n_threads_batch: 2,
        media_rows,
        ..ContextParams::default()
    };
    Session::new(Context::new(Arc::new(model), &params).unwrap())
}

/// Returns the text after a prompt, and the number of its tokens that were cached.
fn answer(session: &mut Session, prompt: &[u32], images: &[Arc<MediaRows>]) -> Result<(String, usize), Error> {
    let sampler = SamplerParams {
        temp: 0.0,
        ..SamplerParams::default()
    };
    let params = GenerationParams {
        max_tokens: Some(6),
        ignore_eos: true,
        images: images.to_vec(),
        ..GenerationParams::new(&sampler)
    };
    let mut generation = session.start(prompt, params)?;
    let mut text = String::new();
    while session.advance(&mut generation, &mut text)? {}
    Ok((text, generation.stats().cached_tokens))
}

/// Returns a prompt with an image between tokens.
fn prompt(image: &MediaRows) -> Vec<u32> {
    [&[1, 40, 41, 42][..], image.tokens(), &[43, 44, 45]].concat()
}

#[test]
fn equal_images_are_cached_and_others_are_computed() {
    let tiny = TinyModel::new(None);
    let (a, b) = (image(1, 10), image(2, 10));
    let mut session = session(&tiny, 64, 10);
    let (first, n_cached) = answer(&mut session, &prompt(&a), std::slice::from_ref(&a)).unwrap();
    assert_eq!(n_cached, 0);
    assert_eq!(
        answer(&mut session, &prompt(&a), std::slice::from_ref(&a)).unwrap(),
        (first.clone(), 16)
    );
    // The tokens before the image are shared.
    let (other, n_cached) = answer(&mut session, &prompt(&b), std::slice::from_ref(&b)).unwrap();
    assert_eq!(n_cached, 4);
    assert_ne!(other, first);
    // A following question computes no row again.
    let longer = [&prompt(&b)[..], &[50, 51]].concat();
    assert_eq!(answer(&mut session, &longer, &[b]).unwrap().1, 17);
}

#[test]
fn batches_of_any_size_give_the_same_answer() {
    let tiny = TinyModel::new(None);
    let a = image(3, 10);
    let answers = [5, 9, 10, 64].map(|n_batch| {
        let mut session = session(&tiny, n_batch, 10);
        answer(&mut session, &prompt(&a), std::slice::from_ref(&a)).unwrap().0
    });
    assert!(answers.iter().all(|text| *text == answers[0]), "{answers:?}");
}

#[test]
fn saved_sessions_distinguish_images() {
    let tiny = TinyModel::new(None);
    let (a, b) = (image(1, 10), image(2, 10));
    let mut saving = session(&tiny, 64, 10);
    let (first, _) = answer(&mut saving, &prompt(&a), std::slice::from_ref(&a)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("session");
    saving.save(&file).unwrap();
    let restored = |image: &Arc<MediaRows>| {
        let mut session = session(&tiny, 64, 10);
        session.restore(&file).unwrap();
        answer(&mut session, &prompt(image), std::slice::from_ref(image)).unwrap()
    };
    assert_eq!(restored(&a), (first, 16));
    assert_eq!(restored(&b).1, 4);
}

#[test]
fn rows_without_their_image_are_refused() {
    let tiny = TinyModel::new(None);
    let a = image(1, 10);
    let mut with_media = session(&tiny, 64, 10);
    let error = answer(&mut with_media, &prompt(&a), &[]).unwrap_err();
    assert!(error.to_string().starts_with("invalid token "), "{error}");
    let mut without_media = session(&tiny, 64, 0);
    let error = answer(&mut without_media, &prompt(&a), &[a]).unwrap_err();
    assert!(error.to_string().contains("created without media"), "{error}");
}
