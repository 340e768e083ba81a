//! The record of the engine's holders: reading it, and writing it. [`crate::record::engine`] says what it is for.
//!
//! It is written on condition that it is the one that was read. So a process that slept past its turn does not overwrite
//! what its successor has seen.

use tensorhold_core::{Deadline, Error, ErrorKind, Result};
use tensorhold_custody::Version;

use crate::index::TxnIndex;
use crate::record::engine::HoldersSeen;
use crate::store::{Condition, Read, TxnOutcome, Write};
use crate::txn::session::Session;

const OPERATION: &str = "index.note_holders";

impl TxnIndex {
    pub(crate) async fn do_holders_seen(&self, deadline: Deadline) -> Result<HoldersSeen> {
        let reads = [Read::Key(self.core.layout().holders())];
        let left = deadline.remaining(self.core.clock());
        let snapshot = self.core.txn_store().read(&reads, left).await?;
        let found = snapshot.entries.into_iter().flatten().next();
        Ok(found.map_or_else(HoldersSeen::default, |entry| {
            HoldersSeen::from_bytes(&entry.value, entry.version)
        }))
    }

    pub(crate) async fn do_note_holders(
        &self,
        session: &Session,
        seen: &HoldersSeen,
        deadline: Deadline,
    ) -> Result<Version> {
        let key = self.core.layout().holders();
        let before = match seen.version {
            Version(0) => Condition::Absent(key.clone()),
            version => Condition::Unchanged(key.clone(), version),
        };
        let writes = vec![Write::put(key, seen.to_bytes())];
        let slots = self.core.slots();
        let sent = slots.transact(OPERATION, session, vec![before], writes, deadline);
        match sent.await? {
            TxnOutcome::Committed(version) => Ok(version),
            TxnOutcome::Rejected => {
                let alive = Read::Key(self.core.layout().alive(session.id()));
                let left = deadline.remaining(self.core.clock());
                let found = self.core.txn_store().read(&[alive], left).await?;
                if found.entries.iter().all(Vec::is_empty) {
                    return Err(session.fenced(OPERATION));
                }
                let message = "another process has written what it saw of the holders; read that first";
                Err(Error::new(ErrorKind::Conflict, OPERATION, message))
            }
        }
    }
}
