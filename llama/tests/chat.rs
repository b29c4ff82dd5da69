//! Tests of conversations.

use std::collections::BTreeSet;

use llama::{CancelHandle, Chat, Error, Finish, Model, Piece};

use crate::common::{TEMPLATE, THINKING, TinyModel, chat_model};

fn collect(chat: &mut Chat, question: &str) -> Vec<Piece> {
    let response = chat.ask(question).expect("the question fits");
    response.collect::<Result<_, _>>().expect("the model can be computed")
}

fn joined(pieces: &[Piece]) -> String {
    pieces.iter().map(Piece::text).collect()
}

#[test]
fn streamed_pieces_equal_response_in_history() {
    let model = chat_model();
    let mut chat = model.chat().system("abc").seed(1).max_tokens(20).start().unwrap();
    let answer = joined(&collect(&mut chat, "one two"));
    assert!(!answer.is_empty());
    let messages: Vec<_> = chat
        .messages()
        .iter()
        .map(|m| (m.role.as_str(), m.content.as_str()))
        .collect();
    assert_eq!(
        messages,
        [("system", "abc"), ("user", "one two"), ("assistant", answer.as_str())]
    );
    chat.clear();
    assert_eq!(chat.messages().len(), 1);
}

#[test]
fn saved_conversation_is_loaded_unchanged() {
    let model = chat_model();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("chat.json");
    let mut chat = model.chat().system("abc").max_tokens(5).start().unwrap();
    collect(&mut chat, "one two");
    chat.messages_mut()[1].fields.insert("name".to_owned(), "Ann".into());
    chat.save(&file).unwrap();
    let mut other = model.chat().start().unwrap();
    other.load(&file).unwrap();
    assert_eq!(other.messages(), chat.messages());
    for text in [
        "",
        "{}",
        "[{}]",
        r#"[{"role": "user"}]"#,
        r#"[{"role": 1, "content": ""}]"#,
    ] {
        std::fs::write(&file, text).unwrap();
        let error = other.load(&file).unwrap_err();
        assert!(matches!(error, Error::Conversation { .. }), "{text}: {error}");
        assert!(error.to_string().contains("chat.json: "), "{error}");
    }
    assert_eq!(other.messages(), chat.messages());
}

#[test]
fn failed_save_keeps_previous_conversation() {
    let model = chat_model();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("chat.json");
    let mut chat = model.chat().system("abc").max_tokens(5).start().unwrap();
    chat.save(&file).unwrap();
    let before = std::fs::read(&file).unwrap();
    // The new content is written to this path first.
    std::fs::create_dir(directory.path().join("chat.json.tmp")).unwrap();
    collect(&mut chat, "one two");
    let error = chat.save(&file).unwrap_err();
    assert!(matches!(error, Error::Conversation { .. }), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[test]
fn second_question_reuses_cached_conversation() {
    let model = chat_model();
    let mut chat = model
        .chat()
        .temperature(0.0)
        .max_tokens(10)
        .ignore_eos(true)
        .start()
        .unwrap();
    let mut first = chat.ask("one").unwrap();
    first.complete().unwrap();
    let stats = first.stats();
    drop(first);
    let first = stats;
    assert_eq!((first.cached_tokens, first.generated_tokens), (0, 10));
    let mut second = chat.ask("two").unwrap();
    second.complete().unwrap();
    let second = second.stats();
    // The response itself may be tokenized in a different way than it was generated.
    assert!(second.cached_tokens >= first.prompt_tokens, "{second:?}");
    assert!(second.prompt_speed() > 0.0 && second.generation_speed() > 0.0);
}

#[test]
fn response_depends_on_seed_only() {
    let model = chat_model();
    let answer = |seed| {
        let mut chat = model.chat().seed(seed).max_tokens(30).start().unwrap();
        chat.ask("one").unwrap().text().unwrap()
    };
    assert_eq!(answer(1), answer(1));
    let different: BTreeSet<String> = (1..5).map(answer).collect();
    assert!(different.len() > 1);
}

#[test]
fn responses_end_at_limit_and_stop_string() {
    let model = chat_model();
    let builder = || model.chat().temperature(0.0).ignore_eos(true).loop_detection(false);
    let mut chat = builder().max_tokens(12).start().unwrap();
    let mut response = chat.ask("one").unwrap();
    assert_eq!(response.finish(), None);
    response.complete().unwrap();
    assert_eq!(response.finish(), Some(Finish::Limit));
    let whole = response.answer().to_owned();
    let stop: String = whole.chars().skip(3).take(2).collect();
    let mut chat = builder().max_tokens(12).stop(stop.as_str()).start().unwrap();
    let mut response = chat.ask("one").unwrap();
    response.complete().unwrap();
    assert_eq!(response.finish(), Some(Finish::Stop));
    assert_eq!(Some(response.answer()), whole.split(&stop).next());
    let error = model.chat().stop("").start().unwrap_err();
    assert!(matches!(error, Error::EmptyStop));
}

#[test]
fn full_context_ends_response_unless_it_shifts() {
    let tiny = TinyModel::new(Some(TEMPLATE));
    let model = tiny.open(|options| options.context_size(64));
    let builder = || model.chat().temperature(0.0).ignore_eos(true).loop_detection(false);
    let mut chat = builder().max_tokens(usize::MAX).start().unwrap();
    let mut response = chat.ask("one").unwrap();
    response.complete().unwrap();
    assert_eq!(response.finish(), Some(Finish::ContextFull));
    drop(response);
    assert_eq!((chat.context_size(), chat.context_used()), (64, 64));
    let mut chat = builder().max_tokens(200).context_shift(true).start().unwrap();
    let mut response = chat.ask("one").unwrap();
    response.complete().unwrap();
    assert_eq!(response.finish(), Some(Finish::Limit));
    assert!(response.stats().dropped_tokens > 100, "{:?}", response.stats());
}

#[test]
fn loops_are_detected() {
    let model = chat_model();
    // The only allowed token repeats without end.
    let mut chat = model
        .chat()
        .grammar("root ::= \"a\"*")
        .sampling("logit_bias", "99999-1");
    assert!(chat.start().is_err(), "the token is outside the vocabulary");
    chat = model.chat().grammar("root ::= \"a\"+").ignore_eos(true);
    let mut chat = chat.max_tokens(1000).start().unwrap();
    let mut response = chat.ask("one").unwrap();
    response.complete().unwrap();
    assert!(
        matches!(response.finish(), Some(Finish::Loop { .. })),
        "{:?}",
        response.finish()
    );
}

#[test]
fn cancelled_response_keeps_text_and_next_runs() {
    let model = chat_model();
    let mut chat = model.chat().temperature(0.0).ignore_eos(true).start().unwrap();
    let cancel: CancelHandle = chat.cancel_handle();
    let mut response = chat.ask("one").unwrap();
    response.nth(3).expect("the response has 4 pieces").unwrap();
    let handle = cancel.clone();
    std::thread::spawn(move || handle.cancel()).join().unwrap();
    response.complete().unwrap();
    assert_eq!(response.finish(), Some(Finish::Cancelled));
    assert!(cancel.is_cancelled());
    drop(response);
    assert_eq!(chat.messages().len(), 2);
    assert!(!chat.messages()[1].content.is_empty());
    let mut response = chat.ask("two").unwrap();
    assert!(!cancel.is_cancelled());
    assert!(response.next().is_some());
}

#[test]
fn dropped_response_remains_in_history() {
    let model = chat_model();
    let mut chat = model.chat().temperature(0.0).ignore_eos(true).start().unwrap();
    let first = chat.ask("one").unwrap().next().expect("a piece").unwrap();
    assert_eq!(chat.messages()[1].content, first.text());
    drop(chat.ask("two").unwrap());
    assert_eq!(chat.messages().len(), 2, "a question without a response is removed");
    let long = "a".repeat(100_000);
    let error = chat.ask(long).unwrap_err();
    assert!(matches!(error, Error::PromptTooLong { .. }), "{error}");
    assert_eq!(chat.messages().len(), 2);
}

#[test]
fn reasoning_is_split_off() {
    let tiny = TinyModel::new(Some(THINKING));
    let model = tiny.open(|options| options);
    let builder = || model.chat().seed(3).max_tokens(30).ignore_eos(true).reasoning_budget(5);
    let mut chat = builder().start().unwrap();
    let mut response = chat.ask("one").unwrap();
    let mut answer = String::new();
    for piece in &mut response {
        let piece = piece.unwrap();
        assert!(!piece.is_reasoning());
        answer += piece.text();
    }
    assert_eq!(answer, response.answer());
    let reasoning = response.reasoning().to_owned();
    assert!(!reasoning.is_empty() && !answer.is_empty());
    drop(response);
    let content = &chat.messages()[1].content;
    assert!(
        content.starts_with(&reasoning) && content.contains("</think>"),
        "{content}"
    );
    let mut chat = builder().yield_reasoning(true).start().unwrap();
    let pieces = collect(&mut chat, "one");
    let (thoughts, answers): (Vec<Piece>, Vec<Piece>) = pieces.into_iter().partition(Piece::is_reasoning);
    assert_eq!((joined(&thoughts), joined(&answers)), (reasoning, answer));
    let mut chat = builder().thinking(false).start().unwrap();
    let mut response = chat.ask("one").unwrap();
    response.complete().unwrap();
    assert_eq!(response.reasoning(), "");
}

#[test]
fn structured_output_satisfies_constraint() {
    for template in [TEMPLATE, THINKING] {
        let tiny = TinyModel::new(Some(template));
        let model = tiny.open(|options| options);
        let answer = |builder: llama::ChatBuilder| {
            let mut chat = builder.seed(1).max_tokens(60).start().unwrap();
            chat.ask("one").unwrap().text().unwrap()
        };
        let schema = r#"{"type": "array", "items": {"type": "boolean"}, "maxItems": 3}"#;
        let json = answer(model.chat().json_schema(schema));
        assert!(serde_json::from_str::<Vec<bool>>(&json).is_ok(), "{json}");
        assert_eq!(answer(model.chat().regex("[0-9]{4}")).len(), 4);
        assert_eq!(answer(model.chat().grammar("root ::= \"xyz\"")), "xyz");
        assert!(["yes", "no"].contains(&answer(model.chat().choices(["yes", "no"])).as_str()));
    }
    let model = chat_model();
    let error = model.chat().json_schema("{").start().unwrap_err();
    assert!(matches!(error, Error::Grammar(_)), "{error}");
}

#[test]
fn suppressed_tokens_never_occur() {
    let suppressed: Vec<i32> = (5..60).collect();
    let bytes = tests::text_model_with("llama", Some(TEMPLATE), |metadata| {
        metadata.insert("tokenizer.ggml.suppress_tokens", suppressed.clone());
    });
    let model = TinyModel::of_bytes(&bytes).open(|options| options);
    let vocab = model.engine().vocab();
    let banned: BTreeSet<&[u8]> = suppressed
        .iter()
        .map(|&t| vocab.token_to_piece(t as u32, true))
        .collect();
    let mut chat = model
        .chat()
        .seed(1)
        .temperature(2.0)
        .ignore_eos(true)
        .max_tokens(200)
        .start()
        .unwrap();
    for piece in collect(&mut chat, "one") {
        assert!(!banned.contains(piece.text().as_bytes()), "{piece}");
    }
}

#[test]
fn invalid_settings_are_errors() {
    let model = chat_model();
    for builder in [
        model.chat().top_p(1.5),
        model.chat().temperature(f32::NAN),
        model.chat().sampling("no_such_parameter", 1),
    ] {
        let error = builder.start().unwrap_err();
        assert!(matches!(error, Error::Sampler(_)), "{error}");
    }
    let raw = TinyModel::new(None).open(|options| options);
    let error = raw.chat().start().unwrap_err();
    assert!(matches!(error, Error::Template(_)), "{error}");
    assert!(raw.chat().template(TEMPLATE).start().is_ok());
}

#[test]
fn models_and_chats_can_change_threads() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<Model>();
    is_sync::<Model>();
    is_send::<Chat>();
    is_send::<CancelHandle>();
    is_send::<Error>();
    let model = chat_model();
    let answers: BTreeSet<String> = std::thread::scope(|scope| {
        let run = || {
            let mut chat = model.chat().seed(1).max_tokens(10).start().unwrap();
            chat.ask("one").unwrap().text().unwrap()
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(answers.len(), 1);
}
