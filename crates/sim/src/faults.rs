//! What can go wrong in the world, how often it does, and how often it did.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tensorhold_core::Rng;

/// How a fault comes.
#[derive(Clone, Copy, Debug)]
enum Comes {
    /// In so many of 10,000 calls that it can hit.
    In(u32),
    /// Every so many seconds, on average.
    Every(u32),
}

macro_rules! faults {
    ($($name:ident $comes:expr, $says:literal;)*) => {
        /// Something that goes wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Fault {
            $(#[doc = $says] $name,)*
        }

        impl Fault {
            /// All of them.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            /// What it is, in words.
            pub(crate) fn says(self) -> &'static str {
                match self {
                    $(Self::$name => $says,)*
                }
            }

            fn comes(self) -> Comes {
                match self {
                    $(Self::$name => $comes,)*
                }
            }
        }
    };
}

use Comes::{Every, In};

faults! {
    RequestLost In(100), "a request to etcd is lost";
    ReplyLost In(100), "a reply of etcd is lost";
    Slow In(300), "a message takes far longer";
    Compacted In(100), "etcd forgets its history";
    WatchBroken In(100), "a watch breaks";
    WatchTwice In(200), "a watch tells changes twice";
    WatchLate In(200), "a watch tells changes late";
    Full Every(15), "etcd is full for a while";
    NoLeader Every(15), "etcd changes its leader";
    Expired Every(20), "etcd ends a session early";
    Cut Every(8), "a process is cut off for a while";
    Paused Every(8), "a process is stopped for a while";
    Killed Every(12), "a process is killed";
    CallerLeaves In(300), "a caller leaves";
    CallLate In(200), "an engine call begins or answers late";
    PutLost In(100), "a put never reaches the engine";
    PutLate In(150), "a put runs out of time and lands later, in part";
    PutUnheard In(100), "a put's answer is lost";
    PutFailed In(150), "a holder refuses objects of a put";
    PutFull In(100), "the engine has no room for objects of a put";
    GetLost In(100), "a get never reaches the engine";
    GetLate In(100), "a get runs out of time and writes to its memory later";
    GetFailed In(150), "objects of a get cannot be read now";
    GetTorn In(5000), "an object is removed while it is read";
    GetFlipped In(100), "bytes of an object change on the wire";
    RemoveLost In(100), "a remove never reaches the engine";
    RemoveUnheard In(150), "a remove's answer is lost";
    RemovePartly In(150), "a remove removes some of its objects";
    ProbeLost In(100), "a question to the engine is lost";
    HolderDies Every(40), "a holder dies, and is back later";
    MasterDies Every(60), "the master dies, and is back later";
}

/// The faults of one world.
#[derive(Debug)]
pub(crate) struct Faults {
    on: AtomicBool,
    /// By fault: in how many of 10,000 calls, or of a million milliseconds, it comes; zero for one that this world does not
    /// know.
    chances: Vec<AtomicU32>,
    counts: Vec<AtomicU64>,
}

impl Faults {
    /// Draws which faults this world knows, and how often they come.
    pub(crate) fn draw(rng: &dyn Rng) -> Self {
        // Some worlds are calm, some know every fault, most know a part of them.
        let known = [0, 200, 500, 700, 1000][usize::try_from(rng.below(5)).unwrap_or(0)];
        let chance = |fault: &Fault| {
            let usual = match fault.comes() {
                In(of_10_000) => of_10_000,
                Every(seconds) => 1000 / seconds,
            };
            let factor = [1, 2, 4, 12][usize::try_from(rng.below(4)).unwrap_or(0)];
            let of_10_000 = if rng.chance(known) {
                (usual * factor / 4).max(1)
            } else {
                0
            };
            AtomicU32::new(of_10_000)
        };
        Self {
            on: AtomicBool::new(true),
            chances: Fault::ALL.iter().map(chance).collect(),
            counts: Fault::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Ends all faults.
    pub(crate) fn end(&self) {
        self.on.store(false, Ordering::Relaxed);
    }

    /// Whether a fault hits this call.
    pub(crate) fn hits(&self, fault: Fault, rng: &dyn Rng) -> bool {
        self.happens(fault, 10_000, rng)
    }

    /// Whether a fault comes in this span of time.
    pub(crate) fn comes(&self, fault: Fault, span: Duration, rng: &dyn Rng) -> bool {
        let spans = 1_000_000 / u64::try_from(span.as_millis()).unwrap_or(1).max(1);
        self.happens(fault, spans, rng)
    }

    fn happens(&self, fault: Fault, of: u64, rng: &dyn Rng) -> bool {
        let chance = u64::from(self.chances[fault as usize].load(Ordering::Relaxed));
        if chance == 0 || !self.on.load(Ordering::Relaxed) || rng.below(of) >= chance {
            return false;
        }
        self.counts[fault as usize].fetch_add(1, Ordering::Relaxed);
        true
    }

    /// How often each came.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Fault, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        Fault::ALL.iter().copied().zip(counts)
    }
}
