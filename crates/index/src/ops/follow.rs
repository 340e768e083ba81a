//! Whose settings a sweep goes by. A steward follows those of the store's processes.
//!
//! A sweep moves the shared clock, ends leases, and has the objects of dead letters removed that are too many: by the
//! `tick`, `grace_ticks` and `dead_most` of the process that sweeps. A process that uses the store has the store's settings.
//! A steward looks after stores whose settings it was not told. So every session says its own ([`SaidSettings`]), and the
//! sweeps of a steward go by these.
//!
//! ```text
//!        a session is alive that says its settings
//!  Own ◀───────────────────────────────────────────▶ Followed: of each setting the largest that a live session says
//!        none is
//! ```
//!
//! # Invariants
//! - FO1: a steward moves the clock only after it has read what every session says that was alive when the sweep began.
//!   Each is read once: it says what it said when it was opened.
//! - FO2: the largest counts. A longer tick, a longer grace or more dead letters keep something for longer than a process
//!   expects; a shorter one would end it early.
//! - FO3: what is said is not trusted. Each value is cut to its bounds, so that nonsense slows expiry down and does not end
//!   it.
//!
//! # What if…
//! - *…a session is opened while a sweep is under way?* The next sweep follows it. The clock may move once before that: a
//!   lease of *n* ticks then ends as if it had been granted at the end of a tick, after *n* whole ones.
//! - *…no session is alive, or all are of an earlier release, which says nothing?* Then the steward's own settings count.
//! - *…the settings of the sessions differ?* It is logged, once. Leases of the processes with the shorter tick last longer
//!   than these expect.
//! - *…what they say cannot be read?* The sweep fails, and the clock does not move.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use tensorhold_core::{Deadline, Result};
use tensorhold_custody::SessionId;

use crate::index::TxnIndex;
use crate::record::identity::{Identity, SaidSettings};
use crate::record::layout::Layout;
use crate::txn::pages::MOST_BYTES;

impl TxnIndex {
    /// Follows what these sessions say, if this process is a steward.
    pub(crate) async fn follow(&self, alive: &BTreeSet<SessionId>, deadline: Deadline) -> Result<()> {
        if !self.identity().steward {
            return Ok(());
        }
        self.read_said(alive, deadline).await?;
        let said: Vec<SaidSettings> = {
            let said = self.said.lock();
            let said = said.values().filter(|settings| !settings.is_nothing());
            said.map(|settings| settings.within_bounds()).collect()
        };
        let largest = said.iter().fold(SaidSettings::default(), |all, one| all.larger(*one));
        let store = self.core.layout().root();
        if self.core.follow(largest) != largest {
            tracing::info!(%store, followed = ?largest, "sweeping by the settings of the store's processes");
        }
        let differ = said.iter().any(|one| *one != largest);
        if differ && !self.difference_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %store,
                followed = ?largest,
                "processes of this store have different index settings; the largest count, so some leases last longer \
                 than their holders expect: give all of them the same `tick`, `grace_ticks` and `dead_most`"
            );
        }
        Ok(())
    }

    /// Reads what sessions say that were not there before, and forgets those that have ended.
    async fn read_said(&self, alive: &BTreeSet<SessionId>, deadline: Deadline) -> Result<()> {
        let new: Vec<SessionId> = {
            let mut said = self.said.lock();
            said.retain(|session, _| alive.contains(session));
            let is_new = |session: &&SessionId| !said.contains_key(*session);
            alive.iter().filter(is_new).copied().collect()
        };
        let keys: Vec<String> = new.iter().map(|session| self.core.layout().alive(*session)).collect();
        let mut at = 0;
        while at < keys.len() {
            let (entries, looked_at) = self.core.read_run(&keys[at..], MOST_BYTES, deadline).await?;
            let mut said = self.said.lock();
            // One that has ended meanwhile says nothing.
            said.extend(
                new[at..at + looked_at]
                    .iter()
                    .map(|session| (*session, SaidSettings::default())),
            );
            for entry in entries {
                let identity = Identity::from_bytes(&entry.value);
                if let (Some(session), Some(identity)) = (Layout::session_of(&entry.key), identity) {
                    said.insert(session, identity.settings);
                }
            }
            at += looked_at;
        }
        Ok(())
    }
}
