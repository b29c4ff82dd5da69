//! Models: architecture declarations, hyperparameters, the tensor table, placement, and loading.

mod arch;
mod base;
mod bounds;
mod checkpoint;
mod error;
mod find;
mod fingerprint;
mod fit;
mod leaf;
mod lists;
mod load;
mod lock;
mod media;
mod nearest;
mod params;
mod placement;
mod probe;
mod read_base;
mod reader;
mod table;
mod upload;

pub use arch::{Architecture, HparamDecl, LoadCode, LoadProgram, Loader, Registered, TensorDecl};
pub use base::Base;
pub use checkpoint::{Checkpoint, CheckpointOrigin, CheckpointSetting, CheckpointSource, ConfigTerm, SettingType};
pub use error::ModelError;
pub use fingerprint::Fingerprint;
pub use lists::max_sum;
pub use load::{DeclaredModel, LoadPlan, Model, TensorPlacement, declare_header, declare_mtp_header, plan, plan_set};
pub use media::{ENCODER_ARCH, MediaDecl, MediaUse, Medium, TextPart, encoder_media, projector_type, projector_types};
pub use nearest::{did_you_mean, nearest_names};
pub use params::{DECLARATION_KEY, FindArch, LoadParams, Progress, VocabHook, WantedArch};
pub use placement::{
    DeviceLayers, Placement, PlacementError, PlacementNeeds, PlacementParams, PlacementSummary, RowPart, SplitMode,
    TensorOverride,
};
pub use probe::graph_functions;
pub use reader::{HparamError, HparamReader};
pub use table::{Consumer, TableRow, TensorError, TensorTable};
