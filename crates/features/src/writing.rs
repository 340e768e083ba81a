//! Samples that are being written here: giving them up, and knowing when the engine has let go of their memory.
//!
//! ```text
//!           may_commit              the put ends
//! Writing ──────────────▶ Committing ───────────▶ Ended
//!    │ give_up                 └ give_up waits for the end; then there is something to retire, or nothing
//!    ▼
//! Aborted ──the put ends, uncommitted──▶ Ended
//! ```
//!
//! Puts of one sample by one process count in the order in which they were called. One whose caller has left (Ctrl-C, a
//! dropped future) goes on; without that order it could come last, and take the place of what was put after it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use holdfast_core::SampleId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::free::{Frees, Job};

/// The samples that this process is writing now.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    samples: Mutex<HashMap<SampleId, Arc<WritingSample>>>,
    begun: Mutex<Begun>,
}

/// The puts that were called and have not ended.
#[derive(Debug, Default)]
struct Begun {
    last: u64,
    /// Of each sample: the number of the last call, and how many have not ended.
    puts: HashMap<SampleId, (u64, usize)>,
}

/// One call's place among the puts of its samples, until it ends.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    list: &'a Writing,
    number: u64,
    samples: HashSet<SampleId>,
}

impl Turn<'_> {
    /// Whether no later call puts this sample.
    pub(crate) fn is_last(&self, sample: &SampleId) -> bool {
        let begun = self.list.begun.lock();
        begun.puts.get(sample).is_none_or(|(last, _)| *last == self.number)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut begun = self.list.begun.lock();
        for sample in &self.samples {
            if let Some((_, open)) = begun.puts.get_mut(sample) {
                *open -= 1;
                if *open == 0 {
                    begun.puts.remove(sample);
                }
            }
        }
    }
}

/// One of them.
#[derive(Debug, Default)]
struct WritingSample {
    state: Mutex<WritingState>,
    ended: Notify,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WritingState {
    #[default]
    Writing,
    Aborted,
    Committing,
    Ended,
}

/// Takes a sample off the list when its put ends, however it does.
#[derive(Debug)]
pub(crate) struct Written<'a> {
    list: &'a Writing,
    sample: SampleId,
    entry: Arc<WritingSample>,
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        let mut list = self.list.samples.lock();
        if list
            .get(&self.sample)
            .is_some_and(|entry| Arc::ptr_eq(entry, &self.entry))
        {
            list.remove(&self.sample);
        }
        drop(list);
        *self.entry.state.lock() = WritingState::Ended;
        self.entry.ended.notify_waiters();
    }
}

impl Written<'_> {
    /// Whether it may be committed; from then on it can no longer be given up here.
    pub(crate) fn may_commit(&self) -> bool {
        let mut state = self.entry.state.lock();
        let may = *state == WritingState::Writing;
        if may {
            *state = WritingState::Committing;
        }
        may
    }
}

impl Writing {
    /// A call that puts these samples takes its place.
    pub(crate) fn call<'a>(&'a self, samples: impl Iterator<Item = &'a SampleId>) -> Turn<'a> {
        let samples: HashSet<SampleId> = samples.cloned().collect();
        let mut begun = self.begun.lock();
        begun.last += 1;
        let number = begun.last;
        for sample in &samples {
            let (last, open) = begun.puts.entry(sample.clone()).or_default();
            (*last, *open) = (number, *open + 1);
        }
        let list = self;
        Turn { list, number, samples }
    }

    pub(crate) fn begin(&self, sample: &SampleId) -> Written<'_> {
        let entry = Arc::new(WritingSample::default());
        self.samples.lock().insert(sample.clone(), Arc::clone(&entry));
        Written {
            list: self,
            sample: sample.clone(),
            entry,
        }
    }

    /// Gives a sample up that is being written here. If it is being committed already, waits for that to end. True if
    /// it will not be committed.
    pub(crate) async fn give_up(&self, sample: &SampleId) -> bool {
        let Some(entry) = self.samples.lock().get(sample).cloned() else {
            return false;
        };
        loop {
            let mut ended = std::pin::pin!(entry.ended.notified());
            ended.as_mut().enable();
            {
                let mut state = entry.state.lock();
                match *state {
                    WritingState::Writing | WritingState::Aborted => {
                        *state = WritingState::Aborted;
                        return true;
                    }
                    WritingState::Ended => return false,
                    WritingState::Committing => {}
                }
            }
            ended.await;
        }
    }
}

/// Knows when the engine has let go of a sample's memory, and what is to be done then if the put has failed.
#[derive(Debug)]
pub(crate) struct Witness {
    frees: Arc<Frees>,
    undo: Mutex<Option<Job>>,
}

impl Witness {
    pub(crate) fn new(frees: Arc<Frees>) -> Self {
        Self {
            frees,
            undo: Mutex::new(None),
        }
    }

    /// Sets what is to be done when nobody touches the memory any more.
    pub(crate) fn undo(&self, job: Job) {
        self.frees.engine_holds(true);
        *self.undo.lock() = Some(job);
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        if let Some(job) = self.undo.get_mut().take() {
            self.frees.push(job);
            self.frees.engine_holds(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_call_counts_until_all_have_ended() {
        let writing = Writing::default();
        let [a, b] = ["a", "b"].map(|name| SampleId::new(name).expect("a name"));
        let first = writing.call([&a, &b].into_iter());
        assert!(first.is_last(&a) && first.is_last(&b));
        let second = writing.call([&a].into_iter());
        assert!(!first.is_last(&a) && first.is_last(&b) && second.is_last(&a));
        drop(second);
        assert!(!first.is_last(&a), "what was put later has been put");
        drop(first);
        assert!(writing.begun.lock().puts.is_empty());
    }
}
