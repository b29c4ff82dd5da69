//! The library in one page: load a model, make a context, decode a prompt, sample an answer.
//!
//!     cargo run --release -p llama-engine --example simple -- MODEL.gguf "Why is the sky blue?"

use std::error::Error;
use std::io::Write;
use std::sync::Arc;

use engine::chat::{ChatTemplate, Message};
use engine::context::{Batch, Context, ContextParams, SeqSet};
use engine::model::{LoadParams, Model};
use engine::sample::{Chain, SamplerParams};
use engine::vocab::Utf8Stream;

const MAX_TOKENS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, question] = arguments.as_slice() else {
        return Err("usage: simple MODEL.gguf PROMPT".into());
    };

    // The weights stay where they are: in the mapped file.
    let model = Arc::new(Model::load(path, archs::ALL, &LoadParams::default())?);
    let vocab = model.vocab();

    // All memory that decoding will need is had here.
    let params = ContextParams {
        n_ctx: 2048,
        ..ContextParams::default()
    };
    let mut context = Context::new(model.clone(), &params)?;

    // One user turn in the model's own words; a model without a template continues the text.
    let source = model.metadata().optional::<&str>("tokenizer.chat_template")?;
    let prompt = match source {
        Some(source) => {
            let text = |token: Option<u32>| token.map_or_else(String::new, |t| vocab.text(t).into_owned());
            let template = ChatTemplate::new(source, &text(vocab.bos()), &text(vocab.eos()))?;
            let text = template.render(&[Message::user(question)], true, &Default::default())?;
            vocab.tokenize(&text, !template.has_bos(&text), true)
        }
        None => vocab.tokenize(question, true, true),
    };

    // Logits are wanted for the last token only.
    let mut batch = Batch::new();
    batch.push_prompt(&prompt, 0, 0);
    context.decode(&batch)?;

    let mut sampler = Chain::new(&SamplerParams::default(), model.base().n_vocab(), Some(vocab))?;
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
