//! Log-mel spectrograms of speech encoders, computed in f64 and rounded once.

use std::f64::consts::PI;

use super::fft::Fft;

/// Spectrogram of a family of encoders. All read 16,000 samples per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MelKind {
    /// Whisper: power of 400 samples each 160, decimal logarithm, at most 8 below the maximum, scaled around 0. The
    /// maximum depends on the whole signal, which is padded or cut to 30 s by the caller.
    Whisper,
    /// NeMo's conformers (Parakeet, LFM2 audio): pre-emphasis, power, natural logarithm, and normalization of each
    /// filter over time.
    Conformer,
    /// Gemma 3n: magnitudes of 512 samples with pre-emphasis in each frame, natural logarithm.
    Gemma3n,
    /// Gemma 4: magnitudes of 320 samples, natural logarithm.
    Gemma4,
    /// Granite Speech: the spectrogram of Whisper with an FFT of 512 samples and filters on the HTK scale. The first
    /// frame is centered on the first sample, and the last frame on the last hop.
    Granite,
}

/// Log-mel spectrogram.
#[derive(Debug, Clone, PartialEq)]
pub struct Mel {
    /// Number of mel filters.
    pub n_mel: usize,
    /// Number of frames.
    pub n_frames: usize,
    /// Values frame by frame, `n_mel` each.
    pub data: Vec<f32>,
}

/// Samples between frames, for all kinds.
const HOP: usize = 160;
const NYQUIST: f64 = 8000.0;

/// Signal beyond the ends.
#[derive(Clone, Copy, PartialEq)]
enum Edge {
    Reflected,
    Silent,
}

#[derive(Clone, Copy)]
enum PreEmphasis {
    None,
    /// Pre-emphasis of the signal: `x[i] - 0.97 x[i - 1]`.
    Signal,
    /// Within each frame; its first sample is scaled by 0.03.
    Frame,
}

#[derive(Clone, Copy)]
enum Logarithm {
    Whisper,
    /// Adds a value first.
    Plus(f64),
    /// Logarithm of the value, which is first raised to at least this number.
    Floor(f64),
}

/// Facts of a kind.
struct Facts {
    n_fft: usize,
    /// Samples that the Hann window covers.
    window: usize,
    /// Period of the Hann window.
    period: usize,
    /// Position of the window within the transform.
    window_at: usize,
    /// Number of samples of the first frame before the signal.
    before: usize,
    edge: Edge,
    pre_emphasis: PreEmphasis,
    power: bool,
    /// Lowest and highest frequency in Hz.
    band: (f64, f64),
    slaney: bool,
    logarithm: Logarithm,
}

const PRE_EMPHASIS: f64 = 0.97;

impl MelKind {
    fn facts(self) -> Facts {
        let whisper = Facts {
            n_fft: 400,
            window: 400,
            period: 400,
            window_at: 0,
            before: 200,
            edge: Edge::Reflected,
            pre_emphasis: PreEmphasis::None,
            power: true,
            band: (0.0, NYQUIST),
            slaney: true,
            logarithm: Logarithm::Whisper,
        };
        match self {
            MelKind::Whisper => whisper,
            MelKind::Conformer => Facts {
                n_fft: 512,
                period: 399,
                window_at: 56,
                before: 256,
                edge: Edge::Silent,
                pre_emphasis: PreEmphasis::Signal,
                logarithm: Logarithm::Plus(1.0 / f64::from(1 << 24)),
                ..whisper
            },
            MelKind::Gemma3n => Facts {
                n_fft: 1024,
                window: 512,
                period: 512,
                before: 0,
                edge: Edge::Silent,
                pre_emphasis: PreEmphasis::Frame,
                power: false,
                band: (125.0, 7600.0),
                slaney: false,
                logarithm: Logarithm::Floor(1e-5),
                ..whisper
            },
            MelKind::Granite => Facts {
                n_fft: 512,
                window_at: 56,
                before: 256,
                slaney: false,
                ..whisper
            },
            MelKind::Gemma4 => Facts {
                n_fft: 512,
                window: 320,
                period: 320,
                before: 160,
                edge: Edge::Silent,
                power: false,
                slaney: false,
                logarithm: Logarithm::Plus(1e-3),
                ..whisper
            },
        }
    }
}

/// Returns the number of frames that [`mel`] computes for a signal of `n_samples`.
pub fn mel_frames(kind: MelKind, n_samples: usize) -> usize {
    // Frames of Gemma have one sample more than their window, for pre-emphasis.
    let unfolded = |n: usize, size: usize| n.checked_sub(size + 1).map_or(0, |rest| rest / HOP + 1);
    match kind {
        MelKind::Whisper | MelKind::Conformer => n_samples / HOP,
        MelKind::Granite => n_samples / HOP + 1,
        MelKind::Gemma3n => unfolded(n_samples.next_multiple_of(128), 512),
        MelKind::Gemma4 => unfolded(n_samples + 160, 320),
    }
}

/// Scales samples to mean 0 and variance 1, as the feature extractors of transformers do. Silence is unchanged.
pub fn normalize(samples: &mut [f32]) {
    let n = samples.len().max(1) as f64;
    let mean = samples.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = samples.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (variance + 1e-7).sqrt();
    for sample in samples {
        *sample = ((f64::from(*sample) - mean) * scale) as f32;
    }
}

/// Computes a log-mel spectrogram of `samples` at 16 kHz.
pub fn mel(samples: &[f32], kind: MelKind, n_mel: usize) -> Mel {
    let facts = kind.facts();
    let n_frames = mel_frames(kind, samples.len());
    let filters = filters(&facts, n_mel);
    let window = window(&facts);
    let mut fft = Fft::new(facts.n_fft);
    let mut frames = [vec![0.0; facts.n_fft], vec![0.0; facts.n_fft]];
    let n_bins = facts.n_fft / 2 + 1;
    let mut powers = [vec![0.0; n_bins], vec![0.0; n_bins]];
    let mut values = vec![0.0f64; n_frames * n_mel];
    for (pair, rows) in values.chunks_mut((2 * n_mel).max(1)).enumerate() {
        for (i, frame) in frames.iter_mut().enumerate() {
            fill_frame(frame, samples, 2 * pair + i, &facts, &window);
        }
        let silent = frames.iter().flatten().all(|&x| x == 0.0);
        if !silent {
            let [first, second] = &mut powers;
            fft.powers([&frames[0], &frames[1]], [first, second]);
        }
        for (row, power) in rows.chunks_exact_mut(n_mel).zip(&mut powers) {
            if silent {
                power.fill(0.0);
            } else if !facts.power {
                power.iter_mut().for_each(|x| *x = x.sqrt());
            }
            for (value, filter) in row.iter_mut().zip(&filters) {
                *value = logarithm(filter.apply(power), facts.logarithm);
            }
        }
    }
    match kind {
        MelKind::Whisper | MelKind::Granite => scale_whisper(&mut values),
        MelKind::Conformer => normalize_filters(&mut values, n_mel),
        MelKind::Gemma3n | MelKind::Gemma4 => (),
    }
    Mel {
        n_mel,
        n_frames,
        data: values.iter().map(|&value| value as f32).collect(),
    }
}

/// Writes a frame of the windowed signal.
fn fill_frame(frame: &mut [f64], samples: &[f32], index: usize, facts: &Facts, window: &[f64]) {
    let start = (index * HOP) as i64 - facts.before as i64 + facts.window_at as i64;
    frame.fill(0.0);
    let target = &mut frame[facts.window_at..][..facts.window];
    for (i, (slot, weight)) in target.iter_mut().zip(window).enumerate() {
        let at = start + i as i64;
        let value = match facts.pre_emphasis {
            PreEmphasis::None => sample(samples, at, facts.edge),
            PreEmphasis::Signal if at >= samples.len() as i64 => 0.0,
            PreEmphasis::Frame if i == 0 => sample(samples, at, facts.edge) * (1.0 - PRE_EMPHASIS),
            PreEmphasis::Signal | PreEmphasis::Frame => {
                sample(samples, at, facts.edge) - PRE_EMPHASIS * sample(samples, at - 1, facts.edge)
            }
        };
        *slot = value * weight;
    }
}

fn sample(samples: &[f32], at: i64, edge: Edge) -> f64 {
    let n = samples.len() as i64;
    let at = match edge {
        Edge::Reflected if n > 1 => {
            let at = at.rem_euclid(2 * (n - 1));
            at.min(2 * (n - 1) - at)
        }
        Edge::Reflected => 0,
        Edge::Silent => at,
    };
    usize::try_from(at)
        .ok()
        .and_then(|at| samples.get(at))
        .map_or(0.0, |&x| f64::from(x))
}

fn window(facts: &Facts) -> Vec<f64> {
    let hann = |i: usize| 0.5 - 0.5 * (2.0 * PI * i as f64 / facts.period as f64).cos();
    (0..facts.window).map(hann).collect()
}

fn logarithm(value: f64, kind: Logarithm) -> f64 {
    match kind {
        Logarithm::Whisper => value.max(1e-10).log10(),
        Logarithm::Plus(added) => (value + added).ln(),
        Logarithm::Floor(floor) => value.max(floor).ln(),
    }
}

fn scale_whisper(values: &mut [f64]) {
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    for value in values {
        *value = (value.max(max - 8.0) + 4.0) / 4.0;
    }
}

/// Shifts and scales each filter's values to mean 0 and variance 1 over time.
fn normalize_filters(values: &mut [f64], n_mel: usize) {
    const EPSILON: f64 = 1e-5;
    let n = (values.len() / n_mel.max(1)) as f64;
    for filter in 0..n_mel {
        let column = || values.iter().skip(filter).step_by(n_mel);
        let mean = column().sum::<f64>() / n;
        let variance = column().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let scale = 1.0 / (variance.sqrt() + EPSILON);
        for value in values.iter_mut().skip(filter).step_by(n_mel) {
            *value = (*value - mean) * scale;
        }
    }
}

/// Weights of consecutive frequencies.
struct MelFilter {
    start: usize,
    weights: Vec<f64>,
}

impl MelFilter {
    fn apply(&self, powers: &[f64]) -> f64 {
        self.weights
            .iter()
            .zip(&powers[self.start..])
            .map(|(weight, power)| weight * power)
            .sum()
    }
}

/// Computes triangles that are equally wide on the mel scale. Those of the Slaney scale have equal areas in Hz.
fn filters(facts: &Facts, n_mel: usize) -> Vec<MelFilter> {
    let n_bins = facts.n_fft / 2 + 1;
    let (low, high) = (to_mel(facts.band.0, facts.slaney), to_mel(facts.band.1, facts.slaney));
    let step = (high - low) / (n_mel + 1) as f64;
    let corner = |i: usize| to_hz(low + step * i as f64, facts.slaney);
    let triangle = |filter: usize| {
        let (left, middle, right) = (corner(filter), corner(filter + 1), corner(filter + 2));
        let scale = if facts.slaney { 2.0 / (right - left) } else { 1.0 };
        let weight = |bin: usize| {
            let hz = bin as f64 * NYQUIST / (n_bins - 1) as f64;
            ((hz - left) / (middle - left))
                .min((right - hz) / (right - middle))
                .max(0.0)
                * scale
        };
        let start = (0..n_bins).find(|&bin| weight(bin) > 0.0).unwrap_or(0);
        let weights = (start..n_bins).map(weight).take_while(|&weight| weight > 0.0).collect();
        MelFilter { start, weights }
    };
    (0..n_mel).map(triangle).collect()
}

/// Slaney's scale is linear below this frequency, at 15 mel, and logarithmic above.
const LINEAR_END: f64 = 1000.0;
const LINEAR_MEL: f64 = 15.0;

/// Returns the logarithm of the frequency ratio of one mel.
fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

fn to_mel(hz: f64, slaney: bool) -> f64 {
    if !slaney {
        2595.0 * (1.0 + hz / 700.0).log10()
    } else if hz < LINEAR_END {
        hz * 3.0 / 200.0
    } else {
        LINEAR_MEL + (hz / LINEAR_END).ln() / log_step()
    }
}

fn to_hz(mel: f64, slaney: bool) -> f64 {
    if !slaney {
        700.0 * (10f64.powf(mel / 2595.0) - 1.0)
    } else if mel < LINEAR_MEL {
        mel * 200.0 / 3.0
    } else {
        LINEAR_END * ((mel - LINEAR_MEL) * log_step()).exp()
    }
}
