//! Quota: bytes are reserved before they are produced.
//!
//! A store has a budget. Each of its bytes is in one of two places: in a *deposit*, which belongs to no process, or in
//! the record of a sample that was paid with it. A reservation takes deposits, a free makes one:
//!
//! ```text
//!              reserve: deposits go, the change is a new deposit
//! deposits ─────────────────────────────────────────────────────▶ paid bytes of a record
//!     ▲                                                               │ freed
//!     ├───────────── no waiter of the freeing process ────────────────┤
//!     │                                                               ▼
//!     └── what is left ◀── reserved for its first waiters, in the transaction that frees
//! ```
//!
//! A process whose reservations find too little waits: in its own memory, in the order of arrival, and with one key in
//! the queue that all processes share. Its [`Broker`] decides for all of them. It holds no bytes, so a process that dies
//! takes none with it, and there is nothing to return.
//!
//! # Who is served
//! - *Nobody waits*: the first who needs them. A transaction that takes deposits requires that the shared queue is empty.
//! - *Processes wait*: a process that frees reserves for one of the first in the queue, drawn, in the transaction that
//!   frees; what is left over serves the queue in order, together with the deposits ([`share`]).
//! - *A process that frees* serves its own waiters first, since that costs nothing, but not for ever: its first waiter is in
//!   the shared queue, and once that one has waited more than [`PATIENCE`] times as long as the next, what the process
//!   frees is for the queue. Ages are differences of versions, the clock that all processes share.
//!
//! # What must hold
//! - LC5: deposits + paid bytes = budget, after every transaction.
//! - A waiter is served once: it is taken from the broker before the transaction that serves it is sent.
//! - A waiter is not overtaken by one that arrived later at the same process, nor for ever by those of another.
//!
//! # What if
//! - *a transaction is refused*: its waiters return to their places. Its deposits are forgotten; the next look finds them.
//! - *its outcome stays ambiguous*: its waiters are told that, and find their reservations by reading.
//! - *a waiter leaves*: it is taken out. If it is being served, its reservation expires like any other.
//! - *a process dies*: its key in the queue vanishes with its session, and with it its waiters.

use std::collections::{BTreeMap, VecDeque};

use crate::id::Version;

/// For serde: a record that was paid with nothing leaves the field out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "how serde calls it")]
pub(crate) fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// How much longer than its own first waiter a process lets others wait. See the module documentation.
pub const PATIENCE: u64 = 2;

/// A process merges deposits of its own when it knows so many, and so many at a time.
const MOST_OWN: usize = 32;
const MERGED: usize = 8;

/// Bytes of the budget that no sample was paid with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deposit {
    /// How many.
    pub bytes: u64,
    /// The version at which the deposit was made.
    pub version: Version,
}

/// A reservation that waits for bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiter<W> {
    /// Its place among those of its process.
    pub number: u64,
    /// How many bytes it waits for.
    pub bytes: u64,
    /// The version of the store when it came, as far as its process knew.
    pub since: Version,
    /// Whether a transaction that was to serve it was refused: it is looked at before it is served again.
    pub doubtful: bool,
    /// What it waits for.
    pub what: W,
}

/// What one transaction is to do: serve these waiters with these deposits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Payment<K, W> {
    /// The waiters that are served, first come first.
    pub waiters: Vec<Waiter<W>>,
    /// The deposits that are spent.
    pub deposits: Vec<(K, Deposit)>,
    /// What is left of them: it becomes a new deposit.
    pub change: u64,
}

/// The waiters of one process, and what it knows of deposits and of its place in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Broker<K, W> {
    waiting: VecDeque<Waiter<W>>,
    arrived: u64,
    /// Deposits that this process made and that, as far as it knows, nobody has taken.
    own: BTreeMap<K, Deposit>,
    /// If its key is in the shared queue: since when the waiter that it is for has waited.
    place: Option<Version>,
}

impl<K, W> Default for Broker<K, W> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            arrived: 0,
            own: BTreeMap::new(),
            place: None,
        }
    }
}

impl<K: Ord + Clone, W> Broker<K, W> {
    /// A reservation has to wait until it is served. Returns its number.
    pub fn arrive(&mut self, bytes: u64, now: Version, what: W) -> u64 {
        self.arrived += 1;
        let number = self.arrived;
        self.waiting.push_back(Waiter {
            number,
            bytes,
            since: now,
            doubtful: false,
            what,
        });
        number
    }

    /// A waiter leaves. None if it is being served, or was.
    pub fn leave(&mut self, number: u64) -> Option<Waiter<W>> {
        let at = self.waiting.iter().position(|waiter| waiter.number == number)?;
        self.waiting.remove(at)
    }

    /// A waiter was not served after all: it returns to its place.
    pub fn put_back(&mut self, waiter: Waiter<W>) {
        let behind = |other: &Waiter<W>| other.number > waiter.number;
        let at = self.waiting.iter().position(behind).unwrap_or(self.waiting.len());
        self.waiting.insert(at, waiter);
    }

    /// Takes out the first waiter whose transaction was refused, to look at what is in its way.
    pub fn take_doubtful(&mut self) -> Option<Waiter<W>> {
        let at = self.waiting.iter().position(|waiter| waiter.doubtful)?;
        self.waiting.remove(at)
    }

    /// Takes out the waiter that has waited longest, to wait in the shared queue.
    pub fn take_first(&mut self) -> Option<Waiter<W>> {
        self.waiting.pop_front()
    }

    /// The one that has waited longest.
    pub fn first(&self) -> Option<&Waiter<W>> {
        self.waiting.front()
    }

    /// The process's key is in the queue, for a waiter that came at a version; or it is there no longer.
    pub fn in_queue(&mut self, since: Option<Version>) {
        self.place = since;
    }

    /// Whether its key is in the queue.
    pub fn is_in_queue(&self) -> bool {
        self.place.is_some()
    }

    /// A deposit that this process has made.
    pub fn made(&mut self, key: K, deposit: Deposit) {
        self.own.insert(key, deposit);
    }

    /// As [`Broker::pay`], with deposits that this process has made, oldest first. Nothing has to be read for that.
    pub fn pay_from_own(&mut self, most: usize, fits: impl FnMut(&Waiter<W>) -> bool) -> Option<Payment<K, W>> {
        let mut own: Vec<_> = self.own.iter().map(|(key, deposit)| (key.clone(), *deposit)).collect();
        own.sort_by_key(|(_, deposit)| deposit.version);
        let payment = self.pay(&own, most, fits)?;
        for (key, _) in &payment.deposits {
            self.own.remove(key);
        }
        Some(payment)
    }

    /// Whether what this process frees is for its own waiters.
    pub fn feeds_its_own(&self, now: Version) -> bool {
        let age = |since: Version| now.0.saturating_sub(since.0);
        match (self.place, self.waiting.front()) {
            (_, None) => false,
            (Some(since), Some(first)) => age(since) <= PATIENCE.saturating_mul(age(first.since)),
            (None, Some(_)) => true,
        }
    }

    /// The process frees so many bytes: takes out the waiters that these serve, in order, for as long as `fits` has room.
    pub fn feed(&mut self, mut freed: u64, now: Version, mut fits: impl FnMut(&Waiter<W>) -> bool) -> Vec<Waiter<W>> {
        let mut served = Vec::new();
        if !self.feeds_its_own(now) {
            return served;
        }
        while let Some(first) = self.waiting.front()
            && first.bytes <= freed
            && !first.doubtful
            && fits(first)
            && let Some(first) = self.waiting.pop_front()
        {
            freed -= first.bytes;
            served.push(first);
        }
        served
    }

    /// Deposits to merge into one that this process makes, if it has made too many.
    pub fn merge(&mut self) -> Vec<(K, Deposit)> {
        if self.own.len() < MOST_OWN {
            return Vec::new();
        }
        let keys: Vec<K> = self.own.keys().take(MERGED).cloned().collect();
        let take = |key: K| self.own.remove_entry(&key);
        keys.into_iter().filter_map(take).collect()
    }

    /// Takes out the first waiters that these deposits serve, in order, for as long as `fits` has room, and the deposits
    /// that are needed for them, at most `most` of them. None if they do not even serve the first.
    pub fn pay(
        &mut self,
        deposits: &[(K, Deposit)],
        most: usize,
        mut fits: impl FnMut(&Waiter<W>) -> bool,
    ) -> Option<Payment<K, W>> {
        let mut payment = Payment {
            waiters: Vec::new(),
            deposits: Vec::new(),
            change: 0,
        };
        let mut rest = deposits.iter().take(most);
        while let Some(first) = self.waiting.front()
            && !first.doubtful
        {
            let mut more = Vec::new();
            let mut bytes = payment.change;
            while bytes < first.bytes
                && let Some(deposit) = rest.next()
            {
                bytes = bytes.saturating_add(deposit.1.bytes);
                more.push(deposit.clone());
            }
            if bytes < first.bytes || !fits(first) {
                break;
            }
            let Some(first) = self.waiting.pop_front() else { break };
            payment.change = bytes - first.bytes;
            payment.deposits.extend(more);
            payment.waiters.push(first);
        }
        (!payment.waiters.is_empty()).then_some(payment)
    }
}

/// How bytes are shared out among the processes in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shared {
    /// The places that are served.
    pub served: Vec<usize>,
    /// Whether the deposits that were there are spent on it.
    pub spends_deposits: bool,
    /// What is left: it becomes a deposit.
    pub rest: u64,
}

/// Shares out what is freed, and the deposits that there are, among processes that want so many bytes each, longest
/// first. If every process that frees served the first one, all but one would be refused; so one is `drawn`, and gets
/// what is freed if that is enough. What is not enough for it, or is left over, serves the others in order together with
/// the deposits, for as long as that does: so a large request is not passed over for ever. `serve` says whether there
/// was room for one.
pub fn share(
    freed: u64,
    deposits: u64,
    wants: &[u64],
    drawn: Option<usize>,
    mut serve: impl FnMut(usize) -> bool,
) -> Shared {
    let mut served = Vec::new();
    let mut freed = freed;
    if let Some(at) = drawn
        && wants.get(at).is_some_and(|bytes| *bytes <= freed)
        && serve(at)
    {
        freed -= wants[at];
        served.push(at);
    }
    let mut left = freed.saturating_add(deposits);
    for (at, bytes) in wants.iter().enumerate() {
        if served.contains(&at) {
            continue;
        }
        if *bytes > left || !serve(at) {
            break;
        }
        left -= bytes;
        served.push(at);
    }
    // Deposits that are not needed are not touched: another process may be spending them.
    let spends_deposits = left < deposits;
    Shared {
        served,
        spends_deposits,
        rest: if spends_deposits { left } else { left - deposits },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn deposit(bytes: u64, version: u64) -> Deposit {
        Deposit {
            bytes,
            version: Version(version),
        }
    }

    fn broker(waits: &[u64]) -> Broker<u32, &'static str> {
        let mut broker = Broker::default();
        for (at, bytes) in (0..).zip(waits) {
            broker.arrive(*bytes, Version(10 + at), "w");
        }
        broker
    }

    fn numbers<W>(waiters: &[Waiter<W>]) -> Vec<u64> {
        waiters.iter().map(|waiter| waiter.number).collect()
    }

    #[test]
    fn what_is_freed_serves_the_first_waiters_in_order() {
        let mut broker = broker(&[4, 3, 9]);
        assert_eq!(numbers(&broker.feed(8, Version(20), |_| true)), [1, 2]);
        assert!(
            broker.feed(8, Version(20), |_| true).is_empty(),
            "the first is not passed over"
        );
        let mut none = broker.feed(9, Version(20), |_| false);
        assert!(none.is_empty(), "no room in the transaction");
        none.extend(broker.leave(3));
        broker.arrive(1, Version(30), "later");
        broker.put_back(none.remove(0));
        assert_eq!(broker.first().map(|first| first.number), Some(3), "back in its place");
    }

    #[test]
    fn a_process_serves_its_own_only_while_others_have_not_waited_much_longer() {
        let mut broker = broker(&[4]);
        broker.in_queue(Some(Version(0)));
        assert!(broker.feeds_its_own(Version(20)), "20 old, and its own is 10 old");
        assert!(!broker.feeds_its_own(Version(19)), "19 old, and its own is 9 old");
        broker.in_queue(None);
        assert!(broker.feeds_its_own(Version(19)));
    }

    #[test]
    fn a_waiter_in_doubt_is_looked_at_before_it_is_served() {
        let mut broker = broker(&[4]);
        let mut taken = broker.feed(4, Version(20), |_| true);
        taken[0].doubtful = true;
        broker.put_back(taken.remove(0));
        assert!(broker.feed(4, Version(20), |_| true).is_empty());
        assert_eq!(broker.pay(&[(1, deposit(9, 1))], 8, |_| true), None);
        assert_eq!(broker.take_doubtful().map(|waiter| waiter.number), Some(1));
    }

    #[test]
    fn own_deposits_are_spent_oldest_first_and_merged_when_there_are_many() {
        let mut broker = broker(&[5]);
        broker.made(7, deposit(3, 4));
        broker.made(8, deposit(3, 2));
        broker.made(9, deposit(3, 9));
        let payment = broker.pay_from_own(8, |_| true).expect("enough");
        let spent: Vec<u32> = payment.deposits.iter().map(|(key, _)| *key).collect();
        assert_eq!((spent, payment.change), (vec![8, 7], 1));
        assert_eq!(broker.merge(), []);
        for key in 100..140 {
            broker.made(key, deposit(1, 1));
        }
        assert_eq!(broker.merge().len(), MERGED);
    }

    #[test]
    fn the_one_drawn_gets_what_is_freed_and_the_first_what_is_kept() {
        let shared = |freed, deposits, wants: &[u64], drawn| {
            let Shared {
                served,
                spends_deposits,
                rest,
            } = share(freed, deposits, wants, drawn, |_| true);
            (served, spends_deposits, rest)
        };
        assert_eq!(shared(4, 0, &[4, 4, 4], Some(2)), (vec![2], false, 0));
        assert_eq!(
            shared(4, 3, &[9, 4], Some(1)),
            (vec![1], false, 0),
            "3 are kept for the first"
        );
        assert_eq!(
            shared(4, 5, &[9, 4], Some(0)),
            (vec![0], true, 0),
            "together it is enough"
        );
        assert_eq!(shared(4, 3, &[9, 4], Some(0)), (vec![], false, 4), "not enough yet");
        assert_eq!(shared(9, 0, &[4, 4, 4], Some(1)), (vec![1, 0], false, 1));
        assert_eq!(shared(0, 9, &[4, 4, 4], None), (vec![0, 1], true, 1));
    }

    proptest! {
        #[test]
        fn sharing_makes_and_loses_nothing_and_the_first_is_blocked(
            freed in 0..40_u64, deposits in 0..40_u64, wants in proptest::collection::vec(1..20_u64, 0..6), drawn in 0..6_usize,
        ) {
            let shared = share(freed, deposits, &wants, Some(drawn), |_| true);
            let served: u64 = shared.served.iter().map(|at| wants[*at]).sum();
            let left = if shared.spends_deposits { 0 } else { deposits };
            prop_assert_eq!(freed + deposits, served + left + shared.rest);
            let first = (0..wants.len()).find(|at| !shared.served.contains(at));
            prop_assert!(first.is_none_or(|at| wants[at] > left + shared.rest), "the first could be served");
        }

        #[test]
        fn a_payment_makes_and_loses_nothing(
            waits in proptest::collection::vec(1..20_u64, 1..6), deposits in proptest::collection::vec(1..20_u64, 0..8),
            most in 1..8_usize,
        ) {
            let mut broker = broker(&waits);
            let known: Vec<(u32, Deposit)> = (0..).zip(&deposits).map(|(key, bytes)| (key, deposit(*bytes, 1))).collect();
            match broker.pay(&known, most, |_| true) {
                None => prop_assert!(deposits.iter().take(most).sum::<u64>() < waits[0]),
                Some(payment) => {
                    let spent: u64 = payment.deposits.iter().map(|(_, deposit)| deposit.bytes).sum();
                    let served: u64 = payment.waiters.iter().map(|waiter| waiter.bytes).sum();
                    prop_assert_eq!(spent, served + payment.change);
                    prop_assert!(payment.deposits.len() <= most);
                    prop_assert_eq!(numbers(&payment.waiters), (1..=payment.waiters.len() as u64).collect::<Vec<_>>());
                }
            }
        }
    }
}
