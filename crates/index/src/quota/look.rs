//! A look at the credits: what is free, what the session's own purse has, and who waits. All of one moment.

use holdfast_core::{Deadline, Error, Result};
use holdfast_custody::Version;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Quota;
use super::balance::bytes_in;
use super::wait_request::Waiter;
use crate::store::{Entry, Read, Snapshot};
use crate::txn::session::Session;

/// What was seen.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) version: Version,
    /// `b/free`; none if the store has no budget.
    free: Option<Entry>,
    /// The session's own purse.
    pub(super) own: Option<Entry>,
    /// Who waits, longest first, as far as was asked for.
    pub(super) line: Vec<Waiter>,
    /// What else was asked for.
    pub(super) rest: Vec<Vec<Entry>>,
}

impl Look {
    pub(super) fn read(snapshot: &Snapshot) -> Result<Self> {
        let Some(([free, own, line], rest)) = snapshot.entries.split_first_chunk::<3>() else {
            return Err(Error::internal(
                "index.credits",
                "the store answered another number of reads",
            ));
        };
        let line: Result<Vec<_>> = line.iter().map(Waiter::read).collect();
        Ok(Self {
            version: snapshot.version,
            free: free.first().cloned(),
            own: own.first().cloned(),
            line: line?,
            rest: rest.to_vec(),
        })
    }

    /// `b/free`, in a store that has a budget.
    pub(super) fn free(&self) -> Result<&Entry> {
        self.free
            .as_ref()
            .ok_or_else(|| Error::internal("index.credits", "samples were paid for, but the store has no budget"))
    }

    /// Whether what is free would serve the first in line.
    pub(super) fn could_serve(&self) -> Result<bool> {
        let free = bytes_in(self.free.as_ref())?;
        Ok(self.line.first().is_some_and(|first| first.want.bytes() <= free))
    }
}

/// What a process knows of the store's credits. Guesses that save a look: whoever goes by them makes them a condition.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// How many were last seen in line, as far as was looked, and who of this process has joined it since.
    in_line: AtomicUsize,
}

impl Hints {
    pub(super) fn somebody_waits(&self) -> bool {
        self.in_line() > 0
    }

    /// About how many wait in line.
    pub(super) fn in_line(&self) -> usize {
        self.in_line.load(Ordering::Relaxed)
    }

    pub(super) fn saw_line(&self, waiting: usize) {
        self.in_line.store(waiting, Ordering::Relaxed);
    }

    pub(super) fn joined_line(&self) {
        self.in_line.fetch_add(1, Ordering::Relaxed);
    }
}

impl Quota {
    /// What a look asks for: the first `places` in line, and whatever else.
    pub(super) fn look_for(&self, session: &Session, places: usize, rest: impl IntoIterator<Item = Read>) -> Vec<Read> {
        let mut reads = vec![
            Read::Key(self.core.layout().credits_free()),
            Read::Key(self.core.layout().balance(session.id())),
            Read::Oldest {
                keys: self.core.layout().shared_queue(),
                limit: places,
            },
        ];
        reads.extend(rest);
        reads
    }

    /// Takes in what a look showed.
    pub(super) fn looked(&self, session: &Session, snapshot: &Snapshot) -> Result<Look> {
        let look = Look::read(snapshot)?;
        session.balance.saw(look.version, look.own.clone());
        self.hints().saw_line(look.line.len());
        Ok(look)
    }

    /// Looks, at the shared clock too.
    pub(super) async fn look_at_credits(
        &self,
        session: &Session,
        places: usize,
        rest: impl IntoIterator<Item = Read>,
        deadline: Deadline,
    ) -> Result<Snapshot> {
        let mut reads = self.look_for(session, places, rest);
        reads.push(Read::Key(self.core.layout().clock()));
        let mut snapshot = self
            .core
            .txn_store()
            .read(&reads, deadline.remaining(self.core.clock()))
            .await?;
        if let Some(clock) = snapshot.entries.pop() {
            self.core.note_tick(clock.first(), snapshot.version)?;
        }
        Ok(snapshot)
    }
}
