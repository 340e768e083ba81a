//! Sweeping: what has ended is taken back, what is to be freed is found.
//!
//! A sweep reads the list of sessions and, of each, only what is due: everything that a dead session holds, and what a
//! live one has held for too long. Its cost follows from the number of sessions and of due records, not from how many
//! samples there are. Any number of sweeps may run at once: each change requires that the record is as it was read.

use std::collections::BTreeSet;

use holdfast_core::{Deadline, Error, Result};
use holdfast_custody::{Acknowledged, Live, Reserved, Retired, SessionId, Sweep, Tick, Verdict};

use crate::batch::{Intent, Loaded};
use crate::decision::Decision;
use crate::index::KvIndex;
use crate::kv::{Applied, Condition, Entry, Read, Write};
use crate::layout::Layout;
use crate::notes::{Holding, Note};
use crate::record::{decode_versioned, encode};
use crate::session::{Sender, Session};
use crate::types::{FreeTask, SampleRef, SweepReport, Versioned};

/// What became of one due record.
enum Swept {
    Nothing,
    Abandoned,
    TakenBack { leases: usize, retired: bool },
}

impl KvIndex {
    pub(crate) async fn do_sweep(&self, session: &Session, limit: usize, deadline: Deadline) -> Result<SweepReport> {
        let tick = self.advance(deadline).await?;
        let (all, dead, has_budget) = self.sessions(session, deadline).await?;
        let mut report = SweepReport::default();
        let mut notes = Vec::new();
        let mut cleared = Vec::new();
        for chunk in all.chunks(self.kv().limits().operations) {
            // One more than allowed, to know whether there is more.
            let left = limit.saturating_add(1).saturating_sub(notes.len());
            if left == 0 {
                break;
            }
            let reads: Vec<Read> = chunk
                .iter()
                .map(|id| self.due_of(*id, dead.contains(id), tick, left))
                .collect();
            let snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
            for (id, entries) in chunk.iter().zip(snapshot.entries) {
                if entries.is_empty() && dead.contains(id) {
                    cleared.push(*id);
                }
                notes.extend(entries);
            }
        }
        let (due, strike_out) = open_notes(notes, limit, &mut report)?;
        for swept in self.sweep_holdings(session, &due, &dead, deadline).await {
            match swept? {
                Swept::Nothing => {}
                Swept::Abandoned => report.abandoned += 1,
                Swept::TakenBack { leases, retired } => {
                    report.taken_back += leases;
                    report.retired += usize::from(retired);
                }
            }
        }
        // Only now: what was not looked at, because we died before, is still noted.
        for chunk in strike_out.chunks(self.kv().limits().operations - Sender::OVERHEAD) {
            let unchanged = chunk.iter().map(|(condition, _)| condition.clone()).collect();
            let writes = chunk.iter().map(|(_, write)| write.clone()).collect();
            // If somebody else was faster with one of them, all of them stay for the next sweep.
            self.sender()
                .transact("index.sweep", session, unchanged, writes, deadline)
                .await?;
        }
        if has_budget {
            self.end_purses(session, &dead, deadline).await?;
            self.serve_line(session, deadline).await?;
        }
        report.more |= self.end_keeping(session, tick, limit, deadline).await?;
        for id in cleared {
            report.sessions_cleared += usize::from(self.clear_session(session, id, deadline).await?);
        }
        Ok(report)
    }

    fn due_of(&self, session: SessionId, dead: bool, tick: Tick, limit: usize) -> Read {
        let before = if dead {
            None
        } else {
            Some(Tick(tick.0.saturating_sub(self.config().grace_ticks)))
        };
        Read::Range {
            keys: self.layout().held(session, before),
            limit,
            keys_only: false,
        }
    }

    /// All sessions that are not cleared up yet, which of them have ended, and whether the store has a budget. Read at one
    /// moment, before any record.
    async fn sessions(
        &self,
        session: &Session,
        deadline: Deadline,
    ) -> Result<(Vec<SessionId>, BTreeSet<SessionId>, bool)> {
        const ALL: usize = 100_000;
        let range = |keys| Read::Range {
            keys,
            limit: ALL,
            keys_only: true,
        };
        let reads = [
            range(self.layout().all_existed()),
            range(self.layout().all_alive()),
            Read::Key(self.layout().budget()),
        ];
        let snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
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
        Ok((existed.into_iter().collect(), dead, has_budget))
    }

    async fn sweep_holdings(
        &self,
        session: &Session,
        due: &[Holding],
        dead: &BTreeSet<SessionId>,
        deadline: Deadline,
    ) -> Vec<Result<Swept>> {
        let keys = |item: &Holding| match item.generation {
            None => vec![self.layout().pending(&item.sample)],
            Some(generation) => {
                vec![
                    self.layout().live(&item.sample),
                    self.layout().retired_with_readers(&item.sample, generation),
                ]
            }
        };
        let decide = |item: &Holding, loaded: &Loaded| self.judge(item, dead, loaded);
        let intent = Intent {
            operation: "index.sweep",
            keys: &keys,
            decide: &decide,
            sets_deadlines: false,
            credits: None,
        };
        self.batch(session, due, intent, None, deadline).await
    }

    fn judge(&self, item: &Holding, dead: &BTreeSet<SessionId>, loaded: &Loaded) -> Result<Decision<Swept>> {
        let gone = |session: SessionId| dead.contains(&session);
        let sweep = Sweep {
            tick: loaded.tick,
            grace: self.config().grace_ticks,
            gone: &gone,
        };
        let Some(generation) = item.generation else {
            let reserved: Option<Versioned<Reserved>> = loaded.record(&self.layout().pending(&item.sample))?;
            if let Some(reserved) = reserved
                && let Verdict::Become(retired) = reserved.record.sweep(&sweep)
            {
                return self.give_up(&item.sample, &reserved, &retired, Swept::Abandoned);
            }
            return Ok(nothing());
        };
        let live: Option<Versioned<Live>> = loaded.record(&self.layout().live(&item.sample))?;
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
                    self.conclude(&item.sample, &live, after, |_| Swept::TakenBack { leases, retired })
                }
            };
        }
        let retired: Option<Versioned<Retired>> =
            loaded.record(&self.layout().retired_with_readers(&item.sample, generation))?;
        if let Some(retired) = retired
            && let Verdict::Become(after) = retired.record.sweep(&sweep)
        {
            let leases = retired.record.readers.len() - after.readers.len();
            let swept = Swept::TakenBack { leases, retired: false };
            return self.drain(&item.sample, &retired, &after, swept);
        }
        Ok(nothing())
    }

    /// Forgets a session that has ended and holds nothing any more.
    async fn clear_session(&self, session: &Session, ended: SessionId, deadline: Deadline) -> Result<bool> {
        let conditions = vec![
            Condition::Absent(self.layout().alive(ended)),
            Condition::Present(self.layout().existed(ended)),
        ];
        let writes = vec![Write::Delete(self.layout().existed(ended))];
        let applied = self
            .sender()
            .transact("index.sweep", session, conditions, writes, deadline)
            .await?;
        Ok(matches!(applied, Applied::Yes(_)))
    }

    pub(crate) async fn do_to_free(&self, limit: usize, deadline: Deadline) -> Result<Vec<FreeTask>> {
        let read = Read::Range {
            keys: self.layout().all_to_free(),
            limit,
            keys_only: false,
        };
        let snapshot = self.kv().read(&[read], deadline.remaining(self.clock())).await?;
        let mut tasks = Vec::new();
        for entry in snapshot.entries.into_iter().flatten() {
            let (sample, generation) = Layout::parse_retired(&entry.key).ok_or_else(|| {
                Error::internal("index.to_free", "an entry of the list of what to free cannot be read")
                    .with("key", &entry.key)
            })?;
            let record: Versioned<Retired> = decode_versioned(&entry)?;
            tasks.push(FreeTask {
                sample: SampleRef { sample, generation },
                description: record.description.as_deref().map(<[u8]>::to_vec),
                record,
            });
        }
        Ok(tasks)
    }

    /// Removing objects failed; that is recorded, and they are tried again.
    pub(crate) async fn do_free_failed(
        &self,
        session: &Session,
        items: &[SampleRef],
        deadline: Deadline,
    ) -> Vec<Result<()>> {
        let keys = |item: &SampleRef| vec![self.free_key(item)];
        let decide = |item: &SampleRef, loaded: &Loaded| match loaded.record::<Retired>(&self.free_key(item))? {
            None => Ok(Decision::nothing(())),
            Some(retired) => self.drain(&item.sample, &retired, &retired.record.clone().free_failed(), ()),
        };
        let intent = Intent {
            operation: "index.free_failed",
            keys: &keys,
            decide: &decide,
            sets_deadlines: false,
            credits: None,
        };
        self.batch(session, items, intent, None, deadline).await
    }
}

fn nothing() -> Decision<Swept> {
    Decision::nothing(Swept::Nothing)
}

/// A note that is as it was read is deleted, or rewritten without what has been looked at.
type StrikeOut = (Condition, Write);

/// What notes name, up to a limit, and how they are struck out once that has been looked at.
fn open_notes(notes: Vec<Entry>, limit: usize, report: &mut SweepReport) -> Result<(Vec<Holding>, Vec<StrikeOut>)> {
    let (mut due, mut strike_out) = (Vec::new(), Vec::new());
    for entry in notes {
        let mut named = Note::read(&entry)?;
        let later = named.split_off(named.len().min(limit - due.len()));
        report.more |= !later.is_empty();
        let unchanged = Condition::Unchanged(entry.key.clone(), entry.version);
        if later.is_empty() {
            strike_out.push((unchanged, Write::Delete(entry.key)));
        } else if !named.is_empty() {
            let mut rest = Note::default();
            later.into_iter().for_each(|holding| rest.add(holding));
            strike_out.push((unchanged, Write::put(entry.key, encode(&rest)?)));
        }
        due.extend(named);
    }
    report.looked_at = due.len();
    Ok((due, strike_out))
}
