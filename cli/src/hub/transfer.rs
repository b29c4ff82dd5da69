//! One file from one address into one file here, in as many attempts as it takes: each goes on where the last one ended.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use indicatif::ProgressBar;
use ureq::http::HeaderMap;

use super::client::{Answer, Attempts, Client, Trouble};
use crate::failure::{Failure, Outcome};
use crate::interrupt;

/// Less than this is no progress that earns further attempts.
const PROGRESS: u64 = 1 << 16;

/// A file that is being fetched.
pub struct Transfer<'a> {
    pub client: &'a Client,
    pub url: &'a str,
    /// Where it is written; what is there is taken for its beginning.
    pub part: &'a Path,
    /// Bytes of the whole file.
    pub len: u64,
    /// What tells the file from another one at this address, if the host said so.
    pub validator: Option<&'a str>,
}

/// A bar that several files share, and what one of them has contributed.
pub struct Share<'a> {
    bar: &'a ProgressBar,
    n: u64,
}

impl Share<'_> {
    /// Nothing so far.
    pub fn of(bar: &ProgressBar) -> Share<'_> {
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
    /// Goes on until all bytes are there. Whether they are the right ones is not asked here.
    pub fn run(&self, share: &mut Share, stop: &interrupt::Guard) -> Outcome {
        let mut attempts = Attempts::new(&self.client.patience);
        loop {
            let before = self.there();
            let trouble = match self.attempt(before, share, stop) {
                Ok(()) => return Ok(()),
                Err(trouble) => trouble,
            };
            if self.there() >= before.saturating_add(PROGRESS) {
                attempts.progressed();
            }
            attempts.after(trouble, stop)?;
        }
    }

    /// Bytes that are there.
    fn there(&self) -> u64 {
        fs::metadata(self.part).map_or(0, |m| m.len())
    }

    fn attempt(&self, there: u64, share: &mut Share, stop: &interrupt::Guard) -> Result<(), Trouble> {
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
        // One byte more than expected is enough to know that it is another file.
        let mut body = answer.body.into_reader().take(self.len - start + 1);
        let mut buffer = vec![0; 1 << 17];
        while start <= self.len {
            if stop.is_set() {
                return Err(Trouble::Final(Failure::Interrupted));
            }
            let n = body
                .read(&mut buffer)
                .map_err(|e| Trouble::Passing(format!("{}: {e}", self.url), None))?;
            if n == 0 {
                break;
            }
            let kept = n.min((self.len - start) as usize);
            file.write_all(&buffer[..kept]).map_err(|e| self.cannot_write(&e))?;
            start += n as u64;
            share.set(start.min(self.len));
        }
        if start > self.len {
            let _ = fs::remove_file(self.part);
            return Err(self.wrong(format_args!("more than the {} bytes that the file has", self.len)));
        }
        if start < self.len {
            return Err(Trouble::Passing(
                format!("{}: cut after {start} of {} bytes", self.url, self.len),
                None,
            ));
        }
        Ok(())
    }

    /// Where in the file the answer begins: the rest as asked for, or all of it from a host that knows no ranges.
    fn first_byte(&self, answer: &Answer, asked: u64) -> Result<u64, Trouble> {
        match answer.status {
            206 if asked > 0 => match content_range(&answer.headers) {
                Some((first, len)) if first == asked && len == self.len => Ok(asked),
                Some((_, len)) if len != self.len => {
                    Err(self.wrong(format_args!("a file of {len} bytes, expected {}", self.len)))
                }
                _ => {
                    // Begin anew rather than put together what does not belong together.
                    let _ = fs::remove_file(self.part);
                    Err(Trouble::Passing(
                        format!("{}: not the range that was asked for", self.url),
                        None,
                    ))
                }
            },
            416 => {
                let _ = fs::remove_file(self.part);
                Err(Trouble::Passing(
                    format!("{}: the range from {asked} on is refused", self.url),
                    None,
                ))
            }
            200 => match content_length(&answer.headers) {
                Some(len) if len != self.len => {
                    Err(self.wrong(format_args!("a file of {len} bytes, expected {}", self.len)))
                }
                _ => Ok(0),
            },
            status => Err(self.wrong(format_args!("status {status}"))),
        }
    }

    fn open(&self, start: u64) -> Result<File, Trouble> {
        let open = || {
            let file = OpenOptions::new().create(true).append(true).open(self.part)?;
            file.set_len(start)?;
            Ok(file)
        };
        open().map_err(|e: std::io::Error| self.cannot_write(&e))
    }

    fn wrong(&self, what: std::fmt::Arguments) -> Trouble {
        Trouble::Final(Failure::new(format_args!("{}: the host gives {what}", self.url)))
    }

    fn cannot_write(&self, e: &std::io::Error) -> Trouble {
        Trouble::Final(Failure::new(format_args!("cannot write {}: {e}", self.part.display())))
    }
}

/// First byte and length of the whole file, of `bytes 5-9/10`.
pub fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let range = headers.get("content-range")?.to_str().ok()?;
    let (range, len) = range.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, len.parse().ok()?))
}

/// Bytes of an answer.
pub fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get("content-length")?.to_str().ok()?.parse().ok()
}
