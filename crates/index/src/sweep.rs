//! Sweeping: what has ended is taken back, what is to be freed is found.
//!
//! A sweep reads the list of sessions and, of each, only what is due: everything that a dead session holds, and what a
//! live one has held for too long. Its cost follows from the number of sessions and of due records, not from how many
//! samples there are. Any number of sweeps may run at once: each change requires that the record is as it was read.

use std::collections::BTreeSet;

use holdfast_core::{Deadline, Error, Result};
use holdfast_custody::{Acknowledged, SessionId, Sweep, Tick, Verdict};

use crate::batch::{Decision, Intent, Loaded};
use crate::index::KvIndex;
use crate::kv::{Applied, Condition, Read, Write};
use crate::layout::{Holding, Layout, decode_retired};
use crate::session::Session;
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
        let (all, dead) = self.sessions(session, deadline).await?;
        let mut report = SweepReport::default();
        let mut due = Vec::new();
        let mut cleared = Vec::new();
        for chunk in all.chunks(self.kv().limits().operations) {
            // One more than allowed, to know whether there is more.
            let left = limit.saturating_add(1).saturating_sub(due.len());
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
                due.extend(entries.iter().filter_map(|entry| Layout::parse_holding(&entry.key)));
            }
        }
        report.more = due.len() > limit;
        due.truncate(limit);
        report.looked_at = due.len();
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
        for id in &dead {
            self.end_account(session, *id, deadline).await?;
        }
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
            keys_only: true,
        }
    }

    /// All sessions that are not cleared up yet, and which of them have ended. Read at one moment, before any record.
    async fn sessions(&self, session: &Session, deadline: Deadline) -> Result<(Vec<SessionId>, BTreeSet<SessionId>)> {
        const ALL: usize = 100_000;
        let range = |keys| Read::Range {
            keys,
            limit: ALL,
            keys_only: true,
        };
        let reads = [range(self.layout().all_existed()), range(self.layout().all_alive())];
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
        Ok((existed.into_iter().collect(), dead))
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
            credit_keys: None,
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
            if let Some(reserved) = loaded.reserved(&self.layout().pending(&item.sample))?
                && let Verdict::Become(retired) = reserved.record.sweep(&sweep)
            {
                return self.give_up(&item.sample, &reserved, &retired, || Swept::Abandoned);
            }
            return Ok(nothing());
        };
        if let Some(live) = loaded.live(&self.layout().live(&item.sample))?
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
                    self.conclude(&item.sample, &live, after, move |_| Swept::TakenBack {
                        leases,
                        retired,
                    })
                }
            };
        }
        if let Some(retired) = loaded.retired(&self.layout().retired_with_readers(&item.sample, generation))?
            && let Verdict::Become(after) = retired.record.sweep(&sweep)
        {
            let leases = retired.record.readers.len() - after.readers.len();
            let swept = move || Swept::TakenBack { leases, retired: false };
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
            let record = Versioned {
                record: decode_retired(&entry)?,
                version: entry.version,
            };
            tasks.push(FreeTask {
                sample: SampleRef { sample, generation },
                description: None,
                record,
            });
        }
        for chunk in tasks.chunks_mut(self.kv().limits().operations) {
            let reads: Vec<Read> = chunk
                .iter()
                .map(|task| Read::Key(self.layout().description(&task.sample.sample, task.sample.generation)))
                .collect();
            let snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
            for (task, entries) in chunk.iter_mut().zip(snapshot.entries) {
                task.description = entries.into_iter().next().map(|entry| entry.value);
            }
        }
        Ok(tasks)
    }

    /// The objects of retired samples are gone: so are their records. Freed twice is freed once.
    pub(crate) async fn do_freed(&self, session: &Session, items: &[SampleRef], deadline: Deadline) -> Vec<Result<()>> {
        let keys = |item: &SampleRef| vec![self.free_key(item)];
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let key = self.free_key(item);
            let Some(entry) = loaded.entry(&key) else {
                return Ok(Decision {
                    conditions: Vec::new(),
                    writes: Vec::new(),
                    done: Box::new(|_| ()),
                });
            };
            let description = self.layout().description(&item.sample, item.generation);
            Ok(Decision {
                conditions: vec![Condition::Unchanged(key.clone(), entry.version)],
                writes: vec![Write::Delete(key), Write::Delete(description)],
                done: Box::new(|_| ()),
            })
        };
        let spent = |loaded: &Loaded, item: &SampleRef| -> Result<Option<(SessionId, u64)>> {
            let retired = loaded.retired(&self.free_key(item))?;
            Ok(retired.map(|retired| (retired.record.producer, retired.record.bytes)))
        };
        let credits = |these: &[&SampleRef], loaded: &Loaded| {
            let freed: Result<Vec<_>> = these
                .iter()
                .filter_map(|item| spent(loaded, item).transpose())
                .collect();
            self.give_back(&freed?, loaded)
        };
        let credit_keys = |loaded: &Loaded| {
            let mut keys = vec![self.layout().credits_free(), self.layout().waiting_since()];
            for item in items {
                keys.extend(spent(loaded, item)?.map(|(producer, _)| self.layout().account(producer)));
            }
            keys.sort_unstable();
            keys.dedup();
            Ok(keys)
        };
        let intent = Intent {
            operation: "index.freed",
            keys: &keys,
            decide: &decide,
            sets_deadlines: false,
            credits: Some(&credits),
            credit_keys: Some(&credit_keys),
        };
        self.batch(session, items, intent, None, deadline).await
    }

    /// Removing objects failed; that is recorded, and they are tried again.
    pub(crate) async fn do_free_failed(
        &self,
        session: &Session,
        items: &[SampleRef],
        deadline: Deadline,
    ) -> Vec<Result<()>> {
        let keys = |item: &SampleRef| vec![self.free_key(item)];
        let decide = |item: &SampleRef, loaded: &Loaded| match loaded.retired(&self.free_key(item))? {
            None => Ok(Decision {
                conditions: Vec::new(),
                writes: Vec::new(),
                done: Box::new(|_| ()),
            }),
            Some(retired) => self.drain(&item.sample, &retired, &retired.record.clone().free_failed(), || ()),
        };
        let intent = Intent {
            operation: "index.free_failed",
            keys: &keys,
            decide: &decide,
            sets_deadlines: false,
            credits: None,
            credit_keys: None,
        };
        self.batch(session, items, intent, None, deadline).await
    }

    fn free_key(&self, item: &SampleRef) -> String {
        self.layout().to_free(&item.sample, item.generation)
    }
}

fn nothing() -> Decision<Swept> {
    Decision {
        conditions: Vec::new(),
        writes: Vec::new(),
        done: Box::new(|_| Swept::Nothing),
    }
}
