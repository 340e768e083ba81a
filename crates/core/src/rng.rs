//! Injected randomness.
//!
//! [`SystemRng`] is for production: nonces must differ across processes that know nothing of each other. [`SeededRng`]
//! is for tests, simulations and fault plans: the same seed gives the same numbers on every machine and release.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use rand::Rng as _;
use rand::SeedableRng as _;
use rand::rngs::ChaCha8Rng;

/// A source of random numbers that can be shared.
pub trait Rng: Send + Sync + Debug {
    /// Sixty-four random bits.
    fn next_u64(&self) -> u64;

    /// A number in `0..bound`, evenly. Zero if `bound` is zero.
    fn below(&self, bound: u64) -> u64 {
        // The high half of a 128-bit product: no division, and a bias below 2^-32 for every bound we use.
        u64::try_from((u128::from(self.next_u64()) * u128::from(bound)) >> 64).unwrap_or(0)
    }

    /// True in `per_mille` of 1,000 calls.
    fn chance(&self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }
}

/// The machine's own randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRng;

impl Rng for SystemRng {
    #[expect(clippy::disallowed_methods, reason = "the one home of the machine's randomness")]
    fn next_u64(&self) -> u64 {
        rand::rng().next_u64()
    }
}

/// Numbers that follow from a seed.
#[derive(Debug)]
pub struct SeededRng(Mutex<ChaCha8Rng>);

impl SeededRng {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(ChaCha8Rng::seed_from_u64(seed)))
    }
}

impl Rng for SeededRng {
    fn next_u64(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_for_ever() {
        let rng = SeededRng::new(7);
        let again = SeededRng::new(7);
        let numbers: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
        assert_eq!(numbers, (0..4).map(|_| again.next_u64()).collect::<Vec<_>>());
        assert_ne!(numbers[0], SeededRng::new(8).next_u64());
    }

    #[test]
    fn bounds_hold_and_are_reached() {
        let rng = SeededRng::new(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            let n = usize::try_from(rng.below(5)).expect("small");
            seen[n] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(rng.below(0), 0);
        assert!(!rng.chance(0));
        assert!(rng.chance(1000));
    }

    #[test]
    fn the_system_gives_different_numbers() {
        assert_ne!(SystemRng.next_u64(), SystemRng.next_u64());
    }
}
