//! Knowing when the engine has let go of the memory of a call.
//!
//! A call that ran out of time may still read or write its memory; the engine keeps the [`Span`]s of such a call until
//! it has returned. So no call gets the caller's spans. It gets spans that are guarded ([`tensorhold_engine::guarded`]) by the
//! call's [`Flight`].
//!
//! ```text
//! Settling ──depart()──▶ Flight ──held by──▶ guards ─spans──▶ the transfers of one engine call ──▶ the engine
//!     ▲                     │ the last span is dropped, by Tensorhold or by the engine's own thread       │
//!     └───── landed ────────┘◀──────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariants:
//! - S1: while a guarded span exists, the memory under it is registered and its flight has not landed.
//! - S2: a flight lands exactly once; its footers or its frame are free from then on, and not before.
//! - S3: a waiter for a [`Settling`] is told exactly once, when every flight that departed has landed.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorhold_core::{Clock, Deadline, Result};
use tensorhold_engine::{Region, Span};

type Told = Box<dyn FnOnce() + Send>;

/// Whether the engine has let go of all the memory that one call of a page store used. Cheap to clone.
#[derive(Clone, Default)]
pub struct Settling(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    landed: Condvar,
}

#[derive(Default)]
struct State {
    flights: usize,
    told: Option<Told>,
}

impl Settling {
    /// Whether no engine call is in flight. Until then the memory must not be used again.
    pub fn is_settled(&self) -> bool {
        self.0.state.lock().flights == 0
    }

    /// Waits until no engine call is in flight, but no longer than `within`. Returns whether that is so.
    pub fn wait(&self, clock: &dyn Clock, within: Duration) -> bool {
        let deadline = Deadline::after(clock, within);
        let mut state = self.0.state.lock();
        while state.flights > 0 {
            let left = deadline.remaining(clock);
            if left.is_zero() {
                return false;
            }
            self.0.landed.wait_for(&mut state, left);
        }
        true
    }

    /// Calls `told` once no engine call is in flight: now, or later on a thread of the engine. `told` must not block.
    /// Call this only when no further flight will depart.
    pub(super) fn when_settled(&self, told: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        if state.flights > 0 {
            state.told = Some(Box::new(told));
            return;
        }
        drop(state);
        told();
    }

    /// Begins the flight of a call. `held` is what the call uses: footers or a frame of the store's own, a claim on
    /// memory.
    pub(super) fn depart(&self, held: impl Any + Send + Sync) -> Arc<Flight> {
        self.0.state.lock().flights += 1;
        Arc::new(Flight {
            held: Some(Box::new(held)),
            settling: self.clone(),
        })
    }
}

impl fmt::Debug for Settling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settling({} calls under way)", self.0.state.lock().flights)
    }
}

/// One engine call, for as long as the engine may touch its memory.
pub(super) struct Flight {
    held: Option<Box<dyn Any + Send + Sync>>,
    settling: Settling,
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Its footers are free before any waiter is told that the call is over.
        self.held = None;
        let mut state = self.settling.0.state.lock();
        state.flights -= 1;
        let told = if state.flights == 0 { state.told.take() } else { None };
        drop(state);
        self.settling.0.landed.notify_all();
        if let Some(told) = told {
            told();
        }
    }
}

/// The guarded regions of one call: one for each region that its parts lie in.
pub(super) struct Loans {
    flight: Arc<Flight>,
    lent: Vec<Region>,
}

impl Loans {
    pub(super) fn new(flight: Arc<Flight>) -> Self {
        Self {
            flight,
            lent: Vec::with_capacity(2),
        }
    }

    /// The same bytes as `span`, guarded by the flight.
    pub(super) fn span(&mut self, span: &Span) -> Result<Span> {
        let (region, from) = (span.region(), span.address() - span.region().address());
        let same = |lent: &&Region| {
            (lent.address(), lent.len(), lent.engine()) == (region.address(), region.len(), region.engine())
        };
        let lent = match self.lent.iter().rev().find(same) {
            Some(lent) => lent.clone(),
            None => self.lend(region)?,
        };
        lent.span(from..from + span.len())
    }

    fn lend(&mut self, region: &Region) -> Result<Region> {
        let lent = region.whole().guarded(Arc::clone(&self.flight))?.region().clone();
        self.lent.push(lent.clone());
        Ok(lent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::slab::FooterSlab;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tensorhold_core::SystemClock;
    use tensorhold_engine::{Engine, EngineExt, MemoryCluster, MemoryConfig};

    #[test]
    fn a_flight_lands_when_its_last_span_is_gone_and_frees_its_footers_first() {
        let clock = SystemClock::new();
        let second = Duration::from_secs(1);
        let engine = MemoryCluster::new(MemoryConfig::default(), Arc::new(clock)).connect();
        let slab = FooterSlab::new(&*engine, 4, second).expect("a slab");
        let region = engine.allocate(100, second).expect("memory");
        let settling = Settling::default();
        let mut loans = Loans::new(settling.depart(slab.take(3).expect("free")));
        let spans: Vec<_> = [(0, 10), (50, 60)]
            .into_iter()
            .map(|(from, to)| loans.span(&region.span(from..to).expect("inside")).expect("lent"))
            .collect();
        assert_eq!(loans.lent.len(), 1, "one loan for one region");
        drop((loans, region));
        spans[1].write(0, b"here").expect("fits");
        let told = Arc::new(AtomicUsize::new(0));
        settling.when_settled({
            let (told, slab) = (Arc::clone(&told), slab.clone());
            move || {
                assert_eq!(slab.free(), 4);
                told.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert!(!settling.is_settled());
        assert!(!settling.wait(&clock, Duration::from_millis(5)));
        assert_eq!((slab.free(), engine.registrations().regions), (1, 2));
        drop(spans);
        assert!(settling.wait(&clock, second));
        assert_eq!(told.load(Ordering::SeqCst), 1);
        assert_eq!(engine.registrations().regions, 1, "the slab's own");
        settling.when_settled({
            let told = Arc::clone(&told);
            move || {
                told.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert_eq!(told.load(Ordering::SeqCst), 2, "told at once");
    }
}
