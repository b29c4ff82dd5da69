//! Tests of speculative decoding.

use llama::{Drafts, Error, Model};

use crate::common::TinyModel;

#[test]
fn drafts_do_not_change_text() {
    let tiny = TinyModel::new(None);
    let model = tiny.open(|options| options.context_size(128));
    let complete = |drafts: Option<Drafts>| {
        let builder = model.completion().temperature(0.0).max_tokens(40).loop_detection(false);
        let builder = match drafts {
            Some(drafts) => builder.drafts(drafts),
            None => builder,
        };
        let mut completion = builder.start().unwrap();
        let mut response = completion.complete("one two one two one").unwrap();
        response.complete().unwrap();
        (response.answer().to_owned(), response.stats().drafts)
    };
    let (plain, n_drafts) = complete(None);
    assert_eq!(n_drafts, 0);
    for drafts in [
        Drafts::Lookup,
        Drafts::Text("one two three".to_owned()),
        Drafts::Model(model.clone()),
    ] {
        let (text, n_drafts) = complete(Some(drafts.clone()));
        assert_eq!(text, plain, "{drafts:?}");
        assert!(n_drafts > 0, "{drafts:?} made no drafts");
    }
}

#[test]
fn mtp_requires_layers() {
    let tiny = TinyModel::new(None);
    let model = Model::options().mtp(true).open(tiny.path()).unwrap();
    let error = model.completion().drafts(Drafts::Mtp).start().unwrap_err();
    assert!(matches!(error, Error::Mtp(_)), "{error}");
    assert!(error.to_string().contains("mtp"), "{error}");
}
