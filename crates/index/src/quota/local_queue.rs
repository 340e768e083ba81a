//! Those of one process who wait for credits while the process itself frees: what it frees is handed to them at once.
//!
//! To wait in the line costs a transaction to join it and an event to learn of its end. A process that frees samples all
//! the time has credits for its own producers in its hands anyway. So they need not join the line: they stay in the house,
//! and who frees reserves for the first of them in the transaction that frees, on condition that its session is alive.
//!
//! ```text
//!            the house is lively                 taken along        applied
//! (arrives) ────────────────────▶ in the house ─────────────▶ taken ────────▶ reserved
//!     │                            │   │                       ├── not applied ──▶ goes to the line
//!     │ it is not                  │   └── deadline, its caller has gone: left
//!     │                            │                           └── unclear ──▶ goes to the line, and may find itself served
//!     ▼                            ▼
//!  the line ([`super::shared_queue`]) ◀── too large for what came back; nothing comes any more; waited long; nobody else is there
//! ```
//!
//! # Why nobody waits for nothing
//! What others free is not handed into the house, and is kept for nobody if nobody is in the line. So *whenever somebody is
//! in the house, one of the process is in the line*, or about to be: nobody stays before that is so, and when the last one
//! comes out of the line, whoever came last into the house goes there: others would have waited twice. Who has waited for
//! [`LONGEST`], or sees that nothing has been freed for a while, goes there too. And the line has its share of what is freed
//! here, by lot, according to the numbers of those who wait here and there ([`LocalQueue::serves_line`]).
//!
//! # What if
//! - *who frees dies, or is given up* between taking one along and the answer: unclear, see above.
//! - *the one who waits is given up*: it leaves. If it was taken along already, the reservation expires like any other
//!   that nobody commits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Clock, Rng, Timestamp};
use holdfast_custody::{SessionId, Tick, Version};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use tokio_util::sync::CancellationToken;

use super::A_LITTLE_MORE;
use super::gate::Gate;
use super::wait_request::WaitRequest;

/// The house is lively if something was freed here as lately as this.
const LATELY: Duration = Duration::from_millis(50);

/// A process that has freed something as lately as this is likely to go on.
const OF_LATE: Duration = Duration::from_secs(60);

/// Nobody waits longer in the house, or begins to if it would take about that long.
const LONGEST: Duration = Duration::from_millis(400);

/// So often in a row at most those in the house come before the line.
const LINE_AT_LEAST: u32 = 10;

/// If more of the process than this are in the line, they came before those in the house.
const FEW: usize = 4;

/// How a wait in the house ended.
#[derive(Debug)]
pub(super) enum Handed {
    /// All is reserved, by the write of this version.
    Reserved {
        version: Version,
        until: Tick,
        /// The key of the note that says so.
        note: String,
    },
    /// Nothing is reserved, and it counts as one in the line.
    ToTheLine(InLine),
    /// It may be reserved, or will be, or not.
    Unclear(InLine),
    /// The time is up.
    TooLate,
}

/// Those of a process who wait for credits of one store, and what they do one at a time.
#[derive(Debug, Default)]
pub(crate) struct LocalQueue {
    inside: Mutex<Inside>,
    /// Whoever reaches for what is free.
    pub(super) reach: tokio::sync::Mutex<()>,
    /// Makes what lies idle in purses free.
    pub(super) gathering: Gate,
    /// Serves the line from what is free.
    pub(super) serving: Gate,
}

#[derive(Debug, Default)]
struct Inside {
    waiting: VecDeque<Waiting>,
    last_number: u64,
    /// How many of the process are in the line, or about to be.
    in_line: usize,
    /// When the first of those came, after a time when nobody waited.
    first_in_line: Option<Timestamp>,
    freed: Option<Freed>,
    /// How often in a row those in the house came first.
    line_passed_over: u32,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    session: SessionId,
    want: WaitRequest,
    answer: oneshot::Sender<Handed>,
}

/// When something was last freed here, and how long it takes from one sample to the next.
#[derive(Clone, Copy, Debug)]
struct Freed {
    at: Timestamp,
    pace: Duration,
}

impl Inside {
    /// Whether something is freed here all the time, or will be, as before, now that everybody comes at once.
    fn is_lively(&self, now: Timestamp) -> bool {
        let within = |at: Timestamp, time| now.since(at) <= time;
        let just_began = self.first_in_line.is_some_and(|at| within(at, LATELY));
        self.freed
            .is_some_and(|freed| within(freed.at, LATELY) || just_began && within(freed.at, OF_LATE))
    }

    fn goes_to_the_line(&mut self, house: &Arc<LocalQueue>, now: Timestamp) -> InLine {
        if self.in_line == 0 && self.waiting.is_empty() {
            self.first_in_line = Some(now);
        }
        self.in_line += 1;
        InLine(Arc::clone(house))
    }

    /// Whether one more would be served before long.
    fn takes_one_more(&self, now: Timestamp) -> bool {
        let ahead = u32::try_from(self.waiting.len() + 1).unwrap_or(u32::MAX);
        let soon = self
            .freed
            .is_some_and(|freed| freed.pace.saturating_mul(ahead) <= LONGEST / 2);
        self.in_line > 0 && self.is_lively(now) && soon
    }
}

impl LocalQueue {
    /// Enters the house, if it is lively and somebody of it is in the line or about to be. Else goes there itself.
    pub(super) fn enter(
        self: &Arc<Self>,
        session: SessionId,
        want: &WaitRequest,
        clock: &dyn Clock,
    ) -> Result<LocalWait, InLine> {
        let now = clock.now();
        let mut inside = self.inside.lock();
        if !inside.takes_one_more(now) {
            return Err(inside.goes_to_the_line(self, now));
        }
        inside.last_number += 1;
        let number = inside.last_number;
        let (sender, answer) = oneshot::channel();
        inside.waiting.push_back(Waiting {
            number,
            session,
            want: want.clone(),
            answer: sender,
        });
        let house = Arc::clone(self);
        Ok(LocalWait {
            house,
            number,
            since: now,
            answer,
        })
    }

    fn goes_to_the_line(self: &Arc<Self>, clock: &dyn Clock) -> InLine {
        self.inside.lock().goes_to_the_line(self, clock.now())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.inside.lock().waiting.is_empty()
    }

    /// Whether somebody of the process is in the line, or about to be.
    pub(super) fn is_in_line(&self) -> bool {
        self.inside.lock().in_line > 0
    }

    /// So many samples are being freed here while somebody waits.
    pub(super) fn frees(&self, samples: usize, clock: &dyn Clock) {
        let now = clock.now();
        let mut inside = self.inside.lock();
        let count = u32::try_from(samples.max(1)).unwrap_or(u32::MAX);
        let pace = match inside.freed {
            // Longer than that nobody waited meanwhile.
            Some(before) => (before.pace * 3 + now.since(before.at).min(LATELY) / count) / 4,
            None => LONGEST / 64,
        };
        inside.freed = Some(Freed { at: now, pace });
    }

    /// Decides whether what is freed now is for the line, where about so many wait, or for those in the house: by lot, but
    /// the line is not passed over often.
    pub(super) fn serves_line(&self, in_line: usize, rng: &dyn Rng) -> bool {
        let count = |count| u64::try_from(count).unwrap_or(u64::MAX);
        let mut inside = self.inside.lock();
        let (here, there) = (count(inside.waiting.len()), count(in_line));
        let serves_line = here == 0
            || inside.in_line > FEW
            || inside.line_passed_over >= LINE_AT_LEAST
            || rng.below(here.saturating_add(there)) < there;
        inside.line_passed_over = if serves_line { 0 } else { inside.line_passed_over + 1 };
        serves_line
    }

    /// Takes those along who wait longest, for as long as `bytes` are enough and `take` has room for them. One for whom it
    /// is too little goes to the line: there it can be saved up.
    pub(super) fn take_along<E>(
        self: &Arc<Self>,
        mut bytes: u64,
        mut take: impl FnMut(SessionId, &WaitRequest) -> Result<Option<(Tick, String)>, E>,
    ) -> Result<Vec<Taken>, E> {
        let (mut taken, mut too_large) = (Vec::new(), Vec::new());
        let mut inside = self.inside.lock();
        while bytes > 0
            && let Some(first) = inside.waiting.front()
        {
            let enough = first.want.bytes() <= bytes;
            let reserved = if enough {
                take(first.session, &first.want)?
            } else {
                None
            };
            if enough && reserved.is_none() && !taken.is_empty() {
                break;
            }
            let Some(first) = inside.waiting.pop_front() else { break };
            let Some((until, note)) = reserved else {
                too_large.push(first.answer);
                continue;
            };
            bytes -= first.want.bytes();
            taken.push(Taken {
                house: Arc::clone(self),
                answer: first.answer,
                bytes: first.want.bytes(),
                until,
                note,
            });
        }
        drop(inside);
        too_large.into_iter().for_each(|answer| self.send_to_the_line(answer));
        Ok(taken)
    }

    fn send_to_the_line(self: &Arc<Self>, answer: oneshot::Sender<Handed>) {
        self.inside.lock().in_line += 1;
        tell(answer, Handed::ToTheLine(InLine(Arc::clone(self))));
    }
}

/// Must not be called from inside the house: whoever cannot be told any more leaves the line by that.
fn tell(answer: oneshot::Sender<Handed>, handed: Handed) {
    if answer.send(handed).is_err() {
        tracing::debug!("one who waited for credits had left before it was told");
    }
}

/// One who is being served by a transaction under way. Dropped, nobody knows what became of it.
#[derive(Debug)]
pub(super) struct Taken {
    house: Arc<LocalQueue>,
    answer: oneshot::Sender<Handed>,
    pub(super) bytes: u64,
    until: Tick,
    note: String,
}

impl Taken {
    pub(super) fn reserved(self, version: Version) {
        let (until, note) = (self.until, self.note);
        tell(self.answer, Handed::Reserved { version, until, note });
    }

    pub(super) fn not_reserved(self) {
        self.house.send_to_the_line(self.answer);
    }
}

/// A wait in the house. Dropping it leaves.
#[derive(Debug)]
pub(super) struct LocalWait {
    house: Arc<LocalQueue>,
    number: u64,
    since: Timestamp,
    answer: oneshot::Receiver<Handed>,
}

impl LocalWait {
    /// Waits until it is handed something, there is nothing to wait for here any more, the time is up, or the caller has
    /// left.
    pub(super) async fn handed(
        mut self,
        mut within: Duration,
        cancelled: &CancellationToken,
        clock: &dyn Clock,
    ) -> Handed {
        loop {
            let left = within.saturating_sub(clock.now().since(self.since));
            tokio::select! {
                answer = tokio::time::timeout(left.min(LATELY), &mut self.answer) => match answer {
                    Ok(Ok(handed)) => return handed,
                    Ok(Err(_)) => return Handed::Unclear(self.house.goes_to_the_line(clock)),
                    Err(_) => {}
                },
                () = cancelled.cancelled() => within = Duration::ZERO,
            }
            let waited = clock.now().since(self.since);
            if waited < within.min(LONGEST) && self.house.inside.lock().is_lively(clock.now()) {
                continue;
            }
            if self.leave() {
                return match waited < within {
                    true => Handed::ToTheLine(self.house.goes_to_the_line(clock)),
                    false => Handed::TooLate,
                };
            }
            let left = within.saturating_sub(waited) + A_LITTLE_MORE;
            return match tokio::time::timeout(left, &mut self.answer).await {
                Ok(Ok(handed)) => handed,
                Ok(Err(_)) | Err(_) => Handed::Unclear(self.house.goes_to_the_line(clock)),
            };
        }
    }

    /// True if nobody had taken it along.
    fn leave(&self) -> bool {
        let mut inside = self.house.inside.lock();
        let place = inside.waiting.iter().position(|one| one.number == self.number);
        place.is_some_and(|place| inside.waiting.remove(place).is_some())
    }
}

impl Drop for LocalWait {
    fn drop(&mut self) {
        self.leave();
    }
}

/// One of the house who is in the line, or about to be. When the last one leaves it, whoever came last into the
/// house goes there.
#[derive(Debug)]
pub(crate) struct InLine(Arc<LocalQueue>);

impl Drop for InLine {
    fn drop(&mut self) {
        let next = {
            let mut inside = self.0.inside.lock();
            inside.in_line -= 1;
            if inside.in_line > 0 {
                return;
            }
            inside.waiting.pop_back()
        };
        if let Some(next) = next {
            self.0.send_to_the_line(next.answer);
        }
    }
}

#[cfg(test)]
#[path = "local_queue_tests.rs"]
mod tests;
