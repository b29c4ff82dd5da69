//! Tests of plain completion.

use llama::{Error, Finish};

use crate::common::TinyModel;

#[test]
fn completion_continues_text_and_reuses_its_prefix() {
    let tiny = TinyModel::new(None);
    let model = tiny.open(|options| options);
    let mut completion = model.completion().temperature(0.0).max_tokens(8).start().unwrap();
    let mut response = completion.complete("abc on").unwrap();
    response.complete().unwrap();
    let (first, stats) = (response.answer().to_owned(), response.stats());
    drop(response);
    let mut again = completion.complete("abc on").unwrap();
    again.complete().unwrap();
    assert_eq!(again.answer(), first);
    assert_eq!(again.stats().cached_tokens, stats.prompt_tokens - 1);
    drop(again);
    assert!(completion.context_size() > 0);
}

#[test]
fn prompt_must_not_be_empty_or_cancelled() {
    let bytes = tests::text_model_with("llama", None, |metadata| {
        metadata.insert("tokenizer.ggml.add_bos_token", false);
    });
    let model = TinyModel::of_bytes(&bytes).open(|options| options);
    let mut completion = model.completion().start().unwrap();
    let error = completion.complete("").unwrap_err();
    assert!(matches!(error, Error::EmptyPrompt), "{error}");
    let mut response = completion.complete("abc").unwrap();
    response.cancel_handle().cancel();
    response.complete().unwrap();
    assert!(matches!(response.finish(), Some(Finish::Cancelled)));
}
