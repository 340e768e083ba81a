//! The stores that a partitioned store consists of.
//!
//! A store larger than one cluster is divided by sample id into a fixed number of stores. Their names say which and how many
//! (`train.0-of-4` to `train.3-of-4`), so that two processes that disagree on the number use different stores, and neither
//! looks for a sample where the other did not put it.

use std::fmt;

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::id::{SampleId, StoreId};

/// The most partitions: each process has a session, a client of the engine and a pool of memory for each.
pub const MOST_PARTITIONS: u32 = 64;

/// One of the stores that a partitioned store consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    whole: StoreId,
    number: u32,
    count: u32,
}

impl Partition {
    /// All partitions of a store, in order.
    ///
    /// # Errors
    /// `Invalid` for none or too many, or if their names are too long.
    pub fn all(whole: &StoreId, count: u32) -> Result<Vec<Self>> {
        if count == 0 || count > MOST_PARTITIONS {
            let message = format!("a store has 1 to {MOST_PARTITIONS} partitions");
            return Err(Error::invalid("partition", message).with("partitions", count));
        }
        let partition = |number| {
            let one = Self {
                whole: whole.clone(),
                number,
                count,
            };
            one.store().map(|_| one)
        };
        (0..count).map(partition).collect()
    }

    /// The partition that a store's name says it is, if it says so.
    pub fn named(store: &StoreId) -> Option<Self> {
        let (whole, place) = store.as_str().rsplit_once('.')?;
        let (number, count) = place.split_once("-of-")?;
        let one = Self {
            whole: StoreId::new(whole).ok()?,
            number: number.parse().ok()?,
            count: count.parse().ok()?,
        };
        let is_usual = one.number < one.count && one.count <= MOST_PARTITIONS && one.to_string() == store.as_str();
        is_usual.then_some(one)
    }

    /// The number of the partition that has a sample, of so many.
    ///
    /// The number of partitions never changes, so the remainder of a hash is as good as anything that would keep most samples
    /// in their place if it did. It is the upper half of the hash: lists of the index are divided by the lower one, and would be
    /// uneven in each partition.
    #[expect(clippy::cast_possible_truncation, reason = "a remainder is less than the divisor")]
    pub fn of_sample(sample: &SampleId, count: u32) -> u32 {
        ((Digest::of(sample.as_str().as_bytes()).as_u128() >> 64) % u128::from(count.max(1))) as u32
    }

    /// The store.
    ///
    /// # Errors
    /// `Invalid` if its name is too long.
    pub fn store(&self) -> Result<StoreId> {
        StoreId::new(self.to_string())
    }

    /// The partitioned store.
    pub fn whole(&self) -> &StoreId {
        &self.whole
    }

    /// Which one it is, from zero.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { whole, number, count } = self;
        write!(f, "{whole}.{number}-of-{count}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_partition_a_store_is() -> Result<()> {
        let whole = StoreId::new("run.7")?;
        let all = Partition::all(&whole, 12)?;
        assert_eq!(all[11].to_string(), "run.7.11-of-12");
        for partition in all {
            assert_eq!(Partition::named(&partition.store()?), Some(partition));
        }
        for name in [
            "run",
            "run.7",
            "run.4-of-4",
            "run.0-of-0",
            "run.01-of-4",
            "run.+1-of-4",
            "run.0-of-65",
            ".0-of-4",
            "run.-of-",
        ] {
            assert_eq!(Partition::named(&StoreId::new(name)?), None, "{name}");
        }
        assert!(Partition::all(&whole, 0).is_err());
        assert!(Partition::all(&whole, MOST_PARTITIONS + 1).is_err());
        Ok(())
    }

    /// Other releases look for a sample where this one put it.
    #[test]
    fn samples_are_spread_evenly_and_stay_where_they_are() -> Result<()> {
        let of = |name: &str| Ok::<_, Error>(Partition::of_sample(&SampleId::new(name)?, 4));
        let known = ["a", "b", "c", "sample-1", "sample-2", "run/3", "run/4"];
        let found: Vec<u32> = known.iter().map(|name| of(name)).collect::<Result<_, _>>()?;
        assert_eq!(found, [0, 0, 1, 2, 3, 2, 2]);
        let mut counts = [0_u32; 4];
        for number in 0..4000 {
            counts[usize::try_from(of(&format!("sample-{number}"))?).unwrap_or(usize::MAX)] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        Ok(())
    }
}
