//! Construction of the sampler chain.

use engine::model::Model;
use engine::sample::{LogitBias, SampleError, SamplerChain, SamplerParams};

/// Builds the samplers for a model. Bans the tokens that the model must not generate, such as image tokens,
/// and with `ignore_eos` also the end-of-generation tokens.
///
/// # Errors
/// Returns a [`SampleError`] if a parameter is out of range or refers to an unknown token.
pub fn sampler_chain(model: &Model, params: &SamplerParams, ignore_eos: bool) -> Result<SamplerChain, SampleError> {
    let vocab = model.vocab();
    let eog: &[_] = if ignore_eos { vocab.eog_tokens() } else { &[] };
    let banned = vocab.suppressed_tokens().iter().chain(eog);
    let mut params = params.clone();
    params.logit_bias.extend(banned.map(|&token| LogitBias {
        token,
        bias: f32::NEG_INFINITY,
    }));
    SamplerChain::new(&params, model.base().n_vocab(), Some(vocab))
}
