//! Encoder of the images of requests, with a cache of encoded images.
//!
//! The encoder has its own threads, so that it does not block running completions. Images are encoded one at a time, in
//! order of arrival; images of different requests may alternate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use engine::context::MediaRows;
use llama::parts::{ImageError, Projector};
use media::Limits;
use tokio::sync::Mutex as AsyncMutex;

use crate::api::{ApiError, ApiResult};
use crate::chat::{ImageFile, ImageFormat};
use crate::http::blocking;
use crate::metrics::Metrics;
use crate::wanted::is_wanted;

/// Encoder of images.
pub struct ImageEncoder {
    projector: Arc<AsyncMutex<Projector>>,
    format: ImageFormat,
    cache: Arc<Mutex<ImageCache>>,
}

impl ImageEncoder {
    /// Creates an encoder with a cache of `cache_bytes`.
    pub fn new(projector: Projector, limits: Limits, cache_bytes: usize) -> ImageEncoder {
        let layout = projector.layout().clone();
        ImageEncoder {
            projector: Arc::new(AsyncMutex::new(projector)),
            format: ImageFormat { layout, limits },
            cache: Arc::new(Mutex::new(ImageCache::new(cache_bytes))),
        }
    }

    /// Returns the sizes and limits of images.
    pub fn format(&self) -> &ImageFormat {
        &self.format
    }

    /// Encodes the images that have no rows yet. `owner` separates the cached images of clients.
    ///
    /// # Errors
    /// 400 if a file is damaged, 500 if the encoder fails.
    pub async fn encode(&self, images: &mut [ImageFile], owner: u64, metrics: &Arc<Metrics>) -> ApiResult<()> {
        for image in images.iter_mut().filter(|image| image.rows.is_none()) {
            image.rows = Some(self.rows(image, owner, metrics).await?);
        }
        Ok(())
    }

    async fn rows(&self, image: &ImageFile, owner: u64, metrics: &Arc<Metrics>) -> ApiResult<Arc<MediaRows>> {
        let key = (owner, image.digest);
        if let Some(rows) = self.cached(&key, metrics) {
            return Ok(rows);
        }
        // The guard moves to the blocking thread: at most one thread encodes, even if clients disconnect.
        let mut projector = self.projector.clone().lock_owned().await;
        if let Some(rows) = self.cached(&key, metrics) {
            return Ok(rows);
        }
        let (image, limits, metrics) = (image.clone(), self.format.limits.clone(), metrics.clone());
        let cache = self.cache.clone();
        blocking(move || {
            if !is_wanted() {
                return Err(ApiError::unavailable("the client has disconnected"));
            }
            let start = Instant::now();
            let rows = projector
                .encode(&image.bytes, &limits)
                .map_err(|e| image_error(&image, &e))?;
            metrics.n_images_encoded.add(1);
            metrics.t_images.add_time(start.elapsed());
            lock(&cache).insert(key, rows.clone());
            Ok(rows)
        })
        .await
    }

    fn cached(&self, key: &Key, metrics: &Metrics) -> Option<Arc<MediaRows>> {
        let rows = lock(&self.cache).get(key)?;
        metrics.n_images_cached.add(1);
        Some(rows)
    }
}

fn lock(cache: &Mutex<ImageCache>) -> MutexGuard<'_, ImageCache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the error of an image: 400 if its file is damaged.
fn image_error(image: &ImageFile, error: &ImageError) -> ApiError {
    match error {
        ImageError::Decode(_) => image.error(error),
        _ => ApiError::server(format!("cannot encode an image: {error}")),
    }
}

/// Owner and SHA-256 of an image file.
type Key = (u64, [u8; 32]);

/// Rows of recent images. The least recently used image is evicted first.
struct ImageCache {
    entries: HashMap<Key, Entry>,
    n_bytes: usize,
    max_bytes: usize,
    clock: u64,
}

struct Entry {
    rows: Arc<MediaRows>,
    used: u64,
}

impl ImageCache {
    fn new(max_bytes: usize) -> ImageCache {
        ImageCache {
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

    /// Adds an image, unless the cache is too small for it.
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

/// Returns the memory of an encoded image in bytes.
fn n_bytes(rows: &MediaRows) -> usize {
    size_of_val(rows.rows()) + size_of_val(rows.tokens())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_evicts_least_recently_used_images() {
        let rows = |id: u128, n: usize| Arc::new(MediaRows::new(id, 3, vec![0.0; 3 * n]));
        // A row takes 12 bytes, and its token 4.
        let mut cache = ImageCache::new(16 * 10);
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
