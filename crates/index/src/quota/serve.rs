//! Serving the shared queue: what is freed, or lies in deposits, becomes the reservations of processes that wait.
//!
//! A process that frees reserves for one that waits, in the transaction that frees: the waiting process is told that its
//! samples *are* reserved. To let it take the bytes itself would cost a transaction more, and either an event to every
//! waiting process or one process after the other (measured: docs/adr/0009).
//!
//! If every process that frees served the first in the queue, all but one would be refused and try again. So one of the
//! first [`HEAD`] is drawn, those in front more often, and gets what is freed if that is enough. What is not enough, or is
//! left over, serves the queue in order together with the deposits. So a large request is not passed over for ever.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tensorhold_core::{Deadline, Error, Result, Rng};
use tensorhold_custody::quota::{Deposit, share};

use super::Quota;
use super::draft::Draft;
use super::request::Queued;
use crate::record::codec::decode;
use crate::record::layout::Layout;
use crate::store::{Read, Snapshot, TxnOutcome};
use crate::txn::batch::Moved;
use crate::txn::session::Session;

const OPERATION: &str = "index.quota";

/// How many processes at the head of the queue may be drawn. The more, the fewer collide; the fewer, the less the longest
/// wait differs from others.
const HEAD: usize = 20;

/// The first in the queue is drawn at least once in so many times, which bounds how long any process waits.
const FIRST: u64 = 16;

/// How many deposits are looked at, and spent at most.
pub(super) const MOST_SPENT: usize = 24;

/// The queue and the deposits at one moment.
#[derive(Debug)]
pub(super) struct Look {
    /// The first processes in the queue that can be served. Left out is what cannot be decoded (a sweep sets it aside), and
    /// what wants more than the whole budget, which has shrunk since.
    pub(super) queue: Vec<Queued>,
    /// Whether nothing is in the queue, not even something that is left out.
    pub(super) is_empty: bool,
    pub(super) deposits: Vec<(String, Deposit)>,
    /// Whether there may be more deposits than were seen.
    more_deposits: bool,
    /// The keys that were asked about, and whether they are there.
    asked: BTreeMap<String, bool>,
}

impl Look {
    fn in_deposits(&self) -> u64 {
        let bytes = self.deposits.iter().map(|(_, deposit)| deposit.bytes);
        // Any client can write deposits.
        bytes.fold(0, u64::saturating_add)
    }

    /// Whether something can be done for the first in the queue. There may be more deposits than were seen.
    pub(super) fn could_serve_or_merge(&self) -> bool {
        self.could_serve() || !self.queue.is_empty() && self.more_deposits && self.deposits.len() > 1
    }

    fn is_there(&self, key: &str) -> bool {
        self.asked.get(key).is_some_and(|there| *there)
    }

    /// Whether a process in the queue is none: its session has ended, and a request of ours would have vanished with it.
    fn is_stray(&self, queued: &Queued, layout: &Layout) -> bool {
        self.asked.get(&layout.alive(queued.session)) == Some(&false)
    }

    /// Whether the deposits would serve the first in the queue.
    fn could_serve(&self) -> bool {
        let enough = |first: &Queued| first.want.bytes() <= self.in_deposits();
        self.queue.first().is_some_and(enough)
    }
}

/// Draws a place in the queue.
pub(super) fn draw(rng: &dyn Rng, places: usize) -> usize {
    if rng.below(FIRST) == 0 {
        return 0;
    }
    // The smaller of two: places further in front are drawn more often, evenly so.
    let bound = u64::try_from(places).unwrap_or(u64::MAX);
    usize::try_from(rng.below(bound).min(rng.below(bound))).unwrap_or(0)
}

impl Quota {
    pub(super) fn look_reads<'a>(&self, ask: impl IntoIterator<Item = &'a String>) -> Vec<Read> {
        let layout = self.core.layout();
        let mut reads = vec![
            Read::Oldest {
                keys: layout.shared_queue(),
                limit: HEAD,
            },
            Read::Oldest {
                keys: layout.deposits(),
                limit: MOST_SPENT,
            },
            Read::Key(layout.budget()),
            Read::Key(layout.clock()),
        ];
        reads.extend(ask.into_iter().cloned().map(Read::Key));
        reads
    }

    /// Takes in what a look showed, which also asked about some keys.
    pub(super) fn looked(&self, snapshot: &Snapshot, asked: &[String]) -> Result<Look> {
        let Some(([queue, deposits, budget, clock], rest)) = snapshot.entries.split_first_chunk::<4>() else {
            let message = "the store answered with too few or too many reads";
            return Err(Error::internal(OPERATION, message));
        };
        self.core.slots().saw(snapshot.version);
        self.core.note_tick(clock.first(), snapshot.version)?;
        if let Some(budget) = budget.first() {
            self.budget.store(decode(budget)?, Ordering::Relaxed);
        }
        self.others_wait.store(!queue.is_empty(), Ordering::Relaxed);
        let budget = self.budget.load(Ordering::Relaxed);
        let layout = self.core.layout();
        let can_be_served = |queued: &Queued| queued.want.bytes() <= budget;
        let requests = queue.iter().filter_map(|entry| Queued::read(layout, entry).ok());
        let readable = deposits.iter().filter_map(|entry| {
            let (bytes, version) = (decode(entry).ok()?, entry.version);
            Some((entry.key.clone(), Deposit { bytes, version }))
        });
        let is_there = rest.iter().map(|entries| !entries.is_empty());
        let mut look = Look {
            is_empty: queue.is_empty(),
            queue: requests.filter(can_be_served).collect(),
            deposits: readable.collect(),
            more_deposits: deposits.len() >= MOST_SPENT,
            asked: asked.iter().cloned().zip(is_there).collect(),
        };
        let queue = std::mem::take(&mut look.queue);
        look.queue = queue
            .into_iter()
            .filter(|queued| !look.is_stray(queued, layout))
            .collect();
        Ok(look)
    }

    /// What is to be asked about at the next look: also what was asked before, or two requests that cannot be served would
    /// each be forgotten for the other.
    pub(super) fn ask_also(&self, ask: &mut Vec<String>, more: Vec<String>) {
        ask.extend(more);
        ask.sort_unstable();
        ask.dedup();
        // A look, a clock and a session are read beside these.
        ask.truncate(self.core.txn_store().limits().operations.saturating_sub(8));
    }

    pub(super) async fn look(&self, ask: &[String], deadline: Deadline) -> Result<Look> {
        let left = deadline.remaining(self.core.clock());
        let snapshot = self.core.txn_store().read(&self.look_reads(ask), left).await?;
        self.looked(&snapshot, ask)
    }

    /// Shares out what is freed and the deposits among the processes in the queue. Returns what is left: it becomes a
    /// deposit.
    pub(super) fn divide(&self, look: &Look, freed: u64, drawn: Option<usize>, draft: &mut Draft<'_>) -> u64 {
        let layout = self.core.layout();
        let mut open = Vec::with_capacity(look.queue.len());
        for queued in &look.queue {
            let taken = queued.want.blocked(layout, |key| look.is_there(key));
            if taken.is_empty() {
                open.push(queued);
            } else {
                draft.refuse(queued, taken);
            }
        }
        let wants: Vec<u64> = open.iter().map(|queued| queued.want.bytes()).collect();
        let serve = |at: usize| draft.add_queued(open[at]);
        let shared = share(freed, look.in_deposits(), &wants, drawn, serve);
        if shared.spends_deposits {
            draft.spend(look.deposits.iter().cloned());
        }
        shared.rest
    }

    /// Serves the processes in the queue from the deposits, in order, for as long as these are enough.
    pub(crate) async fn serve_queue(&self, session: &Session, deadline: Deadline) -> Result<()> {
        let mut ask = Vec::new();
        let mut tries = 0;
        while !deadline.passed(self.core.clock()) {
            let look = self.look(&ask, deadline).await?;
            if !look.could_serve_or_merge() {
                return Ok(());
            }
            let clock = self.core.known_clock(deadline).await?;
            let mut draft = self.draft(session, clock);
            let rest = match look.could_serve() {
                true => self.divide(&look, 0, None, &mut draft),
                false => {
                    draft.spend(look.deposits.iter().cloned());
                    look.in_deposits()
                }
            };
            draft.deposit(self.new_deposit(session.id()), rest);
            if draft.does_nothing() {
                return Ok(());
            }
            self.ask_also(&mut ask, draft.to_ask());
            let (Moved { conditions, writes }, _) = draft.finish();
            let sent = self
                .core
                .slots()
                .transact(OPERATION, session, conditions, writes, deadline);
            match sent.await? {
                TxnOutcome::Committed(_) => {
                    ask.clear();
                    tries = 0;
                }
                TxnOutcome::Rejected => {
                    self.pause(tries).await;
                    tries += 1;
                }
            }
        }
        let message = "others kept coming first until the deadline; the next sweep serves the processes that wait";
        Err(Error::unavailable(OPERATION, message))
    }

    /// As [`Quota::serve_queue`], for a caller that has done what it was asked to: if it fails, others will do it.
    pub(crate) async fn serve_or_leave_it(&self, session: &Session, deadline: Deadline) {
        if let Err(error) = self.serve_queue(session, deadline).await {
            tracing::debug!(OPERATION, %error, "the next free or sweep serves the processes that wait");
        }
    }
}

#[cfg(test)]
mod tests {
    use tensorhold_core::SeededRng;

    use super::draw;

    #[test]
    fn every_place_is_drawn_and_those_in_front_more_often() {
        let rng = SeededRng::new(1);
        let mut drawn = [0_u32; 8];
        for _ in 0..8000 {
            drawn[draw(&rng, 8)] += 1;
        }
        assert!(drawn[0] > 1500 && drawn[7] > 50, "{drawn:?}");
        assert!(drawn[1] > drawn[6], "{drawn:?}");
        assert_eq!(draw(&rng, 0), 0);
        assert_eq!(draw(&rng, 1), 0);
    }
}
