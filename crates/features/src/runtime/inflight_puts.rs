//! Puts that this process has begun: which of them counts, giving them up, and knowing when the engine has let go of
//! their memory.
//!
//! ```text
//!         may_commit              the put ends
//! Begun ──────────────▶ Committing ───────────▶ Ended
//!   │ │                     └ give_up waits for the end; then there is something to retire, or nothing
//!   │ └ give_up: Aborted ──┐
//!   └ a later call: Outdated ──the put ends, uncommitted, and its reservation is given up──▶ Ended
//! ```
//!
//! A put is begun from the moment of its call, whatever it waits for: memory, quota, the engine. Of several puts of one
//! sample by one process the latest call counts. An earlier one ends as soon as it can. The later one waits for that
//! before it reserves, because a sample is reserved for one put at a time.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorhold_core::{Error, ErrorKind, Result, SampleId};
use tokio::sync::Notify;

const OPERATION: &str = "features.put";

/// The puts that this process has begun.
#[derive(Debug, Default)]
pub(crate) struct InflightPuts {
    /// The puts of each sample, in the order of the calls.
    puts: Mutex<HashMap<SampleId, Vec<Arc<Put>>>>,
    /// Wakes puts and aborts that wait for a put to end.
    ended: Notify,
}

/// One sample of one call.
#[derive(Debug)]
struct Put {
    state: Mutex<State>,
    /// Notifies the call that one of its samples is given up.
    changed: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Begun,
    Outdated,
    Aborted,
    Committing,
    Ended,
}

impl Put {
    /// Gives the put up, unless it is committing or has ended. Returns its state.
    fn give_up(&self, state: State) -> State {
        let mut now = self.state.lock();
        if *now == State::Begun {
            *now = state;
            self.changed.notify_waiters();
        }
        *now
    }
}

/// A sample that is being put, until nothing of that put blocks another put.
#[derive(Debug)]
pub(crate) struct Begun {
    writing: Arc<InflightPuts>,
    sample: SampleId,
    put: Arc<Put>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut puts = self.writing.puts.lock();
        if let Some(of_sample) = puts.get_mut(&self.sample) {
            of_sample.retain(|put| !Arc::ptr_eq(put, &self.put));
            if of_sample.is_empty() {
                puts.remove(&self.sample);
            }
        }
        drop(puts);
        *self.put.state.lock() = State::Ended;
        self.writing.ended.notify_waiters();
    }
}

impl Begun {
    /// Whether it still counts: an error if it was aborted, or a later call puts the sample.
    pub(crate) fn counts(&self) -> Result<()> {
        match *self.put.state.lock() {
            State::Outdated => Err(outdated(&self.sample)),
            State::Aborted => Err(aborted(&self.sample)),
            State::Begun | State::Committing | State::Ended => Ok(()),
        }
    }

    /// Its caller has left: it ends uncommitted, unless it is being committed already.
    pub(crate) fn give_up(&self) {
        self.put.give_up(State::Aborted);
    }

    /// Whether it may be committed. If so, it can no longer be given up here.
    pub(crate) fn may_commit(&self) -> Result<()> {
        let mut state = self.put.state.lock();
        if *state == State::Begun {
            *state = State::Committing;
        }
        drop(state);
        self.counts()
    }
}

/// One call of a put: its position among the puts of its samples, from the moment of the call.
#[derive(Debug)]
pub struct PutTurn {
    puts: HashMap<SampleId, Arc<Begun>>,
    changed: Arc<Notify>,
}

impl PutTurn {
    /// The put of one of its samples.
    pub(crate) fn put(&self, sample: &SampleId) -> Result<Arc<Begun>> {
        let put = self.puts.get(sample).cloned();
        put.ok_or_else(|| Error::invalid(OPERATION, "this put was begun for other samples").with("sample", sample))
    }

    /// Makes one call of two, which must be of one writer (see [`InflightPuts::call_among`]) and of different samples.
    pub(crate) fn joined(mut self, other: Self) -> Self {
        self.puts.extend(other.puts);
        self
    }

    /// Pends until `so` is true. Checked whenever a sample of the call is given up.
    async fn until(&self, so: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if so() {
                return;
            }
            changed.await;
        }
    }

    /// Pends until one of these is given up.
    pub(crate) async fn one_is_given_up(&self, puts: &[Arc<Begun>]) {
        self.until(|| puts.iter().any(|put| put.counts().is_err())).await;
    }

    /// Pends until all of these are given up.
    pub(crate) async fn all_are_given_up(&self, puts: &[Arc<Begun>]) {
        self.until(|| puts.iter().all(|put| put.counts().is_err())).await;
    }
}

impl InflightPuts {
    /// Registers a call that puts these samples; earlier puts of them no longer count.
    pub(crate) fn call<'a>(self: &Arc<Self>, samples: impl IntoIterator<Item = &'a SampleId>) -> PutTurn {
        self.call_among(&Arc::new(Notify::new()), samples)
    }

    /// As [`InflightPuts::call`], for a call that may be joined with others that share `changed`.
    pub(crate) fn call_among<'a>(
        self: &Arc<Self>,
        changed: &Arc<Notify>,
        samples: impl IntoIterator<Item = &'a SampleId>,
    ) -> PutTurn {
        let mut turn = PutTurn {
            puts: HashMap::new(),
            changed: Arc::clone(changed),
        };
        let mut puts = self.puts.lock();
        for sample in samples {
            if turn.puts.contains_key(sample) {
                continue;
            }
            let of_sample = puts.entry(sample.clone()).or_default();
            for earlier in of_sample.iter() {
                earlier.give_up(State::Outdated);
            }
            let put = Arc::new(Put {
                state: Mutex::new(State::Begun),
                changed: Arc::clone(changed),
            });
            of_sample.push(Arc::clone(&put));
            let begun = Begun {
                writing: Arc::clone(self),
                sample: sample.clone(),
                put,
            };
            turn.puts.insert(sample.clone(), Arc::new(begun));
        }
        drop(puts);
        turn
    }

    /// Whether an earlier put of this sample has not ended.
    pub(crate) fn has_earlier(&self, begun: &Begun) -> bool {
        let puts = self.puts.lock();
        let first = puts.get(&begun.sample).and_then(|of_sample| of_sample.first());
        first.is_some_and(|first| !Arc::ptr_eq(first, &begun.put))
    }

    /// Pends until every earlier put of these samples has ended.
    pub(crate) async fn earlier_have_ended(&self, puts: &[Arc<Begun>]) {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if !puts.iter().any(|put| self.has_earlier(put)) {
                return;
            }
            ended.await;
        }
    }

    /// Gives up every put of a sample that has begun here. Waits for those that are already being committed. Returns
    /// whether at least one put will not be committed.
    pub(crate) async fn give_up(&self, sample: &SampleId) -> bool {
        let begun: Vec<Arc<Put>> = self.puts.lock().get(sample).cloned().unwrap_or_default();
        let mut given_up = false;
        for put in &begun {
            given_up |= matches!(put.give_up(State::Aborted), State::Aborted | State::Outdated);
        }
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if !begun.iter().any(|put| *put.state.lock() == State::Committing) {
                return given_up;
            }
            ended.await;
        }
    }
}

fn outdated(sample: &SampleId) -> Error {
    Error::new(
        ErrorKind::Conflict,
        OPERATION,
        "a later put of this sample by this process has replaced this one; this put was not made",
    )
    .with("sample", sample)
}

fn aborted(sample: &SampleId) -> Error {
    Error::new(
        ErrorKind::Fenced,
        OPERATION,
        "the sample was aborted while it was being put; it is not committed",
    )
    .with("sample", sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> [SampleId; 2] {
        ["a", "b"].map(|name| SampleId::new(name).expect("a name"))
    }

    #[tokio::test]
    async fn the_last_call_counts() {
        let writing = Arc::new(InflightPuts::default());
        let [a, b] = names();
        let first = writing.call([&a, &b]);
        let [first_a, first_b] = [&a, &b].map(|name| first.put(name).expect("begun"));
        assert!(first_a.counts().is_ok() && first_b.counts().is_ok());
        let second = writing.call([&a]);
        let second_a = second.put(&a).expect("begun");
        assert_eq!(first_a.may_commit().expect_err("outdated").kind(), ErrorKind::Conflict);
        assert!(first_b.may_commit().is_ok() && second_a.may_commit().is_ok());
        first.one_is_given_up(&[Arc::clone(&first_a)]).await;
        assert!(writing.has_earlier(&second_a));
        drop((first, first_a, first_b));
        writing.earlier_have_ended(&[second_a]).await;
        drop(second);
        assert!(writing.puts.lock().is_empty());
    }

    #[tokio::test]
    async fn giving_up_sees_all_that_has_begun_and_waits_for_what_commits() {
        let writing = Arc::new(InflightPuts::default());
        let [a, b] = names();
        let (first, second) = (writing.call([&a]), writing.call([&b]));
        assert!(writing.give_up(&a).await);
        assert_eq!(
            first.put(&a).expect("begun").counts().expect_err("aborted").kind(),
            ErrorKind::Fenced
        );
        first.all_are_given_up(&[first.put(&a).expect("begun")]).await;
        second
            .put(&b)
            .expect("begun")
            .may_commit()
            .expect("nobody else puts it");
        let giving_up = tokio::spawn({
            let (writing, b) = (Arc::clone(&writing), b.clone());
            async move { writing.give_up(&b).await }
        });
        tokio::task::yield_now().await;
        assert!(!giving_up.is_finished());
        drop(second);
        assert!(!giving_up.await.expect("no panic"), "it was committed");
        assert!(!writing.give_up(&b).await, "there is nothing to give up");
    }
}
