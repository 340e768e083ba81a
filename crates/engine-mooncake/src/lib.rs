//! Mooncake Store under the [`Engine`] trait.
//!
//! # Why through Python
//! Mooncake publishes one complete, supported interface: the Python module of its wheel. Its C interface is in no
//! package and lacks batched removal, replica descriptors, tenants and the SSD settings. Its C++ symbols and its RPC
//! are tied to one release. So this crate drives the module through PyO3. That costs about a microsecond per call and
//! nothing per byte: the module is handed addresses, and releases the interpreter's lock while bytes move. Another
//! binding could replace this one without a change above the trait.
//!
//! # How a call goes
//! ```text
//! caller ─ batch rules ─▶ calls (a thread, a deadline) ─▶ store (the module) ─▶ codes (outcomes) ─▶ caller
//!                                                      └▶ admin (HTTP: probe, usage)
//! ```
//! The module's calls cannot be cancelled, so they run on threads of `calls` while the caller waits until its deadline.
//! `regions` keeps memory registered for as long as any of these calls may touch it. The module waits for a transfer by
//! polling; `idle_wait` keeps that polling from slowing down the threads that move the bytes.
//!
//! **Do not call into this crate with the interpreter's lock held** (an extension must detach first): the thread that
//! runs the call needs that lock.
//!
//! # What if…
//! - *…the process dies?* The master drops this client's unfinished puts and, if the client contributed a segment, the
//!   objects in that segment.
//! - *…the master or a holder dies?* Calls fail with `Unavailable`. Once the master or the holder is back, the same
//!   engine value works again.
//! - *…a call never returns?* Its caller leaves at the deadline. Its thread and its memory stay occupied. Once
//!   `max_calls` calls hang, new ones fail with `Unavailable` and say why.
//! - *…the process ends while calls are under way?* The exit of the process waits for them for up to 5 s. If some are
//!   left then, the process ends at once, with the same status: exit handlers and destructors, which would destroy what
//!   these calls use, do not run.
//!
//! # Example
//! ```no_run
//! use std::time::Duration;
//! use tensorhold_engine::{Engine, EngineExt, PutOptions};
//! use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
//!
//! let second = Duration::from_secs(1);
//! let engine = MooncakeEngine::connect(MooncakeConfig::default())?;
//! let memory = engine.allocate(1 << 20, second)?;
//! let key = "demo/object".parse()?;
//! engine.put_one(&key, &memory.whole(), &PutOptions::default(), second)?;
//! println!("{:?}", engine.probe_one(&key, second)?);
//! engine.remove_one(&key, second)?;
//! # Ok::<(), tensorhold_core::Error>(())
//! ```

mod admin;
mod calls;
mod codes;
mod config;
#[cfg(feature = "embed")]
mod embed;
mod exit;
mod idle_wait;
pub mod interpreter;
mod listing;
mod priority;
mod regions;
mod release;
mod store;

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use tensorhold_core::{Deadline, Error, ErrorKind, ObjectKey, Result, Retry, SystemClock};
use tensorhold_engine::batch::{check_count, check_limit, check_options, check_time, check_transfers};
use tensorhold_engine::{
    Capabilities, Engine, EngineId, GetOutcome, Holder, HostMemory, Listing, Presence, PromoteOutcome, PutOptions,
    PutOutcome, Region, Registrar, Registrations, RelocateOutcome, RemoveOutcome, Transfer, Usage,
};

use admin::{Admin, Probed};
use calls::{CallPool, Effect};
use codes::EngineCode;
pub use config::{IdleWaits, MooncakeConfig};
use idle_wait::IdleWait;
use regions::Regions;
pub use release::KNOWN as TESTED_RELEASES;
use store::Store;

/// The decoders of the master's answers, for the fuzzer (folder `fuzz/`). Not part of the public interface.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    /// Answers of the admin port.
    pub fn answer(bytes: &[u8]) {
        if let Ok(text) = std::str::from_utf8(bytes) {
            crate::admin::fuzz(text);
        }
    }
}

/// The most objects in one batch, reported as [`Capabilities::max_batch`].
const MAX_BATCH: usize = 1024;

/// A client of a Mooncake Store cluster.
///
/// Dropping the engine and the last region that it registered waits for calls in flight (up to
/// [`MooncakeConfig::close_within`]). It then closes the client, unless the client was
/// [adopted](MooncakeEngine::adopt).
#[derive(Debug)]
pub struct MooncakeEngine(Arc<Client>);

#[derive(Debug)]
struct Client {
    id: EngineId,
    config: MooncakeConfig,
    calls: CallPool,
    store: Arc<Store>,
    regions: Arc<Regions>,
    admin: Admin,
    /// Whether this engine connected the store, and so closes it.
    owned: bool,
}

impl MooncakeEngine {
    /// Creates a client and connects it. The engine owns that client and closes it.
    pub fn connect(config: MooncakeConfig) -> Result<Self> {
        config.validate()?;
        let calls = CallPool::new(config.max_calls);
        let settings = config.clone();
        let store = calls.run(
            "mooncake.connect",
            Effect::Repeatable,
            config.connect_within,
            move || Store::connect(&settings),
        )??;
        Ok(Self::new(config, calls, store, true))
    }

    /// Uses a `MooncakeDistributedStore` that a Python caller has connected. The Python caller keeps the ownership: it
    /// closes the store, after this engine and its regions are gone. Only these settings of `config` are used: admin
    /// addresses, metadata, tenant, idle waits and limits.
    pub fn adopt(store: Py<PyAny>, config: MooncakeConfig) -> Result<Self> {
        config.validate()?;
        let calls = CallPool::new(config.max_calls);
        let untested = config.untested_release;
        let store = calls.run("mooncake.adopt", Effect::Repeatable, config.connect_within, move || {
            Store::adopt(store, untested)
        })??;
        Ok(Self::new(config, calls, store, false))
    }

    fn new(config: MooncakeConfig, calls: CallPool, store: Store, owned: bool) -> Self {
        let store = Arc::new(store);
        let regions = Arc::new(Regions::new(Arc::clone(&store), &config.metadata));
        let admin = Admin::new(&config.admin);
        Self(Arc::new(Client {
            id: EngineId::unique(),
            config,
            calls,
            store,
            regions,
            admin,
            owned,
        }))
    }

    /// The settings that the engine was made with.
    pub fn config(&self) -> &MooncakeConfig {
        &self.0.config
    }
}

impl Client {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            engine: "mooncake",
            max_batch: MAX_BATCH,
            // Whether holders keep SSD copies is a setting of the holders, not of the client; the calls exist either
            // way.
            ssd: true,
            probe: self.can_probe().is_ok(),
            list: self.can_probe().is_ok(),
        }
    }

    /// When the thread of a transfer goes to idle priority, if the settings allow that.
    fn idle_wait(&self, when: IdleWait) -> IdleWait {
        match self.config.idle_waits {
            IdleWaits::Auto => when,
            IdleWaits::Off => IdleWait::Never,
        }
    }

    fn can_probe(&self) -> Result<()> {
        if self.config.tenant != MooncakeConfig::DEFAULT_TENANT {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "engine.probe",
                "a probe of this release of Mooncake sees the default tenant only; use the default tenant to probe",
            )
            .with("tenant", &self.config.tenant));
        }
        if !self.admin.is_configured() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "engine.probe",
                "a probe needs the masters' admin addresses; name them in the setting `admin`",
            ));
        }
        Ok(())
    }

    /// Where objects are. What only holders have that are not listed, the engine is asked for: it does not have it, unless they
    /// have come meanwhile. That question grants a lease to an object that is there.
    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, within);
        let Probed { mut found, doubtful } = self.admin.probe(keys, within)?;
        if doubtful.is_empty() {
            return Ok(found);
        }
        let asked: Vec<ObjectKey> = doubtful.iter().map(|&at| keys[at].clone()).collect();
        let (store, left) = (Arc::clone(&self.store), deadline.remaining(&clock));
        let exist = self
            .calls
            .run("engine.probe", Effect::Repeatable, left, move || store.exist(&asked))??;
        for (at, code) in doubtful.into_iter().zip(exist) {
            match code {
                0 => found[at] = Presence::Absent,
                1 => {}
                code => return Err(codes::error("engine.probe", code, Retry::Safe).with("key", &keys[at])),
            }
        }
        Ok(found)
    }

    /// Posts the unregistration of `memory` and does not wait for it. Only the drop of the client waits.
    fn post_forget(&self, memory: HostMemory) {
        let regions = Arc::clone(&self.regions);
        if let Err(error) = self.calls.post("engine.unregister", move || regions.forget(memory)) {
            // Only a pool that is closing refuses. The client is closed next, and that unregisters all memory.
            tracing::debug!(%error, "memory was not unregistered; closing the client unregisters it");
        }
    }

    /// Retries the unregistrations that were deferred.
    fn post_deferred(&self) {
        for memory in self.regions.take_deferred() {
            self.post_forget(memory);
        }
    }

    /// The module returns "wrong parameter" or "transfer failed" when buffers do not fit an object. A probe of the
    /// object's length, which has no side effects, tells whether that is the reason.
    fn explain_lengths(&self, batch: &[Transfer], outcomes: &mut [GetOutcome], within: Duration) {
        let doubtful: Vec<usize> = outcomes
            .iter()
            .enumerate()
            .filter(|(_, outcome)| matches!(outcome, GetOutcome::Failed(error) if may_be_length(error)))
            .map(|(at, _)| at)
            .collect();
        if doubtful.is_empty() || within.is_zero() || self.can_probe().is_err() {
            return;
        }
        let keys: Vec<_> = doubtful.iter().map(|&at| batch[at].key.clone()).collect();
        // If the probe fails too, the outcome keeps its first error.
        let Ok(probed) = self.admin.probe(&keys, within) else {
            return;
        };
        for (at, presence) in doubtful.into_iter().zip(probed.found) {
            if let Presence::Present { bytes, .. } = presence
                && bytes != batch[at].bytes()
            {
                outcomes[at] = GetOutcome::WrongLength { stored: bytes };
            }
        }
    }
}

fn may_be_length(error: &Error) -> bool {
    let code = error.cause().map(|EngineCode(code)| *code);
    matches!(code, Some(codes::INVALID_PARAMS | codes::TRANSFER_FAIL))
}

impl Registrar for Client {
    fn engine(&self) -> EngineId {
        self.id
    }

    fn unregister(&self, memory: HostMemory) {
        self.post_forget(memory);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let left = self.calls.finish(self.config.close_within);
        if !self.owned {
            return;
        }
        if left > 0 {
            // A client must not be closed while a call into it runs.
            tracing::warn!(
                calls = left,
                "the engine's client is left open: calls into it have not returned"
            );
            return;
        }
        // A fresh pool of one thread: closing talks to the master, which may hang.
        let store = Arc::clone(&self.store);
        let closing = CallPool::new(1);
        match closing.run(
            "mooncake.close",
            Effect::Repeatable,
            self.config.close_within,
            move || store.close(),
        ) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => tracing::warn!(%error, "the engine's client did not close cleanly"),
        }
    }
}

impl Engine for MooncakeEngine {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        check_time("engine.register", within)?;
        self.0.post_deferred();
        let client = Arc::clone(&self.0);
        // The call itself creates the region: if the caller has left by then, the region is dropped and unregistered
        // there.
        self.0
            .calls
            .run("engine.register", Effect::Repeatable, within, move || {
                client.regions.register(&memory)?;
                let registrar: Arc<dyn Registrar> = client;
                Ok(Region::new(memory, registrar))
            })?
    }

    fn registrations(&self) -> Registrations {
        self.0.post_deferred();
        self.0.regions.count()
    }

    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>> {
        const OPERATION: &str = "engine.put";
        check_time(OPERATION, within)?;
        check_count(OPERATION, batch.len(), &self.capabilities())?;
        check_transfers(OPERATION, batch, self.0.id)?;
        check_options(OPERATION, options)?;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let (store, owned, options) = (Arc::clone(&self.0.store), batch.to_vec(), options.clone());
        let put = move || store.put(&owned, &options);
        let codes = self.0.calls.run_transfer(
            OPERATION,
            Effect::Changes,
            within,
            self.0.idle_wait(IdleWait::AfterAWhile),
            put,
        )??;
        Ok(batch
            .iter()
            .zip(codes)
            .map(|(transfer, code)| codes::put(&transfer.key, code))
            .collect())
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        const OPERATION: &str = "engine.get";
        check_time(OPERATION, within)?;
        check_count(OPERATION, batch.len(), &self.capabilities())?;
        check_transfers(OPERATION, batch, self.0.id)?;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, within);
        let (store, owned) = (Arc::clone(&self.0.store), batch.to_vec());
        let get = move || store.get(&owned);
        let codes = self.0.calls.run_transfer(
            OPERATION,
            Effect::Repeatable,
            within,
            self.0.idle_wait(IdleWait::AtOnce),
            get,
        )??;
        let mut outcomes: Vec<_> = batch
            .iter()
            .zip(codes)
            .map(|(t, code)| codes::get(&t.key, code, t.bytes()))
            .collect();
        self.0.explain_lengths(batch, &mut outcomes, deadline.remaining(&clock));
        Ok(outcomes)
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        const OPERATION: &str = "engine.remove";
        check_time(OPERATION, within)?;
        check_count(OPERATION, keys.len(), &self.capabilities())?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let (store, owned) = (Arc::clone(&self.0.store), keys.to_vec());
        let codes = self
            .0
            .calls
            .run(OPERATION, Effect::Changes, within, move || store.remove(&owned))??;
        Ok(keys
            .iter()
            .zip(codes)
            .map(|(key, code)| codes::remove(key, code))
            .collect())
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        check_time("engine.probe", within)?;
        check_count("engine.probe", keys.len(), &self.capabilities())?;
        self.0.can_probe()?;
        self.0.probe(keys, within)
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        check_time("engine.list", within)?;
        check_limit("engine.list", limit)?;
        // What is listed is of all tenants; a probe tells which is ours, and sees the default tenant only.
        self.0.can_probe()?;
        self.0.admin.list(prefix, after, limit, within)
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        const OPERATION: &str = "engine.raise";
        check_time(OPERATION, within)?;
        check_count(OPERATION, keys.len(), &self.capabilities())?;
        self.0.can_probe()?;
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, within);
        let found = self.0.probe(keys, within)?;
        let outcomes: Vec<_> = found
            .into_iter()
            .map(|presence| match presence {
                Presence::Absent | Presence::Unfinished => PromoteOutcome::Absent,
                Presence::Present { dram: 0, .. } => PromoteOutcome::Asked,
                Presence::Present { .. } => PromoteOutcome::InDram,
            })
            .collect();
        let there: Vec<_> = keys
            .iter()
            .zip(&outcomes)
            .filter(|(_, outcome)| !matches!(outcome, PromoteOutcome::Absent))
            .map(|(key, _)| key.clone())
            .collect();
        if !there.is_empty() {
            let store = Arc::clone(&self.0.store);
            let left = deadline.remaining(&clock);
            self.0
                .calls
                .run(OPERATION, Effect::Repeatable, left, move || store.touch(&there))??;
        }
        Ok(outcomes)
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        check_time("engine.usage", within)?;
        self.0.admin.usage(within)
    }

    fn holders(&self, within: Duration) -> Result<Vec<Holder>> {
        check_time("engine.holders", within)?;
        self.0.admin.holders(within)
    }

    fn relocate(&self, keys: &[ObjectKey], from: &str, to: &str, within: Duration) -> Result<Vec<RelocateOutcome>> {
        const OPERATION: &str = "engine.relocate";
        check_time(OPERATION, within)?;
        check_count(OPERATION, keys.len(), &self.capabilities())?;
        let (store, owned) = (Arc::clone(&self.0.store), keys.to_vec());
        let (from, to) = (from.to_owned(), to.to_owned());
        let codes = self.0.calls.run(OPERATION, Effect::Repeatable, within, move || {
            store.relocate(&owned, &from, &to)
        })??;
        Ok(keys
            .iter()
            .zip(codes)
            .map(|(key, code)| codes::relocate(key, code))
            .collect())
    }
}

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
