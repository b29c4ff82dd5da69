//! Generates a completion with the low-level interface: loads a model, creates a context, decodes a prompt,
//! and samples tokens. `llama::Chat` does all of this.
//!
//!     cargo run --release -p llama --example simple -- MODEL.gguf "Why is the sky blue?"

use std::error::Error;
use std::io::Write;
use std::sync::Arc;

use llama::Message;
use llama::engine::chat::ChatError;
use llama::engine::context::{Batch, Context, ContextParams, SeqSet};
use llama::engine::model::{LoadParams, Model};
use llama::engine::sample::Recommended;
use llama::engine::vocab::Utf8Stream;
use llama::parts::{ARCHITECTURES, PromptTemplate, sampler_chain};

const MAX_TOKENS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, question] = arguments.as_slice() else {
        return Err("usage: simple MODEL.gguf PROMPT".into());
    };

    // Weights that are not repacked stay in the memory-mapped file.
    let model = Arc::new(Model::load(path, ARCHITECTURES, &LoadParams::default())?);
    let vocab = model.vocab();

    // Creating the context allocates all memory for decoding.
    let params = ContextParams {
        n_ctx: 2048,
        ..ContextParams::default()
    };
    let mut context = Context::new(model.clone(), &params)?;

    // Format the prompt with the model's chat template. Without a template, the model continues the prompt.
    let prompt = match PromptTemplate::of_model(model.metadata(), vocab) {
        Ok(template) => {
            let messages = [Message::user(question)];
            template.prompt(vocab, &messages, &Default::default())?.tokens
        }
        Err(ChatError::NoTemplate) => vocab.tokenize(question, true, true),
        Err(error) => return Err(error.into()),
    };

    // Only the last token of the batch gets logits.
    let mut batch = Batch::new();
    batch.push_prompt(&prompt, 0, 0);
    context.decode(&batch)?;

    let recommended = Recommended::of(model.metadata(), false);
    let mut sampler = sampler_chain(&model, &recommended.params, false)?;
    let mut text = Utf8Stream::new();
    for pos in prompt.len()..prompt.len() + MAX_TOKENS {
        let logits = context.logits(batch.len() - 1).ok_or("the last token has no logits")?;
        let token = sampler.sample(logits)?;
        sampler.accept(token);
        if vocab.is_eog(token) {
            break;
        }
        print!("{}", text.push_to_string(vocab.token_to_piece(token, false)));
        std::io::stdout().flush()?;

        batch.clear();
        batch.push(token, pos, SeqSet::one(0), true);
        context.decode(&batch)?;
    }
    println!();
    Ok(())
}
