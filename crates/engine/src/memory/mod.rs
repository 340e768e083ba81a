//! An engine in this process's memory that behaves like Mooncake Store where it matters.
//!
//! For unit tests, property tests and simulation. It needs no server, has no thread and no clock of its own, and is
//! deterministic. The background work of the real engine (evict, offload, promote, notice that a holder is dead) runs
//! at the start of each call, in the order in which it fell due on the injected [`tensorhold_core::Clock`]. A
//! [`MemoryCluster`] is the master, its holders and their SSDs; a [`MemoryEngine`] is one client of it.
//!
//! # The states of an object
//!
//! ```text
//!            put                     eviction                       promotion
//! (absent) ──────▶ DRAM ──heartbeat──▶ DRAM + SSD ──eviction──▶ SSD only ──hit or promote, later heartbeat──▶ DRAM + SSD
//!    │              │  └─ eviction, no SSD tier ─▶ (absent)         │
//!    │              └───────────────── remove ─────────────────────▶ (absent; a bucket may still hold the bytes)
//!    │                                                              │
//!    │              SSD only, no pin ◀── holder or master restarts ──┘
//!    │
//!    └─abandon_put─▶ Unfinished ─put, after the discard timeout─▶ DRAM   (the dead put's space stays held)
//!                        └─ release timeout ─▶ (absent; the space is free)
//! ```
//!
//! What pins and leases change: a **hard-pinned** object stays in `DRAM` until a remove or the loss of its holder.
//! Whether a copy of it goes to SSD all the same is a setting ([`SsdConfig::offload_pinned`]). A **leased** object
//! (read within the lease time) is not evicted, but can be removed. A **soft-pinned** object is evicted only when
//! nothing else can go.
//!
//! A holder that is killed keeps its objects on the master's list for [`MemoryConfig::holder_loss_after`]: a probe sees
//! them as present, and reads of them fail. Then they vanish, pinned or not. A master that restarts knows only the
//! objects that the holders' SSD buckets report.
//!
//! # Invariants
//!
//! - M1: the used bytes of a segment are those of its DRAM copies and of the dead puts on it, and fit its capacity.
//! - M2: a readable object has at least one copy, all of them on segments that the master has mounted. DRAM copies come
//!   before SSD copies, because the first copy is the one that is read.
//! - M3: eviction takes neither hard-pinned nor leased objects, nor objects that wait to be written to SSD.
//! - M4: every pending event lies in the future once a call has caught up, and each event makes progress or ends. So
//!   catching up ends, however far the clock was moved.
//!
//! # Where it differs from the real engine, on purpose
//!
//! - A segment has no fragmentation: an object fits if the free bytes suffice.
//! - An object goes to the segment with the most free bytes (the real engine chooses at random). Eviction counts bytes
//!   (the real engine counts objects), so that one retry after [`MemoryConfig::eviction_delay`] succeeds if anything
//!   could be evicted.
//! - Transfers take no time, so a remove never tears a read (the fault injector does that), and a
//!   move to another holder is over when it is asked for. A call never outlives its
//!   `within`.
//! - All objects that wait for SSD are written at one heartbeat, and SSDs have no limit.
//! - A promotion that meets the high watermark waits for room; it is not forgotten.
//! - A bucket holds one version of a key: the last one that was written to it.
//! - A restarted holder is back at once; the real one takes seconds to register.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use tensorhold_core::{ManualClock, ObjectKey};
//! use tensorhold_engine::{EngineExt, GetOutcome, MemoryCluster, MemoryConfig, Presence, PutOptions};
//!
//! let clock = Arc::new(ManualClock::new());
//! let cluster = MemoryCluster::new(MemoryConfig::default(), clock.clone());
//! let engine = cluster.connect();
//! let within = Duration::from_secs(1);
//!
//! let key = ObjectKey::new("s/a/g1-0000000000000001/hidden")?;
//! let region = engine.allocate(6, within)?;
//! region.whole().write(0, b"hidden")?;
//! engine.put_one(&key, &region.whole(), &PutOptions::default(), within)?;
//!
//! cluster.kill_holder(0);
//! assert!(matches!(engine.get_one(&key, &region.whole(), within)?, GetOutcome::Failed(_)));
//! assert!(matches!(engine.probe_one(&key, within)?, Presence::Present { dram: 1, .. }));
//! clock.advance(Duration::from_secs(10));
//! assert!(matches!(engine.get_one(&key, &region.whole(), within)?, GetOutcome::Miss));
//! # Ok::<(), tensorhold_core::Error>(())
//! ```

mod calls;
mod cluster;
mod config;
mod engine;
mod outage;
mod registry;
mod settle;
mod state;
#[cfg(test)]
mod tests;

pub use cluster::MemoryCluster;
pub use config::{MemoryConfig, SsdConfig};
pub use engine::MemoryEngine;
