//! Which memory an engine knows: memory lent by Python objects, and registered memory that Python objects see.
//!
//! An engine may know each byte at most once, and forgets it some time after the transfer. But one tensor may stand in
//! a sample under two names, be put again at once, or be a view of the result of a get. So:
//! - LG1: memory inside a live output is used under its existing registration.
//! - LG2: overlapping ranges of one call are lent as one.
//! - LG3: a range that overlaps one lent by an earlier call waits until the engine has forgotten that one.
//!
//! Whether a transfer, even a late one, may still touch some memory is a separate question. It is answered for all
//! memory alike by the process's table of memory in use ([`tensorhold_engine::busy`]). LG3 is a table of the same kind,
//! for the memory that one engine knows.
//!
//! ```text
//! range ── inside a live output? ─▶ a span of it
//!       └─ else, free of others' ──▶ lent: registered, spans of it ── last span gone, forgotten ─▶ owner dropped, range free
//!               └ not free: wait, until the deadline
//! ```
//! All ranges of a call are taken at once and in queue order, so two calls never wait for each other.

#![expect(unsafe_code, reason = "the FFI edge: memory of Python objects, named by its address")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use tensorhold_core::{Deadline, Error, Result, SystemClock};
use tensorhold_engine::{Access, Busy, Claim, Engine, HostMemory, Span};
use tensorhold_engine_mooncake::interpreter;
use tensorhold_features::FeatureStore;
use tokio::sync::watch;

use crate::process;

/// Drops the engine on a thread that may wait: dropping the last reference waits for calls in flight, and these need
/// the interpreter's lock, which the thread that drops a tensor holds.
#[derive(Debug)]
pub(crate) struct EngineReaper {
    engine: Option<Arc<dyn Engine>>,
    gone: watch::Sender<bool>,
}

impl EngineReaper {
    pub(crate) fn new(engine: Arc<dyn Engine>) -> Self {
        Self {
            engine: Some(engine),
            gone: watch::Sender::new(false),
        }
    }

    /// Becomes true when the engine has been dropped.
    pub(crate) fn gone(&self) -> watch::Receiver<bool> {
        self.gone.subscribe()
    }
}

impl Drop for EngineReaper {
    fn drop(&mut self) {
        let (engine, gone) = (self.engine.take(), self.gone.clone());
        let end = move || {
            drop(engine);
            gone.send_replace(true);
        };
        match process::runtime() {
            Ok(runtime) => drop(runtime.spawn_blocking(end)),
            // If no thread can be started, the engine is leaked: not closing it is better than never returning.
            Err(_) => std::mem::forget(end),
        }
    }
}

/// Memory that Python objects see: an output of a get, or a buffer of the pool.
#[derive(Debug)]
pub(crate) struct Output {
    span: Span,
    /// The table that lists it, if the engine knows it; memory that the pool had no room for is lent like any other
    /// memory.
    loans: Option<Arc<LoanTable>>,
    /// Dropped after the span.
    _reaper: Arc<EngineReaper>,
}

impl Output {
    /// `known`: whether the engine can put from this memory and get into it without registering it again.
    pub(crate) fn new(span: Span, known: bool, loans: &Arc<LoanTable>, reaper: &Arc<EngineReaper>) -> Arc<Self> {
        let output = Arc::new(Self {
            span,
            loans: known.then(|| Arc::clone(loans)),
            _reaper: Arc::clone(reaper),
        });
        if known {
            let entry = (output.span.len(), Arc::downgrade(&output));
            loans.outputs.lock().insert(output.span.address(), entry);
        }
        output
    }

    pub(crate) fn is_known(&self) -> bool {
        self.loans.is_some()
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(loans) = &self.loans {
            loans.outputs.lock().remove(&self.span.address());
        }
    }
}

/// A range of memory and the Python object that keeps it alive.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) address: usize,
    pub(crate) len: usize,
    pub(crate) owner: Py<PyAny>,
    /// Whether its owner is memory of a store, which stays in place as long as the owner lives.
    pub(crate) is_ours: bool,
}

impl Piece {
    fn end(&self) -> usize {
        self.address.saturating_add(self.len)
    }
}

/// Outputs by their address, with their length.
type Outputs = BTreeMap<usize, (usize, Weak<Output>)>;

/// The memory that one store's engine knows. See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct LoanTable {
    outputs: Mutex<Outputs>,
    lent: Busy,
}

/// The owners that keep lent memory alive; the engine drops them when it has forgotten the memory.
struct Lent {
    claim: Option<Arc<Claim>>,
    owners: Option<Vec<Py<PyAny>>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        drop(self.claim.take());
        let mut owners = self.owners.take();
        // At the end of the interpreter they can no longer be dropped, and need not be.
        if interpreter::attach(|_| drop(owners.take())).is_none() {
            std::mem::forget(owners);
        }
    }
}

/// Ranges that are lent as one (LG2).
struct Union {
    range: Range<usize>,
    /// The pieces of the call, by their position.
    members: Vec<usize>,
}

fn unions(pieces: &[Piece], which: Vec<usize>) -> Vec<Union> {
    let mut order = which;
    order.sort_by_key(|at| pieces[*at].address);
    let mut unions: Vec<Union> = Vec::new();
    for at in order {
        let piece = &pieces[at];
        match unions.last_mut() {
            Some(last) if piece.address < last.range.end => {
                last.range.end = last.range.end.max(piece.end());
                last.members.push(at);
            }
            _ => unions.push(Union {
                range: piece.address..piece.end(),
                members: vec![at],
            }),
        }
    }
    unions
}

/// The live output that contains the piece, and the piece's span there (LG1). The caller must drop the output only
/// after it has unlocked the table: if this is the last reference by then, dropping it locks the table.
fn inside(outputs: &Outputs, piece: &Piece) -> Option<(Arc<Output>, Result<Span>)> {
    let (address, (len, output)) = outputs.range(..=piece.address).next_back()?;
    if piece.end() > address + len {
        return None;
    }
    let output = output.upgrade()?;
    let region = output.span.region();
    let from = piece.address.checked_sub(region.address());
    let misplaced = || {
        Error::internal(
            "python.lend",
            "an output lies outside its region; this is a bug in Tensorhold",
        )
    };
    let span = from
        .ok_or_else(misplaced)
        .and_then(|from| region.span(from..from + piece.len));
    Some((output, span))
}

impl LoanTable {
    /// The span of a piece inside a live output.
    pub(crate) fn known(&self, piece: &Piece) -> Option<Result<Span>> {
        let found = inside(&self.outputs.lock(), piece);
        found.map(|(_output, span)| span)
    }

    /// Registered memory for each piece, in order. Waits for ranges that earlier calls have lent.
    pub(crate) async fn lend(
        self: &Arc<Self>,
        store: &FeatureStore,
        pieces: Vec<Piece>,
        within: Duration,
    ) -> Result<Vec<Span>> {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, within);
        let mut spans: Vec<Option<Span>> = (0..pieces.len()).map(|_| None).collect();
        let mut strangers = Vec::new();
        let mut found = Vec::new();
        {
            let outputs = self.outputs.lock();
            for (at, piece) in pieces.iter().enumerate() {
                match inside(&outputs, piece) {
                    Some(output) => found.push((at, output)),
                    None => strangers.push(at),
                }
            }
        }
        for (at, (_output, span)) in found {
            spans[at] = Some(span?);
        }
        let unions = unions(&pieces, strangers);
        let claim = Arc::new(self.take(&unions, deadline.remaining(&clock)).await?);
        let mut owners: Vec<Option<Py<PyAny>>> = Vec::with_capacity(pieces.len());
        let mut places = Vec::with_capacity(pieces.len());
        for piece in pieces {
            places.push((piece.address, piece.len));
            owners.push(Some(piece.owner));
        }
        // Each memory releases its range when it is dropped, whatever happens to the others.
        let mut memories = Vec::with_capacity(unions.len());
        for union in &unions {
            let lent = Lent {
                claim: Some(Arc::clone(&claim)),
                owners: Some(union.members.iter().filter_map(|at| owners[*at].take()).collect()),
            };
            let base = std::ptr::with_exposed_provenance_mut::<u8>(union.range.start);
            // SAFETY: the objects that own the memory gave its address, and `lent` holds them. There is no Rust
            // reference into it; Python code was told not to change it meanwhile.
            memories.push(unsafe { HostMemory::lent(base, union.range.len(), lent) });
        }
        drop_attached(owners);
        for (union, memory) in unions.iter().zip(memories) {
            let region = store.register(memory?, deadline.remaining(&clock)).await?;
            for at in &union.members {
                let (address, len) = places[*at];
                let from = address - union.range.start;
                spans[*at] = Some(region.span(from..from + len)?);
            }
        }
        let forgotten = || Error::internal("python.lend", "a tensor got no memory; this is a bug in Tensorhold");
        spans.into_iter().map(|span| span.ok_or_else(forgotten)).collect()
    }

    /// Takes all ranges at once, as soon as none of them overlaps a lent one (LG3).
    async fn take(&self, unions: &[Union], within: Duration) -> Result<Claim> {
        let ranges = unions.iter().map(|union| union.range.clone());
        let mut waiting = self.lent.claim("python.lend", Access::Write, ranges)?;
        tokio::time::timeout(within, &mut waiting).await.map_err(|_| {
            Error::unavailable(
                "python.lend",
                "a tensor's memory is still in use by an earlier transfer that the engine has not finished; wait for \
                 it, or pass a copy",
            )
        })
    }
}

/// Drops owners whose memory is registered as part of another owner's, which keeps it alive.
fn drop_attached(owners: Vec<Option<Py<PyAny>>>) {
    let mut left: Option<Vec<Py<PyAny>>> = Some(owners.into_iter().flatten().collect());
    if left.as_ref().is_some_and(Vec::is_empty) {
        return;
    }
    if interpreter::attach(|_| drop(left.take())).is_none() {
        std::mem::forget(left);
    }
}
