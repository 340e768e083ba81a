//! Committing reservations, and giving them up.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_core::{Deadline, Result};
use holdfast_custody::{Live, Reason, Reserved, Version};

use crate::index::TxnIndex;
use crate::record::refusal::{gone, superseded};
use crate::record::types::{Commit, SampleRef, Versioned};
use crate::store::{Condition, Entry, Write};
use crate::txn::batch::{Intent, Loaded};
use crate::txn::decision::{Decision, set_version};
use crate::txn::record_cache::CachedRecord;
use crate::txn::session::Session;

impl TxnIndex {
    pub(crate) async fn do_commit(
        &self,
        session: &Session,
        items: &[Commit],
        deadline: Deadline,
    ) -> Vec<Result<Version>> {
        const OPERATION: &str = "index.commit";
        // The session need not read what it has just reserved, and hardly any sample was live before.
        let mut grants = HashMap::new();
        let reserved = items.iter().filter_map(|item| {
            let key = self.core.layout().pending(&item.sample.sample);
            let CachedRecord { value, version, grant } = session.recall(&key)?;
            grants.extend(grant.map(|grant| (item.sample.sample.clone(), grant)));
            Some(Entry { key, value, version })
        });
        let seen = Loaded::with_entries(reserved);
        let keys = |item: &Commit| {
            vec![
                self.core.layout().pending(&item.sample.sample),
                self.core.layout().live(&item.sample.sample),
            ]
        };
        let decide = |item: &Commit, loaded: &Loaded| {
            let SampleRef { sample, generation } = &item.sample;
            let (pending, live) = (self.core.layout().pending(sample), self.core.layout().live(sample));
            let reserved: Versioned<Reserved> = loaded
                .record(&pending)?
                .ok_or_else(|| superseded(OPERATION, &item.sample))?;
            let mut record = reserved.record.commit(session.id(), *generation, &item.publication)?;
            let description = Some(Arc::from(item.description.as_slice()));
            let older: Option<Versioned<Live>> = loaded.record(&live)?;
            let before = older.as_ref().map(|older| &older.record);
            let stamp = self.core.stamp(session.id());
            record.stamp(before, stamp);
            record.dead_ticks = self.core.config().dead_ticks;
            let mut writes = self.core.layout().put_live(sample, before, &record, &description)?;
            writes.push(Write::Delete(pending.clone()));
            let mut conditions = vec![Condition::Unchanged(pending, reserved.version)];
            match older {
                Some(older) => {
                    conditions.push(Condition::Unchanged(live, older.version));
                    let retired = older.record.retire(Reason::Superseded).stamped(stamp);
                    let layout = self.core.layout();
                    writes.extend(layout.put_retired(sample, None, &retired, &older.description)?);
                }
                None => conditions.push(Condition::Absent(live)),
            }
            let decision = Decision::new(conditions, writes, Version::default());
            Ok(decision.settling(set_version).ending(grants.get(sample).cloned()))
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
}
