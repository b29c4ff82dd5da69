//! `llama batch`: processes a file of requests in parallel.

use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use server::batch::{Progress, batch, finished};
use server::guard::AccessPolicy;
use server::router::router;
use tracing::info;

use crate::args::ServingArgs;
use crate::failure::{Failure, Outcome};
use crate::serving::{app, runtime};
use crate::{fetch, format};

/// Arguments of `llama batch`.
#[derive(Debug, Args)]
#[command(args_override_self = true, after_help = BATCH_NOTES)]
pub struct BatchArgs {
    /// Input file with one JSON request per line
    ///
    /// Format: {"custom_id": …, "method": "POST", "url": "/v1/chat/completions", "body": {…}}
    #[arg(value_name = "IN.JSONL")]
    pub input: PathBuf,
    /// Output file with one JSON response per line; existing responses are kept
    #[arg(value_name = "OUT.JSONL")]
    pub output: PathBuf,
    /// GGUF file or model name [default: the default model]
    #[arg(short, long, value_name = "FILE|NAME")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub serving: ServingArgs,
}

const BATCH_NOTES: &str = "Files use the format of OpenAI's Batch API. If the run is interrupted, repeat the command to process the remaining requests.";

/// Interval between progress messages.
const PAUSE: Duration = Duration::from_secs(5);

/// Processes all requests without a response in the output file.
pub fn run(args: &BatchArgs) -> Outcome {
    let wrong = |path: &Path, e: &dyn std::fmt::Display| Failure::new(format_args!("{}: {e}", path.display()));
    let (from, to) = (&args.input, &args.output);
    let n_lines = n_lines(from).map_err(|e| wrong(from, &e))?;
    let input = BufReader::new(File::open(from).map_err(|e| wrong(from, &e))?);
    let open = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(to);
    let mut output = open.map_err(|e| wrong(to, &e))?;
    // Resuming requires a regular file; devices cannot be read back.
    if !output.metadata().is_ok_and(|file| file.is_file()) {
        return Err(wrong(to, &"expected a regular file"));
    }
    match output.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(wrong(to, &"another process is writing to the file")),
        Err(TryLockError::Error(e)) => return Err(wrong(to, &e)),
    }
    let done = finished(&mut output).map_err(|e| wrong(to, &e))?;
    if done.len() >= n_lines {
        info!("{}: all requests have been processed", to.display());
        return Ok(());
    }
    let path = fetch::model_to_serve(args.model.as_deref(), &args.serving.hub)?;
    let app = app(&args.serving, &path)?;
    let n_at_once = 2 * app.service.scheduler.settings().n_parallel;
    let routes = router(Arc::new(app), AccessPolicy::default());
    let runtime = runtime()?;
    let (start, mut last, n_left) = (Instant::now(), Instant::now(), n_lines - done.len());
    let tell = |progress: Progress| {
        if last.elapsed() >= PAUSE {
            last = Instant::now();
            info!("{}", so_far(progress, done.len(), n_lines, n_left, start.elapsed()));
        }
    };
    let ended = runtime.block_on(batch(routes, input, &mut output, &done, n_at_once, tell));
    let Progress {
        n_before,
        n_done,
        n_failed,
    } = ended.map_err(|e| wrong(to, &e))?;
    let seconds = start.elapsed().as_secs_f64();
    let before = if n_before > 0 {
        format!(", {n_before} before")
    } else {
        String::new()
    };
    info!(
        "{}: processed {} in {seconds:.1} s{before}; {n_failed} failed",
        to.display(),
        format::plural(n_done, "line")
    );
    Ok(())
}

/// Formats the progress, speed, and remaining time.
fn so_far(progress: Progress, n_before: usize, n_lines: usize, n_left: usize, time: Duration) -> String {
    let n_done = progress.n_done;
    let speed = n_done as f64 / time.as_secs_f64().max(1e-3);
    let left = n_left.saturating_sub(n_done) as f64 / speed.max(1e-9);
    let left = match left {
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    };
    let n_failed = progress.n_failed;
    format!(
        "{} of {n_lines} requests, {speed:.2}/s, about {left} left, {n_failed} failed",
        n_before + n_done
    )
}

/// Counts the non-empty lines of a file.
fn n_lines(path: &Path) -> std::io::Result<usize> {
    let mut reader = BufReader::new(File::open(path)?);
    let (mut n, mut is_empty) = (0, true);
    loop {
        let part = reader.fill_buf()?;
        if part.is_empty() {
            return Ok(n + usize::from(!is_empty));
        }
        for &byte in part {
            match byte {
                b'\n' => {
                    n += usize::from(!is_empty);
                    is_empty = true;
                }
                byte => is_empty &= byte.is_ascii_whitespace(),
            }
        }
        let len = part.len();
        reader.consume(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_shows_remaining_time() {
        let progress = Progress {
            n_before: 10,
            n_done: 20,
            n_failed: 1,
        };
        let text = so_far(progress, 10, 90, 80, Duration::from_secs(10));
        assert_eq!(text, "30 of 90 requests, 2.00/s, about 30 s left, 1 failed");
    }
}
