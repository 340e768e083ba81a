//! Ratios that can be told from noise: two sides that take turns, and the median over rounds of one's figure over the
//! other's.
//!
//! A machine that slows down for a second slows down both sides of a round, so the ratio within a round says more than two
//! medians over the whole run. The interval is the bootstrap's: the rounds are drawn anew many times, with replacement, and
//! 95 % of the medians of these draws lie in it. `python/bench/paired.py` does the same.

use tensorhold_core::{Rng, SeededRng};

use crate::figures::quantile;

const DRAWS: usize = 2_000;
/// The same rounds give the same interval.
const SEED: u64 = 1;

/// The median of one side's figure over the other's in the same round, and an interval that covers the true one in 95 of
/// 100 runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paired {
    /// The median.
    pub ratio: f64,
    /// Where the interval begins.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// How many rounds there were.
    pub rounds: usize,
}

impl Paired {
    /// The ratio of `above` to `below`, which have one figure for each round. Not a number if there was no round.
    pub fn of(above: &[f64], below: &[f64]) -> Self {
        let mut ratios: Vec<f64> = above.iter().zip(below).map(|(a, b)| a / b).collect();
        let rng = SeededRng::new(SEED);
        let rounds = ratios.len();
        let mut medians = Vec::with_capacity(DRAWS);
        for _ in 0..DRAWS {
            let draw = |_| {
                usize::try_from(rng.below(rounds as u64))
                    .ok()
                    .and_then(|at| ratios.get(at))
            };
            let mut drawn: Vec<f64> = (0..rounds).filter_map(draw).copied().collect();
            medians.push(quantile(&mut drawn, 0.5));
        }
        Self {
            ratio: quantile(&mut ratios, 0.5),
            low: quantile(&mut medians, 0.025),
            high: quantile(&mut medians, 0.975),
            rounds,
        }
    }

    /// The ratio as figures of a report: `x`, `x_low`, `x_high` and `x_rounds`.
    pub fn figures(&self, name: &str) -> [(String, f64); 4] {
        [
            (name.to_owned(), self.ratio),
            (format!("{name}_low"), self.low),
            (format!("{name}_high"), self.high),
            (format!("{name}_rounds"), self.rounds as f64),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATIO: f64 = 1.3;
    const ROUNDS: usize = 31;

    /// Two sides, one of which takes 1.3 times as long. The machine's speed changes from round to round by more than that,
    /// and each side has noise of its own.
    fn rounds(seed: u64) -> (Vec<f64>, Vec<f64>) {
        let rng = SeededRng::new(seed);
        let between = |low: f64, high: f64| low + (high - low) * rng.below(1 << 32) as f64 / f64::from(u32::MAX);
        let mut sides = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let machine = between(0.5, 2.0);
            sides.0.push(RATIO * machine * between(0.8, 1.2));
            sides.1.push(machine * between(0.8, 1.2));
        }
        sides
    }

    #[test]
    fn a_known_ratio_is_found_although_the_machine_changes_its_speed() {
        let (above, below) = rounds(7);
        let found = Paired::of(&above, &below);
        assert!((found.ratio - RATIO).abs() < 0.13, "{found:?}");
        assert!(
            found.low < found.ratio && found.ratio < found.high && found.high - found.low < 0.4,
            "{found:?}"
        );
        assert_eq!(found, Paired::of(&above, &below));
    }

    #[test]
    fn the_interval_covers_the_true_ratio_about_as_often_as_it_says() {
        let found = (0..100).map(|seed| {
            let (above, below) = rounds(seed);
            Paired::of(&above, &below)
        });
        let covered = found.filter(|found| found.low <= RATIO && RATIO <= found.high).count();
        assert!((88..100).contains(&covered), "{covered} of 100");
    }

    #[test]
    fn an_outlier_does_not_move_the_ratio() {
        let (mut above, below) = rounds(7);
        let undisturbed = Paired::of(&above, &below);
        let ratios = above.iter().zip(&below).map(|(a, b)| a / b).enumerate();
        let (longest, _) = ratios.max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are rounds");
        above[longest] *= 100.0;
        assert_eq!(Paired::of(&above, &below), undisturbed);
    }

    #[test]
    fn without_rounds_there_is_no_ratio() {
        let nothing = Paired::of(&[], &[]);
        assert!(nothing.ratio.is_nan() && nothing.rounds == 0, "{nothing:?}");
    }
}
