//! Strided views of source tensors: the steps of a mapping that move data without changing it.

use std::ops::Range;

/// View of the elements of a tensor. Each dimension has one or more parts of a size and a stride, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    offset: usize,
    dims: Vec<Vec<(usize, usize)>>,
}

impl View {
    /// Returns the view of a whole tensor of this shape, whose number of elements fits in `usize`.
    pub fn new(shape: &[usize]) -> View {
        let mut stride = 1;
        let mut dims: Vec<_> = shape
            .iter()
            .rev()
            .map(|&size| {
                let part = vec![(size, stride)];
                stride *= size.max(1);
                part
            })
            .collect();
        dims.reverse();
        View { offset: 0, dims }
    }

    /// Returns the sizes, outermost first.
    pub fn shape(&self) -> Vec<usize> {
        self.dims.iter().map(|parts| size(parts)).collect()
    }

    /// Returns the dimension of rows: the last but one, or the only one.
    fn rows(&mut self, step: &str) -> Result<&mut (usize, usize), String> {
        let n = self.dims.len();
        let at = n.saturating_sub(2);
        match self.dims.get_mut(at).map(|parts| &mut parts[..]) {
            Some([part]) => Ok(part),
            Some(_) => Err(format!("has reordered rows, to which `{step}` does not apply")),
            None => Err(format!("is a single number, to which `{step}` does not apply")),
        }
    }

    /// Keeps some rows.
    pub fn keep_rows(&mut self, rows: Range<usize>) -> Result<(), String> {
        let (size, stride) = self.rows("rows")?;
        if rows.start >= rows.end || rows.end > *size {
            return Err(format!("has {size} rows, expected at least {}", rows.end));
        }
        *size = rows.len();
        let skipped = rows.start * *stride;
        self.offset += skipped;
        Ok(())
    }

    /// Keeps part `i` of `n` equal ranges of rows.
    pub fn split(&mut self, i: usize, n: usize) -> Result<(), String> {
        let rows = self.rows("split")?.0;
        if n == 0 || !rows.is_multiple_of(n) {
            return Err(format!("has {rows} rows, which are not {n} equal parts"));
        }
        self.keep_rows(i * (rows / n)..(i + 1) * (rows / n))
    }

    /// Keeps every `n`th row, from row `i`.
    pub fn every(&mut self, i: usize, n: usize) -> Result<(), String> {
        let (size, stride) = self.rows("every")?;
        if n == 0 || !size.is_multiple_of(n) {
            return Err(format!("has {size} rows, which are not a multiple of {n}"));
        }
        let skipped = i * *stride;
        (*size, *stride) = (*size / n, *stride * n);
        self.offset += skipped;
        Ok(())
    }

    /// Reorders the rows of each of `n` heads from halves to neighboring pairs.
    pub fn pairs(&mut self, n: usize) -> Result<(), String> {
        let (size, stride) = *self.rows("pairs")?;
        if n == 0 || !size.is_multiple_of(2 * n) {
            return Err(format!("has {size} rows, which are not {n} heads of an even size"));
        }
        let half = size / n / 2;
        let at = self.dims.len().saturating_sub(2);
        self.dims[at] = vec![(n, 2 * half * stride), (half, stride), (2, half * stride)];
        Ok(())
    }

    /// Splits the rows into `n` matrices.
    pub fn heads(&mut self, n: usize) -> Result<(), String> {
        let (size, stride) = *self.rows("heads")?;
        if n == 0 || !size.is_multiple_of(n) {
            return Err(format!("has {size} rows, which are not {n} heads"));
        }
        let at = self.dims.len().saturating_sub(2);
        self.dims[at] = vec![(size / n, stride)];
        self.dims.insert(at, vec![(n, size / n * stride)]);
        Ok(())
    }

    /// Reorders the first dimension, which has `n` groups: first all first elements of the groups, then all second
    /// ones.
    pub fn tile(&mut self, n: usize) -> Result<(), String> {
        let Some([(size, stride)]) = self.dims.first().map(|parts| &parts[..]) else {
            return Err("has a reordered first dimension, to which `tile` does not apply".to_owned());
        };
        if n == 0 || !size.is_multiple_of(n) {
            return Err(format!(
                "has the size {size} in its first dimension, which is not {n} groups"
            ));
        }
        self.dims[0] = vec![(size / n, *stride), (n, size / n * stride)];
        Ok(())
    }

    /// Joins the first two dimensions.
    pub fn merge(&mut self) -> Result<(), String> {
        if self.dims.len() < 2 {
            return Err("has one dimension, to which `merge` does not apply".to_owned());
        }
        let second = self.dims.remove(1);
        self.dims[0].extend(second);
        Ok(())
    }

    /// Exchanges the last two dimensions.
    pub fn transpose(&mut self) -> Result<(), String> {
        let n = self.dims.len();
        if n < 2 {
            return Err("has one dimension, to which `transpose` does not apply".to_owned());
        }
        self.dims.swap(n - 2, n - 1);
        Ok(())
    }

    /// Removes dimensions of size 1.
    pub fn squeeze(&mut self) {
        self.dims.retain(|parts| size(parts) != 1);
        if self.dims.is_empty() {
            self.dims.push(vec![(1, 1)]);
        }
    }

    /// Adds a last dimension of size 1, so that steps apply to the elements of a vector.
    pub fn add_column(&mut self) {
        self.dims.push(vec![(1, 1)]);
    }

    /// Removes the dimension that [`View::add_column`] added.
    pub fn remove_column(&mut self) {
        if self.dims.len() > 1 && self.dims.last().is_some_and(|parts| size(parts) == 1) {
            self.dims.pop();
        }
    }

    /// Returns the number of elements.
    pub fn n_elements(&self) -> usize {
        self.dims.iter().map(|parts| size(parts)).product()
    }

    /// Returns the elements of the view, if they are contiguous in the tensor.
    pub fn contiguous(&self) -> Option<Range<usize>> {
        match self.joined()[..] {
            [(n, 1)] => Some(self.offset..self.offset + n),
            _ => None,
        }
    }

    /// Returns all parts, outermost first. Parts that are contiguous in memory are merged, and parts of size 1 are
    /// dropped, except for the innermost.
    fn joined(&self) -> Vec<(usize, usize)> {
        let mut joined: Vec<(usize, usize)> = Vec::new();
        for (size, stride) in self.dims.concat().into_iter().filter(|&(size, _)| size != 1) {
            match joined.last_mut() {
                Some(last) if last.1 == size * stride => *last = (last.0 * size, stride),
                _ => joined.push((size, stride)),
            }
        }
        if joined.is_empty() {
            joined.push((1, 1));
        }
        joined
    }

    /// Calls `f` with the runs of the elements of a range, in the order of the view.
    pub fn each(&self, range: Range<usize>, mut f: impl FnMut(Run)) {
        let mut outer = self.joined();
        let (size, stride) = outer.pop().unwrap_or((1, 1));
        let mut at = range.start;
        while at < range.end && size > 0 {
            let (mut index, first) = (at / size, at % size);
            let mut start = self.offset + first * stride;
            for &(size, stride) in outer.iter().rev() {
                start += index % size * stride;
                index /= size;
            }
            let n = (size - first).min(range.end - at);
            f(Run { start, n, stride });
            at += n;
        }
    }
}

/// Elements of a tensor at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the first element.
    pub start: usize,
    /// Number of elements.
    pub n: usize,
    /// Distance of neighbors.
    pub stride: usize,
}

impl Run {
    /// Returns the indices of the elements.
    pub fn indices(self) -> impl Iterator<Item = usize> {
        (0..self.n).map(move |i| self.start + i * self.stride)
    }
}

fn size(parts: &[(usize, usize)]) -> usize {
    parts.iter().map(|&(size, _)| size).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(view: &View, range: Range<usize>) -> Vec<usize> {
        let mut all = Vec::new();
        view.each(range, |run| all.extend(run.indices()));
        all
    }

    fn elements(view: &View) -> Vec<usize> {
        let all = range(view, 0..view.n_elements());
        // Each range is a part of the whole.
        for (start, end) in (0..all.len()).flat_map(|start| (start..=all.len()).map(move |end| (start, end))) {
            assert_eq!(range(view, start..end), all[start..end], "{start}..{end} of {view:?}");
        }
        all
    }

    #[test]
    fn steps_select_and_reorder_elements() {
        let of = |shape: &[usize], f: &dyn Fn(&mut View) -> Result<(), String>| {
            let mut view = View::new(shape);
            f(&mut view).unwrap();
            (view.shape(), elements(&view))
        };
        assert_eq!(of(&[2, 3], &|v| v.transpose()), (vec![3, 2], vec![0, 3, 1, 4, 2, 5]));
        assert_eq!(of(&[4, 2], &|v| v.split(1, 2)), (vec![2, 2], vec![4, 5, 6, 7]));
        assert_eq!(of(&[4, 2], &|v| v.every(1, 2)), (vec![2, 2], vec![2, 3, 6, 7]));
        assert_eq!(of(&[8, 1], &|v| v.pairs(2)), (vec![8, 1], vec![0, 2, 1, 3, 4, 6, 5, 7]));
        let head_rows = |v: &mut View| {
            v.heads(2)?;
            v.keep_rows(1..2)?;
            v.transpose()
        };
        assert_eq!(of(&[4, 2], &head_rows), (vec![2, 2, 1], vec![2, 3, 6, 7]));
        let gates = |v: &mut View| {
            v.heads(2)?;
            v.split(0, 2)?;
            v.merge()
        };
        assert_eq!(of(&[8, 1], &gates), (vec![4, 1], vec![0, 1, 4, 5]));
        assert_eq!(
            of(&[3, 1, 2], &|v| {
                v.squeeze();
                Ok(())
            }),
            (vec![3, 2], vec![0, 1, 2, 3, 4, 5])
        );
    }

    #[test]
    fn tile_interleaves_groups() {
        let mut view = View::new(&[6]);
        view.tile(2).unwrap();
        assert_eq!((view.shape(), elements(&view)), (vec![6], vec![0, 3, 1, 4, 2, 5]));
        // The columns of a matrix, in blocks of two.
        view = View::new(&[2, 8]);
        view.transpose().unwrap();
        view.heads(4).unwrap();
        view.tile(2).unwrap();
        view.merge().unwrap();
        view.transpose().unwrap();
        let row = [0, 1, 4, 5, 2, 3, 6, 7];
        assert_eq!(
            (view.shape(), elements(&view)),
            (vec![2, 8], [row, row.map(|i| i + 8)].concat())
        );
        assert!(View::new(&[5]).tile(2).is_err());
    }

    #[test]
    fn views_of_neighboring_elements_are_contiguous() {
        let mut view = View::new(&[6, 4]);
        assert_eq!(view.contiguous(), Some(0..24));
        view.split(1, 3).unwrap();
        assert_eq!(view.contiguous(), Some(8..16));
        view.pairs(1).unwrap();
        assert_eq!(view.contiguous(), Some(8..16), "a head of two rows has one pair");
        view = View::new(&[8, 2]);
        view.pairs(2).unwrap();
        assert_eq!(view.contiguous(), None);
        view = View::new(&[1, 3]);
        view.transpose().unwrap();
        assert_eq!(view.contiguous(), Some(0..3));
    }

    #[test]
    fn steps_that_do_not_divide_are_errors() {
        assert!(View::new(&[5, 2]).split(0, 2).is_err());
        assert!(View::new(&[6, 2]).pairs(2).is_err());
        assert!(View::new(&[6, 2]).keep_rows(4..7).is_err());
        assert!(View::new(&[6]).transpose().is_err());
        assert!(View::new(&[]).keep_rows(0..1).is_err());
    }
}
