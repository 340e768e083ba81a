//! Who is served by what comes back. Nothing is read or sent here.
//!
//! If everybody who frees reached for the first in line, all but one would fail and try again. So one of the first is drawn
//! by lot, those who have waited longer more often, and gets what comes back if that is enough. What is not enough, or is
//! left over, is kept for the first in line and nobody else: what is kept, together with what is left over now, serves the
//! line in order for as long as it does. So a large want is not passed over for small ones behind it for good.

use holdfast_core::Rng;

/// How many at the head of the line have a chance to be drawn. The more, the fewer reach for the same one; the fewer, the
/// less the longest wait differs from others (of 64 who wait for room for 16: 3.5 times the median with 16, 4.7 with 32).
pub(super) const HEAD_OF_THE_LINE: usize = 20;

/// Draws a place in line. The first is drawn at least once in so many times, which bounds how long anybody waits.
pub(super) fn draw(rng: &dyn Rng, places: usize) -> usize {
    const FIRST: u64 = 16;
    if rng.below(FIRST) == 0 {
        return 0;
    }
    // The smaller of two: places further in front are drawn more often, evenly so.
    let bound = u64::try_from(places).unwrap_or(u64::MAX);
    usize::try_from(rng.below(bound).min(rng.below(bound))).unwrap_or(0)
}

/// Who is served, and what is kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shared {
    /// Places in line, in the order in which they are served.
    pub(super) served: Vec<usize>,
    /// What is free then.
    pub(super) free: u64,
}

/// Shares out what comes back and what is kept. `wants` are the bytes that those in line wait for, longest first; `serve`
/// does what is needed for one of them, and says whether there was room for that.
pub(super) fn share<E>(
    back: u64,
    free: u64,
    wants: &[u64],
    drawn: Option<usize>,
    mut serve: impl FnMut(usize) -> Result<bool, E>,
) -> Result<Shared, E> {
    let mut shared = Shared {
        served: Vec::new(),
        free,
    };
    let mut back = back;
    if let Some(place) = drawn
        && wants.get(place).is_some_and(|bytes| *bytes <= back)
        && serve(place)?
    {
        back -= wants[place];
        shared.served.push(place);
    }
    shared.free += back;
    for (place, bytes) in wants.iter().enumerate() {
        if shared.served.contains(&place) {
            continue;
        }
        if *bytes > shared.free || !serve(place)? {
            break;
        }
        shared.free -= bytes;
        shared.served.push(place);
    }
    Ok(shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_core::SeededRng;
    use proptest::prelude::*;

    fn shared(back: u64, free: u64, wants: &[u64], drawn: Option<usize>) -> (Vec<usize>, u64) {
        let Ok(shared) = share(back, free, wants, drawn, |_| Ok::<_, std::convert::Infallible>(true));
        (shared.served, shared.free)
    }

    #[test]
    fn the_one_drawn_gets_what_comes_back_and_the_first_what_is_kept() {
        assert_eq!(shared(4, 0, &[4, 4, 4], Some(2)), (vec![2], 0));
        assert_eq!(shared(4, 3, &[9, 4], Some(1)), (vec![1], 3), "kept for the first");
        assert_eq!(shared(4, 5, &[9, 4], Some(0)), (vec![0], 0), "together it is enough");
        assert_eq!(
            shared(4, 3, &[9, 4], Some(0)),
            (vec![], 7),
            "not enough yet, and not for others"
        );
        assert_eq!(shared(9, 0, &[4, 4, 4], Some(1)), (vec![1, 0], 1), "as far as it goes");
        assert_eq!(shared(0, 8, &[4, 4, 4], None), (vec![0, 1], 0));
    }

    proptest! {
        #[test]
        fn nothing_is_made_or_lost_and_the_first_is_blocked(back in 0..40_u64, free in 0..40_u64,
                                  wants in proptest::collection::vec(1..20_u64, 0..6), drawn in 0..6_usize) {
            let (served, left) = shared(back, free, &wants, Some(drawn));
            let spent: u64 = served.iter().map(|place| wants[*place]).sum();
            prop_assert_eq!(back + free, spent + left);
            let first = (0..wants.len()).find(|place| !served.contains(place));
            prop_assert!(first.is_none_or(|place| wants[place] > left), "the first could be served");
        }
    }

    #[test]
    fn every_place_is_drawn_and_those_in_front_more_often() {
        let rng = SeededRng::new(1);
        let mut drawn = [0_u32; 8];
        for _ in 0..8000 {
            drawn[draw(&rng, 8)] += 1;
        }
        assert!(drawn[0] > 1500 && drawn[7] > 50, "{drawn:?}");
        assert!(drawn[1] > drawn[6], "{drawn:?}");
        assert_eq!(draw(&rng, 0), 0);
        assert_eq!(draw(&rng, 1), 0);
    }
}
