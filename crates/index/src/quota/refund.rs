//! Freeing: the paid bytes of a record come back in the transaction that forgets it.
//!
//! Nobody waits: they go to the purse of the session that frees, on condition that nobody waits. Somebody does: they serve
//! those of the same process ([`super::local_queue`]) or one of those in line ([`super::serve`]), by lot; what is not enough is
//! free.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_core::{Deadline, Error, Result};
use holdfast_custody::{Retired, Version};
use parking_lot::Mutex;

use super::Quota;
use super::balance::{as_read, bytes_in, write_balance};
use super::local_queue::Taken;
use super::look::Look;
use super::serve::{Division, Giver, Sharing};
use super::share::{HEAD_OF_THE_LINE, draw};
use crate::record::types::SampleRef;
use crate::store::{Condition, Read, Snapshot};
use crate::txn::batch::{Loaded, Moved, QuotaBudget, QuotaChange};
use crate::txn::session::Session;

/// Paid bytes on their way back.
pub(crate) struct Refund<'a> {
    quota: &'a Quota,
    session: &'a Session,
    somebody_waits: bool,
    /// Whether those in the house come first.
    to_the_house: bool,
    /// Those of them whom the last transaction that was prepared serves.
    taken_along: Mutex<Vec<Taken>>,
    /// Where the samples lie that the last try would have reserved for those who wait.
    reserving: Mutex<Vec<String>>,
    after: Mutex<After>,
    /// Whether something is free that may serve somebody who was not seen.
    look_again: AtomicBool,
}

/// What is so when the last transaction that was prepared has been applied.
enum After {
    Nothing,
    InPurse { key: String, bytes: u64 },
    Shared { free: u64, left_in_line: usize },
}

impl QuotaChange<SampleRef> for Refund<'_> {
    fn reads(&self) -> Vec<Read> {
        let reserving = self.reserving.lock().clone();
        self.quota
            .look_for(self.session, HEAD_OF_THE_LINE, reserving.into_iter().map(Read::Key))
    }

    fn move_for(&self, items: &[&SampleRef], loaded: &Loaded, room: QuotaBudget) -> Result<Moved> {
        *self.after.lock() = After::Nothing;
        let mut back = 0_u64;
        for item in items {
            let retired = loaded.record::<Retired>(&self.quota.core.layout().free_key(item))?;
            back += retired.map_or(0, |retired| retired.record.paid);
        }
        let mut room = room;
        let mut moved = Moved::default();
        if self.to_the_house {
            back -= self.hand_to_the_house(back, loaded, &mut moved, &mut room)?;
        }
        if back == 0 {
            return Ok(moved);
        }
        let look = match &loaded.credits {
            Some(snapshot) => Some(self.quota.looked(self.session, snapshot)?),
            None => None,
        };
        let rest = match look {
            // A purse would be in the way of those of this process who are about to join the line.
            Some(look) if !look.line.is_empty() || self.quota.local_queue().is_in_line() => {
                self.to_the_line(back, &look, loaded, room)?
            }
            _ => self.to_the_purse(back)?,
        };
        moved.conditions.extend(rest.conditions);
        moved.writes.extend(rest.writes);
        Ok(moved)
    }

    fn moved(&self, version: Version) {
        self.taken_along
            .lock()
            .drain(..)
            .for_each(|taken| taken.reserved(version));
        match &*self.after.lock() {
            After::Nothing => {}
            After::InPurse { key, bytes } => self.session.balance.wrote(key, *bytes, version),
            After::Shared { free, left_in_line } => {
                self.reserving.lock().clear();
                self.quota.hints().saw_line(*left_in_line);
                if *free > 0 {
                    self.look_again.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    fn not_moved(&self, unclear: bool) {
        let taken: Vec<Taken> = self.taken_along.lock().drain(..).collect();
        if !unclear {
            taken.into_iter().for_each(Taken::not_reserved);
        }
    }
}

impl Refund<'_> {
    /// Serves those in the house. Returns how many bytes they get.
    fn hand_to_the_house(&self, back: u64, loaded: &Loaded, moved: &mut Moved, room: &mut QuotaBudget) -> Result<u64> {
        let clock = (loaded.tick, clock_of(loaded)?);
        let taken = self.giver().serve_house(back, clock, moved, room)?;
        let bytes = taken.iter().map(|taken| taken.bytes).sum();
        *self.taken_along.lock() = taken;
        Ok(bytes)
    }

    fn giver(&self) -> Giver<'_> {
        Giver {
            session: self.session,
            quota: self.quota,
        }
    }

    fn to_the_purse(&self, back: u64) -> Result<Moved> {
        let key = self.quota.core.layout().balance(self.session.id());
        // A look has been taken in; what was written since then is remembered too.
        let purse = self.session.balance.remembered();
        let bytes = bytes_in(purse.as_ref())?.saturating_add(back);
        let conditions = vec![
            as_read(&key, purse.as_ref()),
            Condition::NoneIn(self.quota.core.layout().shared_queue()),
        ];
        let writes = vec![write_balance(&key, bytes)];
        *self.after.lock() = After::InPurse { key, bytes };
        Ok(Moved { conditions, writes })
    }

    fn to_the_line(&self, back: u64, look: &Look, loaded: &Loaded, room: QuotaBudget) -> Result<Moved> {
        let giver = self.giver();
        let taken: BTreeSet<String> = look.rest.iter().flatten().map(|entry| entry.key.clone()).collect();
        let clock = clock_of(loaded)?;
        let Division {
            moved,
            free,
            left_in_line,
            reserving,
        } = giver.divide(
            look,
            &Sharing {
                back,
                draw: &|places| Some(draw(self.quota.core.rng(), places)),
                taken: &taken,
                clock: (loaded.tick, clock),
                room,
            },
        )?;
        *self.reserving.lock() = reserving;
        *self.after.lock() = After::Shared { free, left_in_line };
        Ok(moved)
    }
}

fn clock_of(loaded: &Loaded) -> Result<Version> {
    let unknown = || Error::internal("index.freed", "the shared clock is not known");
    loaded.clock.ok_or_else(unknown)
}

impl Quota {
    /// Paid bytes of `count` samples that are about to be freed.
    pub(crate) fn refund<'a>(&'a self, session: &'a Session, count: usize) -> Refund<'a> {
        let house = self.local_queue();
        let somebody_waits = self.hints().somebody_waits() || house.is_in_line();
        if somebody_waits {
            house.frees(count, self.core.clock());
        }
        Refund {
            quota: self,
            session,
            somebody_waits,
            to_the_house: !house.serves_line(self.hints().in_line(), self.core.rng()),
            taken_along: Mutex::default(),
            reserving: Mutex::default(),
            after: Mutex::new(After::Nothing),
            look_again: AtomicBool::new(false),
        }
    }
}

impl Refund<'_> {
    /// A look at the line, if what comes back is for those in it.
    pub(crate) async fn look(&self, deadline: Deadline) -> Result<Option<Snapshot>> {
        if !self.somebody_waits || self.to_the_house {
            return Ok(None);
        }
        if let Some(snapshot) = self.session.read_along.take(self.quota.core.clock()) {
            return Ok(Some(snapshot));
        }
        let look = self
            .quota
            .look_at_credits(self.session, HEAD_OF_THE_LINE, None, deadline);
        look.await.map(Some)
    }

    /// Serves those who may have joined the line since, if something is left for them.
    pub(crate) async fn finish(self, deadline: Deadline) {
        if self.look_again.into_inner() {
            self.quota.serve_or_leave_it(self.session, deadline).await;
        }
    }
}
