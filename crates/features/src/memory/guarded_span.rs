//! Guarded spans of registered memory: knowing when the engine has let go of it.
//!
//! A call that ran out of time may still read or write the memory it was given; the engine keeps the [`Span`]s of such
//! a call until it has returned. A *guarded span* is a region of its own over a part of registered memory, with a guard
//! inside:
//!
//! ```text
//! registered Span ──lend(guard)──▶ Span over the same bytes ──clones──▶ the caller, a transfer under way, …
//!       ▲ held by                                                            │ the last clone is gone
//!       └──────────── the guarded span ◀─────────────────────────────────────┘ ─▶ the guard is dropped, then the Span
//! ```
//!
//! So work that must wait until nothing touches the memory any more (going back to the pool, removing what a late put
//! may have written) is done by the guard's `Drop`, however the call ended.
//!
//! Invariants:
//! - L1: while a clone of the guarded span exists, the memory under it is registered.
//! - L2: the guard is dropped exactly once, when no clone of the guarded span exists any more.

#![expect(
    unsafe_code,
    reason = "the FFI edge: a second name for memory that foreign code reads and writes"
)]

use std::any::Any;
use std::sync::Arc;

use holdfast_core::Result;
use holdfast_engine::{EngineId, HostMemory, Region, Registrar, Span};

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

/// Drops the guard before it lets go of the memory.
struct Owner {
    _guard: Box<dyn Any + Send + Sync>,
    _span: Span,
}

/// The same bytes as `span`, with `guard` inside.
pub(crate) fn guard(span: Span, guard: impl Any + Send + Sync) -> Result<Span> {
    let lender = Arc::new(Lender(span.region().engine()));
    let base = std::ptr::with_exposed_provenance_mut::<u8>(span.address());
    let len = span.len();
    let owner = Owner {
        _guard: Box::new(guard),
        _span: span,
    };
    // SAFETY: the owner holds the span, which keeps its region registered and its memory valid for reads and writes;
    // like the span itself, the guarded span is only ever copied in and out of, never handed out as a reference.
    let memory = unsafe { HostMemory::lent(base, len, owner) }?;
    Ok(Region::new(memory, lender).whole())
}

/// Memory that `span` keeps valid, to be registered by itself.
pub(crate) fn lent_again(span: Span) -> Result<HostMemory> {
    let base = std::ptr::with_exposed_provenance_mut::<u8>(span.address());
    // SAFETY: the owner is the span, which keeps its memory valid for reads and writes; it is never handed out as a
    // reference.
    unsafe { HostMemory::lent(base, span.len(), span) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use holdfast_core::{ObjectKey, SystemClock};
    use holdfast_engine::{Engine, EngineExt, MemoryCluster, MemoryConfig, PutOptions, PutOutcome};

    struct Told(Arc<AtomicUsize>);

    impl Drop for Told {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_loan_is_the_same_memory_and_ends_with_its_last_clone() {
        let within = Duration::from_secs(1);
        let cluster = MemoryCluster::new(MemoryConfig::default(), Arc::new(SystemClock::new()));
        let engine = cluster.connect();
        let region = engine.allocate(10, within).expect("memory");
        let ended = Arc::new(AtomicUsize::new(0));
        let loan = guard(region.span(2..6).expect("inside"), Told(Arc::clone(&ended))).expect("a loan");
        loan.write(0, &[1, 2, 3, 4]).expect("fits");
        assert_eq!(region.whole().to_vec(), [0, 0, 1, 2, 3, 4, 0, 0, 0, 0]);
        drop(region);

        let key = ObjectKey::new("k").expect("a key");
        let stored = engine
            .put_one(&key, &loan, &PutOptions::default(), within)
            .expect("an outcome");
        assert!(
            matches!(stored, PutOutcome::Stored),
            "the engine takes it for its own memory"
        );
        let part = loan.region().span(1..2).expect("inside");
        drop(loan);
        assert_eq!(ended.load(Ordering::SeqCst), 0, "a part is left");
        assert_eq!(engine.registrations().regions, 1);
        drop(part);
        assert_eq!(ended.load(Ordering::SeqCst), 1);
        assert_eq!(engine.registrations().regions, 0);
    }
}
