//! Change of the sample rate by a windowed sinc.
//!
//! The filter is `sinc_interp_kaiser` of torchaudio, with the parameters `kaiser_best` of its documentation. It has 64
//! zero crossings on each side, a passband up to 0.9476 of the lower Nyquist frequency, and a Kaiser window with beta
//! 14.77.

/// Zero crossings of the sinc on each side.
const WIDTH: f64 = 64.0;
/// Cutoff as a fraction of the lower Nyquist frequency.
const ROLLOFF: f64 = 0.9475937167399596;
const BETA: f64 = 14.769656459379492;

/// Partial sums of a dot product, which the compiler keeps in vector registers.
const LANES: usize = 8;

/// Changes the sample rate of a whole signal.
pub fn resample(samples: &[f32], from: u32, to: u32) -> Vec<f32> {
    let mut out = Vec::new();
    let mut resampler = Resampler::new(from.max(1), to.max(1));
    resampler.push(samples, &mut out);
    resampler.finish(&mut out);
    out
}

/// Changes the sample rate of a signal that arrives in pieces.
pub(super) struct Resampler {
    /// Rates, divided by their greatest common divisor.
    from: u64,
    to: u64,
    /// Filter taps before the tap at the center.
    half: usize,
    /// Taps of each phase, `n_taps` each.
    filters: Vec<f32>,
    n_taps: usize,
    /// Latest input. The first element is `half` positions before the center of the next output.
    buffer: Vec<f32>,
    /// Input position that is the center of the next output.
    center: u64,
    n_in: u64,
    n_out: u64,
}

impl Resampler {
    /// Prepares the filters. Rates are not zero.
    pub(super) fn new(from: u32, to: u32) -> Resampler {
        let divisor = gcd(from, to);
        let (from, to) = (from / divisor, to / divisor);
        let mut resampler = Resampler {
            from: u64::from(from),
            to: u64::from(to),
            half: 0,
            filters: Vec::new(),
            n_taps: 0,
            buffer: Vec::new(),
            center: 0,
            n_in: 0,
            n_out: 0,
        };
        if from != to {
            let cutoff = f64::from(from.min(to)) * ROLLOFF / f64::from(from);
            resampler.half = (WIDTH / cutoff).ceil() as usize;
            resampler.n_taps = (2 * resampler.half + 2).next_multiple_of(LANES);
            resampler.filters = (0..to).flat_map(|phase| resampler.filter(phase, cutoff)).collect();
            resampler.buffer = vec![0.0; resampler.half];
        }
        resampler
    }

    /// Computes the taps of outputs that are `phase / to` after an input.
    fn filter(&self, phase: u32, cutoff: f64) -> Vec<f32> {
        let offset = f64::from(phase) / self.to as f64;
        let tap = |i: usize| {
            let distance = (i as f64 - self.half as f64 - offset) * cutoff;
            (kernel(distance) * cutoff) as f32
        };
        (0..self.n_taps).map(tap).collect()
    }

    /// Takes samples and appends the outputs that they complete.
    pub(super) fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.n_in += samples.len() as u64;
        if self.filters.is_empty() {
            out.extend_from_slice(samples);
            return;
        }
        self.buffer.extend_from_slice(samples);
        self.compute(u64::MAX, out);
    }

    /// Appends the last outputs. Input beyond the end is silence.
    pub(super) fn finish(mut self, out: &mut Vec<f32>) {
        if !self.filters.is_empty() {
            self.buffer.resize(self.buffer.len() + self.n_taps, 0.0);
            let total = (self.n_in * self.to).div_ceil(self.from);
            self.compute(total, out);
        }
    }

    /// Computes outputs, `total` at most, while the buffer has their inputs.
    fn compute(&mut self, total: u64, out: &mut Vec<f32>) {
        // The buffer starts `half` positions before this input.
        let first = self.center;
        let mut start = 0;
        while self.n_out < total && start + self.n_taps <= self.buffer.len() {
            let phase = (self.n_out * self.from % self.to) as usize;
            let filter = &self.filters[phase * self.n_taps..][..self.n_taps];
            out.push(dot(filter, &self.buffer[start..][..self.n_taps]));
            self.n_out += 1;
            self.center = self.n_out * self.from / self.to;
            start = (self.center - first) as usize;
        }
        // At high ratios, the next center may be beyond the buffer.
        let drop = start.min(self.buffer.len());
        self.buffer.drain(..drop);
        self.center = first + drop as u64;
    }
}

/// Returns the value of the windowed sinc at a distance in zero crossings.
fn kernel(distance: f64) -> f64 {
    if distance.abs() >= WIDTH {
        return 0.0;
    }
    let window = bessel_i0(BETA * (1.0 - (distance / WIDTH).powi(2)).sqrt()) / bessel_i0(BETA);
    let x = distance * std::f64::consts::PI;
    let sinc = if x == 0.0 { 1.0 } else { x.sin() / x };
    sinc * window
}

/// Computes the modified Bessel function of the first kind and order zero by its power series.
fn bessel_i0(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut term, mut sum, mut k) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 {
        term *= quarter / (k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(rate: u32, frequency: f64, n: usize) -> Vec<f32> {
        let step = 2.0 * std::f64::consts::PI * frequency / f64::from(rate);
        (0..n).map(|i| (0.5 * (step * i as f64).sin()) as f32).collect()
    }

    #[test]
    fn resample_keeps_tones_below_the_cutoff_and_removes_those_above() {
        for (from, to) in [
            (44_100, 16_000),
            (48_000, 16_000),
            (8_000, 16_000),
            (11_025, 16_000),
            (192_000, 16_000),
        ] {
            let n = from as usize / 2;
            let out = resample(&tone(from, 1000.0, n), from, to);
            assert_eq!(out.len(), (n * to as usize).div_ceil(from as usize));
            let expected = tone(to, 1000.0, out.len());
            let edge = 400;
            for i in edge..out.len() - edge {
                assert!(
                    (out[i] - expected[i]).abs() < 1e-5,
                    "{from} to {to}, {i}: {} {}",
                    out[i],
                    expected[i]
                );
            }
        }
        let removed = resample(&tone(44_100, 8_500.0, 22_050), 44_100, 16_000);
        assert!(removed[400..7600].iter().all(|x| x.abs() < 1e-5));
    }

    #[test]
    fn resample_in_pieces_equals_resample_at_once() {
        for (from, to) in [
            (44_100, 16_000),
            (8_000, 16_000),
            (192_000, 100),
            (7, 5),
            (16_000, 16_000),
        ] {
            let samples = tone(from, 3.0, 4000);
            let whole = resample(&samples, from, to);
            for size in [1, 7, 1000] {
                let mut out = Vec::new();
                let mut resampler = Resampler::new(from, to);
                samples.chunks(size).for_each(|piece| resampler.push(piece, &mut out));
                resampler.finish(&mut out);
                assert_eq!(out, whole, "{from} to {to} by {size}");
            }
        }
    }
}
