//! Events of downloads.

use std::fmt;
use std::sync::Arc;

/// Step of a download that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Files are downloaded.
    Download,
    /// The checksum of a cached file is computed.
    Verify,
}

/// Event of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A download starts.
    Download {
        /// Name of the model, or URL of the file.
        name: &'a str,
        /// Size of all missing files in bytes.
        n_bytes: u64,
    },
    /// A cached file fails its checksum and is downloaded again.
    Corrupt {
        /// Name of the model.
        name: &'a str,
    },
    /// Another process is downloading the same file.
    Waiting,
    /// A step of the download starts.
    Start {
        /// The step.
        step: Step,
        /// Total size of the step in bytes.
        n_bytes: u64,
    },
    /// The current step has processed further bytes. The number is negative if a part is downloaded again.
    Advance {
        /// Change in the number of completed bytes.
        n_bytes: i64,
    },
    /// The current step has ended.
    End,
}

/// Callback that receives the events of a download.
type Callback = dyn Fn(Event<'_>) + Send + Sync;

/// Receiver of download events.
#[derive(Clone, Default)]
pub(crate) struct Observer(Option<Arc<Callback>>);

impl Observer {
    pub fn new(observer: impl Fn(Event<'_>) + Send + Sync + 'static) -> Observer {
        Observer(Some(Arc::new(observer)))
    }

    pub fn send(&self, event: Event<'_>) {
        if let Some(observer) = &self.0 {
            observer(event);
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observer({})", self.0.is_some())
    }
}

/// Progress of one download step.
pub(crate) struct Bar {
    observer: Observer,
    step: Step,
}

impl Bar {
    /// Creates the progress of a step, which starts when its size is known.
    pub fn new(observer: &Observer, step: Step) -> Bar {
        Bar {
            observer: observer.clone(),
            step,
        }
    }

    /// Creates a progress that nobody observes.
    pub fn hidden() -> Bar {
        Bar::new(&Observer::default(), Step::Verify)
    }

    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Starts a download step with its total size.
    pub fn set_length(&self, n_bytes: u64) {
        let step = self.step;
        self.observer.send(Event::Start { step, n_bytes });
    }

    pub fn inc(&self, n_bytes: u64) {
        let n_bytes = n_bytes.cast_signed();
        self.observer.send(Event::Advance { n_bytes });
    }

    pub fn dec(&self, n_bytes: u64) {
        let n_bytes = -n_bytes.cast_signed();
        self.observer.send(Event::Advance { n_bytes });
    }

    /// Ends the download step.
    pub fn finish_and_clear(&self) {
        self.observer.send(Event::End);
    }
}
