//! A pool of scratch memory for operands and results, reused between ops. It only grows, so that computing a
//! graph similar to an earlier one does not allocate.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;

/// Unused blocks by size class, the binary logarithm of their capacity in words. Any block of a class serves
/// a request, so that a repeated sequence of ops finds all of its blocks.
type Free = Vec<Vec<Vec<u64>>>;

/// The memory pool of a backend. Clones share the pool.
#[derive(Clone, Default)]
pub(super) struct Scratch {
    free: Arc<Mutex<Free>>,
}

impl Scratch {
    /// Returns `len` values with unspecified contents.
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

    /// Ensures that blocks of these sizes in bytes can be taken at the same time. On failure, returns the
    /// size that could not be allocated.
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

/// A block of scratch memory as a slice, returned to the pool when dropped.
pub(super) struct Piece<T> {
    /// Backing memory with space for at least `len` values.
    words: Vec<u64>,
    len: usize,
    scratch: Scratch,
    of: PhantomData<T>,
}

impl<T> Piece<T> {
    /// Returns the pool that the block belongs to.
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
    fn scratch_blocks_are_reused_by_size() {
        let scratch = Scratch::default();
        let (large, small) = (scratch.take::<f32>(100), scratch.take::<f64>(3));
        let (at_large, at_small) = (large.as_ptr().addr(), small.as_ptr().addr());
        assert_eq!((large.len(), small.len()), (100, 3));
        drop((large, small));
        // 100 floats take 50 words and 64 integers take 64: the same class. 3 and 4 words are another class.
        let (small, large) = (scratch.take::<i64>(4), scratch.take::<i64>(64));
        assert_eq!((large.as_ptr().addr(), small.as_ptr().addr()), (at_large, at_small));
        assert_eq!((large.len(), small.len()), (64, 4));
        assert!(scratch.take::<f32>(0).is_empty());
    }

    #[test]
    fn reserved_blocks_are_reused() {
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
        assert_eq!(count(), 4, "only missing blocks are added");
        assert_eq!(scratch.reserve([24, usize::MAX / 2].into_iter()), Err(usize::MAX / 2));
        assert_eq!(count(), 4);
    }
}
