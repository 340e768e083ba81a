//! Guarded spans of registered memory: knowing when the engine has let go of it.
//!
//! A call that ran out of time may still read or write the memory it was given; the engine keeps the [`Span`]s of such
//! a call until it has returned. A *guarded span* is a region of its own over a part of registered memory, with a guard
//! inside:
//!
//! ```text
//! registered Span ──guarded(guard)──▶ Span over the same bytes ──clones──▶ the caller, a transfer in flight, …
//!       ▲ held by                                                            │ the last clone is gone
//!       └──────────── the guarded span ◀─────────────────────────────────────┘ ─▶ the Span is dropped, then the guard
//! ```
//!
//! So work that must wait until nothing touches the memory any more (going back to a pool, removing what a late put may
//! have written, telling a caller that its pages are free) is done by the guard's `Drop`, however the call ended.
//!
//! Invariants:
//! - L1: while a clone of the guarded span exists, the memory under it is registered.
//! - L2: the guard is dropped exactly once, when no clone of the guarded span exists any more, and after the guarded span
//!   has let go of the memory: a caller that is told by it may unmap the memory.

#![expect(
    unsafe_code,
    reason = "the FFI edge: a second name for memory that foreign code reads and writes"
)]

use std::any::Any;
use std::sync::Arc;

use tensorhold_core::Result;

use crate::region::{EngineId, HostMemory, Region, Registrar, Span};

/// The engine knows the memory under a guarded span by the span inside it; there is nothing to unregister.
#[derive(Debug)]
struct Lender(EngineId);

impl Registrar for Lender {
    fn engine(&self) -> EngineId {
        self.0
    }

    fn unregister(&self, memory: HostMemory) {
        drop(memory);
    }
}

/// Lets go of the memory before it drops the guard.
struct Owner {
    _span: Span,
    _guard: Box<dyn Any + Send + Sync>,
}

impl Span {
    /// The same bytes, with `guard` inside.
    pub fn guarded(self, guard: impl Any + Send + Sync) -> Result<Self> {
        let lender = Arc::new(Lender(self.region().engine()));
        let base = std::ptr::with_exposed_provenance_mut::<u8>(self.address());
        let len = self.len();
        let owner = Owner {
            _span: self,
            _guard: Box::new(guard),
        };
        // SAFETY: the owner holds the span, which keeps its region registered and its memory valid for reads and writes;
        // like the span itself, the guarded span is only ever copied in and out of, never handed out as a reference.
        let memory = unsafe { HostMemory::lent(base, len, owner) }?;
        Ok(Region::new(memory, lender).whole())
    }

    /// Memory that this span keeps valid, to be registered by itself.
    pub fn lent_again(self) -> Result<HostMemory> {
        let base = std::ptr::with_exposed_provenance_mut::<u8>(self.address());
        // SAFETY: the owner is the span, which keeps its memory valid for reads and writes; it is never handed out as a
        // reference.
        unsafe { HostMemory::lent(base, self.len(), self) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tensorhold_core::{ObjectKey, SystemClock};

    use crate::{Engine, EngineExt, MemoryCluster, MemoryConfig, MemoryEngine, PutOptions, PutOutcome};

    /// Says when it is dropped, and that the memory is registered no more then.
    struct Told(Arc<AtomicUsize>, Arc<MemoryEngine>);

    impl Drop for Told {
        fn drop(&mut self) {
            assert_eq!(self.1.registrations().regions, 0);
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_guarded_span_is_the_same_memory_and_ends_with_its_last_clone() {
        let within = Duration::from_secs(1);
        let cluster = MemoryCluster::new(MemoryConfig::default(), Arc::new(SystemClock::new()));
        let engine = cluster.connect();
        let region = engine.allocate(10, within).expect("memory");
        let ended = Arc::new(AtomicUsize::new(0));
        let told = Told(Arc::clone(&ended), Arc::clone(&engine));
        let span = region.span(2..6).expect("inside").guarded(told).expect("guarded");
        span.write(0, &[1, 2, 3, 4]).expect("fits");
        assert_eq!(region.whole().to_vec(), [0, 0, 1, 2, 3, 4, 0, 0, 0, 0]);
        drop(region);

        let key = ObjectKey::new("k").expect("a key");
        let stored = engine
            .put_one(&key, &span, &PutOptions::default(), within)
            .expect("an outcome");
        assert!(
            matches!(stored, PutOutcome::Stored),
            "the engine takes it for its own memory"
        );
        let part = span.region().span(1..2).expect("inside");
        drop(span);
        assert_eq!(ended.load(Ordering::SeqCst), 0, "a part is left");
        assert_eq!(engine.registrations().regions, 1);
        drop(part);
        assert_eq!(ended.load(Ordering::SeqCst), 1);
        assert_eq!(engine.registrations().regions, 0);
    }
}
