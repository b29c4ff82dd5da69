//! Memory of request bodies, which is limited per request and for all requests together.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::api::ApiError;

/// Maximum size of a request body without media in bytes.
const MAX_BODY: usize = 16 << 20;
/// Maximum memory of all requests without media.
const MAX_TOTAL: usize = 192 << 20;
/// Maximum memory of a request without media.
const MAX_REQUEST: usize = 96 << 20;
/// Copies of a body in memory: received bytes, bytes for the handler of one of several models, and JSON values.
const COPIES: usize = 3;
/// Part of each request's memory that does not count, so that small requests are served at all times.
const FREE: usize = 64 << 10;
/// Memory of a request that is worth returning to the system afterwards.
const LARGE: usize = 4 << 20;

static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// Memory of a request: its body and the JSON values in it. It counts until the response starts.
#[derive(Debug, Default)]
pub struct Charge {
    charged: AtomicUsize,
    /// Space for media in base64.
    media: usize,
}

impl Charge {
    /// Creates the charge of a request that may contain media of `bytes`.
    pub fn with_media(bytes: usize) -> Charge {
        Charge {
            charged: AtomicUsize::default(),
            media: bytes.div_ceil(3).saturating_mul(4),
        }
    }

    /// Returns the maximum size of the request body in bytes.
    pub fn max_body(&self) -> usize {
        MAX_BODY.saturating_add(self.media)
    }

    /// Returns the counted memory in bytes.
    #[cfg(test)]
    pub fn charged(&self) -> usize {
        self.charged.load(Ordering::Relaxed)
    }

    /// Adds `n` bytes.
    ///
    /// # Errors
    /// Returns status 413 if the request needs too much memory, and 503 if all requests together do.
    pub fn add(&self, n: usize) -> Result<(), ApiError> {
        let of_media = self.media.saturating_mul(COPIES);
        let (max_request, max_total) = (
            MAX_REQUEST.saturating_add(of_media),
            MAX_TOTAL.saturating_add(of_media.saturating_mul(2)),
        );
        let before = self.charged.load(Ordering::Relaxed);
        let now = before.saturating_add(n);
        if now > max_request {
            return Err(ApiError::too_complex(max_request));
        }
        let added = now.saturating_sub(FREE) - before.saturating_sub(FREE);
        let fits = |total: usize| Some(total + added).filter(|&total| total <= max_total);
        if TOTAL.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return Err(ApiError::bodies_in_flight());
        }
        self.charged.store(now, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let charged = *self.charged.get_mut();
        TOTAL.fetch_sub(charged.saturating_sub(FREE), Ordering::Relaxed);
        if charged >= LARGE {
            return_free_memory();
        }
    }
}

/// Returns free memory to the system, which the allocator would keep for later.
fn return_free_memory() {
    // The C library walks over all its free memory, so not on the thread of a connection.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn_blocking(|| {
            // SAFETY: `malloc_trim` has no preconditions; it takes the locks of the allocator.
            unsafe { libc::malloc_trim(0) };
        });
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn charge_limits_one_request_and_all_requests() {
        let one = Charge::default();
        one.add(MAX_REQUEST).unwrap();
        assert_eq!(one.add(1).unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
        let others: Vec<Charge> = (0..8).map(|_| Charge::default()).collect();
        let refused = others.iter().find_map(|charge| charge.add(MAX_REQUEST / 2).err());
        assert_eq!(refused.map(|e| e.status), Some(StatusCode::SERVICE_UNAVAILABLE));
        // Small requests are served even if the memory limit is reached.
        let small: Vec<Charge> = (0..100).map(|_| Charge::default()).collect();
        assert!(small.iter().all(|charge| charge.add(FREE).is_ok()));
        drop((one, others));
        Charge::default().add(MAX_REQUEST).unwrap();
        let media = Charge::with_media(20 << 20);
        assert!(media.max_body() > MAX_BODY + (80 << 20) / 3);
        media.add(COPIES * media.max_body()).unwrap();
    }
}
