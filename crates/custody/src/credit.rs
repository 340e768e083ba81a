//! Credits: bytes are set aside before they are made.
//!
//! A store has a budget. Sessions hold parts of it (`granted`) and spend them without asking anybody; what is freed comes
//! back to the session that spent it, or, if somebody is waiting, to whoever has waited longest. So pressure slows
//! producers down, and no put fails half-way for lack of room.
//!
//! ```text
//!            draw                    spend (reserve)               give back (freed)
//! free ───────────────▶ available ───────────────────▶ outstanding ──────────────────▶ available
//!   ▲  ▲                    │  ▲                                                  │
//!   │  └──── yield ─────────┘  └───────────── nobody waits ───────────────────────┤
//!   └──── the session has ended ──────────────────────────────────────────────────┤
//!                                                        available of the first who waits
//! ```
//!
//! `granted = available + outstanding` for each session, and over all of them LC5: granted + free = budget, always.
//!
//! This is the specification, and what the model runs. An index keeps the same books without an account that is written
//! whenever a sample moves on: what is outstanding stands in the records themselves (`paid`), and only what a session has
//! available is kept apart. [`crate::invariants::budget_is_accounted_for`] says the same of those.

use std::collections::BTreeMap;

use holdfast_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::id::SessionId;

/// For records: nothing paid is nothing said.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "how serde calls it")]
pub(crate) fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// What one session holds of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Account {
    /// Bytes of the budget that are this session's.
    pub granted: u64,
    /// Of those, the bytes behind samples that exist: reserved, live or not yet freed.
    pub outstanding: u64,
    /// Whether the session has ended: what comes back is nobody's.
    pub ended: bool,
}

const SPEND: &str = "credit.spend";

impl Account {
    /// What the session may spend now.
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
                "the session has not that many credits; draw some",
            )
            .with("available", self.available())
            .with("wanted", bytes));
        }
        self.outstanding += bytes;
        Ok(())
    }

    /// Whether it can be forgotten.
    pub fn is_settled(&self) -> bool {
        self.ended && self.granted == 0 && self.outstanding == 0
    }
}

/// A session that waits for credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Want {
    /// Who waits.
    pub session: SessionId,
    /// For how much.
    pub bytes: u64,
}

/// The budget of one store and who has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    budget: u64,
    free: u64,
    accounts: BTreeMap<SessionId, Account>,
    /// First come, first served.
    waiting: Vec<Want>,
}

impl Ledger {
    /// All of the budget is free.
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

    /// What is nobody's.
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

    /// Who waits, longest first.
    pub fn waiting(&self) -> &[Want] {
        &self.waiting
    }

    /// A session asks for bytes. True if it has them now; else it waits in line, once, for this much.
    pub fn draw(&mut self, session: SessionId, bytes: u64) -> Result<bool> {
        if bytes > self.budget {
            return Err(Error::new(
                ErrorKind::Capacity,
                "credit.draw",
                "this is more than the whole budget; it can never be had",
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

    /// A sample of `session`'s is freed: its bytes come back.
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

    /// A session does not need what it has not spent.
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

    /// A session has ended: what it had not spent is free; the rest follows as its samples are freed. Twice is once.
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

    /// Gives what is free to those who wait, in order. The first is not passed over for a smaller want behind it.
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
