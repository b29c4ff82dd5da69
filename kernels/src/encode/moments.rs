//! Second moments of a matrix's inputs, and their triangular factor.
//!
//! Matrices are square, with `n` floats per row, and only their upper triangle is used. Callers distribute rows over
//! threads; each element is computed by one thread, so that results do not depend on the number of threads.

use super::cpu::for_this_cpu;

/// Number of rows that [`factor_diagonal`] and [`factor_rows`] compute at a time.
pub const FACTOR_ROWS: usize = 32;

/// Rows and columns of a tile of products.
const TILE: (usize, usize) = (4, 16);

for_this_cpu! {
    /// Adds the products of columns of `x` to a tile of a moment matrix. `at` is the row and the column where the tile
    /// starts.
    fn add_tile[][](rows: &mut [f32], at: (usize, usize), n: usize, x: &[f32]) -> () = add_tile_of;
    /// Returns the dot products of a row with 4 others.
    fn dots[][](row: &[f32], others: [&[f32]; 4]) -> [f64; 4] = dots_of;
    /// Returns the dot product of two rows.
    fn dot[][](a: &[f32], b: &[f32]) -> f64 = dot_of;
}

/// Adds the products of all pairs of columns of `x` to consecutive rows of a moment matrix, starting at index `first`.
/// `x` has inputs of `n` floats.
///
/// # Panics
/// Panics if the lengths are not multiples of `n`, or there are more than `n` rows.
pub fn add_moments(rows: &mut [f32], first: usize, n: usize, x: &[f32]) {
    assert!(
        n > 0 && rows.len().is_multiple_of(n) && x.len().is_multiple_of(n),
        "rows of {n} floats"
    );
    let n_rows = rows.len() / n;
    assert!(first + n_rows <= n, "rows {first} to {} of {n}", first + n_rows);
    let n_tiled = n / TILE.1 * TILE.1;
    for row in (0..n_rows).step_by(TILE.0) {
        let n_rows = TILE.0.min(n_rows - row);
        if n_rows == TILE.0 {
            for column in ((first + row) / TILE.1 * TILE.1..n_tiled).step_by(TILE.1) {
                add_tile(&mut rows[row * n..][..TILE.0 * n], (first + row, column), n, x);
            }
        }
        for row in row..row + n_rows {
            let start = if n_rows == TILE.0 { n_tiled } else { first + row };
            for column in start.max(first + row)..n {
                let products = x.chunks_exact(n).map(|x| x[first + row] * x[column]);
                rows[row * n + column] += products.sum::<f32>();
            }
        }
    }
}

/// See [`add_tile`].
#[inline(always)]
fn add_tile_of(rows: &mut [f32], (row, column): (usize, usize), n: usize, x: &[f32]) {
    let mut sums = [[0f32; TILE.1]; TILE.0];
    for x in x.chunks_exact(n) {
        let (left, right) = (&x[row..row + TILE.0], &x[column..column + TILE.1]);
        for (sums, left) in sums.iter_mut().zip(left) {
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum += left * right;
            }
        }
    }
    for (sums, row) in sums.iter().zip(rows.chunks_exact_mut(n)) {
        for (to, sum) in row[column..].iter_mut().zip(sums) {
            *to += sum;
        }
    }
}

/// Replaces rows `first..` of a matrix `H` by those of the upper triangular `C` with `H = C C^T`, in the columns of
/// these rows. All later rows and columns must be factored. `floor` is a lower bound of the eigenvalues of `H`, and
/// thus of the squared diagonal elements of `C`.
///
/// # Panics
/// Panics if `first` plus the number of rows exceeds `n`.
pub fn factor_diagonal(block: &mut [f32], first: usize, n: usize, floor: f32) {
    let n_rows = block.len() / n;
    assert!(first + n_rows <= n, "rows {first} to {} of {n}", first + n_rows);
    for k in (0..n_rows).rev() {
        let column = first + k;
        let (above, row) = block.split_at_mut(k * n);
        let row = &mut row[..n];
        let tail = &row[column + 1..];
        let pivot = f64::from(row[column]) - dot(tail, tail);
        let pivot = pivot.max(f64::from(floor)).sqrt();
        for other in above.chunks_exact_mut(n) {
            let rest = f64::from(other[column]) - dot(&other[column + 1..], tail);
            other[column] = (rest / pivot) as f32;
        }
        row[column] = pivot as f32;
    }
}

/// Replaces the elements of rows above a block, in the columns of the block, which starts at row `first` and was
/// factored by [`factor_diagonal`].
pub fn factor_rows(rows: &mut [f32], block: &[f32], first: usize, n: usize) {
    let n_block = block.len() / n;
    let end = first + n_block;
    let of_block = |k: usize| &block[k.min(n_block - 1) * n..][..n];
    for row in rows.chunks_exact_mut(n) {
        let mut rest = [0f64; FACTOR_ROWS];
        for (i, rest) in rest.chunks_exact_mut(4).enumerate().take(n_block.div_ceil(4)) {
            let tails = std::array::from_fn(|j| &of_block(4 * i + j)[end..]);
            rest.copy_from_slice(&dots(&row[end..], tails));
        }
        for k in (0..n_block).rev() {
            let (column, of_block) = (first + k, of_block(k));
            let near = row[column + 1..end].iter().zip(&of_block[column + 1..end]);
            let near: f64 = near.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let rest = f64::from(row[column]) - rest[k] - near;
            row[column] = (rest / f64::from(of_block[column])) as f32;
        }
    }
}

/// See [`dots`].
#[inline(always)]
fn dots_of(row: &[f32], others: [&[f32]; 4]) -> [f64; 4] {
    let mut sums = [[0f64; 4]; 4];
    let n = row.len() / 4 * 4;
    let [a, b, c, d] = others.map(|other| &other[..n]);
    for i in (0..n).step_by(4) {
        for lane in 0..4 {
            let x = f64::from(row[i + lane]);
            sums[0][lane] += x * f64::from(a[i + lane]);
            sums[1][lane] += x * f64::from(b[i + lane]);
            sums[2][lane] += x * f64::from(c[i + lane]);
            sums[3][lane] += x * f64::from(d[i + lane]);
        }
    }
    std::array::from_fn(|k| {
        let tail = row[n..].iter().zip(&others[k][n..]);
        let tail: f64 = tail.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        let [a, b, c, d] = sums[k];
        (a + b) + (c + d) + tail
    })
}

/// See [`dot`].
#[inline(always)]
fn dot_of(a: &[f32], b: &[f32]) -> f64 {
    dots_of(a, [b, b, b, b])[0]
}
