//! Tests of opening models.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use llama::{CacheType, Error, GpuLayers, Model, Precision};

use crate::common::{TEMPLATE, TinyModel};

#[test]
fn options_take_effect() {
    let tiny = TinyModel::new(Some(TEMPLATE));
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let model = tiny.open(|options| {
        options
            .context_size(128)
            .precision(Precision::Exact)
            .cache_types(CacheType::F32, CacheType::F32)
            .gpu_layers(GpuLayers::Count(0))
            .on_load(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                true
            })
            .context_params(|params| params.n_ubatch = 32)
    });
    assert!(calls.load(Ordering::Relaxed) >= 2);
    assert_eq!(model.architecture(), "llama");
    assert!(model.parameters() > 0 && model.warnings().is_empty());
    assert_eq!(model.path(), tiny.path());
    assert_eq!(
        model.count_tokens("abc one"),
        model.engine().vocab().tokenize("abc one", false, false).len()
    );
    let mut chat = model.chat().max_tokens(3).start().unwrap();
    assert_eq!(chat.context_size(), 128);
    chat.ask("one").unwrap().text().unwrap();
}

#[test]
fn loading_can_be_cancelled() {
    let tiny = TinyModel::new(None);
    let error = Model::options().on_load(|_| false).open(tiny.path()).unwrap_err();
    assert!(matches!(error, Error::Model(_)), "{error}");
}

#[test]
fn errors_name_the_file_and_have_sources() {
    let error = Model::open("/no/such/model.gguf").unwrap_err();
    assert!(matches!(error, Error::Model(_)), "{error}");
    let mut chain = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        chain += &format!(": {cause}");
        source = cause.source();
    }
    assert!(chain.contains("/no/such/model.gguf"), "{chain}");
    assert!(chain.to_lowercase().contains("no such file"), "{chain}");
    let tiny = TinyModel::of_bytes(b"not a model");
    let error = Model::open(tiny.path()).unwrap_err().to_string();
    assert!(error.contains("tiny.gguf"), "{error}");
}

#[cfg(feature = "hub")]
#[test]
fn unknown_name_is_an_error_with_similar_names() {
    let error = Model::open("qwem3:0.6b").unwrap_err();
    assert!(matches!(error, Error::Hub(_)), "{error}");
    assert!(error.to_string().contains("qwen3:0.6b"), "{error}");
}

#[test]
fn missing_adapter_is_an_error() {
    let tiny = TinyModel::new(None);
    let error = Model::options()
        .lora("/no/such/adapter.gguf", 1.0)
        .open(tiny.path())
        .unwrap_err();
    assert!(matches!(error, Error::Adapter(_)), "{error}");
}
