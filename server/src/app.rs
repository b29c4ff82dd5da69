//! State of the handlers of one model.

use std::sync::Arc;

use engine::builder::Pooling;
use engine::context::ContextParams;
use llama::parts::Transcriber;

use crate::embedder::Embedder;
use crate::response_store::ResponseStore;
use crate::service::ModelService;
use crate::speech::SpeechRecognizer;

/// State shared by all handlers of one model.
pub struct App {
    /// Runs completions and chats.
    pub service: ModelService,
    /// Computes embeddings.
    pub embedder: Embedder,
    /// Computes reranking scores.
    pub ranker: Embedder,
    /// Recognizes speech.
    pub speech: SpeechRecognizer,
    /// Stored responses of `/v1/responses`.
    pub responses: ResponseStore,
}

/// Shared state that handlers receive.
pub type Shared = Arc<App>;

impl App {
    /// Creates the state of a served model. `embedding` configures the contexts for embeddings.
    pub fn new(service: ModelService, embedding: ContextParams) -> App {
        let model = service.model();
        let ranking = ContextParams {
            pooling: Some(Pooling::Rank),
            ..embedding.clone()
        };
        App {
            speech: SpeechRecognizer::new(model.clone(), embedding.clone()),
            embedder: Embedder::new(model.clone(), embedding, service.scheduler.metrics().clone()),
            ranker: Embedder::new(model.clone(), ranking, service.scheduler.metrics().clone()),
            responses: ResponseStore::default(),
            service,
        }
    }

    /// Returns true if requests of the model may contain files of images or audio.
    pub fn reads_files(&self) -> bool {
        self.service.chat.media().is_some() || Transcriber::supports(self.service.model())
    }
}
