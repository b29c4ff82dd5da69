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

    /// Calls `f` with each run of consecutive elements, in the order of the view.
    pub fn runs<E>(&self, mut f: impl FnMut(Range<usize>) -> Result<(), E>) -> Result<(), E> {
        let mut parts: Vec<(usize, usize)> = self.dims.concat();
        parts.retain(|&(size, _)| size != 1);
        // Parts that follow each other in memory become one.
        let mut joined: Vec<(usize, usize)> = Vec::new();
        for &(size, stride) in &parts {
            match joined.last_mut() {
                Some(last) if last.1 == size * stride => *last = (last.0 * size, stride),
                _ => joined.push((size, stride)),
            }
        }
        let run = match joined.last() {
            Some(&(size, 1)) => {
                joined.pop();
                size
            }
            _ => 1,
        };
        if joined.iter().any(|&(size, _)| size == 0) || run == 0 {
            return Ok(());
        }
        let mut at = vec![0usize; joined.len()];
        let mut offset = self.offset;
        loop {
            f(offset..offset + run)?;
            let mut dim = joined.len();
            loop {
                let Some(next) = dim.checked_sub(1) else { return Ok(()) };
                dim = next;
                let (size, stride) = joined[dim];
                at[dim] += 1;
                offset += stride;
                if at[dim] < size {
                    break;
                }
                offset -= size * stride;
                at[dim] = 0;
            }
        }
    }
}

fn size(parts: &[(usize, usize)]) -> usize {
    parts.iter().map(|&(size, _)| size).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(view: &View) -> Vec<usize> {
        let mut all = Vec::new();
        let done: Result<(), ()> = view.runs(|run| {
            all.extend(run);
            Ok(())
        });
        done.unwrap();
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
    fn steps_that_do_not_divide_are_errors() {
        assert!(View::new(&[5, 2]).split(0, 2).is_err());
        assert!(View::new(&[6, 2]).pairs(2).is_err());
        assert!(View::new(&[6, 2]).keep_rows(4..7).is_err());
        assert!(View::new(&[6]).transpose().is_err());
        assert!(View::new(&[]).keep_rows(0..1).is_err());
    }
}
