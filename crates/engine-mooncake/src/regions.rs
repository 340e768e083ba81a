//! The memory that one client has registered, and how it is forgotten.
//!
//! ```text
//!             register                     last span gone              the module says 0
//! (unknown) ───────────▶ Registered ─────────────────────▶ Leaving ────────────────────▶ (unknown), owner dropped
//!                                                          │     ▲                  │
//!                              metadata server out of reach▼     │ asked again      ▼ the module refuses
//!                                                         Deferred                Stuck: memory kept for ever
//! ```
//!
//! Why `Deferred` exists: with a metadata server, an unregistration that cannot reach it fails half-way, and the module
//! then refuses that address, for ever, both to forget it and to register it again. So it is not attempted before the
//! server answers. Without a metadata server (`P2PHANDSHAKE`) forgetting is local and always works.
//!
//! Invariants: R1 and R2 of [`holdfast_engine::region`], and
//! - R3: what is not yet forgotten by the module is in the table, so no overlapping registration is attempted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Error, Result};
use holdfast_engine::{HostMemory, Registrations};
use parking_lot::Mutex;

use crate::store::Store;

/// How long to wait for a metadata server to say that it is there.
const METADATA_ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// All memory that one client has registered.
#[derive(Debug)]
pub(crate) struct Regions {
    store: Arc<Store>,
    /// The metadata server, if there is one that can be asked whether it is there.
    metadata: Option<String>,
    http: ureq::Agent,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Length by address of everything that the module knows.
    known: BTreeMap<usize, usize>,
    deferred: Vec<HostMemory>,
    stuck: Vec<HostMemory>,
}

impl Regions {
    pub(crate) fn new(store: Arc<Store>, metadata: &str) -> Self {
        let http = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .new_agent();
        let metadata = metadata.starts_with("http://").then(|| metadata.to_owned());
        Self {
            store,
            metadata,
            http,
            table: Mutex::default(),
        }
    }

    /// Makes the module know `memory`. Blocks. If it fails, the memory is unknown as before.
    pub(crate) fn register(&self, memory: &HostMemory) -> Result<()> {
        const OPERATION: &str = "engine.register";
        if !self.metadata_answers() {
            return Err(Error::unavailable(
                OPERATION,
                "the metadata server does not answer, so memory cannot be registered",
            )
            .with("metadata", self.metadata.as_deref().unwrap_or_default()));
        }
        self.claim(memory)?;
        let outcome = match self.store.register(memory.address(), memory.len()) {
            Ok(0) => return Ok(()),
            Ok(code) if code == crate::codes::INVALID_PARAMS => Err(Error::invalid(
                OPERATION,
                "the engine refuses this memory; it overlaps memory that somebody else registered with the same client",
            )
            .with("code", code)),
            Ok(code) => Err(crate::codes::error(OPERATION, code, holdfast_core::Retry::Safe)),
            Err(error) => Err(error),
        };
        self.table.lock().known.remove(&memory.address());
        outcome.map_err(|error: Error| error.with("memory", format!("{memory:?}")))
    }

    /// Makes the module forget `memory`, then drops it. Blocks.
    pub(crate) fn forget(&self, memory: HostMemory) {
        if !self.metadata_answers() {
            self.table.lock().deferred.push(memory);
            return;
        }
        match self.store.unregister(memory.address()) {
            Ok(0) => {
                self.table.lock().known.remove(&memory.address());
            }
            refused => {
                tracing::error!(
                    ?memory,
                    ?refused,
                    "the engine does not forget this memory; it is kept until the process ends"
                );
                self.table.lock().stuck.push(memory);
            }
        }
    }

    /// What was put off while the metadata server was out of reach: to be forgotten now.
    pub(crate) fn take_deferred(&self) -> Vec<HostMemory> {
        std::mem::take(&mut self.table.lock().deferred)
    }

    pub(crate) fn count(&self) -> Registrations {
        let table = self.table.lock();
        Registrations {
            regions: table.known.len(),
            bytes: table.known.values().map(|len| *len as u64).sum(),
            stuck: table.stuck.len(),
        }
    }

    fn claim(&self, memory: &HostMemory) -> Result<()> {
        let (from, to) = (memory.address(), memory.address() + memory.len());
        let mut table = self.table.lock();
        let before = table.known.range(..to).next_back();
        if before.is_some_and(|(address, len)| address + len > from) {
            return Err(Error::invalid(
                "engine.register",
                "this memory overlaps a region that is registered already",
            )
            .with("memory", format!("{memory:?}")));
        }
        table.known.insert(from, memory.len());
        Ok(())
    }

    fn metadata_answers(&self) -> bool {
        let Some(address) = &self.metadata else { return true };
        // Any answer will do: the server has no page of its own at this address.
        let request = self
            .http
            .get(address)
            .config()
            .timeout_global(Some(METADATA_ANSWERS_WITHIN))
            .build();
        request.call().is_ok()
    }
}
