//! Functions of lists in hyperparameters.

/// Returns the largest sum of elements of both lists at one of the first `n` positions; 0 without such elements.
pub fn max_sum(a: &[usize], b: &[usize], n: usize) -> usize {
    let sums = a.iter().zip(b).take(n).map(|(a, b)| a.saturating_add(*b));
    sums.max().unwrap_or(0)
}
