//! How one record becomes another: what must be unchanged, and what is written.

use holdfast_core::{Result, SampleId};
use holdfast_custody::{Acknowledged, Live, Reserved, Retired, Version};

use crate::decision::{Decision, Done};
use crate::index::KvIndex;
use crate::kv::Condition;
use crate::layout::{Home, Placed, settled_live, writes};
use crate::types::{Answered, Versioned};

/// A record that was last written at `version` becomes another one, or the same in another place.
fn replace<T>(
    from: Home,
    version: Version,
    to: Placed,
    done: impl FnOnce(Done) -> T + Send + 'static,
) -> Result<Decision<T>> {
    let conditions = vec![Condition::Unchanged(from.key.clone(), version)];
    Ok(Decision::new(conditions, writes(vec![from], vec![to]), done))
}

impl KvIndex {
    /// A live record becomes another one.
    pub(crate) fn rewrite<T: Send + 'static>(
        &self,
        sample: &SampleId,
        before: &Versioned<Live>,
        after: Live,
        done: impl FnOnce(Versioned<Live>, Done) -> T + Send + 'static,
    ) -> Result<Decision<T>> {
        let description = before.description.clone();
        let from = self.layout().live_home(sample, &before.record);
        let to = self.layout().place_live(sample, &after, &description)?;
        replace(from, before.version, to, move |outcome| {
            let seen = Versioned {
                record: settled_live(after, outcome.version),
                version: outcome.version,
                description,
            };
            done(seen, outcome)
        })
    }

    /// A live record becomes another one or is retired.
    pub(crate) fn conclude<T: Send + 'static>(
        &self,
        sample: &SampleId,
        before: &Versioned<Live>,
        after: Acknowledged,
        done: impl FnOnce(Answered) -> T + Send + 'static,
    ) -> Result<Decision<T>> {
        match after {
            Acknowledged::Live(after) => self.rewrite(sample, before, after, |_, _| done(Answered::Live)),
            Acknowledged::Retired(retired) => {
                let free = retired.may_be_freed();
                let answer = Answered::Retired {
                    reason: retired.reason,
                    free,
                };
                let from = self.layout().live_home(sample, &before.record);
                let to = self.layout().place_retired(sample, &retired, &before.description)?;
                let home = free.then(|| to.home.key.clone());
                let mut decision = replace(from, before.version, to, move |_| done(answer))?;
                decision.remember = home;
                Ok(decision)
            }
        }
    }

    /// A reservation ends without a commit.
    pub(crate) fn give_up<T: Send + 'static>(
        &self,
        sample: &SampleId,
        before: &Versioned<Reserved>,
        retired: &Retired,
        done: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Decision<T>> {
        let from = self.layout().pending(sample).into();
        let to = self.layout().place_retired(sample, retired, &None)?;
        replace(from, before.version, to, |_| done())
    }

    /// A retired record loses readers.
    pub(crate) fn drain<T: Send + 'static>(
        &self,
        sample: &SampleId,
        before: &Versioned<Retired>,
        after: &Retired,
        done: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Decision<T>> {
        let from = self.layout().retired_home(sample, &before.record)?;
        let to = self.layout().place_retired(sample, after, &before.description)?;
        replace(from, before.version, to, |_| done())
    }
}
