//! Serving the line: what comes back, or is free, becomes the reservations of those who wait.
//!
//! To serve one who waits is one transaction, whoever sends it, on condition that the want is as it was read (so its session
//! is alive: the want vanishes with it), that nobody else is writing the samples, and that the clock stands where it stood:
//!
//! - the want goes, and `b/t/{session}` says how the wait ended;
//! - the reservations are there, in the name of the one who waited, and the note that leads a sweep to them.
//!
//! Dies the one who serves, nothing or all of this has happened. Dies the one who waited, a sweep finds the note. Is the
//! reply lost, the slot of the one who serves tells. Twice is once: the want is gone.
//!
//! A want that names a sample which another producer has begun to write meanwhile cannot be served. Whoever finds out (by
//! reading those samples when serving it has failed) takes it out of the line and tells why.

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_core::{Deadline, Error, Result, Retry};
use holdfast_custody::{SessionId, Tick, Version};

use super::Quota;
use super::balance::{as_read, bytes_in};
use super::local_queue::Taken;
use super::look::Look;
use super::share::{HEAD_OF_THE_LINE, share};
use super::wait_request::{Ending, WaitRequest, WaitResult, Waiter};
use crate::record::codec::{encode, unreadable};
use crate::record::grants::{GrantList, Holding};
use crate::record::layout::Layout;
use crate::store::{Condition, Entry, Read, TxnOutcome, Write};
use crate::txn::batch::{Moved, QuotaBudget};
use crate::txn::pages::MOST_BYTES;
use crate::txn::session::{Session, SlotClient};

const OPERATION: &str = "index.credits";

/// What is to be shared out, and how.
pub(super) struct Sharing<'a> {
    /// Bytes that come back in the same transaction.
    pub(super) back: u64,
    /// Who gets them, if they are enough: a place among those who can be served.
    pub(super) draw: &'a (dyn Fn(usize) -> Option<usize> + Sync),
    /// Samples of those in line that others were seen to write.
    pub(super) taken: &'a BTreeSet<String>,
    /// The shared clock.
    pub(super) clock: (Tick, Version),
    pub(super) room: QuotaBudget,
}

/// How it was shared out.
#[derive(Debug)]
pub(super) struct Division {
    pub(super) moved: Moved,
    /// What is free then.
    pub(super) free: u64,
    /// How many who were seen to wait are left in line.
    pub(super) left_in_line: usize,
    /// Where the samples lie that would be reserved by this: if it fails, they should be looked at.
    pub(super) reserving: Vec<String>,
}

/// One who gives, and the number of its next notes.
pub(super) struct Giver<'a> {
    pub(super) session: &'a Session,
    pub(super) quota: &'a Quota,
}

impl Giver<'_> {
    fn keys(&self, waiter: &Waiter) -> Vec<String> {
        waiter.want.in_its_way(self.quota.core.layout())
    }

    /// The want goes, and its owner is told how the wait ended.
    fn end(&self, waiter: &Waiter, ending: Ending) -> Result<Moved> {
        let told = WaitResult {
            since: waiter.since,
            ending,
        };
        Ok(Moved {
            conditions: vec![Condition::Unchanged(waiter.key.clone(), waiter.since)],
            writes: vec![
                Write::Delete(waiter.key.clone()),
                Write::Put {
                    key: self.quota.core.layout().wait_result(waiter.session),
                    value: encode(&told)?,
                    session: Some(waiter.session),
                },
            ],
        })
    }

    fn serve(&self, waiter: &Waiter, until: Tick) -> Result<Moved> {
        let (reservation, note) = self.reserve_for(waiter.session, &waiter.want, until)?;
        let mut moved = self.end(waiter, Ending::Reserved { until, note })?;
        moved.conditions.extend(reservation.conditions);
        moved.writes.extend(reservation.writes);
        Ok(moved)
    }

    /// The reservations that a session wants, paid for, and the note that leads a sweep to them. Returns its key.
    pub(super) fn reserve_for(&self, session: SessionId, want: &WaitRequest, until: Tick) -> Result<(Moved, String)> {
        let layout = self.quota.core.layout();
        let key = layout.grant_list(session, until, self.session.id(), self.session.grants.next());
        let (mut moved, mut note) = (Moved::default(), GrantList::default());
        for wish in &want.samples {
            moved.conditions.extend(wish.in_its_way(layout).map(Condition::Absent));
            moved.writes.extend(layout.put_claims(&wish.sample, &wish.claims));
            let record = wish.reserved(session, until);
            moved.writes.push(layout.put_reserved(&wish.sample, &record)?);
            note.add(Holding {
                sample: wish.sample.clone(),
                generation: None,
            });
        }
        moved.writes.push(Write::put(key.clone(), encode(&note)?));
        Ok((moved, key))
    }

    /// Serves those in the house from so many bytes, each on condition that its session is alive.
    pub(super) fn serve_house(
        &self,
        bytes: u64,
        (tick, clock_version): (Tick, Version),
        moved: &mut Moved,
        room: &mut QuotaBudget,
    ) -> Result<Vec<Taken>> {
        let layout = self.quota.core.layout();
        let until = tick.after(self.quota.core.config().reserve_ticks);
        room.operations = room.operations.saturating_sub(1);
        // Two may want the same sample: the second finds out when the first has it.
        let mut reserving = BTreeSet::new();
        let taken = self.quota.local_queue().take_along(bytes, |session, want| {
            let keys = want.in_its_way(layout);
            let (mut more, note) = self.reserve_for(session, want, until)?;
            more.conditions.push(Condition::Present(layout.alive(session)));
            let fits = !keys.iter().any(|key| reserving.contains(key)) && moved.add(more, room);
            reserving.extend(keys);
            Ok::<_, Error>(fits.then_some((until, note)))
        })?;
        if !taken.is_empty() {
            moved
                .conditions
                .push(Condition::Unchanged(layout.clock(), clock_version));
        }
        Ok(taken)
    }

    /// Shares out what comes back and what is free among those in line. They are there, so no purse is: see the module
    /// [`super`] for why; what nobody gets is free.
    pub(super) fn divide(&self, look: &Look, sharing: &Sharing<'_>) -> Result<Division> {
        let (tick, clock_version) = sharing.clock;
        let until = tick.after(self.quota.core.config().reserve_ticks);
        let mut moved = Moved::default();
        // What is free must be as it was seen, even if it is not touched: it decides who is served.
        let free = look.free()?;
        moved.conditions.push(as_read(&free.key, Some(free)));
        let mut room = sharing.room;
        room.operations = room.operations.saturating_sub(2);
        let mut add = |more: Moved| moved.add(more, &mut room);
        let mut open = Vec::with_capacity(look.line.len());
        let mut left_in_line = 0;
        for waiter in &look.line {
            let taken = |key: &String| sharing.taken.contains(key);
            if !self.keys(waiter).iter().any(taken) {
                open.push(waiter);
                continue;
            }
            let wishes = waiter.want.samples.iter();
            let samples = wishes.filter(|wish| wish.in_its_way(self.quota.core.layout()).any(|key| taken(&key)));
            let samples = samples.map(|wish| wish.sample.clone()).collect();
            left_in_line += usize::from(!add(self.end(waiter, Ending::Taken { samples })?));
        }
        let wants: Vec<u64> = open.iter().map(|waiter| waiter.want.bytes()).collect();
        let drawn = (sharing.draw)(open.len());
        let had = bytes_in(Some(free))?;
        // Two may want the same sample: the second finds out when the first has it.
        let mut reserving = BTreeSet::new();
        let shared = share(sharing.back, had, &wants, drawn, |place| {
            let keys = self.keys(open[place]);
            let fits = !keys.iter().any(|key| reserving.contains(key)) && add(self.serve(open[place], until)?);
            if fits {
                reserving.extend(keys);
            }
            Ok::<_, Error>(fits)
        })?;
        if !shared.served.is_empty() {
            let clock = self.quota.core.layout().clock();
            moved.conditions.push(Condition::Unchanged(clock, clock_version));
        }
        if shared.free != had {
            moved.writes.push(Write::put(&*free.key, shared.free.to_string()));
        }
        Ok(Division {
            free: shared.free,
            left_in_line: left_in_line + open.len() - shared.served.len(),
            reserving: reserving.into_iter().collect(),
            moved,
        })
    }
}

impl Quota {
    /// A random pause, longer from try to try: it keeps two who collide from doing so for ever.
    pub(super) async fn pause(&self, tries: u32) {
        let most = 200_u64 << tries.min(6);
        tokio::time::sleep(Duration::from_micros(self.core.rng().below(most))).await;
    }

    /// Serves those in line from what is free, longest first, for as long as that does, and then those in the house.
    pub(crate) async fn serve_line(&self, session: &Session, deadline: Deadline) -> Result<()> {
        let giver = Giver { session, quota: self };
        let mut taken = BTreeSet::new();
        let mut reserving = Vec::new();
        let mut tries = 0;
        while !deadline.passed(self.core.clock()) {
            let rest = reserving.drain(..).map(Read::Key);
            let snapshot = self.look_at_credits(session, HEAD_OF_THE_LINE, rest, deadline).await?;
            let look = self.looked(session, &snapshot)?;
            taken.extend(look.rest.iter().flatten().map(|entry| entry.key.clone()));
            if !look.could_serve()? {
                let is_more = look.line.is_empty() && self.free_to_the_house(session, &look, deadline).await?;
                match is_more {
                    true => continue,
                    false => return Ok(()),
                }
            }
            let limits = self.core.txn_store().limits();
            let sharing = Sharing {
                back: 0,
                draw: &|_| None,
                taken: &taken,
                clock: self.core.known_clock(deadline).await?,
                room: QuotaBudget {
                    operations: limits.operations - SlotClient::OVERHEAD,
                    bytes: limits.bytes,
                },
            };
            let division = giver.divide(&look, &sharing)?;
            if division.moved.writes.is_empty() {
                let message = "a want in line does not fit into a transaction";
                return Err(Error::internal(OPERATION, message));
            }
            let Moved { conditions, writes } = division.moved;
            match self
                .core
                .slots()
                .transact(OPERATION, session, conditions, writes, deadline)
                .await?
            {
                TxnOutcome::Committed(_) => taken.clear(),
                TxnOutcome::Rejected => {
                    reserving = division.reserving;
                    self.pause(tries).await;
                    tries += 1;
                }
            }
        }
        Err(Error::unavailable(
            OPERATION,
            "others kept coming first until the deadline; the next sweep serves those who wait",
        ))
    }

    /// Hands what is free to those in the house, nobody being in line. True if somebody was served.
    async fn free_to_the_house(&self, session: &Session, look: &Look, deadline: Deadline) -> Result<bool> {
        if self.local_queue().is_empty() {
            return Ok(false);
        }
        let giver = Giver { session, quota: self };
        let limits = self.core.txn_store().limits();
        let mut room = QuotaBudget {
            operations: limits.operations - SlotClient::OVERHEAD - 1,
            bytes: limits.bytes,
        };
        let free = look.free()?;
        let had = bytes_in(Some(free))?;
        let mut moved = Moved::default();
        let clock = self.core.known_clock(deadline).await?;
        let taken = giver.serve_house(had, clock, &mut moved, &mut room)?;
        if taken.is_empty() {
            return Ok(false);
        }
        let left = had - taken.iter().map(|taken| taken.bytes).sum::<u64>();
        moved.conditions.push(as_read(&free.key, Some(free)));
        moved.writes.push(Write::put(&*free.key, left.to_string()));
        let Moved { conditions, writes } = moved;
        let applied = self
            .core
            .slots()
            .transact(OPERATION, session, conditions, writes, deadline)
            .await;
        match &applied {
            Ok(TxnOutcome::Committed(version)) => taken.into_iter().for_each(|taken| taken.reserved(*version)),
            Err(error) if error.retry() == Retry::Ambiguous => drop(taken),
            Ok(TxnOutcome::Rejected) | Err(_) => taken.into_iter().for_each(Taken::not_reserved),
        }
        Ok(matches!(applied?, TxnOutcome::Committed(_)))
    }

    /// As [`Quota::serve_line`], for those who have done what they were asked to: if it fails, others will do it.
    pub(super) async fn serve_or_leave_it(&self, session: &Session, deadline: Deadline) {
        let left = deadline.remaining(self.core.clock());
        let Some(pass) = self.local_queue().serving.pass(left).await else {
            return;
        };
        match self.serve_line(session, deadline).await {
            Ok(()) => pass.finish(),
            Err(error) => {
                tracing::debug!(OPERATION, %error, "those who wait are served by the next who frees, or the next sweep");
            }
        }
    }

    /// What lies idle in purses becomes free. True if it did; false if one of them has changed.
    pub(super) async fn gather(
        &self,
        session: &Session,
        free: &Entry,
        purses: &[Entry],
        deadline: Deadline,
    ) -> Result<bool> {
        let mut total = bytes_in(Some(free))?;
        let mut conditions = vec![as_read(&free.key, Some(free))];
        let mut writes = Vec::with_capacity(purses.len() + 1);
        for purse in purses {
            total = total.saturating_add(bytes_in(Some(purse))?);
            conditions.push(as_read(&purse.key, Some(purse)));
            writes.push(Write::Delete(purse.key.clone()));
        }
        writes.push(Write::put(&*free.key, total.to_string()));
        let applied = self
            .core
            .slots()
            .transact(OPERATION, session, conditions, writes, deadline)
            .await?;
        Ok(matches!(applied, TxnOutcome::Committed(_)))
    }

    /// Purses and wants that cannot be read are set aside: one of them would stand in the way of all who look. Returns how
    /// many there were.
    pub(crate) async fn tidy_credits(&self, deadline: Deadline) -> Result<usize> {
        const MOST: usize = 10_000;
        let ranges = [self.core.layout().all_balances(), self.core.layout().shared_queue()];
        let keys = self.core.read_keys(ranges, MOST, deadline).await?.concat();
        let (entries, _) = self.core.read_values(&keys, MOST_BYTES, deadline).await?;
        let purses = self.core.layout().all_balances();
        let read = |entry: &Entry| {
            if purses.contains(&entry.key) {
                let no_name = || unreadable(&entry.key, "this is no key of a session's purse");
                Layout::session_of(&entry.key).ok_or_else(no_name)?;
                bytes_in(Some(entry)).map(|_| ())
            } else {
                Waiter::read(entry).map(|_| ())
            }
        };
        Ok(self.core.sort_out(entries, read, deadline).await?.quarantined)
    }

    /// Sessions have ended: what they had not spent is free.
    pub(crate) async fn end_purses(
        &self,
        session: &Session,
        ended: &BTreeSet<SessionId>,
        deadline: Deadline,
    ) -> Result<()> {
        let keys: Vec<String> = ended.iter().map(|id| self.core.layout().balance(*id)).collect();
        for chunk in keys.chunks(self.core.txn_store().limits().operations - SlotClient::OVERHEAD - 4) {
            let mut tries = 0;
            loop {
                let rest = chunk.iter().cloned().map(Read::Key);
                let snapshot = self.look_at_credits(session, 1, rest, deadline).await?;
                let look = self.looked(session, &snapshot)?;
                let purses: Vec<Entry> = look.rest.iter().flatten().cloned().collect();
                if purses.is_empty() || self.gather(session, look.free()?, &purses, deadline).await? {
                    break;
                }
                self.pause(tries).await;
                tries += 1;
                if deadline.passed(self.core.clock()) {
                    let message = "others kept changing the purses of the dead until the deadline";
                    return Err(Error::unavailable(OPERATION, message));
                }
            }
        }
        Ok(())
    }
}
