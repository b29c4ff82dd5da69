//! Random numbers for samplers: xoshiro256++ seeded with splitmix64, identical on all machines.

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::random::{SplitMix64, splitmix64};

/// Seeded random number generator (xoshiro256++, a public-domain algorithm by Blackman and Vigna).
#[derive(Debug, Clone)]
pub struct Rng {
    state: [u64; 4],
    /// Generator state after seeding, restored by `reset`.
    start: [u64; 4],
}

impl Rng {
    /// Creates a generator from `seed`. Samplers of a chain use different `stream`s, so that their draws are
    /// independent.
    pub fn new(seed: u64, stream: u64) -> Rng {
        let mut mix = SplitMix64(splitmix64(seed).wrapping_add(splitmix64(!stream)));
        // The first output of the seeding generator is discarded.
        mix.next_u64();
        let state = std::array::from_fn(|_| mix.next_u64());
        Rng { state, start: state }
    }

    /// Restores the generator state after seeding.
    pub fn reset(&mut self) {
        self.state = self.start;
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a uniform number in [0, 1) with 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// Returns a random seed from the operating system, through the keys of the standard library's hash maps.
pub(super) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xoshiro_matches_its_reference() {
        // Reference output of the authors' C code for the state 1, 2, 3, 4.
        let mut rng = Rng {
            state: [1, 2, 3, 4],
            start: [1, 2, 3, 4],
        };
        let expected = [
            41943041,
            58720359,
            3588806011781223,
            3591011842654386,
            9228616714210784205,
        ];
        assert_eq!(expected, std::array::from_fn(|_| rng.next_u64()));
        rng.reset();
        assert_eq!(rng.next_u64(), expected[0]);
    }

    #[test]
    fn seeds_and_streams_differ() {
        let first = |seed, stream| Rng::new(seed, stream).next_u64();
        assert_eq!(first(7, 1), first(7, 1));
        assert_ne!(first(7, 1), first(7, 2));
        assert_ne!(first(7, 1), first(8, 1));
        assert_ne!(random_seed(), random_seed());
    }

    #[test]
    fn uniform_covers_the_unit_interval() {
        let mut rng = Rng::new(1, 0);
        let draws: Vec<f64> = (0..10_000).map(|_| rng.uniform()).collect();
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
