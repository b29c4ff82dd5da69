//! Limits the size of a file while it is read.

use std::io::Read;

use super::content_error::ContentError;
use crate::http::Charge;

/// Bytes that are read from a source at a time.
const STEP: usize = 64 << 10;

/// Limits of the size of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileLimit<'a> {
    /// Maximum size of a file in bytes.
    pub max: usize,
    /// Remaining bytes of the request's maximum after the preceding files.
    pub left: usize,
    /// Memory of the fetched files of a request.
    pub memory: &'a Charge,
}

impl FileLimit<'_> {
    /// Returns the maximum size of all files of a request together, given the maximum size of a file.
    pub fn of_request(max: usize) -> usize {
        max.saturating_mul(2)
    }

    /// Checks a size in bytes.
    ///
    /// # Errors
    /// Returns a message that names the exceeded limit.
    pub fn check(&self, n_bytes: usize) -> Result<(), ContentError> {
        let FileLimit { max, left, .. } = *self;
        if n_bytes > max {
            return Err(format!("the file has {n_bytes} bytes; the limit is {max} (--media-max-mib)").into());
        }
        self.check_rest(n_bytes > left)
    }

    fn check_rest(&self, exceeded: bool) -> Result<(), ContentError> {
        if exceeded {
            let max = FileLimit::of_request(self.max);
            let why = format!("the files of a request have more than {max} bytes together (twice --media-max-mib)");
            return Err(why.into());
        }
        Ok(())
    }

    /// Reads a file whose memory is counted.
    ///
    /// # Errors
    /// Returns an error if the file exceeds a limit or cannot be read. Also fails if the file does not fit into memory
    /// in addition to the bodies of other requests.
    pub fn read(&self, mut reader: impl Read) -> Result<Vec<u8>, ContentError> {
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            let step = reader.by_ref().take(STEP as u64).read_to_end(&mut bytes);
            step.map_err(|e| format!("cannot read the file: {e}"))?;
            if bytes.len() > self.max {
                return Err(format!("the file has more than {} bytes (--media-max-mib)", self.max).into());
            }
            self.check_rest(bytes.len() > self.left)?;
            let n = bytes.len() - before;
            if n == 0 {
                return Ok(bytes);
            }
            let full = "too many large files of requests are in memory; retry later";
            self.memory.add(n).map_err(|_| ContentError::Busy(full.to_owned()))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_while_they_are_read() {
        let memory = Charge::with_media(8 << 20);
        let limit = |left: usize| FileLimit {
            max: 1 << 20,
            left,
            memory: &memory,
        };
        let message = |n: u64, left: usize| {
            let read = limit(left).read(std::io::repeat(7).take(n));
            read.map(|bytes| bytes.len()).map_err(|e| e.of_field("f").message)
        };
        assert_eq!(message(1 << 20, 2 << 20), Ok(1 << 20));
        assert_eq!(memory.charged(), 1 << 20);
        let error = message(u64::MAX, 2 << 20).unwrap_err();
        assert!(error.contains("more than 1048576 bytes (--media-max-mib)"), "{error}");
        let error = message(u64::MAX, 100_000).unwrap_err();
        assert!(error.contains("more than 2097152 bytes together"), "{error}");
        // Endless files are read up to a limit.
        assert!(memory.charged() < (2 << 20) + (3 * STEP));
    }

    #[test]
    fn files_beyond_total_request_memory_get_retryable_error() {
        let charges: Vec<Charge> = (0..64).map(|_| Charge::with_media(16 << 20)).collect();
        let refused = charges.iter().find_map(|memory| {
            let limit = FileLimit {
                max: 16 << 20,
                left: 32 << 20,
                memory,
            };
            limit.read(std::io::repeat(7).take(16 << 20)).err()
        });
        let error = refused.expect("an error").of_field("f");
        assert_eq!((error.status.as_u16(), error.retry_after), (503, Some(1)));
    }
}
