//! A served model: starts completions and chats on its scheduler.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::chat::ChatError;
use engine::grammar::{Constraint, Grammar};
use engine::model::{Medium, Model};
use engine::sample::{LogitBias, Token};
use engine::vocab::Vocab;
use llama::parts::Transcriber;
use media::Limits;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::api::{ApiResult, Defaults};
use crate::capabilities::capabilities;
use crate::chat::{ChatFormat, ChatParams, Conversation, MediaFile, OutputStream, is_control};
use crate::constraints::Constraints;
use crate::media_encoder::MediaQueue;
use crate::scheduler::{Event, Request, Scheduler, SubmitError};

/// Settings of a served model.
#[derive(Clone, Debug)]
pub struct ServiceParams {
    /// Name reported to clients.
    pub name: String,
    /// Path of the model file.
    pub path: PathBuf,
    /// Further names that clients may use.
    pub aliases: Vec<String>,
    /// Labels of the model for clients.
    pub tags: Vec<String>,
    /// Defaults for fields that a request does not set.
    pub defaults: Defaults,
    /// Output includes the text of control tokens.
    pub show_special_tokens: bool,
    /// Fill-in-the-middle prompts put the suffix before the prefix.
    pub suffix_first: bool,
    /// `/slots` lists and changes the slots.
    pub has_slots: bool,
    /// Directory for saved slots; `None` disables saving.
    pub slot_save_path: Option<PathBuf>,
    /// Maximum size of all files of saved slots in bytes.
    pub slot_save_limit: u64,
    /// Paths of the LoRA adapters.
    pub adapters: Vec<String>,
    /// Limits of audio.
    pub media_limits: Limits,
    /// Build identification, such as the version.
    pub build: String,
}

/// A served model.
pub struct ModelService {
    pub params: ServiceParams,
    /// Runs completions.
    pub scheduler: Scheduler,
    /// Prompts and output of chats.
    pub chat: ChatFormat,
    /// Image or audio encoder, if the model reads them.
    media: Option<MediaQueue>,
    /// Cache of compiled grammars.
    constraints: Constraints,
    /// Control tokens that appear in every output, if enabled.
    special: Arc<[Token]>,
    /// Start time in seconds since the Unix epoch.
    pub created: u64,
}

impl ModelService {
    /// Serves the scheduler's model.
    ///
    /// # Errors
    /// Returns an error if the chat template is invalid.
    pub fn new(scheduler: Scheduler, params: ServiceParams, chat: ChatParams) -> Result<ModelService, ChatError> {
        ModelService::with_media(scheduler, params, chat, None)
    }

    /// Serves the scheduler's model with an image or audio encoder.
    ///
    /// # Errors
    /// Returns an error if the chat template is invalid.
    pub fn with_media(
        scheduler: Scheduler,
        params: ServiceParams,
        chat: ChatParams,
        media: Option<MediaQueue>,
    ) -> Result<ModelService, ChatError> {
        let chat = ChatParams {
            media: media.as_ref().map(|encoder| encoder.format().clone()),
            ..chat
        };
        let model = scheduler.model();
        let vocab = model.vocab();
        let special = if params.show_special_tokens {
            (0..vocab.n_tokens())
                .filter(|&token| is_control(vocab, token))
                .collect()
        } else {
            Arc::new([]) as Arc<[Token]>
        };
        Ok(ModelService {
            chat: ChatFormat::new(model.clone(), chat)?,
            media,
            constraints: Constraints::new(model.clone()),
            special,
            params,
            scheduler,
            created: seconds(),
        })
    }

    /// Returns the model.
    pub fn model(&self) -> &Arc<Model> {
        self.scheduler.model()
    }

    /// Returns the vocabulary.
    pub fn vocab(&self) -> &Vocab {
        self.model().vocab()
    }

    /// Returns the maximum length of prompt and completion together, in tokens.
    pub fn n_ctx(&self) -> usize {
        match self.scheduler.n_ctx() {
            usize::MAX => self.model().base().n_ctx_train(),
            n => n,
        }
    }

    /// Returns the capabilities of the model, named as in Ollama's API.
    pub fn capabilities(&self) -> Vec<&'static str> {
        capabilities(
            Scheduler::encodes(self.model()),
            self.chat.supports_tools(),
            self.chat.has_reasoning_tags(),
            self.chat.reads(Medium::Image),
            self.reads_audio(),
        )
    }

    /// Returns true if the model reads audio: in prompts, or to transcribe.
    pub fn reads_audio(&self) -> bool {
        self.chat.reads(Medium::Audio) || Transcriber::supports(self.model())
    }

    /// Encodes files, unless they are cached.
    ///
    /// # Errors
    /// Returns status 400 if a file is damaged, and 500 if the encoder fails.
    pub async fn encode_media(&self, files: &mut [MediaFile], client: u64) -> ApiResult<()> {
        let owner = self.scheduler.settings().cache_owner(client);
        match &self.media {
            Some(encoder) => encoder.encode(files, owner, self.scheduler.metrics()).await,
            None => Ok(()),
        }
    }

    /// Checks that a prompt fits in the context.
    ///
    /// # Errors
    /// Returns status 400 if the prompt is too long.
    pub fn check_length(&self, prompt: &[Token]) -> ApiResult<()> {
        let (n_prompt, n_ctx) = (prompt.len(), self.scheduler.n_ctx());
        if n_prompt > n_ctx {
            return Err(SubmitError::TooLong { n_prompt, n_ctx }.into());
        }
        Ok(())
    }

    /// Returns the time in seconds since the Unix epoch.
    pub fn now(&self) -> u64 {
        seconds()
    }

    /// Tokenizes a raw prompt, with special tokens.
    pub fn tokens(&self, text: &str) -> Vec<Token> {
        self.vocab().tokenize(text, true, true)
    }

    /// Returns the default token limit of a completion.
    pub fn max_tokens(&self) -> usize {
        let has_reasoning = self.chat.has_reasoning_tags() || self.chat.has_messages();
        self.params.defaults.limit(has_reasoning)
    }

    /// Starts a chat completion. `request` holds all settings except the prompt, `grammar` constrains the
    /// output, and `splits` enables splitting off reasoning.
    pub fn start_chat(
        &self,
        mut conversation: Conversation,
        mut request: Request,
        grammar: Option<&Grammar>,
        splits: bool,
    ) -> ApiResult<OutputStream> {
        let (chat, constraints) = (&self.chat, &self.constraints);
        let thinks = splits && chat.can_reason(&conversation);
        // A required call precedes a document. The completion after the results of the call must match the document.
        let call = chat.required_call_grammar(conversation.tools.as_ref(), thinks, constraints)?;
        let document = self.grammar(grammar, &conversation);
        if call.is_none() && document.is_some() && chat.has_messages() && !chat.is_harmony() {
            // Grammars do not include the headers of such messages.
            conversation.tools = None;
        }
        let tools = conversation.tools.as_ref();
        let grammar = match (call, document) {
            (Some(call), _) => Some(Cow::Owned(call)),
            (None, Some(document)) => Some(chat.document_grammar(tools, document, thinks, constraints)?),
            (None, None) => None,
        };
        conversation.skip_reasoning = grammar.is_some() && !thinks;
        let constraint = grammar.map(|grammar| constraints.constraint(&grammar)).transpose()?;
        let prompt = chat.prompt(&conversation)?;
        request.constraint = match constraint {
            Some(constraint) if !conversation.skip_reasoning => Some(chat.behind_reasoning(&prompt, constraint)?),
            constraint => constraint,
        };
        let tools = conversation.tools.as_ref();
        if request.constraint.is_none() {
            request.constraint = chat.voluntary_call_constraint(&prompt, tools, splits, constraints);
        }
        let parser = chat.parser(&prompt, tools, splits);
        request.budget = chat.budget(&prompt, &conversation, request.reasoning_control);
        if let Some(delimiters) = chat.delimiters(&prompt, tools, request.budget.as_ref()) {
            request.shown = delimiters;
        }
        let trace = request.diagnostics.verbose.then(|| prompt.tokens.clone());
        (request.prompt, request.images) = (prompt.tokens, prompt.media);
        let (n, events) = (request.n, self.submit(request)?);
        Ok(OutputStream::new(vec![(events, n)], &parser).traced(trace))
    }

    /// Counts the prompt tokens of a conversation. `requested` is the grammar of the request.
    pub fn count(&self, mut conversation: Conversation, requested: Option<&Grammar>) -> ApiResult<usize> {
        let is_constrained = self.grammar(requested, &conversation).is_some();
        conversation.skip_reasoning |= is_constrained && !self.chat.can_reason(&conversation);
        conversation.media.iter_mut().for_each(MediaFile::measure);
        Ok(self.chat.prompt(&conversation)?.tokens.len())
    }

    /// Moves the biases of texts to the sampling parameters: each applies to all tokens of its text.
    pub fn resolve_biases(&self, request: &mut Request) {
        for (text, bias) in std::mem::take(&mut request.text_biases) {
            let tokens = self.vocab().tokenize(&text, false, false);
            let biases = tokens.into_iter().map(|token| LogitBias { token, bias });
            request.sampler.logit_bias.extend(biases);
        }
    }

    /// Starts a completion of a prompt.
    pub fn submit(&self, mut request: Request) -> Result<UnboundedReceiver<Event>, SubmitError> {
        self.resolve_biases(&mut request);
        if !self.special.is_empty() {
            request.shown = self.special.clone();
        }
        request.max_tokens.get_or_insert(self.max_tokens());
        self.scheduler.submit(request)
    }

    /// Compiles the grammar of the request, or the default grammar.
    pub fn constraint(&self, requested: Option<&Grammar>) -> ApiResult<Option<Constraint>> {
        let grammar = requested.or(self.params.defaults.grammar.as_ref());
        grammar.map(|grammar| self.constraints.constraint(grammar)).transpose()
    }

    /// Returns the grammar of the request, or the default grammar if the request has no tools.
    fn grammar<'a>(&'a self, requested: Option<&'a Grammar>, conversation: &Conversation) -> Option<&'a Grammar> {
        if requested.is_some() || conversation.tools.is_some() {
            return requested;
        }
        self.params.defaults.grammar.as_ref()
    }
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}
