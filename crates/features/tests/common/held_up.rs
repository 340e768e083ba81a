//! An engine that can be held up: calls that hang, and calls that outlive their deadline.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorhold_core::{Clock, Error, ObjectKey, Result, Retry, SystemClock, Timestamp};
use tensorhold_engine::{
    Capabilities, Engine, GetOutcome, HostMemory, Listing, Presence, PromoteOutcome, PutOptions, PutOutcome, Region,
    Registrations, RemoveOutcome, Transfer, Usage,
};

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
    /// Puts and gets take so much longer.
    Slow(Duration),
    /// A probe takes all of its time and fails.
    SilentProbe,
    /// One get brings another byte; those after it pass.
    TornOnce,
}

#[derive(Debug)]
pub struct HeldUp {
    inner: Arc<dyn Engine>,
    gate: Arc<Gate>,
    late: Mutex<Vec<JoinHandle<()>>>,
    clock: SystemClock,
    puts: Mutex<Vec<CallTime>>,
    gets: Mutex<Vec<CallTime>>,
}

/// When a call began and ended.
type CallTime = (Timestamp, Timestamp);

#[derive(Debug)]
struct Gate {
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    /// How often calls were let go. A call that is held up waits for the next time, whatever the mode is by then.
    let_go: u64,
    /// How many calls are held up now.
    held: usize,
}

impl Gate {
    fn enter(&self) -> (Mode, u64) {
        let state = self.state.lock();
        (state.mode, state.let_go)
    }

    /// Waits until calls are let go once more than when this one came.
    fn wait(&self, came_at: u64) {
        let mut state = self.state.lock();
        state.held += 1;
        while state.let_go == came_at {
            self.opened.wait(&mut state);
        }
        state.held -= 1;
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
                state: Mutex::new(State {
                    mode: Mode::Pass,
                    let_go: 0,
                    held: 0,
                }),
                opened: Condvar::new(),
            }),
            late: Mutex::default(),
            clock: SystemClock::new(),
            puts: Mutex::default(),
            gets: Mutex::default(),
        })
    }

    pub fn set(&self, mode: Mode) {
        self.gate.state.lock().mode = mode;
    }

    /// When puts were made in mode `Slow`.
    pub fn put_times(&self) -> Vec<CallTime> {
        self.puts.lock().clone()
    }

    /// When gets were made in mode `Slow`.
    pub fn get_times(&self) -> Vec<CallTime> {
        self.gets.lock().clone()
    }

    fn slowly<T>(&self, takes: Duration, times: &Mutex<Vec<CallTime>>, call: impl FnOnce() -> T) -> T {
        let begun = self.clock.now();
        #[allow(
            clippy::disallowed_methods,
            reason = "a slow call takes time; nothing waits for the sleep"
        )]
        std::thread::sleep(takes);
        let outcome = call();
        times.lock().push((begun, self.clock.now()));
        outcome
    }

    /// Whether a call is held up now.
    pub fn holds_one_up(&self) -> bool {
        self.gate.state.lock().held > 0
    }

    /// Lets every call go; returns when those that were late are done.
    pub fn let_go(&self) {
        {
            let mut state = self.gate.state.lock();
            state.mode = Mode::Pass;
            state.let_go += 1;
        }
        self.gate.opened.notify_all();
        for call in self.late.lock().drain(..) {
            call.join().expect("no panic");
        }
    }

    fn later(&self, came_at: u64, call: impl FnOnce(&dyn Engine) + Send + 'static) {
        let (inner, gate) = (Arc::clone(&self.inner), Arc::clone(&self.gate));
        self.late.lock().push(std::thread::spawn(move || {
            gate.wait(came_at);
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
        let (mode, came_at) = self.gate.enter();
        if mode == Mode::LatePut {
            let (batch, options) = (batch.to_vec(), options.clone());
            self.later(came_at, move |engine| {
                engine.put(&batch, &options, within).expect("a late put");
            });
            return Err(out_of_time("engine.put"));
        }
        if let Mode::Slow(takes) = mode {
            return self.slowly(takes, &self.puts, || self.inner.put(batch, options, within));
        }
        let outcomes = self.inner.put(batch, options, within);
        if mode == Mode::HangAfterPut {
            self.gate.wait(came_at);
        }
        outcomes
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        let (mode, came_at) = self.gate.enter();
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
                self.later(came_at, move |engine| {
                    engine.get(&batch, within).expect("a late get");
                });
                return Err(out_of_time("engine.get").with_retry(Retry::Safe));
            }
            Mode::HangBeforeGet => {}
            Mode::Slow(takes) => return self.slowly(takes, &self.gets, || self.inner.get(batch, within)),
            _ => return self.inner.get(batch, within),
        }
        self.gate.wait(came_at);
        self.inner.get(batch, within)
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        self.inner.remove(keys, within)
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        if self.gate.enter().0 == Mode::SilentProbe {
            #[allow(
                clippy::disallowed_methods,
                reason = "a master that is silent takes all the time there is"
            )]
            std::thread::sleep(within);
            return Err(out_of_time("engine.probe").with_retry(Retry::Safe));
        }
        self.inner.probe(keys, within)
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        self.inner.list(prefix, after, limit, within)
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        self.inner.promote(keys, within)
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        self.inner.usage(within)
    }
}
