//! The storage engine as Tensorhold sees it.
//!
//! [`Engine`] is the small trait that a back end implements. Its `# Contract` is written once, here, and the contract
//! suite (`testing`, behind the feature of that name) checks it on every back end. [`EngineExt`] adds convenience
//! methods for callers. The back ends are Mooncake Store (crate `tensorhold-engine-mooncake`) and, in this crate,
//! [`memory`], an engine that behaves like Mooncake where it matters and needs no server. `fault`, behind the feature
//! `testing` too, wraps any engine and injects faults by a seeded plan.
//!
//! The trait is blocking and takes batches, because the engines below do. An async caller runs it on threads of its
//! own.

pub mod batch;
pub mod busy;
#[cfg(feature = "testing")]
pub mod fault;
pub mod guarded;
pub mod memory;
mod metered;
pub mod region;
mod streaming;
#[cfg(feature = "testing")]
pub mod testing;
pub mod types;

use std::fmt::Debug;
use std::time::Duration;

use tensorhold_core::{Error, ErrorKind, ObjectKey, Result};

pub use busy::{Access, Busy, Claim};
#[cfg(feature = "testing")]
pub use fault::{FaultEngine, FaultKind, FaultPlan, InjectedFault};
pub use memory::{MemoryCluster, MemoryConfig, MemoryEngine, SsdConfig};
pub use metered::metered;
pub use region::{EngineId, HostMemory, Region, Registrar, Span};
pub use types::{
    Capabilities, GetOutcome, Holder, Listing, Pin, Presence, PromoteOutcome, PutOptions, PutOutcome, Registrations,
    RelocateOutcome, RemoveOutcome, Transfer, Usage,
};

/// A store of objects in other processes' memory, and on their SSDs.
///
/// # Contract
///
/// **Outcomes.** A call returns one outcome per object, in the order of the batch, or one error for the whole batch.
/// The error is for failures of the whole call: an invalid batch (`Invalid`), or a deadline that passed
/// (`Unavailable`). What concerns one object is its outcome. A miss, a full pool and an object that is not there are
/// outcomes, not failures.
///
/// **Deadlines.** Every call takes the time it may last, `within`, and returns by then (plus the delay of the
/// scheduler), whatever the engine does. With no time at all it does nothing and returns `Unavailable`, whatever else
/// is wrong with the call. A put or a remove that ran out of time may still take effect later; its error says
/// [`tensorhold_core::Retry::Ambiguous`]. Its memory stays registered until the engine lets go of it.
///
/// **Memory in flight.** A call that ran out of time may still read the memory of a put, and write to that of a get.
/// The call keeps the spans of its transfers until it has returned. So the caller first claims its memory (module
/// [`busy`]), and attaches the claim to the spans.
///
/// **Batches.** A batch has at most [`Capabilities::max_batch`] objects; an empty batch returns no outcomes. In a put
/// and in a get no key occurs twice. Every transfer has at least one part, every put asks for at least one replica. All
/// parts are registered with this engine. A batch that breaks one of these rules is refused whole, and nothing of it is
/// done.
///
/// **Put.** `Stored` means that an object is under the key. If one was there before, it is unchanged. The remains of a
/// put that never ended (its producer died) are not readable. A later put on that key may return `Stored` and write
/// nothing, until the engine's own timeout. So no key is ever put twice, and the caller confirms a put by a checksum
/// that it kept. A put that met a holder which does not answer is `Failed` (`Unavailable`, with the fact `reason=holder`):
/// nothing is stored, no later effect comes of it, and another key may go to another holder.
///
/// **Get.** `Loaded` means that the object has exactly as many bytes as its buffers, and that they were transferred.
/// Memory outside the buffers is never touched, whatever the outcome. If the object is removed while it is read, the
/// bytes may be torn and the outcome still `Loaded`: the caller checks. A get may keep the object from eviction for a
/// while (a read lease), and may make the engine promote it to DRAM.
///
/// **Remove** is forced: it does not wait for readers nor for leases, and the space is free for the next put at once.
/// It may leave copies on SSD behind, and those may come back when a holder or the engine restarts.
///
/// **Probe** has no side effects: it grants no lease, promotes nothing, counts as no use.
///
/// **List** has no side effects either. It has every object that is readable from the beginning to the end of the call,
/// in DRAM or on SSD. An object that comes or goes meanwhile, or whose put has not ended, may be in it or not. An engine
/// that keeps objects of several tenants may list those of others too: a probe tells them apart, it finds them `Absent`.
/// Objects whose key is no [`ObjectKey`] are left out.
///
/// **Promote** is a hint: objects that are on SSD and not in DRAM may come to DRAM, later or never. What is in DRAM gets a
/// read lease, so that it is still there when it is read; the engine grants none with a promotion.
///
/// **Relocate** is a request: a holder moves its copies of objects to another holder, later or never. An object that
/// moves keeps its key, its bytes and its pin, and is readable all the time. Meanwhile a remove of it is `Unfinished`.
///
/// **Loss.** While the master is dead, no process knows where objects are, and nothing is a `Miss` or `Absent`: every
/// outcome, or the call, is `Unavailable`. A holder that dies takes its objects with it, pinned or not: for a while
/// they may be `Failed` (`Unavailable`), then they are a `Miss`. After holders and engine are back, the same engine
/// value works again.
///
/// **Concurrency.** Calls may come from many threads at once. A call never panics because another failed.
pub trait Engine: Send + Sync + Debug {
    /// What this engine can do.
    fn capabilities(&self) -> Capabilities;

    /// Makes memory known to the engine, so that bytes can move from and to it. Memory that overlaps a region that is
    /// already registered is refused (`Invalid`).
    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region>;

    /// Memory of this process that is registered now.
    fn registrations(&self) -> Registrations;

    /// Writes objects.
    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>>;

    /// Reads objects.
    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>>;

    /// Removes objects, by force.
    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>>;

    /// Tells where objects are, without side effects.
    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>>;

    /// The keys of objects that begin with `prefix`, in the order of their bytes: after this one or from the start, up to
    /// `limit` (at least one). An engine may read its whole list for every part, so take large parts.
    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing>;

    /// Asks the engine to promote objects to DRAM.
    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>>;

    /// Capacity and use.
    fn usage(&self, within: Duration) -> Result<Usage>;

    /// The holders that contribute memory now, in the order of their names: what [`Engine::usage`] sums up. One that died
    /// is among them until the engine notices; one that comes back has other memory than before.
    /// An engine that does not tell them apart says so (`Unsupported`), which is the default.
    fn holders(&self, within: Duration) -> Result<Vec<Holder>> {
        let _ = within;
        Err(Error::new(
            ErrorKind::Unsupported,
            "engine.holders",
            "this engine does not tell its holders apart",
        ))
    }

    /// Asks the holder `from` to move its copies of these objects in DRAM to the holder `to`; names as
    /// [`Engine::holders`] tells them. An engine that cannot says so (`Unsupported`), which is the default.
    fn relocate(&self, keys: &[ObjectKey], from: &str, to: &str, within: Duration) -> Result<Vec<RelocateOutcome>> {
        let _ = (keys, from, to, within);
        Err(Error::new(
            ErrorKind::Unsupported,
            "engine.relocate",
            "this engine does not move objects between holders",
        ))
    }
}

/// Convenience methods for callers of an [`Engine`]. Every engine has them.
pub trait EngineExt: Engine {
    /// Allocates zeroed memory and registers it.
    fn allocate(&self, len: usize, within: Duration) -> Result<Region> {
        self.register(HostMemory::allocate(len)?, within)
    }

    /// [`Engine::put`] of one object from one buffer.
    fn put_one(&self, key: &ObjectKey, from: &Span, options: &PutOptions, within: Duration) -> Result<PutOutcome> {
        only(
            "engine.put",
            self.put(&[Transfer::new(key.clone(), from.clone())], options, within)?,
        )
    }

    /// [`Engine::get`] of one object into one buffer.
    fn get_one(&self, key: &ObjectKey, into: &Span, within: Duration) -> Result<GetOutcome> {
        only(
            "engine.get",
            self.get(&[Transfer::new(key.clone(), into.clone())], within)?,
        )
    }

    /// [`Engine::remove`] of one object.
    fn remove_one(&self, key: &ObjectKey, within: Duration) -> Result<RemoveOutcome> {
        only("engine.remove", self.remove(std::slice::from_ref(key), within)?)
    }

    /// [`Engine::probe`] of one object.
    fn probe_one(&self, key: &ObjectKey, within: Duration) -> Result<Presence> {
        only("engine.probe", self.probe(std::slice::from_ref(key), within)?)
    }
}

impl<E: Engine + ?Sized> EngineExt for E {}

fn only<T>(operation: &'static str, mut outcomes: Vec<T>) -> Result<T> {
    match (outcomes.pop(), outcomes.len()) {
        (Some(outcome), 0) => Ok(outcome),
        (_, more) => {
            Err(Error::internal(operation, "a batch of one object did not get exactly one outcome").with("more", more))
        }
    }
}

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
