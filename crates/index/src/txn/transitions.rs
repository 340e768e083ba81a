//! How one record becomes another: which keys must be unchanged, and what is written.

use holdfast_core::{Result, SampleId};
use holdfast_custody::{Acknowledged, Live, Reserved, Retired, Version};

use crate::record::types::{AckOutcome, Versioned};
use crate::store::{Condition, Write};
use crate::txn::TxnCore;
use crate::txn::decision::Decision;

impl TxnCore {
    /// Replaces a live record by another. The caller's result is made from the new record, complete except for its
    /// version.
    pub(crate) fn rewrite<T>(
        &self,
        sample: &SampleId,
        before: &Versioned<Live>,
        after: Live,
        outcome: impl FnOnce(Versioned<Live>) -> T,
    ) -> Result<Decision<T>> {
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
        outcome: impl FnOnce(AckOutcome) -> T,
    ) -> Result<Decision<T>> {
        match after {
            Acknowledged::Live(after) => self.rewrite(sample, before, after, |_| outcome(AckOutcome::Live)),
            Acknowledged::Retired(retired) => {
                let (reason, free) = (retired.reason, retired.may_be_freed());
                let unchanged = Condition::Unchanged(self.layout().live(sample), before.version);
                let writes = self
                    .layout()
                    .put_live_away(sample, &before.record, &retired, &before.description)?;
                let decision = Decision::new(vec![unchanged], writes, outcome(AckOutcome::Retired { reason, free }));
                Ok(if free { decision.remembering() } else { decision })
            }
        }
    }

    /// Ends a reservation without a commit.
    pub(crate) fn give_up<T>(
        &self,
        sample: &SampleId,
        before: &Versioned<Reserved>,
        retired: &Retired,
        outcome: T,
    ) -> Result<Decision<T>> {
        let home = self.layout().pending(sample);
        let unchanged = Condition::Unchanged(home.clone(), before.version);
        let retired = self.layout().put_retired(sample, retired, &None)?;
        Ok(Decision::new(
            vec![unchanged],
            vec![Write::Delete(home), retired],
            outcome,
        ))
    }

    /// Removes readers from a retired record.
    pub(crate) fn drain<T>(
        &self,
        sample: &SampleId,
        before: &Versioned<Retired>,
        after: &Retired,
        outcome: T,
    ) -> Result<Decision<T>> {
        let home = self.layout().retired_home(sample, &before.record)?;
        let after = self.layout().put_retired(sample, after, &before.description)?;
        let unchanged = Condition::Unchanged(home.clone(), before.version);
        let mut writes = vec![after];
        if writes.iter().all(|write| write.key() != home) {
            writes.push(Write::Delete(home));
        }
        Ok(Decision::new(vec![unchanged], writes, outcome))
    }
}
