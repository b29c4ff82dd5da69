//! Downloads a file with retries. Each attempt resumes where the previous one ended.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use ureq::http::HeaderMap;

use super::client::{Answer, Attempts, Client, MIN_BYTES, RequestError};
use super::links::without_links;
use super::progress::Bar;
use super::{HubError, HubResult};
use crate::CancelHandle;

/// Minimum bytes per attempt that count as progress and reset the retry counter.
const PROGRESS: u64 = 1 << 16;

pub struct Transfer<'a> {
    pub client: &'a Client,
    pub url: &'a str,
    /// Output file; existing content is the start of the download.
    pub part: &'a Path,
    /// Size of the whole file in bytes.
    pub len: u64,
    /// ETag or Last-Modified value that identifies the version, if the server sent one.
    pub validator: Option<&'a str>,
}

/// Share of a download in the common progress bar.
pub struct Share<'a> {
    bar: &'a Bar,
    n: u64,
}

impl Share<'_> {
    /// Creates an empty share.
    pub fn of(bar: &Bar) -> Share<'_> {
        Share { bar, n: 0 }
    }

    fn set(&mut self, n: u64) {
        match n.checked_sub(self.n) {
            Some(more) => self.bar.inc(more),
            None => self.bar.dec(self.n - n),
        }
        self.n = n;
    }
}

impl Transfer<'_> {
    /// Downloads all bytes. The caller verifies the content.
    pub fn run(&self, share: &mut Share, stop: &CancelHandle) -> HubResult {
        let mut attempts = Attempts::new(&self.client.retry);
        loop {
            let before = self.there();
            let error = match self.attempt(before, share, stop) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if self.there() >= before.saturating_add(PROGRESS) {
                attempts.progressed();
            }
            attempts.after(error, stop)?;
        }
    }

    /// Returns the number of downloaded bytes.
    fn there(&self) -> u64 {
        fs::symlink_metadata(self.part).map_or(0, |m| m.len())
    }

    fn attempt(&self, there: u64, share: &mut Share, stop: &CancelHandle) -> Result<(), RequestError> {
        let mut start = if there > self.len { 0 } else { there };
        share.set(start);
        if start == self.len {
            return Ok(());
        }
        let range = format!("bytes={start}-");
        let mut headers = vec![("accept-encoding", "identity")];
        if start > 0 {
            headers.push(("range", &range));
            headers.extend(self.validator.map(|v| ("if-range", v)));
        }
        let answer = self.client.get(self.url, &headers)?;
        start = self.first_byte(&answer, start)?;
        let mut file = self.open(start)?;
        share.set(start);
        // One extra byte suffices to detect a wrong length.
        let mut body = answer.body.into_reader().take(self.len - start + 1);
        let mut buffer = vec![0; 1 << 17];
        let (mut period, mut first_of_period) = (Instant::now(), start);
        while start <= self.len {
            if stop.is_cancelled() {
                return Err(RequestError::Permanent(HubError::Cancelled));
            }
            let n = body
                .read(&mut buffer)
                .map_err(|e| RequestError::Transient(format!("{}: {e}", self.url), None))?;
            if n == 0 {
                break;
            }
            let n_valid = n.min((self.len - start) as usize);
            file.write_all(&buffer[..n_valid]).map_err(|e| self.cannot_write(&e))?;
            start += n as u64;
            share.set(start.min(self.len));
            if period.elapsed() >= self.client.retry.trickle {
                if start - first_of_period < MIN_BYTES && start < self.len {
                    let seconds = period.elapsed().as_secs_f64();
                    let n = start - first_of_period;
                    let slow = format!("{}: received only {n} bytes in {seconds:.0} s", self.url);
                    return Err(RequestError::Transient(slow, None));
                }
                (period, first_of_period) = (Instant::now(), start);
            }
        }
        if start > self.len {
            let _ = fs::remove_file(self.part);
            return Err(self.wrong(format_args!("more than the expected {} bytes", self.len)));
        }
        if start < self.len {
            return Err(RequestError::Transient(
                format!("{}: connection closed after {start} of {} bytes", self.url, self.len),
                None,
            ));
        }
        Ok(())
    }

    /// Returns the offset at which the response starts: the requested offset, or 0 if the server ignores
    /// ranges.
    fn first_byte(&self, answer: &Answer, requested: u64) -> Result<u64, RequestError> {
        match answer.status {
            206 if requested > 0 => match content_range(&answer.headers) {
                Some((first, len)) if first == requested && len == self.len => Ok(requested),
                Some((_, len)) if len != self.len => {
                    Err(self.wrong(format_args!("expected {} bytes, found {len}", self.len)))
                }
                _ => {
                    // Start over instead of joining mismatched parts.
                    let _ = fs::remove_file(self.part);
                    Err(RequestError::Transient(
                        format!("{}: the response has the wrong range", self.url),
                        None,
                    ))
                }
            },
            416 => {
                let _ = fs::remove_file(self.part);
                Err(RequestError::Transient(
                    format!("{}: the range starting at {requested} was rejected", self.url),
                    None,
                ))
            }
            200 => match content_length(&answer.headers) {
                Some(len) if len != self.len => {
                    Err(self.wrong(format_args!("expected {} bytes, found {len}", self.len)))
                }
                _ => Ok(0),
            },
            status => Err(self.wrong(format_args!("status {status}"))),
        }
    }

    fn open(&self, start: u64) -> Result<File, RequestError> {
        let open = || {
            let file = without_links(OpenOptions::new().create(true).append(true)).open(self.part)?;
            file.set_len(start)?;
            Ok(file)
        };
        open().map_err(|e: std::io::Error| self.cannot_write(&e))
    }

    fn wrong(&self, what: std::fmt::Arguments) -> RequestError {
        RequestError::Permanent(HubError::new(format_args!("{}: wrong file length: {what}", self.url)))
    }

    fn cannot_write(&self, e: &std::io::Error) -> RequestError {
        RequestError::Permanent(HubError::new(format_args!("cannot write {}: {e}", self.part.display())))
    }
}

/// Parses `bytes 5-9/10` into the first byte and the file length.
pub fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let range = headers.get("content-range")?.to_str().ok()?;
    let (range, len) = range.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, len.parse().ok()?))
}

/// Returns the Content-Length header.
pub fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get("content-length")?.to_str().ok()?.parse().ok()
}
