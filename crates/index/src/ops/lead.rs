//! Taking an office, leaving it, and watching who holds it. [`crate::record::office`] says what offices are.
//!
//! ```text
//!            lead: put if absent                    resign; the session ends
//! vacant ─────────────────────────▶ held by a session ────────────────────────▶ vacant
//!                                        │    ▲
//!                                        └────┘ lead: by another session, if the key names one that has ended, or none
//! ```
//! The key vanishes with the session that it was written with. So a key that names a session that has ended is one that
//! another program has written (or that an index was restored with); it must not keep a store without a sweeper.
//!
//! A lost reply is settled as for every transaction of a session ([`crate::txn::session`]): who is told that it leads does.

use std::fmt;

use tensorhold_core::{Deadline, Error, ErrorKind, Result};

use crate::index::TxnIndex;
use crate::record::office::{Leader, Leaders, Office};
use crate::store::{Change, Condition, Entry, Read, TxnOutcome, Watch, Write};
use crate::txn::session::Session;

const OPERATION: &str = "index.lead";

/// Tells who holds the offices of a store, whenever that changes.
pub struct LeaderWatch {
    watch: Box<dyn Watch>,
    /// The key of each office, in the order of [`Office::ALL`].
    keys: Vec<String>,
    leaders: Leaders,
}

impl fmt::Debug for LeaderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaderWatch({:?})", self.leaders)
    }
}

impl LeaderWatch {
    /// Pends until an office is taken or left. Fails if that may have been missed: ask again who leads
    /// ([`crate::Index::leaders`]), then watch from there. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Result<Leaders> {
        for Change { key, value, version } in self.watch.next().await? {
            let office = self.keys.iter().position(|known| *known == key);
            if let Some(office) = office.and_then(|at| Office::ALL.get(at)) {
                let leader = value.as_deref().and_then(Leader::from_bytes);
                self.leaders.set(*office, leader);
            }
            self.leaders.version = self.leaders.version.max(version);
        }
        Ok(self.leaders.clone())
    }
}

impl TxnIndex {
    fn offices(&self) -> Vec<String> {
        let layout = self.core.layout();
        Office::ALL.into_iter().map(|office| layout.office(office)).collect()
    }

    pub(crate) async fn do_lead(&self, session: &Session, office: Office, deadline: Deadline) -> Result<Leader> {
        let layout = self.core.layout();
        let key = layout.office(office);
        let own = Leader {
            session: session.id(),
            identity: self.identity().opened_at(self.core.clock().wall_ms()),
        };
        let mut conditions = vec![Condition::Absent(key.clone())];
        while !deadline.passed(self.core.clock()) {
            let put = Write::Put {
                key: key.clone(),
                value: own.to_bytes(),
                session: Some(session.id()),
            };
            let slots = self.core.slots();
            let sent = slots.transact(OPERATION, session, conditions, vec![put], deadline);
            if let TxnOutcome::Committed(_) = sent.await? {
                return Ok(own);
            }
            let Some((entry, leader)) = self.holder(office, session, deadline).await? else {
                conditions = vec![Condition::Absent(key.clone())];
                continue;
            };
            conditions = vec![Condition::Unchanged(key.clone(), entry.version)];
            if let Some(leader) = leader {
                let alive = layout.alive(leader.session);
                let reads = [Read::Key(alive.clone())];
                let left = deadline.remaining(self.core.clock());
                let snapshot = self.core.txn_store().read(&reads, left).await?;
                if snapshot.entries.iter().any(|found| !found.is_empty()) {
                    return Ok(leader);
                }
                conditions.push(Condition::Absent(alive));
            }
        }
        let message = "others kept taking and leaving the office until the deadline; try again";
        Err(Error::unavailable(OPERATION, message).with("office", office.name()))
    }

    /// The key of an office as it is now, and whom it names. `Fenced` if `session` has ended.
    async fn holder(
        &self,
        office: Office,
        session: &Session,
        deadline: Deadline,
    ) -> Result<Option<(Entry, Option<Leader>)>> {
        let layout = self.core.layout();
        let reads = [layout.office(office), layout.alive(session.id())].map(Read::Key);
        let left = deadline.remaining(self.core.clock());
        let snapshot = self.core.txn_store().read(&reads, left).await?;
        let mut found = snapshot.entries.into_iter().map(|entries| entries.into_iter().next());
        let (held, alive) = (found.next().flatten(), found.next().flatten());
        if alive.is_none() {
            return Err(session.fenced(OPERATION));
        }
        Ok(held.map(|entry| {
            let leader = Leader::from_bytes(&entry.value);
            (entry, leader)
        }))
    }

    pub(crate) async fn do_resign(&self, session: &Session, office: Office, deadline: Deadline) -> Result<()> {
        while !deadline.passed(self.core.clock()) {
            let held = match self.holder(office, session, deadline).await {
                // It has gone with the session.
                Err(error) if error.kind() == ErrorKind::Fenced => return Ok(()),
                held => held?,
            };
            let Some((entry, Some(leader))) = held else {
                return Ok(());
            };
            if leader.session != session.id() {
                return Ok(());
            }
            let conditions = vec![Condition::Unchanged(entry.key.clone(), entry.version)];
            let writes = vec![Write::Delete(entry.key)];
            let slots = self.core.slots();
            let sent = slots.transact(OPERATION, session, conditions, writes, deadline);
            if let TxnOutcome::Committed(_) = sent.await? {
                return Ok(());
            }
        }
        let message = "the office could not be left before the deadline; it ends with the session";
        Err(Error::unavailable(OPERATION, message).with("office", office.name()))
    }

    pub(crate) async fn do_leaders(&self, deadline: Deadline) -> Result<Leaders> {
        let reads: Vec<Read> = self.offices().into_iter().map(Read::Key).collect();
        let left = deadline.remaining(self.core.clock());
        let snapshot = self.core.txn_store().read(&reads, left).await?;
        Ok(Leaders::read(&snapshot.entries, snapshot.version))
    }

    pub(crate) async fn do_watch_leaders(&self, since: &Leaders, deadline: Deadline) -> Result<LeaderWatch> {
        let range = self.core.layout().all_offices();
        let left = deadline.remaining(self.core.clock());
        let watch = self.core.txn_store().watch(range, since.version, left).await?;
        Ok(LeaderWatch {
            watch,
            keys: self.offices(),
            leaders: since.clone(),
        })
    }
}
