//! Quota: bytes are reserved before they are produced.
//!
//! A store has a budget. Sessions hold parts of it (`granted`) and spend them without coordination. Freed bytes
//! come back to the session that spent them or, if another session is waiting, go to the one that has waited longest.
//! So pressure slows producers down, and no put fails half-way for lack of room.
//!
//! ```text
//!            draw                    spend (reserve)               give back (freed)
//! free ───────────────▶ available ───────────────────▶ outstanding ──────────────────▶ available
//!   ▲  ▲                    │  ▲                                                  │
//!   │  └──── yield ─────────┘  └───────────── no session waits ───────────────────┤
//!   └──── the session has ended ──────────────────────────────────────────────────┤
//!                                                 available of the first in the queue
//! ```
//!
//! `granted = available + outstanding` for each session, and over all of them LC5: granted + free = budget, always.
//!
//! This is the specification, and what the model runs. An index keeps the same books, but without an account that has
//! to be written whenever a sample changes state: outstanding bytes are recorded in the samples' own records (`paid`),
//! and only a session's available bytes are stored separately. [`crate::invariants::budget_is_accounted_for`] states
//! the same for that form.

use std::collections::BTreeMap;

use holdfast_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::id::SessionId;

/// For serde: a record that was paid with nothing leaves the field out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "how serde calls it")]
pub(crate) fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// A session's part of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Account {
    /// Bytes of the budget that belong to this session.
    pub granted: u64,
    /// Of those, the bytes of samples that exist: reserved, live or not yet freed.
    pub outstanding: u64,
    /// Whether the session has ended. Then bytes that come back belong to no session.
    pub ended: bool,
}

const SPEND: &str = "credit.spend";

impl Account {
    /// The bytes that the session may spend now.
    pub fn available(&self) -> u64 {
        self.granted.saturating_sub(self.outstanding)
    }

    /// The session reserves bytes.
    pub fn spend(&mut self, bytes: u64) -> Result<()> {
        if self.ended {
            return Err(Error::new(ErrorKind::Fenced, SPEND, "the session has ended"));
        }
        if self.available() < bytes {
            return Err(Error::new(
                ErrorKind::Capacity,
                SPEND,
                "the session does not have that much quota; draw more first",
            )
            .with("available", self.available())
            .with("wanted", bytes));
        }
        self.outstanding += bytes;
        Ok(())
    }

    /// Whether the account can be forgotten.
    pub fn is_settled(&self) -> bool {
        self.ended && self.granted == 0 && self.outstanding == 0
    }
}

/// A session that waits for quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Want {
    /// The session that waits.
    pub session: SessionId,
    /// How many bytes it waits for.
    pub bytes: u64,
}

/// The budget of one store, and which session has how much of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    budget: u64,
    free: u64,
    accounts: BTreeMap<SessionId, Account>,
    /// First come, first served.
    waiting: Vec<Want>,
}

impl Ledger {
    /// A ledger whose whole budget is free.
    pub fn new(budget: u64) -> Self {
        Self {
            budget,
            free: budget,
            accounts: BTreeMap::new(),
            waiting: Vec::new(),
        }
    }

    /// The budget.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// The bytes that belong to no session.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// A session's account, if it has one.
    pub fn account(&self, session: SessionId) -> Option<&Account> {
        self.accounts.get(&session)
    }

    /// All accounts.
    pub fn accounts(&self) -> impl Iterator<Item = (SessionId, &Account)> {
        self.accounts.iter().map(|(session, account)| (*session, account))
    }

    /// The waiting sessions, longest wait first.
    pub fn waiting(&self) -> &[Want] {
        &self.waiting
    }

    /// A session asks for bytes. True if it has them now. Otherwise it waits in the queue, only once, for this many
    /// bytes.
    pub fn draw(&mut self, session: SessionId, bytes: u64) -> Result<bool> {
        if bytes > self.budget {
            return Err(Error::new(
                ErrorKind::Capacity,
                "credit.draw",
                "this is more than the whole budget and can never be granted; ask for less",
            )
            .with("wanted", bytes)
            .with("budget", self.budget)
            .with_retry(holdfast_core::Retry::Never));
        }
        let account = self.accounts.entry(session).or_default();
        if account.ended {
            return Err(Error::new(ErrorKind::Fenced, "credit.draw", "the session has ended"));
        }
        if account.available() >= bytes {
            return Ok(true);
        }
        match self.waiting.iter_mut().find(|want| want.session == session) {
            Some(want) => want.bytes = bytes,
            None => self.waiting.push(Want { session, bytes }),
        }
        self.serve();
        Ok(!self.waiting.iter().any(|want| want.session == session))
    }

    /// A session spends what it has drawn.
    pub fn spend(&mut self, session: SessionId, bytes: u64) -> Result<()> {
        self.accounts.entry(session).or_default().spend(bytes)
    }

    /// A sample of `session` is freed: its bytes come back.
    pub fn give_back(&mut self, session: SessionId, bytes: u64) {
        let Some(account) = self.accounts.get_mut(&session) else {
            return;
        };
        let bytes = bytes.min(account.outstanding);
        account.outstanding -= bytes;
        if account.ended || !self.waiting.is_empty() {
            account.granted -= bytes;
            self.free += bytes;
        }
        self.forget_if_settled(session);
        self.serve();
    }

    /// Gives back the bytes that a session has not spent.
    pub fn yield_unspent(&mut self, session: SessionId) {
        let Some(account) = self.accounts.get_mut(&session) else {
            return;
        };
        let unspent = account.available();
        account.granted -= unspent;
        self.free += unspent;
        self.serve();
    }

    /// A session no longer waits.
    pub fn stop_waiting(&mut self, session: SessionId) {
        self.waiting.retain(|want| want.session != session);
        self.serve();
    }

    /// A session has ended: its unspent bytes become free; the rest follows as its samples are freed. Calling it twice
    /// is the same as once.
    pub fn end(&mut self, session: SessionId) {
        self.waiting.retain(|want| want.session != session);
        if let Some(account) = self.accounts.get_mut(&session) {
            account.ended = true;
        }
        self.yield_unspent(session);
        self.forget_if_settled(session);
        self.serve();
    }

    fn forget_if_settled(&mut self, session: SessionId) {
        if self.accounts.get(&session).is_some_and(Account::is_settled) {
            self.accounts.remove(&session);
        }
    }

    /// Gives free bytes to the waiting sessions, in order. The first is not overtaken by a smaller request behind it.
    fn serve(&mut self) {
        while let Some(want) = self.waiting.first().copied() {
            let account = self.accounts.entry(want.session).or_default();
            let missing = want.bytes.saturating_sub(account.available());
            if missing > self.free {
                return;
            }
            account.granted += missing;
            self.free -= missing;
            self.waiting.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants;
    use proptest::prelude::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    #[test]
    fn what_comes_back_goes_to_whoever_waits_longest() {
        let mut ledger = Ledger::new(100);
        assert!(ledger.draw(A, 80).expect("drawn"));
        ledger.spend(A, 80).expect("spent");
        assert!(!ledger.draw(B, 50).expect("waits"));
        assert!(
            !ledger.draw(A, 30).expect("waits behind B"),
            "20 are free, but B is first"
        );
        ledger.give_back(A, 40);
        assert_eq!(
            ledger.account(B).map(Account::available),
            Some(50),
            "20 free and 30 of the 40"
        );
        assert_eq!(ledger.waiting(), [Want { session: A, bytes: 30 }]);
        ledger.give_back(A, 40);
        assert!(ledger.waiting().is_empty());
        assert_eq!(ledger.account(A).map(Account::available), Some(30));
    }

    #[test]
    fn a_dead_session_gives_back_the_rest_when_its_samples_are_freed() {
        let mut ledger = Ledger::new(100);
        assert!(ledger.draw(A, 60).expect("drawn"));
        ledger.spend(A, 40).expect("spent");
        ledger.end(A);
        ledger.end(A);
        assert_eq!(ledger.free(), 60);
        assert!(ledger.draw(A, 1).is_err(), "fenced");
        ledger.give_back(A, 40);
        assert_eq!((ledger.free(), ledger.account(A)), (100, None));
    }

    #[test]
    fn more_than_the_budget_is_refused_at_once() {
        let error = Ledger::new(10).draw(A, 11).expect_err("never");
        assert_eq!(
            (error.kind(), error.retry()),
            (ErrorKind::Capacity, holdfast_core::Retry::Never)
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Draw(u64, u64),
        Spend(u64, u64),
        GiveBack(u64, u64),
        Yield(u64),
        Stop(u64),
        End(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let who = || 1..4_u64;
        let much = || 0..70_u64;
        prop_oneof![
            (who(), much()).prop_map(|(s, b)| Step::Draw(s, b)),
            (who(), much()).prop_map(|(s, b)| Step::Spend(s, b)),
            (who(), much()).prop_map(|(s, b)| Step::GiveBack(s, b)),
            who().prop_map(Step::Yield),
            who().prop_map(Step::Stop),
            who().prop_map(Step::End),
        ]
    }

    proptest! {
        #[test]
        fn the_books_always_balance(steps in proptest::collection::vec(step(), 0..80)) {
            let mut ledger = Ledger::new(100);
            for step in steps {
                match step {
                    Step::Draw(s, b) => drop(ledger.draw(SessionId(s), b)),
                    Step::Spend(s, b) => drop(ledger.spend(SessionId(s), b)),
                    Step::GiveBack(s, b) => ledger.give_back(SessionId(s), b),
                    Step::Yield(s) => ledger.yield_unspent(SessionId(s)),
                    Step::Stop(s) => ledger.stop_waiting(SessionId(s)),
                    Step::End(s) => ledger.end(SessionId(s)),
                }
                prop_assert!(invariants::credits_add_up(&ledger), "{ledger:?}");
                if let Some(first) = ledger.waiting().first() {
                    let available = ledger.account(first.session).map_or(0, Account::available);
                    prop_assert!(ledger.free() + available < first.bytes, "the first could be served: {ledger:?}");
                }
            }
        }
    }
}
