//! An engine that can be held up: calls that hang, and calls that outlive their deadline.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast_core::{Error, ObjectKey, Result, Retry};
use holdfast_engine::{
    Capabilities, Engine, GetOutcome, HostMemory, Presence, PutOptions, PutOutcome, RaiseOutcome, Region,
    Registrations, RemoveOutcome, Transfer, Usage,
};
use parking_lot::{Condvar, Mutex};

/// What is done to calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Pass,
    /// A put is done, and returns when it is let go.
    HangAfterPut,
    /// A put fails as out of time, and is done when it is let go.
    LatePut,
    /// A get fails as out of time, and is done when it is let go.
    LateGet,
    /// A get begins when it is let go.
    HangBeforeGet,
    /// One get brings another byte; those after it pass.
    TornOnce,
}

#[derive(Debug)]
pub struct HeldUp {
    inner: Arc<dyn Engine>,
    gate: Arc<Gate>,
    late: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Gate {
    mode: Mutex<Mode>,
    opened: Condvar,
}

impl Gate {
    fn wait(&self) {
        let mut mode = self.mode.lock();
        while *mode != Mode::Pass {
            self.opened.wait(&mut mode);
        }
    }
}

fn out_of_time(operation: &'static str) -> Error {
    Error::unavailable(operation, "out of time (as the test asked for)").with_retry(Retry::Ambiguous)
}

impl HeldUp {
    pub fn new(inner: Arc<dyn Engine>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            gate: Arc::new(Gate {
                mode: Mutex::new(Mode::Pass),
                opened: Condvar::new(),
            }),
            late: Mutex::default(),
        })
    }

    pub fn set(&self, mode: Mode) {
        *self.gate.mode.lock() = mode;
    }

    /// Lets every call go; returns when those that were late are done.
    pub fn let_go(&self) {
        self.set(Mode::Pass);
        self.gate.opened.notify_all();
        for call in self.late.lock().drain(..) {
            call.join().expect("no panic");
        }
    }

    fn later(&self, call: impl FnOnce(&dyn Engine) + Send + 'static) {
        let (inner, gate) = (Arc::clone(&self.inner), Arc::clone(&self.gate));
        self.late.lock().push(std::thread::spawn(move || {
            gate.wait();
            call(&*inner);
        }));
    }
}

impl Engine for HeldUp {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        self.inner.register(memory, within)
    }

    fn registrations(&self) -> Registrations {
        self.inner.registrations()
    }

    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>> {
        let mode = *self.gate.mode.lock();
        if mode == Mode::LatePut {
            let (batch, options) = (batch.to_vec(), options.clone());
            self.later(move |engine| {
                engine.put(&batch, &options, within).expect("a late put");
            });
            return Err(out_of_time("engine.put"));
        }
        let outcomes = self.inner.put(batch, options, within);
        if mode == Mode::HangAfterPut {
            self.gate.wait();
        }
        outcomes
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        let mode = *self.gate.mode.lock();
        match mode {
            Mode::TornOnce => {
                self.set(Mode::Pass);
                let outcomes = self.inner.get(batch, within);
                let torn = batch.iter().flat_map(|transfer| &transfer.parts).next().expect("bytes");
                let first = torn.to_vec()[0];
                torn.write(0, &[first ^ 1]).expect("a byte");
                return outcomes;
            }
            Mode::LateGet => {
                let batch = batch.to_vec();
                self.later(move |engine| {
                    engine.get(&batch, within).expect("a late get");
                });
                return Err(out_of_time("engine.get").with_retry(Retry::Safe));
            }
            Mode::HangBeforeGet => {}
            _ => return self.inner.get(batch, within),
        }
        self.gate.wait();
        self.inner.get(batch, within)
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        self.inner.remove(keys, within)
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        self.inner.probe(keys, within)
    }

    fn raise(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RaiseOutcome>> {
        self.inner.raise(keys, within)
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        self.inner.usage(within)
    }
}
