//! Committing reservations, and giving them up.

use std::collections::HashMap;
use std::sync::Arc;

use tensorhold_core::{Deadline, Error, Result, SampleId};
use tensorhold_custody::{Live, Reason, Reserved, ReservedAs, Version};

use crate::index::TxnIndex;
use crate::record::grants::GrantLine;
use crate::record::refusal::{being_written, gone, superseded};
use crate::record::types::{Commit, CommitOutcome, SampleRef, Versioned};
use crate::store::{Condition, Entry, Write};
use crate::txn::batch::{Intent, Loaded};
use crate::txn::decision::Decision;
use crate::txn::record_cache::CachedRecord;
use crate::txn::session::Session;

impl TxnIndex {
    /// The reservations that a session has just made, as it remembers them, and the lines of the grant lists that name
    /// them.
    fn remembered<'a>(
        &self,
        session: &Session,
        reservations: impl Iterator<Item = &'a SampleId>,
    ) -> (Loaded, HashMap<SampleId, GrantLine>) {
        let mut grants = HashMap::new();
        let entries = reservations.filter_map(|name| {
            let key = self.core.layout().pending(name);
            let CachedRecord { value, version, grant } = session.recall(&key)?;
            grants.extend(grant.map(|grant| (name.clone(), grant)));
            Some(Entry { key, value, version })
        });
        (Loaded::with_entries(entries), grants)
    }

    pub(crate) async fn do_commit(
        &self,
        session: &Session,
        items: &[Commit],
        deadline: Deadline,
    ) -> Vec<Result<CommitOutcome>> {
        const OPERATION: &str = "index.commit";
        // The session need not read what it has just reserved, and hardly any sample was live before.
        let (seen, grants) = self.remembered(session, items.iter().map(|item| &item.sample.sample));
        let layout = self.core.layout();
        let keys = |item: &Commit| {
            let mut keys = vec![layout.pending(&item.sample.sample), layout.live(item.name())];
            keys.extend(item.becomes.as_ref().map(|becomes| layout.pending(&becomes.sample)));
            keys
        };
        let decide = |item: &Commit, loaded: &Loaded| {
            let (reservation, sample) = (&item.sample, item.name());
            let (pending, live) = (layout.pending(&reservation.sample), layout.live(sample));
            let reserved: Versioned<Reserved> = loaded
                .record(&pending)?
                .ok_or_else(|| superseded(OPERATION, reservation))?;
            let mut conditions = vec![Condition::Unchanged(pending.clone(), reserved.version)];
            let mut writes = vec![Write::Delete(pending)];
            let publication = &item.publication;
            let mut record = match &item.becomes {
                None => reserved
                    .record
                    .commit(session.id(), reservation.generation, publication)?,
                Some(becomes) => {
                    let in_the_way = layout.pending(sample);
                    if loaded.record::<Reserved>(&in_the_way)?.is_some() {
                        return Err(being_written(sample));
                    }
                    conditions.push(Condition::Absent(in_the_way));
                    writes.push(layout.put_owner(reservation, sample));
                    let reserved_as = ReservedAs::from(reservation);
                    reserved
                        .record
                        .commit_as(session.id(), reserved_as, publication, becomes.bytes)?
                }
            };
            let description = Some(Arc::from(item.description.as_slice()));
            let older: Option<Versioned<Live>> = loaded.record(&live)?;
            let before = older.as_ref().map(|older| &older.record);
            let stamp = self.core.stamp(session.id());
            // Another incarnation, whatever their generations say: this one's may not be known yet.
            record.stamp(None, stamp);
            record.dead_ticks = self.core.config().dead_ticks;
            writes.extend(layout.put_another(sample, before, &record, &description)?);
            let outcome = CommitOutcome {
                version: Version::default(),
                replaced: older.is_some(),
            };
            match older {
                Some(older) => {
                    conditions.push(Condition::Unchanged(live, older.version));
                    let retired = older.record.retire(Reason::Superseded).stamped(stamp);
                    writes.extend(layout.put_retired(sample, None, &retired, &older.description)?);
                }
                None => conditions.push(Condition::Absent(live)),
            }
            let decision = Decision::new(conditions, writes, outcome);
            Ok(decision
                .settling(|outcome, done| outcome.version = done.version)
                .ending(grants.get(&reservation.sample).cloned()))
        };
        let intent = Intent::new(OPERATION, &keys, &decide);
        self.core.batch(session, items, intent, Some(seen), deadline).await
    }

    pub(crate) async fn do_abort(&self, session: &Session, items: &[SampleRef], deadline: Deadline) -> Vec<Result<()>> {
        const OPERATION: &str = "index.abort";
        let keys = |item: &SampleRef| vec![self.core.layout().pending(&item.sample)];
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let pending = self.core.layout().pending(&item.sample);
            let reserved: Versioned<Reserved> =
                loaded.record(&pending)?.ok_or_else(|| gone(OPERATION, &item.sample))?;
            reserved.record.check_owner(OPERATION, session.id(), item.generation)?;
            let retired = reserved.record.clone().abort(Reason::Aborted);
            self.core.give_up(&item.sample, &reserved, retired, session.id(), ())
        };
        let intent = Intent::new(OPERATION, &keys, &decide);
        self.core.batch(session, items, intent, None, deadline).await
    }

    pub(crate) async fn do_unreserve(
        &self,
        session: &Session,
        items: &[SampleRef],
        deadline: Deadline,
    ) -> Vec<Result<()>> {
        const OPERATION: &str = "index.unreserve";
        let (seen, grants) = self.remembered(session, items.iter().map(|item| &item.sample));
        let keys = |item: &SampleRef| vec![self.core.layout().pending(&item.sample)];
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let pending = self.core.layout().pending(&item.sample);
            let reserved: Versioned<Reserved> =
                loaded.record(&pending)?.ok_or_else(|| gone(OPERATION, &item.sample))?;
            reserved.record.check_owner(OPERATION, session.id(), item.generation)?;
            if reserved.record.paid > 0 || !reserved.record.claims.is_empty() {
                let message = "this reservation holds quota or claims; abort it";
                return Err(Error::invalid(OPERATION, message).with("sample", &item.sample));
            }
            let unchanged = Condition::Unchanged(pending.clone(), reserved.version);
            let decision = Decision::new(vec![unchanged], vec![Write::Delete(pending)], ());
            Ok(decision.ending(grants.get(&item.sample).cloned()))
        };
        let intent = Intent::new(OPERATION, &keys, &decide);
        self.core.batch(session, items, intent, Some(seen), deadline).await
    }
}
