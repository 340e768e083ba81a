//! The task of a process: pays for its waiters, and waits in the shared queue for the first of them.
//!
//! ```text
//!              deposits are enough, and the queue is empty
//!   ┌──────────────────────────────────────────┐
//!   ▼                                          │
//! (starts) ──▶ look ──too little, or others wait──▶ join ──▶ in the queue ──told──▶ reserved, or refused
//!   ▲                                                           │   └── its caller leaves: withdrawn
//!   └─────────────────── others of this process wait ◀──────────┘
//! ```
//! One waiter at a time is in the shared queue: the first. What the process frees serves those behind it meanwhile.
//! Whatever is unclear is read, never guessed: the request is there (still in the queue), or `b/t` has an answer to
//! exactly this wait, or neither, and then the session has ended.
//!
//! # What if
//! - *the process dies*: its request vanishes with its session. The next sweep serves the first in the queue then.
//! - *the reply to joining is lost*: the slot tells. If it does not, the request may be in the queue, now or later; the
//!   session's next wait finds it in its way and withdraws it, or finds that it was served: that reservation expires.
//! - *withdrawing and serving meet*: one of the two transactions comes first. Served is served.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorhold_core::{Deadline, Error, ErrorKind, Result, Retry};
use tensorhold_custody::quota::{Deposit, Payment, Waiter};
use tensorhold_custody::{Reserved, Tick, Version};

use super::draft::Draft;
use super::request::{Ending, WaitResult};
use super::serve::MOST_SPENT;
use super::wait::{A_LITTLE_MORE, Answer, Waiting};
use super::{OPERATION, Quota, State};
use crate::record::codec::{decode, encode, unreadable_key};
use crate::record::refusal::owner;
use crate::store::{Condition, Entry, Read, TxnOutcome, Write};
use crate::txn::batch::{Moved, QuotaBudget};
use crate::txn::quarantine::{SetAside, told};
use crate::txn::session::{Session, SlotClient};

/// The part of what is left of others' deposits that a process keeps for its next reservations.
const SHARE: u64 = 8;

/// Operations of a transaction that pays for waiters, beside their reservations: the slot, the session, deposits, the change,
/// and the key in the queue.
const BESIDE_WAITERS: usize = SlotClient::OVERHEAD + MOST_SPENT + 4;

/// How long one step may take.
const STEP: Duration = Duration::from_secs(10);

/// How long a process waits for an event before it reads whether it missed one.
const TRUSTED: Duration = Duration::from_secs(5);

/// The first waiter of a process, in the shared queue.
#[derive(Debug)]
struct Place {
    waiter: Waiter<Waiting>,
    key: String,
    since: Version,
    /// Until which version it is known that there was no answer.
    seen: Version,
    /// Until when the watch is trusted to have told everything.
    trusted: Deadline,
}

/// What a step of the task came to.
enum Step {
    /// Waiters were served or told, or the first is in the queue.
    Forward,
    /// It is known what was in the way of a waiter.
    Looked,
    /// A transaction was refused.
    Refused,
}

/// The task runs, or it has ended, however that came.
struct Runs<'a>(&'a Quota);

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.runs = false;
        state.broker.in_queue(None);
    }
}

impl Quota {
    /// Starts the task, unless it runs.
    pub(super) fn run_task(self: &Arc<Self>, state: &mut State) {
        if !std::mem::replace(&mut state.runs, true) {
            let quota = Arc::clone(self);
            drop(tokio::spawn(async move { quota.run().await }));
        }
    }

    async fn run(&self) {
        let mut place: Option<Place> = None;
        let mut tries = 0;
        let runs = Runs(self);
        loop {
            {
                let mut state = self.state.lock();
                state.broker.in_queue(place.as_ref().map(|place| place.waiter.since));
                if place.is_none() && state.broker.first().is_none() {
                    // Under the lock: the next waiter starts another task, or this one has seen it.
                    state.runs = false;
                    std::mem::forget(runs);
                    return;
                }
            }
            let step = self.step(&mut place, self.core.deadline(STEP)).await;
            self.state.lock().failed = step.as_ref().err().cloned();
            match step {
                Ok(Step::Forward) => tries = 0,
                Ok(Step::Looked) => {}
                Ok(Step::Refused) => {
                    self.pause(tries).await;
                    tries += 1;
                }
                Err(error) => {
                    tracing::debug!(OPERATION, %error, "the waiters of this process are served later");
                    self.pause(tries).await;
                    tries += 1;
                }
            }
        }
    }

    async fn step(&self, place: &mut Option<Place>, deadline: Deadline) -> Result<Step> {
        let doubtful = self.state.lock().broker.take_doubtful();
        if let Some(waiter) = doubtful {
            self.examine(vec![waiter], deadline).await?;
            return Ok(Step::Looked);
        }
        match place {
            Some(_) => self.wait_in_queue(place, deadline).await,
            None => self.pay_or_join(place, deadline).await,
        }
    }

    /// A random pause, longer from try to try.
    pub(super) async fn pause(&self, tries: u32) {
        let most = 500_u64 << tries.min(10);
        tokio::time::sleep(Duration::from_micros(self.core.rng().below(most))).await;
    }

    /// How many operations the samples of one call may take together: so many that two such calls go into one transaction. A
    /// process sends one at a time, and what has come meanwhile goes with the next.
    pub(crate) fn most_operations_together(&self) -> usize {
        /// A call's grant list; if it waits in the shared queue, its key there and its answer, too.
        const OF_A_CALL: usize = 3;
        let operations = self.core.txn_store().limits().operations;
        // One more for the condition on the clock.
        (operations.saturating_sub(BESIDE_WAITERS + 1) / 2).saturating_sub(OF_A_CALL)
    }

    pub(super) fn draft<'a>(&'a self, session: &'a Session, clock: (Tick, Version)) -> Draft<'a> {
        let limits = self.core.txn_store().limits();
        let room = QuotaBudget {
            operations: limits.operations.saturating_sub(BESIDE_WAITERS),
            bytes: limits.bytes / 2,
        };
        Draft::new(self, session, clock, room)
    }

    /// Pays for the first waiters, if nobody waits in the queue and there is enough. Otherwise the first one joins it.
    async fn pay_or_join(&self, place: &mut Option<Place>, deadline: Deadline) -> Result<Step> {
        let session = {
            let state = self.state.lock();
            let Some(first) = state.broker.first() else {
                return Ok(Step::Forward);
            };
            first.what.session.handle()
        };
        if self.others_wait.load(Ordering::Relaxed) {
            return self.join(place, deadline).await;
        }
        let mut clock = self.core.known_clock(deadline).await?;
        let mut draft = self.draft(&session, clock);
        let add = |waiter: &Waiter<Waiting>| draft.add(waiter);
        let mut payment = self.state.lock().broker.pay_from_own(MOST_SPENT, add);
        // What is left of its own deposits stays its own; of the others', a part.
        let mut share = 1;
        if payment.is_none() {
            let look = self.look(&[], deadline).await?;
            if look.is_empty {
                share = SHARE;
                clock = self.core.known_clock(deadline).await?;
                let mut deposits = look.deposits;
                deposits.sort_by_key(|(_, deposit)| std::cmp::Reverse(deposit.bytes));
                draft = self.draft(&session, clock);
                let add = |waiter: &Waiter<Waiting>| draft.add(waiter);
                payment = self.state.lock().broker.pay(&deposits, MOST_SPENT, add);
            }
        }
        let Some(payment) = payment else {
            self.state.lock().too_little += 1;
            return self.join(place, deadline).await;
        };
        let own = payment.change / share;
        if let TxnOutcome::Committed(_) = self.send(&session, draft, payment, own, deadline).await? {
            return Ok(Step::Forward);
        }
        // If the shared clock has moved, that was why. Otherwise others want the same: a queue is shorter than a race.
        if self.core.known_clock(deadline).await? == clock {
            self.others_wait.store(true, Ordering::Relaxed);
        }
        Ok(Step::Refused)
    }

    /// Serves waiters with deposits, in one transaction, if nobody waits in the queue. `own` bytes of the change become
    /// a deposit that this process remembers, the rest another one.
    async fn send(
        &self,
        session: &Session,
        mut draft: Draft<'_>,
        payment: Payment<String, Waiting>,
        own: u64,
        deadline: Deadline,
    ) -> Result<TxnOutcome> {
        let Payment {
            waiters,
            deposits,
            change,
        } = payment;
        draft.require(Condition::NoneIn(self.core.layout().shared_queue()));
        draft.spend(deposits);
        let kept = self.new_deposit(session.id());
        draft.deposit(kept.clone(), own);
        draft.deposit(self.new_deposit(session.id()), change - own);
        let (Moved { conditions, writes }, grants) = draft.finish();
        let sent = self
            .core
            .slots()
            .transact(OPERATION, session, conditions, writes, deadline)
            .await;
        match &sent {
            Ok(TxnOutcome::Committed(version)) => {
                let version = *version;
                grants.tell(waiters, version);
                if own > 0 {
                    self.state.lock().broker.made(kept, Deposit { bytes: own, version });
                }
            }
            Ok(TxnOutcome::Rejected) => self.examine(waiters, deadline).await?,
            // They find out by themselves.
            Err(error) if error.retry() == Retry::Ambiguous => drop(waiters),
            Err(_) => self.put_back(waiters),
        }
        sent
    }

    /// Waiters whose transaction was not applied.
    pub(super) fn put_back(&self, waiters: Vec<Waiter<Waiting>>) {
        for mut waiter in waiters {
            waiter.doubtful = true;
            self.put_back_one(waiter);
        }
        self.doubt.notify_one();
    }

    fn put_back_one(&self, waiter: Waiter<Waiting>) {
        let mut state = self.state.lock();
        // Under the lock: a caller that leaves after this finds it in its place.
        if waiter.what.leaving.is_cancelled() {
            let too_little = state.found_too_little(waiter.what.too_little);
            drop(state);
            waiter.what.tell(Answer::Left { too_little });
        } else {
            state.broker.put_back(waiter);
        }
    }

    /// Looks at what is in the way of waiters whose transaction was refused. Waiters that cannot be served are told, the
    /// others return to their places.
    async fn examine(&self, waiters: Vec<Waiter<Waiting>>, deadline: Deadline) -> Result<()> {
        let layout = self.core.layout();
        let mut waiters = waiters.into_iter();
        while let Some(mut waiter) = waiters.next() {
            let Waiting { session, want, .. } = &waiter.what;
            let mut reads = vec![Read::Key(layout.alive(session.id())), Read::Key(layout.clock())];
            reads.extend(want.in_its_way(layout).into_iter().map(Read::Key));
            let left = deadline.remaining(self.core.clock());
            let snapshot = match self.core.txn_store().read(&reads, left).await {
                Ok(snapshot) => snapshot,
                Err(error) => {
                    self.put_back(std::iter::once(waiter).chain(waiters).collect());
                    return Err(error);
                }
            };
            self.core.slots().saw(snapshot.version);
            let mut found = snapshot.entries.into_iter();
            let is_alive = found.next().is_some_and(|alive| !alive.is_empty());
            let clock = found.next().unwrap_or_default();
            self.core.note_tick(clock.first(), snapshot.version)?;
            if !is_alive {
                let fenced = session.fenced(OPERATION);
                waiter.what.tell(Answer::Failed(fenced));
                continue;
            }
            let found: Vec<Entry> = found.flatten().collect();
            let taken = want.blocked(layout, |key| found.iter().any(|entry| entry.key == key));
            if taken.is_empty() || self.set_records_aside(&found, deadline).await {
                waiter.doubtful = false;
                self.put_back_one(waiter);
            } else {
                waiter.what.tell(Answer::Taken(taken));
            }
        }
        Ok(())
    }

    /// A reservation or a claim that cannot be decoded would block a sample's name for ever: it is quarantined. Whether
    /// one of these was.
    async fn set_records_aside(&self, found: &[Entry], deadline: Deadline) -> bool {
        let mut moved = false;
        for entry in found {
            let readable = match self.core.layout().is_pending(&entry.key) {
                true => decode::<Reserved>(entry).map(drop),
                false => owner(entry).map(drop),
            };
            if let Err(error) = readable
                && unreadable_key(&error).is_some()
            {
                let aside = self.core.set_aside(entry, &told(&error), Vec::new(), deadline).await;
                moved |= matches!(aside, Ok(SetAside::Moved | SetAside::Changed));
            }
        }
        moved
    }

    /// The first waiter joins the queue. If the deposits serve the first in the queue then, serves it.
    async fn join(&self, place: &mut Option<Place>, deadline: Deadline) -> Result<Step> {
        let Some(waiter) = self.state.lock().broker.take_first() else {
            return Ok(Step::Forward);
        };
        let session = waiter.what.session.handle();
        let key = self.core.layout().wait_request(session.id());
        let in_its_way = waiter.what.want.in_its_way(self.core.layout());
        let mut conditions: Vec<Condition> = in_its_way.into_iter().map(Condition::Absent).collect();
        conditions.push(Condition::Absent(key.clone()));
        let writes = vec![Write::Put {
            key: key.clone(),
            value: encode(&waiter.what.want)?,
            session: Some(session.id()),
        }];
        let reads = self.look_reads(&[]);
        let joined = self
            .core
            .slots()
            .transact_and_read(OPERATION, &session, conditions, writes, &reads, deadline)
            .await;
        let (outcome, snapshot) = match joined {
            Ok(joined) => joined,
            Err(error) => {
                if error.retry() == Retry::Ambiguous {
                    drop(waiter);
                } else {
                    self.put_back(vec![waiter]);
                }
                return Err(error);
            }
        };
        let TxnOutcome::Committed(since) = outcome else {
            self.put_back(vec![waiter]);
            self.withdraw_stale(&session, &key, deadline).await?;
            return Ok(Step::Refused);
        };
        {
            let mut state = self.state.lock();
            state.too_little += 1;
            state.broker.in_queue(Some(waiter.since));
        }
        let could_serve = match snapshot {
            Some(snapshot) => self.looked(&snapshot, &[])?.could_serve_or_merge(),
            None => true,
        };
        if could_serve {
            // Not for long: meanwhile the waiter's caller may leave.
            self.serve_or_leave_it(&session, self.core.deadline(A_LITTLE_MORE))
                .await;
        }
        *place = Some(Place {
            waiter,
            key,
            since,
            seen: since,
            trusted: self.core.deadline(TRUSTED),
        });
        Ok(Step::Forward)
    }

    /// A request of this session that nobody waits for any more is taken out of the queue.
    async fn withdraw_stale(&self, session: &Session, key: &str, deadline: Deadline) -> Result<()> {
        let left = deadline.remaining(self.core.clock());
        let reads = [Read::Key(key.to_owned())];
        let snapshot = self.core.txn_store().read(&reads, left).await?;
        if let Some(stale) = snapshot.entries.iter().flatten().next() {
            self.withdraw(session, key, stale.version, deadline).await?;
        }
        Ok(())
    }

    async fn withdraw(&self, session: &Session, key: &str, since: Version, deadline: Deadline) -> Result<bool> {
        let conditions = vec![Condition::Unchanged(key.to_owned(), since)];
        let writes = vec![Write::Delete(key.to_owned())];
        let withdrawn = self
            .core
            .slots()
            .transact(OPERATION, session, conditions, writes, deadline);
        Ok(matches!(withdrawn.await?, TxnOutcome::Committed(_)))
    }

    /// Waits for the answer. If the caller leaves, the request is withdrawn.
    async fn wait_in_queue(&self, place: &mut Option<Place>, deadline: Deadline) -> Result<Step> {
        let Some(at) = place else {
            return Ok(Step::Forward);
        };
        let Waiting {
            session, leaving, want, ..
        } = &at.waiter.what;
        if !session.is_alive() {
            // The request vanishes with the session. If it is served before, a sweep finds the reservation.
            let fenced = session.fenced(OPERATION);
            self.tell(place, Answer::Failed(fenced));
            return Ok(Step::Forward);
        }
        let step = tokio::select! {
            heard = self.next_answer(session, at.since, at.seen, deadline) => match heard? {
                Heard::Answer(answer, version) => {
                    self.end(place, answer, version);
                    return Ok(Step::Forward);
                }
                Heard::Nothing => return Ok(Step::Looked),
                Heard::Broken => Step::Refused,
            },
            // A waiter behind it is in doubt.
            () = self.doubt.notified() => return Ok(Step::Looked),
            () = session.ended() => return Ok(Step::Looked),
            () = leaving.cancelled() => {
                if self.withdraw(session, &at.key, at.since, deadline).await? {
                    let session = session.handle();
                    self.tell(place, Answer::Left { too_little: true });
                    // The next one may be content with less.
                    self.serve_or_leave_it(&session, deadline).await;
                    return Ok(Step::Forward);
                }
                Step::Looked
            }
            () = tokio::time::sleep(at.trusted.remaining(self.core.clock())) => Step::Looked,
        };
        // It was served meanwhile, an event was missed, or the request to withdraw was lost.
        at.trusted = self.core.deadline(TRUSTED);
        let read = self.read_answer(session, at.since, deadline).await?;
        at.seen = read.version;
        if let Some((answer, version)) = read.answer {
            self.end(place, answer, version);
        } else if !read.is_there {
            // Another client took it out. The waiter finds out by itself.
            *place = None;
        } else if want.bytes() > read.budget && self.withdraw(session, &at.key, at.since, deadline).await? {
            let message =
                "the store's budget has become smaller than what this waits for; raise it, or put less at once";
            let error = Error::new(ErrorKind::Capacity, OPERATION, message).with("wanted", want.bytes());
            let error = error.with("budget", read.budget).with_retry(Retry::Never);
            let session = session.handle();
            self.tell(place, Answer::Failed(error));
            self.serve_or_leave_it(&session, deadline).await;
        }
        Ok(step)
    }

    fn tell(&self, place: &mut Option<Place>, answer: Answer) {
        if let Some(Place { waiter, .. }) = place.take() {
            waiter.what.tell(answer);
        }
    }

    fn end(&self, place: &mut Option<Place>, result: WaitResult, version: Version) {
        self.core.slots().saw(version);
        let answer = match result.ending {
            Ending::Taken { samples } => Answer::Taken(samples),
            Ending::Reserved { until, note: grant } => Answer::Reserved { version, until, grant },
        };
        self.tell(place, answer);
    }

    /// The next answer to a session after the version `seen`, if it is about the wait that began at `since`. Cancelling this
    /// loses nothing.
    async fn next_answer(&self, session: &Session, since: Version, seen: Version, deadline: Deadline) -> Result<Heard> {
        let mut watch = session.told.lock().await;
        let changes = match &mut *watch {
            Some(watch) => watch.next().await,
            none => {
                let key = self.core.layout().wait_result(session.id());
                let left = deadline.remaining(self.core.clock());
                let only = key.clone()..format!("{key}\0");
                none.insert(self.core.txn_store().watch(only, seen, left).await?)
                    .next()
                    .await
            }
        };
        match changes {
            Ok(changes) => {
                let mut entries = changes.into_iter().filter_map(|change| {
                    Some(Entry {
                        key: change.key,
                        value: change.value?,
                        version: change.version,
                    })
                });
                let answer = entries.find_map(|entry| answer_in(&entry, since));
                Ok(answer.map_or(Heard::Nothing, |(answer, version)| Heard::Answer(answer, version)))
            }
            Err(error) => {
                tracing::debug!(OPERATION, %error, "the watch of a waiting process is opened again");
                *watch = None;
                Ok(Heard::Broken)
            }
        }
    }

    async fn read_answer(&self, session: &Session, since: Version, deadline: Deadline) -> Result<ReadAnswer> {
        let layout = self.core.layout();
        let (id, left) = (session.id(), deadline.remaining(self.core.clock()));
        let reads = [layout.wait_result(id), layout.wait_request(id), layout.budget()].map(Read::Key);
        let snapshot = self.core.txn_store().read(&reads, left).await?;
        let mut found = snapshot.entries.iter().map(|entries| entries.first());
        let mut next = || found.next().flatten();
        Ok(ReadAnswer {
            answer: next().and_then(|entry| answer_in(entry, since)),
            is_there: next().is_some_and(|entry| entry.version == since),
            budget: next().map(decode).transpose()?.unwrap_or(u64::MAX),
            version: snapshot.version,
        })
    }
}

/// What a watch told a waiting process.
enum Heard {
    /// How its wait ended, and at which version that was written.
    Answer(WaitResult, Version),
    /// Nothing about this wait.
    Nothing,
    /// The watch has ended: what it did not tell has to be read.
    Broken,
}

/// How a wait stands.
struct ReadAnswer {
    /// How it ended, and at which version that was written.
    answer: Option<(WaitResult, Version)>,
    /// Whether its request is in the queue.
    is_there: bool,
    budget: u64,
    version: Version,
}

/// The answer to the wait that began at `since`. One that cannot be decoded is none: the waiter finds out by itself.
fn answer_in(entry: &Entry, since: Version) -> Option<(WaitResult, Version)> {
    let result: WaitResult = decode(entry).ok()?;
    (result.since == since).then_some((result, entry.version))
}
