//! The bytes of the samples in one state, of which there may be more than a look reads.

use std::collections::VecDeque;

use tensorhold_index::ListPlace;

/// How many parts a mean is made of.
const WINDOW: usize = 8;

/// The bytes of the samples in one state, as far as they were read.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    /// Where the next part begins; none for the start.
    pub(super) place: Option<ListPlace>,
    /// The last parts: how many samples, and their bytes.
    parts: VecDeque<(u64, u64)>,
}

impl Sampling {
    /// Takes in a part, and says how many bytes all have, and whether that is exact.
    pub(super) fn add(&mut self, samples: u64, bytes: u64, next: Option<ListPlace>, count: u64) -> (u64, bool) {
        let is_all = self.place.is_none() && next.is_none();
        self.place = next;
        if is_all {
            self.parts.clear();
            return (bytes, true);
        }
        self.parts.push_back((samples, bytes));
        if self.parts.len() > WINDOW {
            self.parts.pop_front();
        }
        let sum = |(samples, bytes): (u64, u64), part: &(u64, u64)| (samples + part.0, bytes.saturating_add(part.1));
        let (seen, bytes) = self.parts.iter().fold((0, 0), sum);
        let mean = u128::from(bytes) * u128::from(count) / u128::from(seen.max(1));
        (u64::try_from(mean).unwrap_or(u64::MAX), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_exact_if_all_were_read_and_else_the_mean_of_what_was() {
        let place = || Some(ListPlace::from_text("s/1"));
        let mut sampling = Sampling::default();
        assert_eq!(sampling.add(3, 30, None, 3), (30, true));
        assert_eq!(
            sampling.add(500, 5000, place(), 1200),
            (12_000, false),
            "the first of three parts"
        );
        assert_eq!(
            sampling.add(500, 15_000, place(), 1200),
            (24_000, false),
            "ten and thirty bytes"
        );
        assert_eq!(
            sampling.add(200, 4000, None, 1200),
            (24_000, false),
            "the last part is no whole"
        );
        assert_eq!(
            sampling.add(3, 30, None, 3),
            (30, true),
            "from the start to the end again"
        );
        for _ in 0..100 {
            sampling.add(500, 500, place(), 1_000_000);
        }
        assert_eq!(
            sampling.add(500, 500, place(), 1_000_000),
            (1_000_000, false),
            "what is old is forgotten"
        );
        assert!(sampling.parts.len() <= WINDOW);
        assert!(!sampling.add(1, u64::MAX, place(), u64::MAX).1, "nonsense does no harm");
    }
}
