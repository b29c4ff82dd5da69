//! What guesses tokens, for one text or for several.

use engine::context::{Context, ContextParams};
use engine::speculate::{DraftModel, Drafter, Lookup, MAX_DRAFTS, Mtp};
use server::scheduler::Drafters;

use crate::args::{ContextArgs, SpeculationArgs};
use crate::commands::input;
use crate::failure::{Failure, Outcome};
use crate::hub::HubArgs;
use crate::loading::LoadArgs;

/// Most tokens that are verified at once where there are several texts: beyond, products round activations in another way.
const MOST_OUTPUTS: usize = 31;

/// What is asked for, and what a smaller model is loaded with.
pub struct Source<'a> {
    /// How to guess, [resolved](SpeculationArgs::resolved).
    pub speculation: &'a SpeculationArgs,
    /// Where the smaller model comes from.
    pub hub: &'a HubArgs,
    /// How the larger one is loaded.
    pub load: &'a LoadArgs,
    /// How it is computed.
    pub context: &'a ContextArgs,
}

/// Makes room in a context for the drafts of `n` texts.
pub fn prepare(params: &mut ContextParams, speculation: &SpeculationArgs, n: usize) {
    params.n_rollback = params.n_rollback.max(MAX_DRAFTS);
    params.n_outputs_max = match n {
        1 => params.n_outputs_max.max(MAX_DRAFTS + 1),
        _ => params.n_outputs_max.max(MOST_OUTPUTS),
    };
    params.hidden = speculation.mtp;
}

impl Source<'_> {
    /// What guesses the tokens of `n` texts that a context continues; `None` if that was not asked for.
    pub fn drafters(&self, context: &Context, n: usize) -> Outcome<Option<Drafters>> {
        let speculation = self.speculation;
        Ok(Some(match (&speculation.draft, &speculation.lookup_file) {
            _ if speculation.mtp => {
                let cannot = |e| {
                    Failure::new(format_args!(
                        "--mtp cannot be used with {}: {e}",
                        context.model().path().display()
                    ))
                };
                let layer = |_| Ok(Box::new(Mtp::new(context).map_err(cannot)?) as Box<dyn Drafter>);
                Drafters::Some((0..n).map(layer).collect::<Outcome<_>>()?)
            }
            (Some(path), _) => {
                let memory = self.context.params().memory(context.n_ctx());
                let path = &self.hub.file_of(path)?;
                let load = self.load.of_draft(&speculation.placement);
                let model = load.load(path, self.context.precision, Some(memory))?;
                let cannot = |e| Failure::new(format_args!("{}: {e}", path.display()));
                let models = DraftModel::several(model, context, n).map_err(cannot)?;
                Drafters::Some(models.into_iter().map(|m| Box::new(m) as Box<dyn Drafter>).collect())
            }
            (None, Some(path)) => {
                let text = input::read(path)?;
                let corpus = context.model().vocab().tokenize(&text, false, false);
                Drafters::Lookup(Lookup::new(&corpus, context.n_ctx()))
            }
            (None, None) if speculation.lookup => Drafters::Lookup(Lookup::new(&[], context.n_ctx())),
            (None, None) => return Ok(None),
        }))
    }
}
