//! Serves several models behind one address. A request is dispatched by its model name, and a model is loaded
//! on first use. If the limits are exceeded, the least recently used idle model is unloaded.
//!
//! - [`activity`]: use of a loaded model, and its idle time
//! - [`entry`]: configured models; [`headers`]: their descriptions, read from file headers
//! - [`pool`]: loads and unloads models
//! - [`list`], [`routes`]: model lists, and dispatch of requests

mod activity;
mod entry;
mod headers;
mod list;
mod pool;
mod routes;

pub use entry::{Fetch, LazyDownload, ModelEntry, ReadHeader};
pub use pool::{Load, ModelPool, ModelPoolParams};
pub use routes::POOL_ROUTES;
