//! Dying at a chosen point, at a random moment.
//!
//! A doomed worker kills itself with SIGKILL: nothing of it runs on, and it says no goodbye, exactly as if another
//! process had sent the signal. Only this way is the point exact.
//!
//! ```text
//! after or before a step:   step ──▶ Doomed is written down ─ random pause ─▶ SIGKILL     (its other tasks run on meanwhile)
//! in the middle of a call:  Doomed is written down ─▶ the call begins … SIGKILL after a random part of what it took before
//!                                                              └ over already: written down as Survived, waits for the signal
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use tensorhold_core::{Clock, Rng, SystemClock, SystemRng, Timestamp};

use crate::journal::{Event, Journal};

/// Where a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Point {
    AfterReserve,
    MidTransfer,
    BeforeCommit,
    AfterCommit,
    AfterLease,
    MidGet,
    AfterGet,
    MidAck,
}

impl Point {
    pub(crate) const OF_PRODUCERS: [Self; 4] = [
        Self::AfterReserve,
        Self::MidTransfer,
        Self::BeforeCommit,
        Self::AfterCommit,
    ];
    pub(crate) const OF_CONSUMERS: [Self; 4] = [Self::AfterLease, Self::MidGet, Self::AfterGet, Self::MidAck];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AfterReserve => "producer, after reserve",
            Self::MidTransfer => "producer, mid-transfer",
            Self::BeforeCommit => "producer, before commit",
            Self::AfterCommit => "producer, after commit",
            Self::AfterLease => "consumer, after lease",
            Self::MidGet => "consumer, mid-get",
            Self::AfterGet => "consumer, after get",
            Self::MidAck => "consumer, mid-ack",
        }
    }
}

/// The longest pause between a step and the signal.
const LONGEST_PAUSE: Duration = Duration::from_millis(40);
/// A call for which no time is known is taken for one of so many nanoseconds at most.
const LONGEST_CALL: u64 = 20_000_000;
/// The signal arrives long before this.
const DEAD_BY: Duration = Duration::from_secs(20);

/// When a process dies.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Doom {
    pub(crate) point: Point,
    /// How often it passes the point unharmed before.
    pub(crate) spared: u64,
}

/// Looks out for the point at which its process dies.
#[derive(Debug)]
pub(crate) struct Fate {
    doom: Doom,
    passed: AtomicU64,
    /// The shortest time that the call took so far, in nanoseconds.
    shortest: AtomicU64,
    journal: Arc<Journal>,
    clock: SystemClock,
}

/// A call in whose middle the process dies, unless it is spared once more.
pub(crate) struct Call<'a> {
    fate: &'a Fate,
    begun: Timestamp,
    doomed: bool,
}

impl Fate {
    pub(crate) fn new(doom: Doom, journal: Arc<Journal>) -> Self {
        Self {
            doom,
            passed: AtomicU64::new(0),
            shortest: AtomicU64::new(u64::MAX),
            journal,
            clock: SystemClock::new(),
        }
    }

    /// Whether this is the moment. It comes once.
    fn strikes(&self, point: Point) -> bool {
        point == self.doom.point && self.passed.fetch_add(1, Ordering::Relaxed) == self.doom.spared
    }

    /// A step is done, or about to be done: returns, or never.
    pub(crate) async fn step(&self, point: Point) {
        if !self.strikes(point) {
            return;
        }
        self.journal.note(&Event::Doomed { point });
        let pause = SystemRng.below(u64::try_from(LONGEST_PAUSE.as_nanos()).unwrap_or(u64::MAX));
        tokio::time::sleep(Duration::from_nanos(pause)).await;
        die();
    }

    /// A call begins. Hand the result to [`Call::over`] when it has returned.
    pub(crate) fn call(&self, point: Point) -> Call<'_> {
        let doomed = self.strikes(point);
        if doomed {
            self.journal.note(&Event::Doomed { point });
            let after = Duration::from_nanos(SystemRng.below(self.shortest.load(Ordering::Relaxed).min(LONGEST_CALL)));
            let clock = self.clock;
            // No thread joins it: the process does not outlive it.
            std::thread::spawn(move || {
                clock.sleep(after);
                die();
            });
        }
        Call {
            fate: self,
            begun: self.clock.now(),
            doomed,
        }
    }
}

impl Call<'_> {
    /// The call has returned: returns, or never.
    pub(crate) fn over(self) {
        if self.doomed {
            let point = self.fate.doom.point;
            self.fate.journal.note(&Event::Survived { point });
            self.fate.clock.sleep(DEAD_BY);
            die();
        }
        let took = self.fate.clock.now().since(self.begun).as_nanos();
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        self.fate.shortest.fetch_min(took, Ordering::Relaxed);
    }
}

/// SIGKILL, to this process.
fn die() {
    if let Err(error) = kill_process(getpid(), Signal::KILL) {
        eprintln!("this process cannot kill itself: {error}");
        std::process::exit(4);
    }
}
