//! A sweeper: reads, decides, writes if nothing has changed since. Several do so at once.
//!
//! Freeing is three steps, each of which may be the last one of a sweeper that dies: read that no reader is left,
//! remove the objects, delete the record and give the quota back.

use std::collections::BTreeSet;

use tensorhold_custody::invariants as lc;
use tensorhold_custody::{Acknowledged, SessionId, Sweep, Tick, Verdict};

use super::index::Reply;
use super::process::session;
use super::{Object, Sample, Scenario, World};

/// Which record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    Pending(Sample),
    Live(Sample),
    Retired(Object),
    /// A retired one whose objects may be removed.
    Freeable(Object),
}

/// What a sweeper has read of a retired record that it is about to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Free {
    pub(crate) object: Object,
    pub(crate) version: u64,
    producer: SessionId,
    bytes: u64,
}

/// Where a sweeper is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Sweeper {
    Idle,
    /// It has read this record, and before that the clock and which sessions are gone. That and the version make its
    /// decision.
    Looked {
        key: Key,
        version: u64,
        tick: Tick,
        gone: BTreeSet<SessionId>,
    },
    /// It has read that no reader is left on these objects.
    Freeing(Free),
    /// It has removed them, or been told that this failed.
    Removed {
        free: Free,
        failed: bool,
    },
}

impl World {
    /// What a sweep would find to do now, with what every process can know now.
    pub(crate) fn due(&self, scenario: &Scenario) -> Vec<Key> {
        let index = &self.index;
        let gone = |session: SessionId| index.gone.contains(&session);
        let sweep = Sweep {
            tick: index.tick,
            grace: scenario.grace,
            gone: &gone,
        };
        let mut due = Vec::new();
        for sample in 0..scenario.samples {
            if index
                .pending_of(sample)
                .is_some_and(|kept| kept.record.sweep(&sweep) != Verdict::Leave)
            {
                due.push(Key::Pending(sample));
            }
            if index
                .live_of(sample)
                .is_some_and(|kept| kept.record.sweep(&sweep) != Verdict::Leave)
            {
                due.push(Key::Live(sample));
            }
        }
        for (object, kept) in &index.retired {
            if kept.record.sweep(&sweep) != Verdict::Leave {
                due.push(Key::Retired(*object));
            }
            if kept.record.may_be_freed() || scenario.bugs.free_before_readers_end {
                due.push(Key::Freeable(*object));
            }
        }
        due
    }

    pub(crate) fn version_of(&self, key: Key) -> Option<u64> {
        match key {
            Key::Pending(sample) => self.index.pending_of(sample).map(|kept| kept.version),
            Key::Live(sample) => self.index.live_of(sample).map(|kept| kept.version),
            Key::Retired(object) | Key::Freeable(object) => self.index.retired.get(&object).map(|kept| kept.version),
        }
    }

    /// A sweeper reads a record.
    pub(crate) fn look(&self, key: Key) -> Sweeper {
        if let Key::Freeable(object) = key {
            return self.index.retired.get(&object).map_or(Sweeper::Idle, |kept| {
                Sweeper::Freeing(Free {
                    object,
                    version: kept.version,
                    producer: kept.record.producer,
                    bytes: kept.record.bytes,
                })
            });
        }
        self.version_of(key).map_or(Sweeper::Idle, |version| Sweeper::Looked {
            key,
            version,
            tick: self.index.tick,
            gone: self.index.gone.clone(),
        })
    }

    /// A sweeper writes what it has decided, if the record is still the one that it read.
    pub(crate) fn write(&mut self, scenario: &Scenario, sweeper: &Sweeper) {
        match sweeper {
            Sweeper::Idle | Sweeper::Freeing(_) => {}
            Sweeper::Looked {
                key,
                version,
                tick,
                gone,
            } => {
                if self.version_of(*key) == Some(*version) {
                    let gone = |session: SessionId| gone.contains(&session);
                    let sweep = Sweep {
                        tick: *tick,
                        grace: scenario.grace,
                        gone: &gone,
                    };
                    self.write_swept(*key, *version, &sweep);
                }
            }
            Sweeper::Removed { free, failed } => self.conclude_free(scenario, *free, *failed),
        }
    }

    fn write_swept(&mut self, key: Key, version: u64, sweep: &Sweep<'_>) {
        match key {
            Key::Pending(sample) => {
                let kept = self.index.pending_of(sample).map(|kept| kept.record.sweep(sweep));
                if let Some(Verdict::Become(retired)) = kept {
                    self.index.pending[usize::from(sample)] = None;
                    self.change_retired(sample, retired);
                }
            }
            Key::Live(sample) => {
                // The record is the one that was read, so the verdict is too.
                let reply = self.change_live(sample, version, None, |live| {
                    Ok(match live.sweep(sweep) {
                        Verdict::Become(next) => next,
                        Verdict::Leave => Acknowledged::Live(live),
                    })
                });
                debug_assert!(matches!(reply, Reply::Done(_)));
            }
            Key::Retired(object) | Key::Freeable(object) => {
                let kept = self.index.retired.get(&object).map(|kept| kept.record.sweep(sweep));
                if let Some(Verdict::Become(next)) = kept {
                    self.change_retired(object.sample, next);
                }
            }
        }
    }

    /// The objects go. A reader that is transferring them has torn bytes from now on.
    pub(crate) fn remove(&mut self, object: Object) {
        let in_use: Vec<_> = (0..self.processes.len())
            .filter(|process| !self.index.gone.contains(&session(*process)))
            .filter_map(|process| self.processes[process].lease_in_use(object, session(process)))
            .collect();
        let record = self.index.retired.get(&object).map(|kept| &kept.record);
        let safe = lc::free_is_safe(record, &in_use, self.index.tick);
        self.ghost.check(&lc::LC3, safe);
        self.vanish(object);
    }

    /// The objects are gone from the engine.
    pub(crate) fn vanish(&mut self, object: Object) {
        self.engine.remove(&object);
        for process in &mut self.processes {
            if let Some(hold) = process.hold.as_mut().filter(|hold| hold.object == object) {
                hold.whole = false;
            }
        }
    }

    /// Deletes the record and gives its quota back, both or neither; or records the failure.
    fn conclude_free(&mut self, scenario: &Scenario, free: Free, failed: bool) {
        let unchanged = self.version_of(Key::Retired(free.object)) == Some(free.version);
        if failed {
            if let Some(kept) = self.index.retired.get(&free.object).filter(|_| unchanged).cloned() {
                self.change_retired(free.object.sample, kept.record.free_failed());
            }
        } else if unchanged || scenario.bugs.quota_returned_twice {
            self.index.retired.remove(&free.object);
            self.index.deposits += free.bytes;
            self.ghost.freed(free.object);
        }
    }
}
