//! Leasing samples that are named.

use tensorhold_core::{Deadline, Error, Result};
use tensorhold_custody::{GroupName, Token};

use crate::index::TxnIndex;
use crate::ready::shards::ReadyEntry;
use crate::record::grants::held_until;
use crate::record::types::{LeaseGrant, Terms};
use crate::txn::batch::{Intent, Loaded, live_of};
use crate::txn::session::Session;

impl TxnIndex {
    /// Leases samples for a group, or for reading only, on these terms. The first attempt uses the copies of the
    /// records, if all samples have one, instead of reading.
    pub(crate) async fn do_lease(
        &self,
        session: &Session,
        samples: &[ReadyEntry],
        group: Option<&GroupName>,
        ticks: u64,
        terms: Terms<'_>,
        deadline: Deadline,
    ) -> Vec<Result<LeaseGrant>> {
        const OPERATION: &str = "index.lease";
        let keys = |item: &ReadyEntry| vec![self.core.layout().live(&item.sample.sample)];
        let decide = |item: &ReadyEntry, loaded: &Loaded| {
            let ReadyEntry { sample, copied, .. } = item;
            let live = live_of(OPERATION, self.core.layout(), loaded, sample, copied.as_ref())?;
            let description = live.description.clone().ok_or_else(|| {
                Error::internal(OPERATION, "a live sample has no description").with("sample", &sample.sample)
            })?;
            (terms.usable)(sample, &description)?;
            let until = loaded.tick.after(ticks);
            let record = live.record.clone();
            let after = match group {
                Some(group) => record.lease(group, session.id(), until)?,
                None => record.read(session.id(), until),
            };
            let lease = |seen| LeaseGrant {
                sample: sample.clone(),
                group: group.cloned(),
                token: Token::THIS_WRITE,
                description,
                unserved: false,
                seen,
                grant: None,
            };
            let decision = self.core.rewrite(&sample.sample, &live, after, session.id(), lease)?;
            let decision = decision.settling(|held, done| {
                held.token = Token(done.version.0);
                held.settle(done);
            });
            Ok(decision.giving(held_until(sample, session.id(), until)))
        };
        let intent = Intent::new(OPERATION, &keys, &decide).setting_deadlines(true);
        let all_seen = samples.iter().all(|found| found.copied.is_some());
        let seen = all_seen.then(Loaded::default);
        let told_by = deadline.later(terms.settle);
        self.core
            .batch_told_by(session, samples, intent, seen, deadline, told_by)
            .await
    }
}
