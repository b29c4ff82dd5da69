//! Argument groups that several commands share. The arguments of a single command are declared in the command's file.
//! Parsing, `--help` and `docs/cli.md` are generated from the declarations.

mod adapter;
mod context;
mod display;
mod grammar;
mod hub;
mod load;
mod media;
mod model;
mod placement;
mod plan;
mod sampling;
mod serving;
mod speculation;
mod template;
pub mod values;

pub use adapter::{AdapterArgs, ScaledFile, file_and_scale, scaled_file};
pub use context::{
    BatchSizeArgs, CacheTypeArgs, ComputeArgs, ContextArgs, PrecisionArg, PrecisionArgs, UbatchSizeArgs,
};
pub use display::{DisplayArgs, LogArgs};
pub use grammar::GrammarArgs;
pub use hub::HubArgs;
pub use load::{LoadArgs, Numa};
pub use media::{MediaArgs, ProjectorArgs, ServedMediaArgs};
pub use model::ModelArgs;
pub use placement::{DeviceList, DraftPlacementArgs, PlacementArgs, Split, override_kv};
pub use plan::PlanArgs;
pub use sampling::{SamplerArgs, TextBiasArgs};
pub use serving::ServingArgs;
pub use speculation::SpeculationArgs;
pub use template::TemplateArgs;
