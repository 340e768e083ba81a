//! The world outside of processes (network, etcd, Mooncake), the processes in it, and the driver that lets one of them run
//! after the other.
//!
//! Every process is a paused `current_thread` runtime; so is the outside. The driver moves the time on by a few
//! milliseconds, lets the outside run until then, and then each process, in an order that the seed draws. A request
//! travels outside: it arrives although its sender has been stopped or killed meanwhile. A process that is stopped does not
//! run; when it goes on, its clock has jumped. A process that is killed is cut off first, so what its destructors do
//! reaches nobody.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, ManualClock, ObjectKey, Result, Rng, SeededRng, StoreId, Timestamp};
use tensorhold_engine::{MemoryCluster, MemoryConfig};
use tensorhold_index::store::memory::MemoryStore;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::Instant;

use crate::faults::{Fault, Faults};
use crate::judge::Judge;

thread_local! {
    /// The process that runs.
    static RUNNING: Cell<u64> = const { Cell::new(0) };
}

/// The time of one process: that of its paused runtime, which is as far as the driver has let it run.
#[derive(Debug)]
pub(crate) struct ProcessClock {
    origin: Instant,
    name: u64,
    born: Duration,
    outside: Arc<ManualClock>,
}

impl Clock for ProcessClock {
    fn now(&self) -> Timestamp {
        let since = if RUNNING.get() == self.name {
            Instant::now().saturating_duration_since(self.origin)
        } else {
            // Asked on another runtime, whose clock is another one: by a destructor, or by a request on its way.
            elapsed(&self.outside).saturating_sub(self.born)
        };
        Timestamp::ORIGIN.after(since)
    }

    fn wall_ms(&self) -> u64 {
        let since = self.born + self.now().since(Timestamp::ORIGIN);
        1_700_000_000_000 + u64::try_from(since.as_millis()).unwrap_or(0)
    }

    #[expect(clippy::panic, reason = "it would never end")]
    fn sleep(&self, _: Duration) {
        panic!("a blocking sleep in a simulation");
    }
}

pub(crate) fn elapsed(clock: &ManualClock) -> Duration {
    clock.now().since(Timestamp::ORIGIN)
}

/// Spans of time in which the outside does not work as usual, as the ends of those.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    /// etcd is full.
    pub(crate) full: Duration,
    /// etcd has no leader.
    pub(crate) leaderless: Duration,
    /// How many leaders etcd has had.
    pub(crate) leaders: u64,
    /// The master is dead.
    pub(crate) masterless: Duration,
    /// Holders that are dead.
    pub(crate) holders: BTreeMap<usize, Duration>,
}

/// Network, etcd and Mooncake.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) store: StoreId,
    pub(crate) handle: Handle,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) rng: SeededRng,
    pub(crate) faults: Faults,
    pub(crate) etcd: MemoryStore,
    pub(crate) cluster: Arc<MemoryCluster>,
    /// What the objects hold that were put, also of those that were removed: a reader may still have the old bytes.
    pub(crate) bytes: Mutex<BTreeMap<ObjectKey, Vec<u8>>>,
    /// When objects were removed.
    pub(crate) removed: Mutex<BTreeMap<ObjectKey, Duration>>,
    pub(crate) judge: Mutex<Judge>,
    pub(crate) troubles: Mutex<Troubles>,
    pub(crate) traced: bool,
    pub(crate) events: AtomicU64,
    hash: AtomicU64,
}

impl Outside {
    pub(crate) fn now(&self) -> Duration {
        elapsed(&self.clock)
    }

    /// Notes something that happened: the hash of a run is that of all of them, in order, with their times.
    pub(crate) fn event(&self, process: u64, what: &str, detail: u64) {
        const PRIME: u64 = 0x0100_0000_01b3;
        self.events.fetch_add(1, Ordering::Relaxed);
        self.trace(process, || format!("{what} {detail}"));
        let at = u64::try_from(self.now().as_micros()).unwrap_or(u64::MAX);
        let numbers = [process, detail, at];
        let bytes = what.bytes().chain(numbers.into_iter().flat_map(u64::to_le_bytes));
        let before = self.hash.load(Ordering::Relaxed);
        let hash = bytes.fold(before, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
        self.hash.store(hash, Ordering::Relaxed);
    }

    /// One line of a run that is replayed for a reader.
    pub(crate) fn trace(&self, process: u64, line: impl FnOnce() -> String) {
        if self.traced {
            eprintln!("{:>10.3} p{process} {}", self.now().as_secs_f64(), line());
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.load(Ordering::Relaxed)
    }

    pub(crate) fn hits(&self, fault: Fault) -> bool {
        let hits = self.faults.hits(fault, &self.rng);
        if hits {
            self.trace(RUNNING.get(), || format!("FAULT {}", fault.says()));
        }
        hits
    }

    /// How long a message takes: mostly below three milliseconds.
    pub(crate) fn lag(&self) -> Duration {
        let most = if self.hits(Fault::Slow) {
            [30, 300, 2000][usize::try_from(self.rng.below(3)).unwrap_or(0)]
        } else {
            3
        };
        Duration::from_millis(self.rng.below(most))
    }

    pub(crate) fn pick(&self, below: usize) -> usize {
        usize::try_from(self.rng.below(below as u64)).unwrap_or(0)
    }
}

/// How a process is connected to the outside.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// Its name: a number that no other process has.
    pub(crate) name: u64,
    /// Nothing passes.
    pub(crate) cut: AtomicBool,
    pub(crate) dead: AtomicBool,
}

impl Link {
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed) || self.is_dead()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }
}

/// A process.
pub(crate) struct Process {
    pub(crate) runtime: Runtime,
    pub(crate) clock: Arc<ProcessClock>,
    pub(crate) link: Arc<Link>,
    paused_until: Option<Duration>,
    cut_until: Option<Duration>,
}

impl Process {
    fn new(outside: &Outside, name: u64) -> Result<Self> {
        let runtime = paused()?;
        let born = outside.now();
        let origin = {
            let _inside = runtime.enter();
            Instant::now()
        };
        let clock = Arc::new(ProcessClock {
            origin,
            name,
            born,
            outside: Arc::clone(&outside.clock),
        });
        let link = Link {
            name,
            ..Link::default()
        };
        Ok(Self {
            runtime,
            clock,
            link: Arc::new(link),
            paused_until: None,
            cut_until: None,
        })
    }

    fn at(&self, time: Duration) -> Instant {
        self.clock.origin + time.saturating_sub(self.clock.born)
    }

    /// Runs `act` on its runtime, with its time.
    fn run<T>(&self, act: impl Future<Output = T>) -> T {
        RUNNING.set(self.link.name);
        let done = self.runtime.block_on(act);
        RUNNING.set(0);
        done
    }

    fn run_until(&self, time: Duration) {
        let until = self.at(time);
        self.run(async move { tokio::time::sleep_until(until).await });
    }

    /// It was stopped, and goes on: all its timers are late.
    fn jump_to(&self, time: Duration) {
        let until = self.at(time);
        self.run(async move {
            let by = until.saturating_duration_since(Instant::now());
            tokio::time::advance(by).await;
        });
    }
}

fn paused() -> Result<Runtime> {
    let built = Builder::new_current_thread().enable_time().start_paused(true).build();
    built.map_err(|error| tensorhold_core::Error::internal("sim.runtime", error.to_string()))
}

/// The outside, the processes, and the time.
pub(crate) struct World {
    pub(crate) outside: Arc<Outside>,
    pub(crate) processes: Vec<Process>,
    runtime: Runtime,
    origin: Instant,
    time: Duration,
    quantum: u64,
    names: u64,
}

impl World {
    pub(crate) fn new(seed: u64, segment_bytes: u64, holders: usize, traced: bool) -> Result<Self> {
        let runtime = paused()?;
        let origin = {
            let _inside = runtime.enter();
            Instant::now()
        };
        let clock = Arc::new(ManualClock::new());
        let rng = SeededRng::new(seed);
        let config = MemoryConfig {
            holders,
            segment_bytes,
            holder_loss_after: Duration::from_secs(1),
            ..MemoryConfig::default()
        };
        let store: StoreId = "s".parse()?;
        let quantum = 1 + rng.below(3);
        let outside = Outside {
            handle: runtime.handle().clone(),
            faults: Faults::draw(&rng),
            etcd: MemoryStore::new(clock.clone()),
            cluster: MemoryCluster::new(config, clock.clone()),
            bytes: Mutex::default(),
            removed: Mutex::default(),
            judge: Mutex::new(Judge::new(store.clone())),
            troubles: Mutex::default(),
            events: AtomicU64::new(0),
            hash: AtomicU64::new(0xcbf2_9ce4_8422_2325),
            store,
            clock,
            rng,
            traced,
        };
        Ok(Self {
            outside: Arc::new(outside),
            processes: Vec::new(),
            runtime,
            origin,
            time: Duration::ZERO,
            quantum,
            names: 0,
        })
    }

    pub(crate) fn time(&self) -> Duration {
        self.time
    }

    /// A process that has just been started.
    pub(crate) fn start(&mut self) -> Result<Process> {
        self.names += 1;
        Process::new(&self.outside, self.names)
    }

    /// Lets the time go on a little. Returns by how much.
    pub(crate) fn advance(&mut self) -> Duration {
        let rng = &self.outside.rng;
        let millis = if rng.chance(50) { rng.below(10) } else { 0 } + self.quantum;
        let by = Duration::from_millis(millis);
        self.time += by;
        self.outside.clock.advance(by);
        self.settle();
        let until = self.origin + self.time;
        self.runtime
            .block_on(async move { tokio::time::sleep_until(until).await });
        let count = self.processes.len();
        let first = self.outside.pick(count.max(1));
        for turn in 0..count {
            let process = &mut self.processes[(first + turn) % count];
            if process.cut_until.is_some_and(|until| until <= self.time) {
                process.cut_until = None;
                process.link.cut.store(false, Ordering::Relaxed);
            }
            match process.paused_until {
                Some(until) if until > self.time => continue,
                Some(_) => {
                    process.paused_until = None;
                    process.jump_to(self.time);
                }
                None => {}
            }
            process.run_until(self.time);
        }
        by
    }

    /// What was dead comes back when its time has come.
    fn settle(&mut self) {
        let outside = &self.outside;
        let mut troubles = outside.troubles.lock();
        if troubles.masterless > Duration::ZERO && troubles.masterless <= self.time {
            troubles.masterless = Duration::ZERO;
            outside.cluster.restart_master();
            outside.event(0, "master is back", 0);
        }
        let time = self.time;
        troubles.holders.retain(|holder, until| {
            let back = *until <= time;
            if back {
                outside.cluster.restart_holder(*holder);
                outside.event(0, "holder is back", *holder as u64);
            }
            !back
        });
        if troubles.leaderless > Duration::ZERO && troubles.leaderless <= self.time {
            troubles.leaderless = Duration::ZERO;
            // A new leader gives every lease its full time again.
            for session in outside.etcd.sessions() {
                outside.etcd.kept(session, true);
                outside.etcd.kept(session, false);
            }
        }
    }

    /// What goes wrong by itself in a span of time. Returns which process is killed, if one is.
    pub(crate) fn trouble(&mut self, span: Duration, holders: usize) -> Option<usize> {
        let outside = Arc::clone(&self.outside);
        let comes = |fault| {
            let comes = outside.faults.comes(fault, span, &outside.rng);
            if comes {
                outside.event(0, fault.says(), 0);
                outside.trace(0, || format!("FAULT {}", fault.says()));
            }
            comes
        };
        let time = self.time;
        let until = |most: u64| time + Duration::from_millis(1 + outside.rng.below(most));
        let at = outside.pick(self.processes.len());
        if comes(Fault::Full) {
            outside.troubles.lock().full = until(4000);
        }
        if comes(Fault::NoLeader) {
            let mut troubles = outside.troubles.lock();
            troubles.leaderless = until(3000);
            troubles.leaders += 1;
        }
        if comes(Fault::Expired) {
            let sessions = outside.etcd.sessions();
            if !sessions.is_empty() {
                outside.etcd.expire(sessions[outside.pick(sessions.len())]);
            }
        }
        if comes(Fault::HolderDies) {
            let holder = outside.pick(holders);
            if outside.cluster.kill_holder(holder) {
                outside.judge.lock().memory_died();
                // Some are back before the master notices, some long after.
                let back = until(6000);
                outside.troubles.lock().holders.insert(holder, back);
            }
        }
        if comes(Fault::MasterDies) && outside.cluster.kill_master() {
            outside.judge.lock().memory_died();
            outside.troubles.lock().masterless = until(3000);
            // Some holders register late.
            for holder in 0..holders {
                if outside.rng.chance(400) && outside.cluster.kill_holder(holder) {
                    let back = until(6000);
                    outside.troubles.lock().holders.insert(holder, back);
                }
            }
        }
        if comes(Fault::Cut) {
            let back = until(6000);
            let process = &mut self.processes[at];
            process.link.cut.store(true, Ordering::Relaxed);
            process.cut_until = Some(back);
            outside.judge.lock().strayed(process.link.name);
        }
        if comes(Fault::Paused) {
            let back = until(7000);
            let process = &mut self.processes[at];
            process.paused_until = Some(back);
            outside.judge.lock().strayed(process.link.name);
        }
        comes(Fault::Killed).then_some(at)
    }

    /// All faults end, and everything comes back.
    pub(crate) fn calm_down(&mut self) {
        self.outside.faults.end();
        let mut troubles = self.outside.troubles.lock();
        troubles.full = Duration::ZERO;
        troubles.leaderless = troubles.leaderless.min(self.time);
        troubles.masterless = troubles.masterless.min(self.time);
        for until in troubles.holders.values_mut() {
            *until = (*until).min(self.time);
        }
        for process in &mut self.processes {
            process.cut_until = process.cut_until.map(|_| self.time);
            process.paused_until = process.paused_until.map(|_| self.time);
        }
    }
}
