//! Tests of sessions and chats whose prompts contain rows of images or audio.

use std::sync::Arc;

use engine::context::{Context, ContextParams, MediaRows};
use engine::model::{LoadParams, Model};
use engine::sample::SamplerParams;
use llama::parts::{ARCHITECTURES, GenerationParams, Session};
use llama::{Error, Message, engine};

use tests::images::{AROUND_IMAGE, bitmap, projector, projector_of, projector_of_both, vision_model};

use crate::common::{TEMPLATE, TinyModel};

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
#[expect(clippy::result_large_err, reason = "the error of the library")]
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
fn cached_rows_without_image_are_rejected() {
    let tiny = TinyModel::new(None);
    let a = image(1, 10);
    let mut with_media = session(&tiny, 64, 10);
    let error = answer(&mut with_media, &prompt(&a), &[]).unwrap_err();
    assert!(error.to_string().starts_with("invalid token "), "{error}");
    let mut without_media = session(&tiny, 64, 0);
    let error = answer(&mut without_media, &prompt(&a), &[a]).unwrap_err();
    assert!(error.to_string().contains("created without media"), "{error}");
}

/// Opens a model with a projector next to it.
fn with_projector(tiny: &TinyModel, projector: Vec<u8>) -> llama::Model {
    let file = tiny.path().with_file_name("mmproj.gguf");
    std::fs::write(&file, projector).unwrap();
    tiny.open(|options| options.projector(file))
}

fn chat(model: &llama::Model) -> llama::Chat {
    model
        .chat()
        .temperature(0.0)
        .max_tokens(8)
        .ignore_eos(true)
        .start()
        .unwrap()
}

#[test]
fn chat_answers_questions_about_images() {
    let tiny = TinyModel::of_bytes(&vision_model(Some(TEMPLATE), &AROUND_IMAGE));
    let model = with_projector(&tiny, projector(N_EMBD));
    let mut first = chat(&model);
    let one = first.ask_with("what", &[bitmap(112, 0)]).unwrap().text().unwrap();
    let [again, other] = [0, 5].map(|seed| {
        chat(&model)
            .ask_with("what", &[bitmap(112, seed)])
            .unwrap()
            .text()
            .unwrap()
    });
    assert!(one == again && one != other);
    // The image stays in the conversation.
    let used = first.context_used();
    first.ask("where").unwrap().text().unwrap();
    assert!(used > 16 && first.context_used() > used);
    assert!(!first.messages()[0].content.contains("[image]"));
    let file = tiny.path().with_file_name("chat.json");
    first.save(&file).unwrap();
    let mut loaded = chat(&model);
    loaded.load(&file).unwrap();
    assert_eq!(loaded.messages()[0], Message::user("[image]what"));
    loaded.ask("where").unwrap().text().unwrap();
    // A message can be removed, but its marks cannot be changed.
    first.messages_mut()[0].content = "what".to_owned();
    assert!(matches!(first.ask("a"), Err(Error::ChangedMedia)));
    first.messages_mut().remove(0);
    first.ask("a").unwrap().text().unwrap();
    let mark = llama::parts::IMAGE_MARK.to_string();
    first.ask(mark).unwrap().text().unwrap();
}

#[test]
fn chat_answers_questions_about_audio() {
    let tiny = TinyModel::new(Some(TEMPLATE));
    let model = with_projector(&tiny, projector_of("ultravox", N_EMBD));
    let ask = |period| chat(&model).ask_with("what", &[tone(period)]).unwrap().text().unwrap();
    assert!(ask(40) == ask(40) && ask(40) != ask(23));
    let damaged = chat(&model).ask_with("what", &[b"no audio"]).unwrap_err();
    assert!(damaged.to_string().contains("WAV, MP3, FLAC, OGG Vorbis"), "{damaged}");
}

/// Returns half a second of a tone as a WAV file.
fn tone(period: usize) -> Vec<u8> {
    let samples: Vec<i16> = (0..4000).map(|i| (i % period * 500) as i16).collect();
    tests::speech::wav(&samples, 8000)
}

#[test]
fn projector_of_both_media_answers_like_each_encoder() {
    let tiny = TinyModel::of_bytes(&vision_model(Some(TEMPLATE), &AROUND_IMAGE));
    let ask = |projector: Vec<u8>, files: &[Vec<u8>]| {
        let model = with_projector(&tiny, projector);
        chat(&model).ask_with("what", files).unwrap().text().unwrap()
    };
    let both = || projector_of_both("idefics3", "ultravox", "ultravox", N_EMBD);
    let (image, sound) = (bitmap(112, 0), tone(40));
    let of_image = ask(projector(N_EMBD), std::slice::from_ref(&image));
    let of_sound = ask(projector_of("ultravox", N_EMBD), std::slice::from_ref(&sound));
    assert_eq!(ask(both(), std::slice::from_ref(&image)), of_image);
    assert_eq!(ask(both(), std::slice::from_ref(&sound)), of_sound);
    let together = ask(both(), &[image.clone(), sound.clone()]);
    assert_ne!(together, ask(both(), &[sound.clone(), image.clone()]));
    assert_ne!(together, ask(both(), &[image.clone(), tone(23)]));
    // Without the unknown encoder, the other one is still used.
    let unknown = || projector_of_both("idefics3", "ultravox", "other", N_EMBD);
    assert_eq!(ask(unknown(), &[image]), of_image);
    let model = with_projector(&tiny, unknown());
    let error = chat(&model).ask_with("what", &[sound]).unwrap_err().to_string();
    assert!(error.contains("an image is required"), "{error}");
}

#[test]
fn questions_about_files_need_a_projector() {
    let tiny = TinyModel::new(Some(TEMPLATE));
    let mut plain = chat(&tiny.open(|options| options));
    assert!(matches!(
        plain.ask_with("what", &[bitmap(8, 0)]),
        Err(Error::NoProjector)
    ));
    assert!(plain.messages().is_empty());
    plain.ask_with("what", &[[0_u8; 0]; 0]).unwrap().text().unwrap();
    let file = tiny.path().with_file_name("mmproj.gguf");
    std::fs::write(&file, projector_of("ultravox", 64)).unwrap();
    let wrong = llama::Model::options().projector(file).open(tiny.path()).unwrap_err();
    assert!(wrong.to_string().contains("have 64 values"), "{wrong}");
}
