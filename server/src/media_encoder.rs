//! Encoder of the images and audio of requests, with a cache of encoded files.
//!
//! The encoder has its own threads with a lower priority, so that running completions continue while a file is encoded.
//! Files are encoded one at a time, in order of arrival. A request waits for one file at a time, so that the files of
//! different requests alternate.

use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use engine::backend::ThreadPool;
use engine::context::{AudioError, DecodeError, MediaError, MediaRows};
use llama::parts::{ImageError, MediaProjector, SoundError};
use media::Limits;
use tokio::sync::oneshot;

use crate::api::{ApiError, ApiResult};
use crate::chat::{MediaFile, MediaFormat, MediaSources};
use crate::metrics::Metrics;

/// Difference between the nice values of encoder threads and other threads. The weight of a nice value is 0.8 times the
/// weight of the previous value. If a running completion needs the same core, an encoder thread gets `0.8^8 / (1 +
/// 0.8^8) = 0.14` of the core. With a difference of 5, the 95th percentile of the time between tokens was 1.7 times as
/// long as without images.
const NICE: i32 = 8;

/// Image and audio encoders.
pub struct MediaQueue {
    jobs: Sender<Job>,
    format: MediaFormat,
    cache: Arc<Mutex<RowCache>>,
}

/// A file to encode.
struct Job {
    file: MediaFile,
    key: Key,
    /// Set when the client disconnects.
    cancel: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
    reply: oneshot::Sender<ApiResult<Arc<MediaRows>>>,
}

impl MediaQueue {
    /// Starts the thread of an encoder with a cache of `cache_bytes`.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub fn new(projector: MediaProjector, limits: Limits, cache_bytes: usize) -> io::Result<MediaQueue> {
        let format = MediaFormat {
            layout: projector.layout(),
            limits: limits.clone(),
            sources: MediaSources::default(),
        };
        let cache = Arc::new(Mutex::new(RowCache::new(cache_bytes)));
        let (jobs, queue) = channel();
        let worker = Worker {
            projector,
            limits,
            cache: cache.clone(),
        };
        // The thread ends when the sender is dropped.
        thread::Builder::new().name("encoder".to_owned()).spawn(move || {
            lower_priority();
            worker.run(&queue);
        })?;
        Ok(MediaQueue { jobs, format, cache })
    }

    /// Sets the sources of media other than requests.
    pub fn with_sources(mut self, sources: MediaSources) -> MediaQueue {
        self.format.sources = sources;
        self
    }

    /// Returns the sizes and limits of files.
    pub fn format(&self) -> &MediaFormat {
        &self.format
    }

    /// Encodes the files that have no rows yet. `owner` separates the cached files of clients.
    ///
    /// # Errors
    /// Returns status 400 if a file is damaged, and 500 if the encoder fails.
    pub async fn encode(&self, files: &mut [MediaFile], owner: u64, metrics: &Arc<Metrics>) -> ApiResult<()> {
        for file in files.iter_mut().filter(|file| file.rows.is_none()) {
            file.rows = Some(self.rows(file, owner, metrics).await?);
        }
        Ok(())
    }

    async fn rows(&self, file: &MediaFile, owner: u64, metrics: &Arc<Metrics>) -> ApiResult<Arc<MediaRows>> {
        let key = (owner, file.digest);
        if let Some(rows) = cached(&self.cache, &key, metrics) {
            return Ok(rows);
        }
        // Dropped with this future if the client disconnects.
        let waiting = CancelOnDrop::default();
        let (reply, result) = oneshot::channel();
        let job = Job {
            file: file.clone(),
            key,
            cancel: waiting.0.clone(),
            metrics: metrics.clone(),
            reply,
        };
        let stopped = || ApiError::server("internal error: the encoder has stopped");
        self.jobs.send(job).map_err(|_| stopped())?;
        result.await.unwrap_or_else(|_| Err(stopped()))
    }
}

/// Creates the threads of an encoder, which have a lower priority than other threads.
///
/// # Errors
/// Returns an error if the system cannot start a thread.
pub fn encoder_threads(n_threads: usize) -> io::Result<Arc<ThreadPool>> {
    let start = move || {
        // New threads inherit the priority.
        lower_priority();
        ThreadPool::new(n_threads).map_err(io::Error::other)
    };
    let started = thread::Builder::new().spawn(start)?.join();
    started
        .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        .map(Arc::new)
}

/// Lowers the priority of the current thread and of the threads that it starts.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    // SAFETY: both functions take integers and access no memory of the process. On Linux, process 0 is the current
    // thread.
    unsafe {
        let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        // Raising the nice value needs no permission.
        libc::setpriority(libc::PRIO_PROCESS, 0, nice + NICE);
    }
}

/// State of the encoder's thread.
struct Worker {
    projector: MediaProjector,
    limits: Limits,
    cache: Arc<Mutex<RowCache>>,
}

impl Worker {
    fn run(mut self, queue: &Receiver<Job>) {
        for job in queue {
            let rows = self.rows(&job);
            // The client may have disconnected.
            let _ = job.reply.send(rows);
        }
    }

    fn rows(&mut self, job: &Job) -> ApiResult<Arc<MediaRows>> {
        if job.cancel.load(Ordering::Relaxed) {
            return Err(disconnected());
        }
        // An equal file may have been encoded in the meantime.
        if let Some(rows) = cached(&self.cache, &job.key, &job.metrics) {
            return Ok(rows);
        }
        let start = Instant::now();
        self.projector.set_cancel(Some(&job.cancel));
        let rows = caught(|| self.projector.encode(job.file.medium, &job.file.bytes, &self.limits));
        self.projector.set_cancel(None);
        let rows = rows?.map_err(|e| error_of(&job.file, &e))?;
        job.metrics.n_media_encoded.add(1);
        job.metrics.t_media.add_time(start.elapsed());
        lock(&self.cache).insert(job.key, rows.clone());
        Ok(rows)
    }
}

/// Sets its flag when dropped.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn cached(cache: &Mutex<RowCache>, key: &Key, metrics: &Metrics) -> Option<Arc<MediaRows>> {
    let rows = lock(cache).get(key)?;
    metrics.n_media_cached.add(1);
    Some(rows)
}

fn lock(cache: &Mutex<RowCache>) -> MutexGuard<'_, RowCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the work on a file. A panic, such as one of a decoder, ends the request but not the thread.
fn caught<T>(work: impl FnOnce() -> T) -> ApiResult<T> {
    // The next file overwrites the buffers of the encoder, so a panic leaves no invalid state.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| ApiError::server("internal error: encoding a file panicked"))
}

fn disconnected() -> ApiError {
    ApiError::unavailable("the client has disconnected")
}

/// Returns the error of a file: 400 if the file is damaged or too short.
fn error_of(file: &MediaFile, error: &SoundError) -> ApiError {
    match error {
        SoundError::Decode(_)
        | SoundError::Projector(ImageError::Decode(_))
        | SoundError::Encoder(AudioError::TooShort { .. }) => file.error(error),
        SoundError::Encoder(AudioError::Compute(DecodeError::Cancelled))
        | SoundError::Projector(ImageError::Encoder(MediaError::Compute(DecodeError::Cancelled))) => disconnected(),
        _ => ApiError::server(format!("cannot encode a file: {error}")),
    }
}

/// Owner and SHA-256 of a file.
type Key = (u64, [u8; 32]);

/// Rows of recent files. The least recently used file is evicted first.
struct RowCache {
    entries: HashMap<Key, Entry>,
    n_bytes: usize,
    max_bytes: usize,
    clock: u64,
}

struct Entry {
    rows: Arc<MediaRows>,
    used: u64,
}

impl RowCache {
    fn new(max_bytes: usize) -> RowCache {
        RowCache {
            entries: HashMap::new(),
            n_bytes: 0,
            max_bytes,
            clock: 0,
        }
    }

    fn get(&mut self, key: &Key) -> Option<Arc<MediaRows>> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.clock;
        Some(entry.rows.clone())
    }

    /// Adds a file, unless the cache is too small for its rows.
    fn insert(&mut self, key: Key, rows: Arc<MediaRows>) {
        let added = n_bytes(&rows);
        if added > self.max_bytes {
            return;
        }
        self.clock += 1;
        let used = self.clock;
        self.n_bytes += added;
        if let Some(before) = self.entries.insert(key, Entry { rows, used }) {
            self.n_bytes -= n_bytes(&before.rows);
        }
        while self.n_bytes > self.max_bytes {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(key) = oldest.map(|(key, _)| *key) else { return };
            if let Some(removed) = self.entries.remove(&key) {
                self.n_bytes -= n_bytes(&removed.rows);
            }
        }
    }
}

/// Returns the memory of encoded rows in bytes.
fn n_bytes(rows: &MediaRows) -> usize {
    size_of_val(rows.rows()) + size_of_val(rows.tokens())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_errors_of_requests() {
        assert_eq!(caught(|| 1), Ok(1));
        let error = caught(|| [1][std::hint::black_box(1)]).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param), (500, None));
    }

    #[test]
    fn cache_evicts_least_recently_used_files() {
        let rows = |id: u128, n: usize| Arc::new(MediaRows::new(id, 3, vec![0.0; 3 * n]));
        // A row takes 12 bytes, and its token 4.
        let mut cache = RowCache::new(16 * 10);
        let key = |n: u8| (0, [n; 32]);
        cache.insert(key(1), rows(1, 4));
        cache.insert(key(2), rows(2, 4));
        assert!(cache.get(&key(1)).is_some() && cache.get(&(1, [1; 32])).is_none());
        cache.insert(key(3), rows(3, 4));
        assert_eq!(cache.get(&key(1)).map(|rows| rows.id()), Some(1));
        assert!(cache.get(&key(2)).is_none() && cache.get(&key(3)).is_some());
        cache.insert(key(3), rows(3, 5));
        assert_eq!(cache.n_bytes, 16 * 9);
        cache.insert(key(4), rows(4, 11));
        assert!(cache.get(&key(4)).is_none() && cache.get(&key(1)).is_some());
    }
}
