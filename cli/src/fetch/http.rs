//! Downloads over HTTPS.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::ProgressBar;

use super::{Remote, SourceError};
use crate::interrupt;

/// A host that cannot be reached must not keep the next source waiting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Silence after which a connection counts as dead.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

pub fn fetch(remote: &Remote, dir: &Path, bar: &ProgressBar, stop: &interrupt::Guard) -> Result<PathBuf, SourceError> {
    let path = dir.join("download");
    let unavailable = |e: &dyn std::fmt::Display| SourceError::Unavailable(format!("{}: {e}", remote.url));
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .https_only(true)
        .timeout_resolve(Some(CONNECT_TIMEOUT))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_recv_response(Some(READ_TIMEOUT))
        .timeout_per_read(Some(READ_TIMEOUT))
        .build()
        .into();
    let mut response = agent.get(remote.url).call().map_err(|e| unavailable(&e))?;
    bar.set_length(remote.len);
    // One byte more than expected is enough to know that it is the wrong file.
    let mut body = response.body_mut().as_reader().take(remote.len + 1);
    let write = |error| SourceError::Write {
        path: path.clone(),
        error,
    };
    let mut file = File::create(&path).map_err(write)?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let n = body.read(&mut buffer).map_err(|e| unavailable(&e))?;
        if stop.is_set() {
            return Err(SourceError::Interrupted);
        }
        if n == 0 {
            return Ok(path);
        }
        file.write_all(&buffer[..n]).map_err(write)?;
        bar.inc(n as u64);
    }
}
