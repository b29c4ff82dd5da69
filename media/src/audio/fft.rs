//! Fourier transform of two real signals at a time, for lengths with small prime factors.

use std::f64::consts::PI;

#[derive(Clone, Copy, Default)]
struct Complex {
    re: f64,
    im: f64,
}

impl Complex {
    fn times(self, other: Complex) -> Complex {
        Complex {
            re: self.re * other.re - self.im * other.im,
            im: self.re * other.im + self.im * other.re,
        }
    }

    fn plus(self, other: Complex) -> Complex {
        Complex {
            re: self.re + other.re,
            im: self.im + other.im,
        }
    }
}

/// Transform of one length, with its tables and scratch memory.
pub(super) struct Fft {
    n: usize,
    /// `exp(-2πi k / n)`.
    roots: Vec<Complex>,
    input: Vec<Complex>,
    output: Vec<Complex>,
    scratch: Vec<Complex>,
}

impl Fft {
    /// Prepares transforms of `n` values.
    pub(super) fn new(n: usize) -> Fft {
        let root = |k: usize| {
            let (im, re) = (-2.0 * PI * k as f64 / n as f64).sin_cos();
            Complex { re, im }
        };
        let zeros = vec![Complex::default(); n];
        let roots = (0..n).map(root).collect();
        Fft {
            n,
            roots,
            input: zeros.clone(),
            output: zeros.clone(),
            scratch: zeros,
        }
    }

    /// Computes the squared magnitudes of frequencies `0..=n / 2` of two signals of `n` values.
    pub(super) fn powers(&mut self, signals: [&[f64]; 2], powers: [&mut [f64]; 2]) {
        for (slot, (&re, &im)) in self.input.iter_mut().zip(signals[0].iter().zip(signals[1])) {
            *slot = Complex { re, im };
        }
        transform(&self.roots, &self.input, 1, &mut self.output, &mut self.scratch);
        let [first, second] = powers;
        for k in 0..=self.n / 2 {
            // The spectrum of the real part is even, that of the imaginary part odd.
            let (a, b) = (self.output[k], self.output[(self.n - k) % self.n]);
            first[k] = ((a.re + b.re).powi(2) + (a.im - b.im).powi(2)) / 4.0;
            second[k] = ((a.im + b.im).powi(2) + (b.re - a.re).powi(2)) / 4.0;
        }
    }
}

/// Transforms every `stride`-th value of `input` by splitting off the smallest prime factor.
fn transform(roots: &[Complex], input: &[Complex], stride: usize, out: &mut [Complex], scratch: &mut [Complex]) {
    let n = out.len();
    if n == 1 {
        out[0] = input[0];
        return;
    }
    let radix = (2..).find(|p| n.is_multiple_of(*p)).unwrap_or(n);
    let m = n / radix;
    for r in 0..radix {
        transform(
            roots,
            &input[r * stride..],
            stride * radix,
            &mut scratch[r * m..][..m],
            &mut out[r * m..][..m],
        );
    }
    for k in 0..n {
        let mut sum = Complex::default();
        for r in 0..radix {
            let turn = k * r % n * stride;
            sum = sum.plus(scratch[r * m + k % m].times(roots[turn]));
        }
        out[k] = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_equal_the_sum_of_the_definition() {
        for n in [1, 6, 25, 35, 64, 400] {
            let signal = |seed: usize| -> Vec<f64> { (0..n).map(|i| ((i * i * seed) % 17) as f64 - 8.0).collect() };
            let signals = [signal(3), signal(5)];
            let (mut first, mut second) = (vec![0.0; n / 2 + 1], vec![0.0; n / 2 + 1]);
            Fft::new(n).powers([&signals[0], &signals[1]], [&mut first, &mut second]);
            for (signal, powers) in signals.iter().zip([first, second]) {
                for (k, power) in powers.iter().enumerate() {
                    let angle = |i: usize| -2.0 * PI * (i * k) as f64 / n as f64;
                    let re: f64 = signal.iter().enumerate().map(|(i, x)| x * angle(i).cos()).sum();
                    let im: f64 = signal.iter().enumerate().map(|(i, x)| x * angle(i).sin()).sum();
                    assert!((re * re + im * im - power).abs() < 1e-8 * (1.0 + power), "{n} {k}");
                }
            }
        }
    }
}
