//! What became of each sample, added up from all journals.

use anyhow::{Context, Result};

use crate::journal::Event;

/// What became of a sample in one group.
#[derive(Clone, Copy, Default)]
struct Delivery {
    leased: u8,
    acked: u8,
    /// Leases of workers that were killed before they noted the acknowledgement.
    orphaned: u8,
}

#[derive(Clone, Copy, Default)]
struct Sample {
    begun: bool,
    put: bool,
    freed: bool,
}

pub(crate) struct Ledger {
    groups: usize,
    samples: Vec<Sample>,
    /// Those of the first sample in each group, of the second, and so on.
    deliveries: Vec<Delivery>,
    pub(crate) counts: Counts,
}

/// How many events there were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) begun: u64,
    pub(crate) put: u64,
    pub(crate) leased: u64,
    pub(crate) acked: u64,
    pub(crate) freed: u64,
}

/// What should not be, and what killed workers explain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Samples whose put was never begun.
    pub(crate) never_begun: u64,
    /// Samples whose producer died during the put: they may be there or not.
    pub(crate) unknown: u64,
    /// Put, and not acknowledged by a group, although no consumer died with it.
    pub(crate) lost: u64,
    /// Acknowledged by a group more than once.
    pub(crate) acked_again: u64,
    /// Delivered to a group again after a consumer died with it.
    pub(crate) delivered_again: u64,
    /// Delivered to a group again without that.
    pub(crate) delivered_again_unexplained: u64,
    /// Put, and no process noted that it was freed.
    pub(crate) not_freed: u64,
}

impl Ledger {
    pub(crate) fn new(samples: u64, groups: u8) -> Result<Self> {
        let (samples, groups) = (usize::try_from(samples)?, usize::from(groups));
        Ok(Self {
            groups,
            samples: vec![Sample::default(); samples],
            deliveries: vec![Delivery::default(); samples * groups],
            counts: Counts::default(),
        })
    }

    pub(crate) fn note(&mut self, event: Event, number: u64) -> Result<()> {
        match event {
            Event::Begun => {
                self.sample(number)?.begun = true;
                self.counts.begun += 1;
            }
            Event::Put => {
                self.sample(number)?.put = true;
                self.counts.put += 1;
            }
            Event::Leased { group } => {
                let delivery = self.delivery(number, group)?;
                delivery.leased = delivery.leased.saturating_add(1);
                self.counts.leased += 1;
            }
            Event::Acked { group } => {
                let delivery = self.delivery(number, group)?;
                delivery.acked = delivery.acked.saturating_add(1);
                self.counts.acked += 1;
            }
            Event::Freed => {
                self.sample(number)?.freed = true;
                self.counts.freed += 1;
            }
        }
        Ok(())
    }

    /// A worker was killed, and this is all that it did: it may have acknowledged what it had leased.
    pub(crate) fn killed(&mut self, events: &[(Event, u64)]) -> Result<()> {
        let mut held = std::collections::HashSet::new();
        for (event, number) in events {
            match event {
                Event::Leased { group } => drop(held.insert((*number, *group))),
                Event::Acked { group } => drop(held.remove(&(*number, *group))),
                _ => {}
            }
        }
        for (number, group) in held {
            let delivery = self.delivery(number, group)?;
            delivery.orphaned = delivery.orphaned.saturating_add(1);
        }
        Ok(())
    }

    /// Whether every sample that was put is used up and freed.
    pub(crate) fn is_settled(&self) -> bool {
        self.counts.acked >= self.counts.put * self.groups as u64 && self.counts.freed >= self.counts.put
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let mut verdict = Verdict::default();
        for (sample, deliveries) in self.samples.iter().zip(self.deliveries.chunks(self.groups)) {
            verdict.never_begun += u64::from(!sample.begun);
            verdict.unknown += u64::from(sample.begun && !sample.put);
            verdict.not_freed += u64::from(sample.put && !sample.freed);
            for delivery in deliveries {
                let again = u64::from(delivery.leased.saturating_sub(1));
                let explained = again.min(u64::from(delivery.orphaned));
                verdict.lost += u64::from(sample.put && delivery.acked == 0 && delivery.orphaned == 0);
                verdict.acked_again += u64::from(delivery.acked > 1);
                verdict.delivered_again += explained;
                verdict.delivered_again_unexplained += again - explained;
            }
        }
        verdict
    }

    fn sample(&mut self, number: u64) -> Result<&mut Sample> {
        let at = usize::try_from(number)?;
        self.samples
            .get_mut(at)
            .context("a journal has a sample that was not due")
    }

    fn delivery(&mut self, number: u64, group: u8) -> Result<&mut Delivery> {
        let at = usize::try_from(number)? * self.groups + usize::from(group);
        let delivery = self.deliveries.get_mut(at);
        delivery.context("a journal has a sample that was not due")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASED: Event = Event::Leased { group: 0 };
    const ACKED: Event = Event::Acked { group: 0 };

    fn ledger(events: &[(Event, u64)]) -> Ledger {
        let mut ledger = Ledger::new(2, 1).expect("it is well-formed");
        for (event, number) in events {
            ledger.note(*event, *number).expect("it is well-formed");
        }
        ledger
    }

    #[test]
    fn a_sample_that_goes_its_way_is_settled() {
        let way = [Event::Begun, Event::Put, LEASED, ACKED, Event::Freed];
        let ledger = ledger(&[0, 1].map(|number| way.map(|event| (event, number))).concat());
        assert!(ledger.is_settled());
        assert_eq!(ledger.verdict(), Verdict::default());
    }

    #[test]
    fn what_should_not_be_is_found() {
        let ledger = ledger(&[
            (Event::Begun, 0),
            (Event::Put, 0),
            (LEASED, 0),
            (LEASED, 0),
            (ACKED, 0),
            (ACKED, 0),
            (Event::Begun, 1),
            (Event::Put, 1),
            (LEASED, 1),
        ]);
        assert!(!ledger.is_settled());
        let expected = Verdict {
            lost: 1,
            acked_again: 1,
            delivered_again_unexplained: 1,
            not_freed: 2,
            ..Verdict::default()
        };
        assert_eq!(ledger.verdict(), expected);
    }

    #[test]
    fn a_consumer_that_died_explains_what_it_held_and_nothing_else() {
        let died = [(LEASED, 0), (LEASED, 1), (ACKED, 1)];
        let mut ledger = ledger(&[
            (Event::Begun, 0),
            (Event::Put, 0),
            (Event::Begun, 1),
            (Event::Put, 1),
            (LEASED, 0),
            (ACKED, 0),
            (LEASED, 1),
        ]);
        for (event, number) in died {
            ledger.note(event, number).expect("it is well-formed");
        }
        ledger.killed(&died).expect("it is well-formed");
        let verdict = ledger.verdict();
        assert_eq!((verdict.delivered_again, verdict.delivered_again_unexplained), (1, 1));
        assert_eq!((verdict.lost, verdict.acked_again), (0, 0));
    }
}
