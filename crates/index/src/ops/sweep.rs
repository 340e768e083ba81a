//! Sweeping: takes back what dead sessions and expired leases hold, and lists the samples whose objects are to be
//! freed.
//!
//! A sweep reads the list of sessions, moves the shared clock if that is due ([`crate::ops::follow`] says by whose tick),
//! walks along the keys of the grant lists ([`crate::ops::walk`]), and opens only those that are due: all of them if their
//! session is dead, and those past their tick and the grace period if it is alive. Its cost is bounded: so many pages of
//! keys, and so many due records. Any number of sweeps may run at once: each change requires that the record is still as it
//! was read.
//!
//! Lists are walked in parts. A sweep that does not reach the end of what is due records where it stopped, and the next
//! sweep continues there. So a record that cannot be taken back or freed now (written by a later release, or whose
//! object the engine does not remove) never keeps a sweep from the records behind it. A record that cannot be decoded
//! goes into quarantine ([`crate::txn::quarantine`]).

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use tensorhold_core::{Deadline, ErrorKind, Result};
use tensorhold_custody::{Acknowledged, Live, Reserved, Retired, SessionId, Sweep, Tick, Verdict};

use crate::index::TxnIndex;
use crate::record::codec::encode;
use crate::record::grants::{GrantList, Holding};
use crate::record::layout::{Layout, after};
use crate::record::refusal::is_about_one_record;
use crate::record::types::{SweepReport, Versioned};
use crate::store::{Condition, Entry, Read, TxnOutcome, Write};
use crate::txn::batch::{Intent, Loaded};
use crate::txn::decision::Decision;
use crate::txn::pages::MOST_BYTES;
use crate::txn::session::{Session, SlotClient};

/// How long a sweep serves the processes that wait for quota.
const SERVE: Duration = Duration::from_secs(1);

/// What became of one due record.
enum Swept {
    Nothing,
    Abandoned,
    TakenBack { leases: usize, retired: bool },
}

/// The sessions of a store at the beginning of a sweep.
struct Sessions {
    alive: BTreeSet<SessionId>,
    /// Those that have ended and are not cleared yet.
    dead: BTreeSet<SessionId>,
    has_budget: bool,
}

/// The due records that one sweep has read.
struct Due {
    /// Grant lists, in key order.
    notes: Vec<Entry>,
    /// Ended sessions that have no grant list.
    cleared: Vec<SessionId>,
    quarantined: usize,
    later: usize,
    /// Where the next sweep is to go on, if this one has not reached the end.
    next: Option<String>,
}

impl TxnIndex {
    pub(crate) async fn do_sweep(&self, session: &Session, limit: usize, deadline: Deadline) -> Result<SweepReport> {
        let Sessions {
            alive,
            dead,
            has_budget,
        } = self.known_sessions(session, deadline).await?;
        self.follow(&alive, deadline).await?;
        let tick = self.core.advance(deadline).await?;
        let from = self.swept_to.lock().clone();
        let due = self.due(&dead, tick, from.as_deref(), limit, deadline).await?;
        let mut report = SweepReport {
            quarantined: due.quarantined,
            later: due.later,
            more: due.next.is_some(),
            ..SweepReport::default()
        };
        let mut opened = OpenedNotes::of(due.notes, limit)?;
        report.looked_at = opened.due.len();
        report.more |= opened.cut.is_some();
        let before = self.core.passed_over().counts();
        let swept = self.sweep_holdings(session, &opened.due, &dead, deadline).await;
        for (at, swept) in swept.into_iter().enumerate() {
            match swept {
                Ok(Swept::Nothing) => {}
                Ok(Swept::Abandoned) => report.abandoned += 1,
                Ok(Swept::TakenBack { leases, retired }) => {
                    report.taken_back += leases;
                    report.retired += usize::from(retired);
                }
                Err(error) if is_about_one_record(&error) => {
                    tracing::debug!(%error, "a record cannot be taken back now; its grant list stays");
                    report.later += usize::from(error.kind() == ErrorKind::Unsupported);
                    opened.keep(at);
                }
                Err(error) => return Err(error),
            }
        }
        let moved = self.core.passed_over().counts().0.saturating_sub(before.0);
        report.quarantined += usize::try_from(moved).unwrap_or(usize::MAX);
        let next = match opened.ended_at() {
            Some(at) => at.as_deref().map(after).or(from),
            None => due.next,
        };
        // Last, so that if this process dies before, every record that was not looked at still has its grant list.
        for chunk in opened
            .strike_out()?
            .chunks(self.core.txn_store().limits().operations - SlotClient::OVERHEAD)
        {
            let unchanged = chunk.iter().map(|(condition, _)| condition.clone()).collect();
            let writes = chunk.iter().map(|(_, write)| write.clone()).collect();
            // If another process has changed one of these grant lists, the whole chunk stays for the next sweep.
            self.core
                .slots()
                .transact("index.sweep", session, unchanged, writes, deadline)
                .await?;
        }
        // The next sweep starts behind the grant lists that stay, so that they do not keep it from later ones.
        *self.swept_to.lock() = next;
        if has_budget {
            report.quarantined += self.quota.set_unreadable_aside(deadline).await?;
            // Not for long: the sweep has more to do.
            let serve_until = deadline.min(self.core.deadline(SERVE));
            self.quota.serve_or_leave_it(session, serve_until).await;
        }
        report.more |= self.end_keeping(session, tick, limit, deadline).await?;
        report.more |= self.end_letters(session, tick, limit, deadline).await?;
        report.sessions_cleared = self.clear_sessions(session, &due.cleared, deadline).await?;
        Ok(report)
    }

    /// The due grant lists of all sessions, from a place on: at most `limit`.
    async fn due(
        &self,
        dead: &BTreeSet<SessionId>,
        tick: Tick,
        from: Option<&str>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Due> {
        // One more than `limit`, to learn whether there are more.
        let walked = self.walk(dead, tick, from, limit.saturating_add(1), deadline).await?;
        let mut keys = walked.due;
        let more = keys.len() > limit;
        keys.truncate(limit);
        let (entries, looked_at) = self.core.read_values(&keys, MOST_BYTES, deadline).await?;
        let next = if looked_at < keys.len() || more {
            looked_at.checked_sub(1).map(|last| after(&keys[last]))
        } else {
            walked.next
        };
        let readable = |entry: &Entry| GrantList::read(entry).map(|_| entry.clone());
        let sorted = self.core.sort_out(entries, readable, deadline).await?;
        Ok(Due {
            notes: sorted.good,
            cleared: walked.cleared,
            quarantined: sorted.quarantined,
            later: sorted.later,
            next,
        })
    }

    /// The sessions, and whether the store has a budget. Read in one snapshot, before any record is read.
    async fn known_sessions(&self, session: &Session, deadline: Deadline) -> Result<Sessions> {
        const ALL: usize = 100_000;
        let range = |keys| Read::Range {
            keys,
            limit: ALL,
            keys_only: true,
        };
        let reads = [
            range(self.core.layout().all_existed()),
            range(self.core.layout().all_alive()),
            Read::Key(self.core.layout().budget()),
        ];
        let snapshot = self
            .core
            .txn_store()
            .read(&reads, deadline.remaining(self.core.clock()))
            .await?;
        let ids = |at: usize| -> BTreeSet<SessionId> {
            let entries = snapshot.entries.get(at).map(Vec::as_slice).unwrap_or_default();
            entries
                .iter()
                .filter_map(|entry| Layout::session_of(&entry.key))
                .collect()
        };
        let (existed, alive) = (ids(0), ids(1));
        if !alive.contains(&session.id()) {
            return Err(session.fenced("index.sweep"));
        }
        let dead = existed.difference(&alive).copied().collect();
        let has_budget = snapshot.entries.get(2).is_some_and(|budget| !budget.is_empty());
        Ok(Sessions {
            alive,
            dead,
            has_budget,
        })
    }

    async fn sweep_holdings(
        &self,
        session: &Session,
        due: &[Holding],
        dead: &BTreeSet<SessionId>,
        deadline: Deadline,
    ) -> Vec<Result<Swept>> {
        let keys = |item: &Holding| match item.generation {
            None => vec![self.core.layout().pending(&item.sample)],
            Some(generation) => {
                vec![
                    self.core.layout().live(&item.sample),
                    self.core.layout().retired_with_readers(&item.sample, generation),
                ]
            }
        };
        let decide = |item: &Holding, loaded: &Loaded| self.judge(session, item, dead, loaded);
        let intent = Intent::new("index.sweep", &keys, &decide);
        self.core.batch(session, due, intent, None, deadline).await
    }

    fn judge(
        &self,
        session: &Session,
        item: &Holding,
        dead: &BTreeSet<SessionId>,
        loaded: &Loaded,
    ) -> Result<Decision<Swept>> {
        let change = loaded.change(session);
        let gone = |session: SessionId| dead.contains(&session);
        let sweep = Sweep {
            tick: loaded.tick,
            grace: self.core.grace_ticks(),
            gone: &gone,
        };
        let Some(generation) = item.generation else {
            let reserved: Option<Versioned<Reserved>> = loaded.record(&self.core.layout().pending(&item.sample))?;
            if let Some(reserved) = reserved
                && let Verdict::Become(retired) = reserved.record.sweep(&sweep)
            {
                return self
                    .core
                    .give_up(&item.sample, &reserved, retired, change.by, Swept::Abandoned);
            }
            return Ok(nothing());
        };
        let live: Option<Versioned<Live>> = loaded.record(&self.core.layout().live(&item.sample))?;
        if let Some(live) = live
            && live.record.generation == generation
        {
            return match live.record.sweep(&sweep) {
                Verdict::Leave => Ok(nothing()),
                Verdict::Become(after) => {
                    let (left, retired) = match &after {
                        Acknowledged::Live(after) => (after.leases().count(), false),
                        Acknowledged::Retired(after) => (after.readers.len(), true),
                    };
                    let leases = live.record.leases().count() - left;
                    self.core
                        .conclude(&item.sample, &live, after, change, |_| Swept::TakenBack {
                            leases,
                            retired,
                        })
                }
            };
        }
        let retired: Option<Versioned<Retired>> =
            loaded.record(&self.core.layout().retired_with_readers(&item.sample, generation))?;
        if let Some(retired) = retired
            && let Verdict::Become(after) = retired.record.sweep(&sweep)
        {
            let leases = retired.record.readers.len() - after.readers.len();
            let swept = Swept::TakenBack { leases, retired: false };
            return self.core.replace_retired(&item.sample, &retired, &after, swept);
        }
        Ok(nothing())
    }

    /// Forgets sessions that have ended and hold nothing any more. Returns how many.
    async fn clear_sessions(&self, session: &Session, ended: &[SessionId], deadline: Deadline) -> Result<usize> {
        let layout = self.core.layout();
        let most = (self.core.txn_store().limits().operations - SlotClient::OVERHEAD) / 2;
        let mut cleared = 0;
        for chunk in ended.chunks(most.max(1)) {
            let gone = |id: &SessionId| {
                let (alive, existed) = (layout.alive(*id), layout.existed(*id));
                [Condition::Absent(alive), Condition::Present(existed)]
            };
            let conditions = chunk.iter().flat_map(gone).collect();
            let writes = chunk.iter().map(|id| Write::Delete(layout.existed(*id))).collect();
            let slots = self.core.slots();
            let applied = slots.transact("index.sweep", session, conditions, writes, deadline);
            // If another sweep has cleared one of them, the next one clears the others.
            if matches!(applied.await?, TxnOutcome::Committed(_)) {
                cleared += chunk.len();
            }
        }
        Ok(cleared)
    }
}

fn nothing() -> Decision<Swept> {
    Decision::nothing(Swept::Nothing)
}

/// Deletes a grant list, or rewrites it without the samples that were looked at; on condition that it is as it was
/// read.
type StrikeOut = (Condition, Write);

/// The samples that due grant lists name, up to a limit.
struct OpenedNotes {
    due: Vec<Holding>,
    notes: Vec<OpenedNote>,
    /// The first grant list that names more samples than were left of the limit.
    cut: Option<usize>,
}

struct OpenedNote {
    key: String,
    unchanged: Condition,
    /// Which of [`OpenedNotes::due`] this grant list names.
    due: Range<usize>,
    /// How many of those stay in the grant list.
    kept: usize,
    /// The samples that stay in the grant list.
    rest: Vec<Holding>,
}

impl OpenedNotes {
    fn of(notes: Vec<Entry>, limit: usize) -> Result<Self> {
        let mut opened = Self {
            due: Vec::new(),
            notes: Vec::new(),
            cut: None,
        };
        for entry in notes {
            let mut named = GrantList::read(&entry)?;
            let rest = named.split_off(named.len().min(limit - opened.due.len()));
            if !rest.is_empty() && opened.cut.is_none() {
                opened.cut = Some(opened.notes.len());
            }
            let from = opened.due.len();
            opened.due.extend(named);
            opened.notes.push(OpenedNote {
                unchanged: Condition::Unchanged(entry.key.clone(), entry.version),
                key: entry.key,
                due: from..opened.due.len(),
                kept: 0,
                rest,
            });
        }
        Ok(opened)
    }

    /// Keeps one item of [`OpenedNotes::due`] in its grant list.
    fn keep(&mut self, at: usize) {
        let note = self.notes.iter_mut().find(|note| note.due.contains(&at));
        if let Some(note) = note {
            note.rest.push(self.due[at].clone());
            note.kept += 1;
        }
    }

    /// If a grant list was cut by the limit, the key after which the next sweep continues; `Some(None)` if the first
    /// one was cut. A cut grant list of which nothing could be taken back is skipped, so that sweeps move on.
    fn ended_at(&self) -> Option<Option<String>> {
        let cut = self.cut?;
        let note = &self.notes[cut];
        let passed = !note.due.is_empty() && note.kept == note.due.len();
        let last = if passed { Some(cut) } else { cut.checked_sub(1) };
        Some(last.map(|last| self.notes[last].key.clone()))
    }

    fn strike_out(self) -> Result<Vec<StrikeOut>> {
        let mut writes = Vec::with_capacity(self.notes.len());
        for OpenedNote {
            key,
            unchanged,
            due,
            kept,
            rest,
        } in self.notes
        {
            if rest.is_empty() {
                writes.push((unchanged, Write::Delete(key)));
            } else if kept < due.len() || rest.len() > kept && kept > 0 {
                let mut left = GrantList::default();
                rest.into_iter().for_each(|holding| left.add(holding));
                writes.push((unchanged, Write::put(key, encode(&left)?)));
            }
        }
        Ok(writes)
    }
}
