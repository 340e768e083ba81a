//! Opening a page store: settings, a master that listens, an engine, the store on it.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use serde::Deserialize;
use tensorhold_core::{Clock, Deadline, Error, Result, SystemClock};
use tensorhold_engine::{Engine, Pin, PutOptions};
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use tensorhold_kvcache::tier::{PageSeal, PageStore, StoreConfig};
use tensorhold_prefetch::PrefetchConfig;

use super::memory::Ranges;
use crate::loan_table::EngineReaper;
use crate::opening::{master_listens, read_json};
use crate::process;

const OPERATION: &str = "kv.open";

/// All settings, as the Python side writes them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    engine: MooncakeConfig,
    pages: PageSettings,
    #[serde(default = "usual_prefetch")]
    prefetch: PrefetchConfig,
    #[serde(skip)]
    seal: Option<PageSeal>,
}

fn usual_prefetch() -> PrefetchConfig {
    StoreConfig::default().prefetch
}

/// The settings of the page store; [`StoreConfig`] documents each of them.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PageSettings {
    replicas: u32,
    call_bytes: u64,
    call_pages: usize,
    call_parts: usize,
    streams: usize,
    lanes: usize,
    footer_slots: usize,
    frames: usize,
    direct_put_bytes: Option<usize>,
    full_retries: u32,
}

impl Default for PageSettings {
    fn default() -> Self {
        let usual = StoreConfig::default();
        Self {
            replicas: usual.put.replicas,
            call_bytes: usual.call_bytes,
            call_pages: usual.call_pages,
            call_parts: usual.call_parts,
            streams: usual.streams,
            lanes: usual.lanes,
            footer_slots: usual.footer_slots,
            frames: usual.staging_frames,
            direct_put_bytes: usual.direct_put_bytes,
            full_retries: usual.full_retries,
        }
    }
}

impl PageSettings {
    fn config(&self) -> StoreConfig {
        StoreConfig {
            put: PutOptions {
                pin: Pin::Evictable,
                replicas: self.replicas,
                ..PutOptions::default()
            },
            call_bytes: self.call_bytes,
            call_pages: self.call_pages,
            call_parts: self.call_parts,
            streams: self.streams,
            lanes: self.lanes,
            footer_slots: self.footer_slots,
            staging_frames: self.frames,
            direct_put_bytes: self.direct_put_bytes,
            full_retries: self.full_retries,
            ..StoreConfig::default()
        }
    }
}

impl Settings {
    /// Parses settings. The seal is passed separately, because the text may be shown.
    pub(super) fn read(text: &str, seal: Option<PageSeal>) -> Result<Self> {
        let mut settings: Self = read_json(OPERATION, text)?;
        settings.seal = seal;
        settings.engine.validate()?;
        settings.prefetch.validate()?;
        Ok(settings)
    }
}

/// An open page store. Its fields are dropped in this order: everything that holds the engine before the reaper, which
/// drops the engine on a thread that may wait.
pub(super) struct Opened {
    pub(super) ranges: Ranges,
    pub(super) store: Arc<PageStore>,
    _reaper: EngineReaper,
}

impl Opened {
    /// Whether pages pass through frames, so that the engine never gets the caller's memory.
    pub(super) fn framed(&self) -> bool {
        self.store.config().staging_frames > 0
    }
}

/// Opens a page store. `client` is an engine's client that the caller has set up, if there is one.
pub(super) async fn open(settings: Settings, client: Option<Py<PyAny>>, within: Duration) -> Result<Opened> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let deadline = Deadline::after(&*clock, within);
    let Settings {
        mut engine,
        pages,
        prefetch,
        seal,
    } = settings;
    if client.is_none() {
        // The engine's own attempt at a dead master takes minutes, and holds the interpreter's lock all that time.
        master_listens(OPERATION, &engine.master, deadline.remaining(&*clock)).await?;
    }
    process::claim_engine()?;
    engine.connect_within = deadline.remaining(&*clock);
    let making = tokio::task::spawn_blocking(move || {
        let engine: Arc<dyn Engine> = Arc::new(match client {
            Some(client) => MooncakeEngine::adopt(client, engine)?,
            None => MooncakeEngine::connect(engine)?,
        });
        let reaper = EngineReaper::new(Arc::clone(&engine));
        let mut config = pages.config();
        if seal.is_some() {
            // Other processes can read memory that the engine knows, so it must not hold plaintext.
            config.direct_put_bytes = None;
        }
        config.seal = seal;
        config.prefetch = prefetch;
        let ranges = Ranges::new(config.staging_frames > 0, config.direct_put_bytes);
        let left = deadline.remaining(&*clock);
        let store = Arc::new(PageStore::new(engine, config, clock, left)?);
        Ok(Opened {
            ranges,
            store,
            _reaper: reaper,
        })
    });
    making.await.map_err(|failure| {
        Error::internal(OPERATION, "the opening task panicked or was cancelled").caused_by(failure)
    })?
}
