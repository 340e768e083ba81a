//! How one record becomes another: which keys must be unchanged, and what is written.

use tensorhold_core::{Error, Result, SampleId};
use tensorhold_custody::{Acknowledged, Live, Reserved, Retired, SessionId, Stamp, Tick, Version, WallTime};

use crate::record::types::{AckOutcome, Versioned};
use crate::store::{Condition, Write};
use crate::txn::TxnCore;
use crate::txn::decision::Decision;

/// By whose write a record changes, and when by the shared clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) by: SessionId,
    pub(crate) tick: Tick,
    /// Whether nothing was read for it: see [`crate::txn::batch::Loaded::guess`].
    pub(crate) guess: bool,
}

impl TxnCore {
    /// What a record says of a change that is made now.
    pub(crate) fn stamp(&self, by: SessionId) -> Stamp {
        Stamp { at: self.wall(), by }
    }

    /// The time of day, for people.
    pub(crate) fn wall(&self) -> WallTime {
        WallTime(self.clock().wall_ms())
    }

    /// Replaces a live record by another. The caller's result is made from the new record, complete except for its
    /// version.
    pub(crate) fn rewrite<T>(
        &self,
        sample: &SampleId,
        before: &Versioned<Live>,
        mut after: Live,
        by: SessionId,
        outcome: impl FnOnce(Versioned<Live>) -> T,
    ) -> Result<Decision<T>> {
        after.stamp(Some(&before.record), self.stamp(by));
        let unchanged = Condition::Unchanged(self.layout().live(sample), before.version);
        let writes = self
            .layout()
            .put_live(sample, Some(&before.record), &after, &before.description)?;
        let after = Versioned {
            record: after,
            version: Version::default(),
            description: before.description.clone(),
        };
        Ok(Decision::new(vec![unchanged], writes, outcome(after)))
    }

    /// Replaces a live record by another, or retires it.
    pub(crate) fn conclude<T>(
        &self,
        sample: &SampleId,
        before: &Versioned<Live>,
        after: Acknowledged,
        change: Change,
        outcome: impl FnOnce(AckOutcome) -> T,
    ) -> Result<Decision<T>> {
        match after {
            Acknowledged::Live(after) => self.rewrite(sample, before, after, change.by, |_| outcome(AckOutcome::Live)),
            Acknowledged::Retired(retired) => {
                let mut retired = retired.stamped_after(&before.record, self.stamp(change.by));
                let dead_ticks = before.record.dead_ticks;
                if retired.letter.is_some() && dead_ticks > 0 {
                    if change.guess {
                        // The clock that this process last saw may be old: read it.
                        return Err(Error::internal("index.conclude", "the clock was not read"));
                    }
                    retired = retired.kept_until(change.tick.after(dead_ticks));
                }
                let free = retired.may_be_freed() && !retired.keeps_its_objects();
                let (reason, is_letter) = (retired.reason, retired.letter.is_some());
                let unchanged = Condition::Unchanged(self.layout().live(sample), before.version);
                let writes = self
                    .layout()
                    .put_live_away(sample, &before.record, &retired, &before.description)?;
                let decision = Decision::new(vec![unchanged], writes, outcome(AckOutcome::Retired { reason, free }));
                // Of a dead letter its description is needed again, which is not remembered.
                let remember = free && !is_letter;
                Ok(if remember { decision.remembering() } else { decision })
            }
        }
    }

    /// Ends a reservation without a commit.
    pub(crate) fn give_up<T>(
        &self,
        sample: &SampleId,
        before: &Versioned<Reserved>,
        retired: Retired,
        by: SessionId,
        outcome: T,
    ) -> Result<Decision<T>> {
        let home = self.layout().pending(sample);
        let unchanged = Condition::Unchanged(home.clone(), before.version);
        let retired = retired.stamped(self.stamp(by));
        let mut writes = vec![Write::Delete(home)];
        writes.extend(self.layout().put_retired(sample, None, &retired, &None)?);
        Ok(Decision::new(vec![unchanged], writes, outcome))
    }

    /// Replaces a retired record by another.
    pub(crate) fn replace_retired<T>(
        &self,
        sample: &SampleId,
        before: &Versioned<Retired>,
        after: &Retired,
        outcome: T,
    ) -> Result<Decision<T>> {
        let home = self.layout().retired_home(sample, &before.record)?;
        let unchanged = Condition::Unchanged(home, before.version);
        let writes = self
            .layout()
            .put_retired(sample, Some(&before.record), after, &before.description)?;
        Ok(Decision::new(vec![unchanged], writes, outcome))
    }
}
