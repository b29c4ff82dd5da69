//! A pool of scratch memory for operands and results, reused from op to op. It only grows, so that a
//! graph like an earlier one is computed without taking anything from the heap.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;

/// Pieces of memory that nobody uses, by the binary logarithm of their capacity in words. Within a class any piece serves,
/// so the same ops in the same order always find what they took the first time.
type Free = Vec<Vec<Vec<u64>>>;

/// The memory of a backend; clones share it.
#[derive(Clone, Default)]
pub(super) struct Scratch {
    free: Arc<Mutex<Free>>,
}

impl Scratch {
    /// `len` numbers of unspecified value.
    pub(super) fn take<T: Pod>(&self, len: usize) -> Piece<T> {
        let n_words = words_for::<T>(len);
        let mut words = self.pop(n_words).unwrap_or_default();
        if words.capacity() < n_words {
            words.reserve_exact(n_words.next_power_of_two());
        }
        if words.len() < n_words {
            words.resize(n_words, 0);
        }
        Piece {
            words,
            len,
            scratch: self.clone(),
            of: PhantomData,
        }
    }

    /// Sees to it that pieces of these many bytes can be had at the same time. The bytes that could not be had otherwise.
    pub(super) fn reserve(&self, sizes: impl Iterator<Item = usize>) -> Result<(), usize> {
        let mut taken = Vec::new();
        let all = sizes.map(|bytes| {
            let n_words = words_for::<u8>(bytes);
            let mut words = self.pop(n_words).unwrap_or_default();
            if words.capacity() < n_words {
                let capacity = n_words.checked_next_power_of_two().unwrap_or(usize::MAX);
                words.try_reserve_exact(capacity).map_err(|_| bytes)?;
            }
            taken.push(words);
            Ok(())
        });
        let result = all.collect();
        taken.into_iter().for_each(|words| self.push(words));
        result
    }

    fn pop(&self, n_words: usize) -> Option<Vec<u64>> {
        let class = n_words.checked_next_power_of_two()?.ilog2() as usize;
        self.lock().get_mut(class)?.pop()
    }

    fn push(&self, words: Vec<u64>) {
        let Some(class) = words.capacity().checked_ilog2() else {
            return;
        };
        let (mut free, class) = (self.lock(), class as usize);
        if free.len() <= class {
            free.resize_with(class + 1, Vec::new);
        }
        free[class].push(words);
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn words_for<T>(len: usize) -> usize {
    len.div_ceil(size_of::<u64>() / size_of::<T>()).max(1)
}

/// A piece of scratch memory as numbers, given back when dropped.
pub(super) struct Piece<T> {
    /// At least as many as `len` numbers take.
    words: Vec<u64>,
    len: usize,
    scratch: Scratch,
    of: PhantomData<T>,
}

impl<T> Piece<T> {
    /// Where this piece is from, and others can be had.
    pub(super) fn scratch(&self) -> &Scratch {
        &self.scratch
    }
}

impl<T> Drop for Piece<T> {
    fn drop(&mut self) {
        self.scratch.push(std::mem::take(&mut self.words));
    }
}

impl<T: Pod> Deref for Piece<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

impl<T: Pod> DerefMut for Piece<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for Piece<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Pod + PartialEq> PartialEq for Piece<T> {
    fn eq(&self, other: &Piece<T>) -> bool {
        **self == **other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_used_again_by_size() {
        let scratch = Scratch::default();
        let (large, small) = (scratch.take::<f32>(100), scratch.take::<f64>(3));
        let (at_large, at_small) = (large.as_ptr().addr(), small.as_ptr().addr());
        assert_eq!((large.len(), small.len()), (100, 3));
        drop((large, small));
        // 100 floats and 64 integers are 50 and 64 words: one class. 3 and 4 words are another.
        let (small, large) = (scratch.take::<i64>(4), scratch.take::<i64>(64));
        assert_eq!((large.as_ptr().addr(), small.as_ptr().addr()), (at_large, at_small));
        assert_eq!((large.len(), small.len()), (64, 4));
        assert!(scratch.take::<f32>(0).is_empty());
    }

    #[test]
    fn what_was_reserved_is_found() {
        let scratch = Scratch::default();
        scratch.reserve([800, 800, 24].into_iter()).unwrap();
        let count = || scratch.lock().iter().map(Vec::len).sum::<usize>();
        assert_eq!(count(), 3);
        let taken = (
            scratch.take::<f64>(100),
            scratch.take::<f32>(200),
            scratch.take::<i64>(3),
        );
        assert_eq!(count(), 0);
        drop(taken);
        scratch.reserve([8000, 800].into_iter()).unwrap();
        assert_eq!(count(), 4, "only what was missing is added");
        assert_eq!(scratch.reserve([24, usize::MAX / 2].into_iter()), Err(usize::MAX / 2));
        assert_eq!(count(), 4);
    }
}
