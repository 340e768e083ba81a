//! The memory that one client has registered, and how it is unregistered.
//!
//! ```text
//!             register                     last span gone              the module says 0
//! (unknown) ───────────▶ Registered ─────────────────────▶ Leaving ────────────────────▶ (unknown), owner dropped
//!                                                          │     ▲                  │
//!                              metadata server out of reach▼     │ asked again      ▼ the module refuses
//!                                                         Deferred                Stuck: memory kept for ever
//! ```
//!
//! Why `Deferred` exists: with a metadata server, an unregistration that cannot reach the server fails half-way. The
//! module then refuses, for ever, both to unregister that address and to register it again. So an unregistration is not
//! attempted before the server answers. Without a metadata server (`P2PHANDSHAKE`) an unregistration is local and
//! always works.
//!
//! Invariants: R1 and R2 of [`tensorhold_engine::region`], and
//! - R3: memory that the module has not yet unregistered is in the table, so no overlapping registration is attempted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Error, Result};
use tensorhold_engine::{HostMemory, Registrations};

use crate::store::Store;

/// How long the metadata server may take to answer before it counts as out of reach.
const METADATA_ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// All memory that one client has registered.
#[derive(Debug)]
pub(crate) struct Regions {
    store: Arc<Store>,
    /// The metadata server, if there is one that can be asked over HTTP whether it is up.
    metadata: Option<String>,
    http: ureq::Agent,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Length by address of all memory that the module knows.
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

    /// Registers `memory` with the module. Blocks. If it fails, the module does not know the memory, as before.
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
                "the engine refuses this memory; it overlaps memory that other code registered with the same client",
            )
            .with("code", code)),
            Ok(code) => Err(crate::codes::error(OPERATION, code, tensorhold_core::Retry::Safe)),
            Err(error) => Err(error),
        };
        self.table.lock().known.remove(&memory.address());
        outcome.map_err(|error: Error| error.with("memory", format!("{memory:?}")))
    }

    /// Unregisters `memory` from the module, then drops it. Blocks.
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
                    "the engine refuses to unregister this memory; it is kept until the process ends"
                );
                self.table.lock().stuck.push(memory);
            }
        }
    }

    /// Takes the memory whose unregistration was deferred while the metadata server was out of reach.
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
        // Any answer will do: the server has no page at this address.
        let request = self
            .http
            .get(address)
            .config()
            .timeout_global(Some(METADATA_ANSWERS_WITHIN))
            .build();
        request.call().is_ok()
    }
}
