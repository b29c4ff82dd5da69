//! Rows of the compact format.
//!
//! Numbers are little-endian. A row starts with the log-probability of the next token of the text (f32). Two f32 values
//! about the omitted tokens follow: their total probability, and their sum of `p ln p`. The log-probabilities (f32) of
//! the most likely tokens follow in the order of their ids. The differences of each id to the previous id follow as
//! LEB128 numbers.

use std::io::{self, Read, Write};

use crate::measure::error::MeasureError;
use crate::measure::position::LogProbs;
use crate::vocab::Token;

/// The likeliest tokens of a position.
#[derive(Clone, Debug, PartialEq)]
pub struct Top {
    /// Log-probability of the next token of the text.
    pub(super) next: f32,
    /// Probability of all omitted tokens.
    pub(super) rest: f32,
    /// Sum of `p ln p` over the omitted tokens.
    pub(super) rest_log: f32,
    /// Ids, ascending.
    pub(super) ids: Vec<u32>,
    /// Log-probabilities of `ids`.
    pub(super) logs: Vec<f32>,
}

impl Top {
    /// Takes the `n` likeliest tokens.
    pub(super) fn new(probs: &LogProbs<'_>, next: Token, n: usize) -> Top {
        let mut order: Vec<u32> = (0..probs.len() as u32).collect();
        let by_probability = |a: &u32, b: &u32| {
            let [x, y] = [a, b].map(|&id| probs.get(id as usize));
            y.total_cmp(&x).then(a.cmp(b))
        };
        let n = n.min(order.len());
        if n < order.len() {
            order.select_nth_unstable_by(n, by_probability);
        }
        let (mut rest, mut rest_log) = (0.0, 0.0);
        for &id in &order[n..] {
            let log = probs.get(id as usize);
            if log > f64::NEG_INFINITY {
                rest += log.exp();
                rest_log += log.exp() * log;
            }
        }
        order.truncate(n);
        order.sort_unstable();
        Top {
            next: probs.of(next) as f32,
            rest: rest as f32,
            rest_log: rest_log as f32,
            logs: order.iter().map(|&id| probs.get(id as usize) as f32).collect(),
            ids: order,
        }
    }

    /// Returns a lower bound of the divergence, and the largest possible excess over this bound.
    ///
    /// The lower bound is the divergence after merging all omitted tokens into one. The upper bound assigns the
    /// omitted tokens the largest probability that they can have in the base, starting with the least likely token of
    /// `probs`.
    pub(super) fn divergence(&self, probs: &LogProbs<'_>) -> (f64, f64) {
        let (mut sum, mut covered) = (0.0, 0.0);
        let mut largest_rest = f64::INFINITY;
        for (&id, &log) in self.ids.iter().zip(&self.logs) {
            let (log, other) = (f64::from(log), probs.get(id as usize));
            largest_rest = largest_rest.min(log.exp());
            covered += other.exp();
            if log > f64::NEG_INFINITY {
                sum += log.exp() * (log - other);
            }
        }
        let rest = f64::from(self.rest);
        if rest <= 0.0 || largest_rest <= 0.0 {
            return (sum, 0.0);
        }
        let other_rest = (1.0 - covered).max(f64::MIN_POSITIVE);
        let lower = rest * (rest / other_rest).ln();
        let mut others = self.left_out(probs);
        let n = ((rest / largest_rest).ceil() as usize).min(others.len());
        if n > 0 && n < others.len() {
            others.select_nth_unstable_by(n, f64::total_cmp);
        }
        let likeliest = others[..n].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let last = rest - largest_rest * n.saturating_sub(1) as f64;
        let cross = largest_rest * (others[..n].iter().sum::<f64>() - likeliest) + last * likeliest;
        let upper = f64::from(self.rest_log) - cross;
        (sum + lower, (upper - lower).max(0.0))
    }

    /// Returns the log-probabilities of all omitted tokens.
    fn left_out(&self, probs: &LogProbs<'_>) -> Vec<f64> {
        let mut ids = self.ids.iter().peekable();
        let is_left_out = |id: &usize| ids.next_if(|&&kept| kept as usize == *id).is_none();
        (0..probs.len()).filter(is_left_out).map(|id| probs.get(id)).collect()
    }

    /// Appends the row to a buffer.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for value in [self.next, self.rest, self.rest_log].iter().chain(&self.logs) {
            out.extend_from_slice(&value.to_le_bytes());
        }
        let mut previous = 0;
        for &id in &self.ids {
            let mut difference = id - previous;
            previous = id;
            while difference >= 0x80 {
                out.push(difference as u8 | 0x80);
                difference >>= 7;
            }
            out.push(difference as u8);
        }
    }

    /// Reads a row of `n` tokens.
    pub(super) fn read(input: &mut impl Read, n: usize, n_vocab: usize) -> Result<Top, MeasureError> {
        let invalid = |problem: &str| MeasureError::InvalidBase(problem.to_owned());
        let mut floats = vec![0u8; 4 * (n + 3)];
        input.read_exact(&mut floats)?;
        let mut values = floats
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let mut head = || values.next().unwrap_or_default();
        let [next, rest, rest_log] = [head(), head(), head()];
        let logs: Vec<f32> = values.collect();
        // Rounding may raise a probability slightly above 1.
        let is_log = |log: f32| log < 1e-3;
        if !is_log(next) || !logs.iter().all(|&log| is_log(log)) || !(0.0..1.001).contains(&rest) || !is_log(rest_log) {
            return Err(invalid("a log-probability is positive or not a number"));
        }
        let mut ids = Vec::with_capacity(n);
        let mut previous: u32 = 0;
        for i in 0..n {
            let difference = leb128(input)?.ok_or_else(|| invalid("a token id has more than 32 bits"))?;
            let id = previous.checked_add(difference).filter(|&id| (id as usize) < n_vocab);
            let id = id.ok_or_else(|| invalid("a token id is outside of the vocabulary"))?;
            if i > 0 && difference == 0 {
                return Err(invalid("a token id occurs twice in a row"));
            }
            ids.push(id);
            previous = id;
        }
        Ok(Top {
            next,
            rest,
            rest_log,
            ids,
            logs,
        })
    }
}

/// Reads a LEB128 number; `None` if it has more than 32 bits.
fn leb128(input: &mut impl Read) -> io::Result<Option<u32>> {
    let mut number: u64 = 0;
    for shift in (0..35).step_by(7) {
        let mut byte = [0];
        input.read_exact(&mut byte)?;
        number |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(u32::try_from(number).ok());
        }
    }
    Ok(None)
}

/// Writes rows.
pub(super) fn write_rows(rows: &[Vec<u8>], out: &mut dyn Write) -> io::Result<()> {
    rows.iter().try_for_each(|row| out.write_all(row))
}
