//! What is hung between the store and its engine and index: measuring, writing down, and dying.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorhold_core::{Clock, ObjectKey, SampleId, SampleKey, SystemClock, Timestamp};

use crate::doom::{Call, Doom, Fate, Point};
use crate::journal::{Event, Journal};

/// What the wrapped engine and index of one process share.
#[derive(Debug)]
pub(crate) struct Hooks {
    pub(crate) journal: Arc<Journal>,
    pub(crate) clock: SystemClock,
    fate: Option<Fate>,
    /// Whether the keys of every put are written down.
    keys: bool,
    acks: Mutex<HashMap<SampleId, Reclaim>>,
    /// The samples that reservations made ahead have become.
    names: Mutex<HashMap<SampleId, SampleId>>,
}

/// A sample between its last acknowledgement and the removal of its bytes. Either may be told first.
#[derive(Debug)]
struct Reclaim {
    sent: Timestamp,
    answered: Option<Timestamp>,
    freed: Option<Timestamp>,
}

impl Hooks {
    pub(crate) fn new(journal: Arc<Journal>, doom: Option<Doom>, keys: bool) -> Arc<Self> {
        Arc::new(Self {
            fate: doom.map(|doom| Fate::new(doom, Arc::clone(&journal))),
            journal,
            clock: SystemClock::new(),
            keys,
            acks: Mutex::default(),
            names: Mutex::default(),
        })
    }

    /// Passes a point, or dies there.
    pub(crate) async fn step(&self, point: Point) {
        if let Some(fate) = &self.fate {
            fate.step(point).await;
        }
    }

    /// Begins a call in whose middle the process may die.
    pub(crate) fn call(&self, point: Point) -> Option<Call<'_>> {
        self.fate.as_ref().map(|fate| fate.call(point))
    }

    pub(crate) fn writing(&self, keys: Vec<ObjectKey>) {
        if self.keys {
            self.journal.note(&Event::Writing { keys });
        }
    }

    /// An acknowledgement is sent now.
    pub(crate) fn acking(&self, sample: &SampleId) {
        let reclaim = Reclaim {
            sent: self.clock.now(),
            answered: None,
            freed: None,
        };
        self.acks.lock().insert(sample.clone(), reclaim);
    }

    /// It was accepted, and was the last one.
    pub(crate) fn acked(&self, sample: &SampleId) {
        self.change(sample, |reclaim, now| reclaim.answered = Some(now));
    }

    /// A reservation that was made ahead becomes a sample.
    pub(crate) fn named(&self, reservation: &SampleId, sample: &SampleId) {
        self.names.lock().insert(reservation.clone(), sample.clone());
    }

    /// Objects are gone.
    pub(crate) fn removed(&self, keys: &[ObjectKey]) {
        for key in keys {
            if let Some(key) = SampleKey::of_object(key) {
                let sample = self.names.lock().remove(&key.sample).unwrap_or(key.sample);
                self.change(&sample, |reclaim, now| reclaim.freed = Some(now));
            }
        }
    }

    fn change(&self, sample: &SampleId, change: impl FnOnce(&mut Reclaim, Timestamp)) {
        let mut acks = self.acks.lock();
        let Some(reclaim) = acks.get_mut(sample) else {
            return;
        };
        change(reclaim, self.clock.now());
        let (Some(answered), Some(freed)) = (reclaim.answered, reclaim.freed) else {
            return;
        };
        let event = Event::Freed {
            after_sent: freed.since(reclaim.sent).as_secs_f64() * 1e3,
            after_answered: freed.since(answered).as_secs_f64() * 1e3,
        };
        acks.remove(sample);
        drop(acks);
        self.journal.note(&event);
    }
}
