//! Times of kernel launches, measured with events. While enabled, plans run launch by launch and are never
//! recorded as CUDA graphs, and the host waits for each plan.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::context::{Context, Event, LaunchShape, Stream};
use super::counters::Counters;
use super::driver::{CudaError, Result};
use super::library::SHOWN;
use super::plan::Launch;
use super::work::Work;
use crate::backend::{BackendError, Device};

/// Environment variable with the file for the times.
const VARIABLE: &str = "LLAMA_CUDA_TIMES";

/// Maximum number of times kept for each kernel.
const MAX_SAMPLES: usize = 10_000;

/// Minimum time between two writes of the file.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);

/// Time of a kernel with one launch configuration.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KernelTime {
    /// Name, source, and definitions of the kernel.
    pub kernel: String,
    /// Number of launches.
    pub launches: u64,
    /// Median of the launches in microseconds.
    pub us_median: f64,
    /// Minimum of the launches in microseconds.
    pub us_min: f64,
    /// Median multiplied by the number of launches, in microseconds.
    pub us_total: f64,
    /// Number of blocks in each dimension.
    pub grid: [u32; 3],
    /// Number of threads per block.
    pub block: u32,
    /// Dynamic shared memory per block in bytes.
    pub shared: u32,
    /// Bytes of operands and results, for matmuls and attention.
    pub bytes: Option<u64>,
    /// Bytes divided by the median time, in 10^9 per second.
    pub gb_s: Option<f64>,
    /// Floating-point operations divided by the median time, in 10^12 per second, for matmuls and attention.
    pub tflops: Option<f64>,
}

/// Times of the kernels of all CUDA devices of this process.
#[derive(Clone, Copy, Debug)]
pub struct KernelTimes;

impl KernelTimes {
    /// Starts to measure all launches. Measurement slows down all plans.
    pub fn start() {
        IS_ON.store(true, Ordering::Relaxed);
    }

    /// Returns the times since the last call, longest total first, and clears them.
    pub fn take() -> Vec<KernelTime> {
        times(&std::mem::take(&mut lock().kernels))
    }
}

static IS_ON: AtomicBool = AtomicBool::new(false);

static MEASURED: Mutex<Measured> = Mutex::new(Measured {
    file: None,
    kernels: BTreeMap::new(),
});

/// A kernel with its launch configuration and work.
type Key = (Arc<str>, [u32; 3], u32, u32, Work);

#[derive(Default)]
struct Samples {
    launches: u64,
    /// Times in microseconds.
    us: Vec<f32>,
}

struct Measured {
    file: Option<TimesFile>,
    kernels: BTreeMap<Key, Samples>,
}

/// The file in [`VARIABLE`].
struct TimesFile {
    path: PathBuf,
    device: String,
    is_emulated: bool,
    written: Instant,
}

fn lock() -> MutexGuard<'static, Measured> {
    MEASURED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns true if launches are measured.
pub(super) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Starts to measure if [`VARIABLE`] is set. Called for each new backend.
pub(super) fn start_for(device: &dyn Device) {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    let path = PATH.get_or_init(|| std::env::var_os(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from));
    let Some(path) = path else {
        return;
    };
    KernelTimes::start();
    lock().file.get_or_insert_with(|| TimesFile {
        path: path.clone(),
        device: format!("{}: {}", device.name(), device.description()),
        is_emulated: Counters::find().is_some(),
        written: Instant::now(),
    });
}

/// Writes the file in [`VARIABLE`], if set.
pub(super) fn write() {
    lock().write();
}

impl Measured {
    fn write(&mut self) {
        let Some(file) = &mut self.file else {
            return;
        };
        file.written = Instant::now();
        let content = serde_json::json!({
            "device": file.device,
            "is_emulated": file.is_emulated,
            "kernels": times(&self.kernels),
        });
        if let Err(error) = fs::write(&file.path, format!("{content:#}\n")) {
            tracing::warn!(target: SHOWN, "cannot write the kernel times to {}: {error}", file.path.display());
        }
    }

    fn add(&mut self, launch: &Launch, ms: f32) {
        let LaunchShape { grid, block, shared } = launch.shape;
        let key = (launch.function.title().clone(), grid, block, shared, launch.work);
        let samples = self.kernels.entry(key).or_default();
        samples.launches += 1;
        if samples.us.len() < MAX_SAMPLES {
            samples.us.push(1e3 * ms);
        }
    }
}

fn times(kernels: &BTreeMap<Key, Samples>) -> Vec<KernelTime> {
    let mut times: Vec<KernelTime> = kernels.iter().map(|(key, samples)| time(key, samples)).collect();
    times.sort_by(|a, b| b.us_total.total_cmp(&a.us_total));
    times
}

fn time((title, grid, block, shared, work): &Key, samples: &Samples) -> KernelTime {
    let mut sorted = samples.us.clone();
    sorted.sort_by(f32::total_cmp);
    let us_median = f64::from(sorted.get(sorted.len() / 2).copied().unwrap_or(0.0));
    let rate = |n: u64, unit: f64| (n > 0 && us_median > 0.0).then(|| n as f64 / (us_median * 1e-6) / unit);
    KernelTime {
        kernel: title.to_string(),
        launches: samples.launches,
        us_median,
        us_min: sorted.first().copied().unwrap_or(0.0).into(),
        us_total: us_median * samples.launches as f64,
        grid: *grid,
        block: *block,
        shared: *shared,
        bytes: (work.bytes > 0).then_some(work.bytes),
        gb_s: rate(work.bytes, 1e9),
        tflops: rate(work.flops, 1e12),
    }
}

/// Events of a backend, reused by all plans.
#[derive(Default)]
pub(super) struct Timer {
    events: Vec<Event>,
}

impl Timer {
    /// Enqueues launches with an event before the first and after each, waits, and adds their times.
    pub(super) fn run(
        &mut self,
        context: &Arc<Context>,
        stream: &Stream,
        launches: &[Launch],
        cancel: &AtomicBool,
        launch: impl Fn(&Launch) -> Result<()>,
        failed: impl Fn(CudaError) -> BackendError,
    ) -> std::result::Result<(), BackendError> {
        while self.events.len() <= launches.len() {
            self.events.push(Event::timed(context).map_err(&failed)?);
        }
        stream.mark(&self.events[0]).map_err(&failed)?;
        for (one, after) in launches.iter().zip(&self.events[1..]) {
            if cancel.load(Ordering::Relaxed) {
                return Err(BackendError::Cancelled);
            }
            launch(one).and_then(|()| stream.mark(after)).map_err(&failed)?;
        }
        stream.synchronize().map_err(&failed)?;
        let mut measured = lock();
        for (one, pair) in launches.iter().zip(self.events.windows(2)) {
            measured.add(one, pair[1].since(&pair[0]).map_err(&failed)?);
        }
        if measured
            .file
            .as_ref()
            .is_some_and(|file| file.written.elapsed() > WRITE_INTERVAL)
        {
            measured.write();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_from_the_median() {
        let work = Work {
            bytes: 6_000_000,
            flops: 9_000_000_000,
        };
        let key: Key = ("product".into(), [8, 1, 1], 128, 0, work);
        let samples = Samples {
            launches: 4,
            us: vec![9.0, 3.0, 1.0],
        };
        let found = time(&key, &samples);
        assert_eq!((found.us_median, found.us_min, found.us_total), (3.0, 1.0, 12.0));
        let (gb_s, tflops) = (found.gb_s.unwrap(), found.tflops.unwrap());
        assert!(
            (gb_s - 2000.0).abs() < 1e-3 && (tflops - 3000.0).abs() < 1e-3,
            "{gb_s} {tflops}"
        );
        let key: Key = ("sum".into(), [8, 1, 1], 128, 0, Work::default());
        let found = time(&key, &samples);
        assert_eq!((found.bytes, found.gb_s, found.tflops), (None, None, None));
    }
}
