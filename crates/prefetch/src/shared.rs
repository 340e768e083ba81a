//! The throttle, shared by callers, waiters and workers: one lock, and who is woken when.

use std::time::Duration;

use tensorhold_core::{Clock, Deadline};

use crate::throttle::{Limits, Outcome, Throttle, TicketId};
use sync::{Condvar, Mutex};

#[derive(Debug)]
pub(crate) struct Shared {
    throttle: Mutex<Throttle>,
    /// A ticket is complete.
    complete: Condvar,
    /// There is something to begin, or the end has come.
    work: Condvar,
}

impl Shared {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            throttle: Mutex::new(Throttle::new(limits)),
            complete: Condvar::new(),
            work: Condvar::new(),
        }
    }

    /// Changes the throttle, and wakes whom that concerns.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Throttle) -> R) -> R {
        let (result, news) = {
            let mut throttle = sync::lock(&self.throttle);
            let result = act(&mut throttle);
            (result, throttle.take_news())
        };
        if news.tickets_complete {
            self.complete.notify_all();
        }
        if news.work {
            self.work.notify_all();
        }
        result
    }

    /// Waits until a ticket is complete, or the deadline has passed. Returns the outcomes so far.
    pub(crate) fn wait(&self, ticket: TicketId, clock: &dyn Clock, deadline: Deadline) -> Vec<Option<Outcome>> {
        let mut throttle = sync::lock(&self.throttle);
        loop {
            // No worker may be free to end what is out of time.
            let now = clock.now();
            throttle.sweep(now);
            if throttle.take_completed() {
                self.complete.notify_all();
            }
            let Some((outcomes, complete)) = throttle.ticket(ticket) else {
                return Vec::new();
            };
            let left = deadline.remaining(clock);
            if complete || left.is_zero() {
                return outcomes.to_vec();
            }
            let until_expiry = throttle.next_expiry().map_or(left, |at| at.since(now));
            throttle = sync::wait_for(&self.complete, throttle, left.min(until_expiry));
        }
    }

    /// Waits until there is something to do, but at most for `at_most`. Returns false if the end has come.
    pub(crate) fn wait_for_work(&self, clock: &dyn Clock, at_most: Duration) -> bool {
        let deadline = Deadline::after(clock, at_most);
        let mut throttle = sync::lock(&self.throttle);
        loop {
            if throttle.is_closed() {
                return false;
            }
            let now = clock.now();
            let until_look = throttle.next_look().map(|at| at.since(now));
            let left = deadline.remaining(clock);
            if throttle.has_work(now) || left.is_zero() || until_look.is_some_and(|left| left.is_zero()) {
                return true;
            }
            let wait = until_look.map_or(left, |until| until.min(left));
            throttle = sync::wait_for(&self.work, throttle, wait);
        }
    }
}

/// The lock and its condition variables. The tests of this crate use those of a checker that tries every interleaving.
mod sync {
    #[cfg(not(test))]
    pub(super) use parking_lot::{Condvar, Mutex, MutexGuard};

    #[cfg(test)]
    pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};

    #[cfg(not(test))]
    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }

    #[cfg(not(test))]
    pub(super) fn wait_for<'a, T>(
        condition: &Condvar,
        mut guard: MutexGuard<'a, T>,
        at_most: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        condition.wait_for(&mut guard, at_most);
        guard
    }

    #[cfg(test)]
    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("no panic under the lock")
    }

    /// Time does not pass in the checker: a wake-up that is lost is a deadlock there.
    #[cfg(test)]
    pub(super) fn wait_for<'a, T>(
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
        _at_most: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        condition.wait(guard).expect("no panic under the lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::{Priority, Want};
    use std::sync::Arc;
    use tensorhold_core::{ManualClock, ObjectKey, Timestamp};

    const LONG: Duration = Duration::from_secs(3600);

    fn shared() -> Arc<Shared> {
        Arc::new(Shared::new(Limits {
            queue: 4,
            begin_within: LONG,
            remember: LONG,
            cool_down: Duration::from_secs(1),
            look_every: Duration::from_millis(1),
            remember_resident: true,
        }))
    }

    fn want(key: &str) -> Want {
        Want {
            key: ObjectKey::new(key).expect("a key"),
            bytes: Some(1),
            ended: None,
        }
    }

    /// A worker that ends `count` attempts, or fewer if the end comes.
    fn work(shared: &Shared, count: usize) -> usize {
        let clock = ManualClock::new();
        let mut done = 0;
        while done < count && shared.wait_for_work(&clock, LONG) {
            for attempt in shared.with(|throttle| throttle.next(1, u64::MAX, Timestamp::ORIGIN)) {
                shared.with(|throttle| throttle.finish(attempt.id, Outcome::Resident, Timestamp::ORIGIN));
                done += 1;
            }
        }
        done
    }

    fn ask_and_wait(shared: &Shared, keys: &[&str]) -> Vec<&'static str> {
        let clock = ManualClock::new();
        let wants = keys.iter().map(|key| want(key)).collect();
        let ticket = shared.with(|throttle| throttle.trigger(wants, Priority::Guess, Timestamp::ORIGIN));
        let outcomes = shared.wait(ticket, &clock, Deadline::after(&clock, LONG));
        shared.with(|throttle| throttle.leave(ticket));
        let names = outcomes
            .iter()
            .map(|outcome| outcome.as_ref().map_or("none", Outcome::name));
        names.collect()
    }

    #[test]
    fn in_every_interleaving_two_that_ask_for_one_object_get_the_outcome_of_one_attempt() {
        loom::model(|| {
            let shared = shared();
            let asking = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || assert_eq!(ask_and_wait(&shared, &["a"]), ["resident"]))
            };
            let working = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || assert_eq!(work(&shared, 1), 1))
            };
            assert_eq!(ask_and_wait(&shared, &["a"]), ["resident"]);
            asking.join().expect("no panic");
            working.join().expect("no panic");
            shared.with(|throttle| {
                assert_eq!(throttle.check(), None);
                assert_eq!((throttle.counts().begun, throttle.counts().resident), (1, 2));
            });
        });
    }

    #[test]
    fn in_every_interleaving_a_waiter_is_woken_by_the_last_of_two_workers() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let shared = shared();
            let workers = [(); 2].map(|()| {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || work(&shared, 2))
            });
            assert_eq!(ask_and_wait(&shared, &["a", "b"]), ["resident", "resident"]);
            shared.with(|throttle| throttle.close(Timestamp::ORIGIN));
            let done: usize = workers.into_iter().map(|worker| worker.join().expect("no panic")).sum();
            assert_eq!(done, 2);
        });
    }

    #[test]
    fn in_every_interleaving_the_end_wakes_waiters_and_workers() {
        loom::model(|| {
            let shared = shared();
            let worker = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || work(&shared, 9))
            };
            let closer = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || shared.with(|throttle| throttle.close(Timestamp::ORIGIN)))
            };
            let outcome = ask_and_wait(&shared, &["a"]);
            assert!(outcome == ["resident"] || outcome == ["cancelled"], "{outcome:?}");
            closer.join().expect("no panic");
            worker.join().expect("no panic");
            shared.with(|throttle| assert_eq!(throttle.check(), None));
        });
    }

    #[test]
    fn in_every_interleaving_a_cancel_ends_what_was_not_begun_and_only_that() {
        loom::model(|| {
            let shared = shared();
            let clock = ManualClock::new();
            let ticket = shared
                .with(|throttle| throttle.trigger(vec![want("a"), want("b")], Priority::Guess, Timestamp::ORIGIN));
            let worker = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || work(&shared, 9))
            };
            shared.with(|throttle| throttle.cancel(ticket, Timestamp::ORIGIN));
            let outcomes = shared.wait(ticket, &clock, Deadline::after(&clock, LONG));
            assert!(
                outcomes
                    .iter()
                    .all(|outcome| { matches!(outcome, Some(Outcome::Resident | Outcome::Cancelled)) })
            );
            shared.with(|throttle| throttle.close(Timestamp::ORIGIN));
            worker.join().expect("no panic");
        });
    }
}
