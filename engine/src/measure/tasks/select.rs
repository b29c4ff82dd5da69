//! Random selections of tasks, identical to llama.cpp's, so that scores of fewer tasks are comparable.

/// Mersenne Twister (Matsumoto and Nishimura, MT19937), which llama.cpp selects tasks with.
struct MersenneTwister {
    state: [u32; 624],
    index: usize,
}

impl MersenneTwister {
    fn new(seed: u32) -> MersenneTwister {
        let mut state = [seed; 624];
        for i in 1..624 {
            let previous = state[i - 1];
            state[i] = 1_812_433_253u32
                .wrapping_mul(previous ^ (previous >> 30))
                .wrapping_add(i as u32);
        }
        MersenneTwister { state, index: 624 }
    }

    fn next(&mut self) -> u32 {
        if self.index == 624 {
            for i in 0..624 {
                let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % 624] & 0x7fff_ffff);
                let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % 624] ^ (joined >> 1) ^ odd;
            }
            self.index = 0;
        }
        let mut x = self.state[self.index];
        self.index += 1;
        x ^= x >> 11;
        x ^= (x << 7) & 0x9d2c_5680;
        x ^= (x << 15) & 0xefc6_0000;
        x ^ (x >> 18)
    }

    /// Returns a number in `0..n` (Lemire, "Fast random integer generation in an interval").
    fn below(&mut self, n: u32) -> u32 {
        let mut product = u64::from(self.next()) * u64::from(n);
        if (product as u32) < n {
            let threshold = n.wrapping_neg() % n;
            while (product as u32) < threshold {
                product = u64::from(self.next()) * u64::from(n);
            }
        }
        (product >> 32) as u32
    }
}

/// Seed of llama.cpp.
const SEED: u32 = 1;

/// Selects `count` of `n` tasks. A selected task is removed, and later ones move up.
pub(super) fn removed_in_turn(n: usize, count: usize) -> Vec<usize> {
    let mut random = MersenneTwister::new(SEED);
    let mut left: Vec<usize> = (0..n).collect();
    let take = |_| left.remove(random.below(left.len() as u32) as usize);
    (0..count).map(take).collect()
}

/// Selects `count` of `n` tasks. Each selected task is replaced by the last remaining one, as in llama.cpp.
pub(super) fn replaced_by_last(n: usize, count: usize) -> Vec<usize> {
    let mut random = MersenneTwister::new(SEED);
    let mut left: Vec<usize> = (0..n).collect();
    let take = |_| {
        let position = random.next() as f32 / 4_294_967_296.0 * left.len() as f32;
        // Rounding may reach the length.
        left.swap_remove((position as usize).min(left.len() - 1))
    };
    (0..count).map(take).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number that the C++ standard specifies for `std::mt19937`.
    #[test]
    fn mersenne_twister_has_standard_output() {
        let mut random = MersenneTwister::new(5489);
        assert_eq!((0..10_000).map(|_| random.next()).last(), Some(4_123_659_995));
    }

    #[test]
    fn selections_equal_those_of_libstdcxx() {
        assert_eq!(removed_in_turn(10, 10), REMOVED);
        assert_eq!(replaced_by_last(10, 6), REPLACED);
    }

    const REMOVED: [usize; 10] = [4, 9, 6, 8, 0, 1, 3, 7, 2, 5];
    const REPLACED: [usize; 6] = [4, 8, 5, 6, 0, 7];
}
