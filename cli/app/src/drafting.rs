//! Creates the drafters for speculative decoding of one or several sequences.

use engine::context::Context;
use engine::speculate::{DraftModel, Drafter, Lookup, Mtp};
use server::scheduler::Drafters;

use crate::args::{ContextArgs, HubArgs, LoadArgs, SpeculationArgs};
use crate::failure::{Failure, Outcome};
use crate::input;

/// Drafting options, and the options for loading a draft model.
pub struct Source<'a> {
    /// Drafting flags, [resolved](SpeculationArgs::resolved).
    pub speculation: &'a SpeculationArgs,
    /// Download options of the draft model.
    pub hub: &'a HubArgs,
    /// Load options of the target model.
    pub load: &'a LoadArgs,
    /// Context options of the target model.
    pub context: &'a ContextArgs,
}

impl Source<'_> {
    /// Creates drafters for `n` sequences of a context; `None` if speculation is off.
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
                let model = load.load(path, self.context.precision.mode, Some(memory))?;
                let cannot = |e| Failure::new(format_args!("{}: {e}", path.display()));
                let models = DraftModel::several(model, context, n).map_err(cannot)?;
                Drafters::Some(models.into_iter().map(|m| Box::new(m) as Box<dyn Drafter>).collect())
            }
            (None, Some(path)) => {
                let text = input::read(path)?;
                let corpus = context.model().vocab().tokenize(&text, false, false);
                Drafters::Lookup(Lookup::new(&corpus, context.n_ctx()))
            }
            (None, None) if speculation.prompt_lookup => Drafters::Lookup(Lookup::new(&[], context.n_ctx())),
            (None, None) => return Ok(None),
        }))
    }
}
