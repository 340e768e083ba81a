//! What the tests of the tier share: pages with known bytes, and an engine that misbehaves on demand.
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of this")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorhold_core::{Clock, Error, ObjectKey, Result, Retry, SystemClock};
use tensorhold_engine::{
    Capabilities, Engine, EngineExt, GetOutcome, HostMemory, Listing, MemoryCluster, MemoryConfig, Presence,
    PromoteOutcome, PutOptions, PutOutcome, Region, Registrations, RemoveOutcome, Transfer, Usage,
};
use tensorhold_kvcache::plan::{HostPage, HostPageAt, Namespace, PageKey, Rank};
use tensorhold_kvcache::tier::{CallOptions, HostMemoryMap, Page, PageStore, PartLayout, StoreConfig};

/// Enough for anything on a machine that does other things too.
pub const WITHIN: Duration = Duration::from_secs(20);
/// A deadline that is meant to pass.
pub const SOON: Duration = Duration::from_millis(60);

pub fn key(text: impl AsRef<str>) -> ObjectKey {
    ObjectKey::new(text).expect("a key")
}

pub fn all() -> CallOptions {
    CallOptions::within(WITHIN)
}

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

pub fn cluster(mib: u64) -> Arc<MemoryCluster> {
    let config = MemoryConfig {
        segment_bytes: mib << 20,
        ..MemoryConfig::default()
    };
    MemoryCluster::new(config, clock())
}

pub fn store_on(engine: Arc<dyn Engine>, config: StoreConfig) -> PageStore {
    PageStore::new(engine, config, clock(), WITHIN).expect("a store")
}

/// Small calls, so that a few pages make several of them.
pub fn small_calls() -> StoreConfig {
    StoreConfig {
        call_pages: 4,
        full_pause: Duration::from_millis(1),
        ..StoreConfig::default()
    }
}

/// Bytes that say which page they belong to.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_le_bytes()[0]
        })
        .collect()
}

/// Host memory of some pages in two parts each, keys and values apart.
pub struct Pool {
    pub region: Region,
    pub map: HostMemoryMap,
    pub page_bytes: usize,
}

impl Pool {
    pub fn new(engine: &dyn Engine, pages: u32, page_bytes: usize) -> Self {
        let half = page_bytes / 2;
        let region = engine.allocate(page_bytes * pages as usize, WITHIN).expect("memory");
        let part = |offset| PartLayout {
            region: region.clone(),
            offset,
            stride: half,
            len: half,
        };
        let map = HostMemoryMap::new(pages, vec![part(0), part(half * pages as usize)]).expect("a map");
        Self {
            region,
            map,
            page_bytes,
        }
    }

    pub fn page(&self, page: u32, key: ObjectKey) -> Page {
        Page::new(key, self.map.parts(HostPage(page)).expect("a page"))
    }

    pub fn write(&self, page: u32, bytes: &[u8]) {
        let mut rest = bytes;
        for part in self.map.parts(HostPage(page)).expect("a page") {
            let (head, tail) = rest.split_at(part.len());
            part.write(0, head).expect("fits");
            rest = tail;
        }
    }

    pub fn read(&self, page: u32) -> Vec<u8> {
        let parts = self.map.parts(HostPage(page)).expect("a page");
        parts.iter().map(|part| part.to_vec()).collect::<Vec<_>>().concat()
    }

    /// Overwrites everything with bytes that belong to no page.
    pub fn spoil(&self) {
        let garbage = vec![0xEE; self.region.len()];
        self.region.whole().write(0, &garbage).expect("fits");
    }
}

pub fn namespace() -> Namespace {
    Namespace {
        model: "llama".to_owned(),
        weights: "1".to_owned(),
        dtype: "bf16".to_owned(),
        layout: "mha".to_owned(),
        group: "full".to_owned(),
        page_tokens: 64,
        tp: Rank { rank: 3, size: 8 },
        pp: Rank::ONLY,
        cp: Rank::ONLY,
    }
}

/// The key of the n-th page of some prompt.
pub fn page_key(n: u32) -> PageKey {
    let mut bytes = [7; 32];
    bytes[..4].copy_from_slice(&n.to_le_bytes());
    PageKey::from_bytes(bytes)
}

pub fn name(n: u32) -> ObjectKey {
    namespace().object_name(&page_key(n)).expect("a name")
}

/// Pages `from..to` of the prompt, in the host pages of the same numbers.
pub fn at(from: u32, to: u32) -> Vec<HostPageAt> {
    let at = |n| HostPageAt {
        index: n,
        key: page_key(n),
        host: HostPage(n),
    };
    (from..to).map(at).collect()
}

/// What is done to calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Pass,
    /// A get fails at its deadline, and writes to the memory when it is let go.
    LateGet,
    /// A put fails at its deadline, and is done when it is let go.
    LatePut,
    /// A get returns when it is let go, whatever its deadline: against the contract.
    HangingGet,
    /// Removals fail.
    NoRemove,
    /// Everything is said to be there.
    AllPresent,
    /// Every get says that it loaded the object, and brought nothing.
    LoadsNothing,
    /// A get panics: against the contract.
    Panics,
}

#[derive(Debug)]
struct Gate {
    mode: Mutex<Mode>,
    opened: Condvar,
    /// Calls that came to a closed gate.
    came: AtomicUsize,
}

impl Gate {
    fn wait(&self) {
        let mut mode = self.mode.lock();
        self.came.fetch_add(1, Ordering::SeqCst);
        while *mode != Mode::Pass {
            self.opened.wait(&mut mode);
        }
    }
}

/// An engine that misbehaves on demand.
#[derive(Debug)]
pub struct Wayward {
    inner: Arc<dyn Engine>,
    gate: Arc<Gate>,
    late: Mutex<Vec<JoinHandle<()>>>,
}

fn out_of_time(operation: &'static str) -> Error {
    Error::unavailable(operation, "out of time (as the test asked for)").with_retry(Retry::Ambiguous)
}

impl Wayward {
    pub fn new(inner: Arc<dyn Engine>) -> Arc<Self> {
        let gate = Gate {
            mode: Mutex::new(Mode::Pass),
            opened: Condvar::new(),
            came: AtomicUsize::new(0),
        };
        Arc::new(Self {
            inner,
            gate: Arc::new(gate),
            late: Mutex::default(),
        })
    }

    pub fn set(&self, mode: Mode) {
        *self.gate.mode.lock() = mode;
    }

    /// Waits until a call hangs.
    pub fn wait_for_a_call(&self) {
        let came = || (self.gate.came.load(Ordering::SeqCst) > 0).then_some(());
        let clock = SystemClock::new();
        tensorhold_core::poll_until(&clock, WITHIN, Duration::from_millis(1), came).expect("a call");
    }

    /// Lets every call go; returns when those that were late are done.
    pub fn let_go(&self) {
        self.set(Mode::Pass);
        self.gate.opened.notify_all();
        for call in self.late.lock().drain(..) {
            call.join().expect("no panic");
        }
    }

    fn later(&self, call: impl FnOnce(&dyn Engine) + Send + 'static) {
        let (inner, gate) = (Arc::clone(&self.inner), Arc::clone(&self.gate));
        self.late.lock().push(std::thread::spawn(move || {
            gate.wait();
            call(&*inner);
        }));
    }
}

impl Engine for Wayward {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        self.inner.register(memory, within)
    }

    fn registrations(&self) -> Registrations {
        self.inner.registrations()
    }

    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>> {
        let mode = *self.gate.mode.lock();
        if mode == Mode::LatePut {
            let (batch, options) = (batch.to_vec(), options.clone());
            self.later(move |engine| {
                drop(engine.put(&batch, &options, WITHIN));
            });
            SystemClock::new().sleep(within);
            return Err(out_of_time("engine.put"));
        }
        self.inner.put(batch, options, within)
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        let mode = *self.gate.mode.lock();
        match mode {
            Mode::LateGet => {
                let batch = batch.to_vec();
                self.later(move |engine| {
                    // No caller waits for it any more.
                    drop(engine.get(&batch, WITHIN));
                });
                SystemClock::new().sleep(within);
                Err(out_of_time("engine.get"))
            }
            Mode::HangingGet => {
                self.gate.wait();
                self.inner.get(batch, WITHIN)
            }
            Mode::LoadsNothing => Ok(batch.iter().map(|_| GetOutcome::Loaded).collect()),
            Mode::Panics => panic!("on purpose"),
            _ => self.inner.get(batch, within),
        }
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        if *self.gate.mode.lock() == Mode::NoRemove {
            return Err(out_of_time("engine.remove"));
        }
        self.inner.remove(keys, within)
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        let found = self.inner.probe(keys, within)?;
        if *self.gate.mode.lock() == Mode::AllPresent {
            let bytes = found.iter().find_map(|presence| match presence {
                Presence::Present { bytes, .. } => Some(*bytes),
                _ => None,
            });
            let bytes = bytes.unwrap_or(0);
            return Ok(keys
                .iter()
                .map(|_| Presence::Present { dram: 1, ssd: 0, bytes })
                .collect());
        }
        Ok(found)
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        self.inner.list(prefix, after, limit, within)
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        self.inner.promote(keys, within)
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        self.inner.usage(within)
    }
}

/// The bytes of an object, read directly from the engine.
pub fn raw(engine: &dyn Engine, key: &ObjectKey, len: usize) -> Vec<u8> {
    let region = engine.allocate(len, WITHIN).expect("memory");
    let got = engine.get_one(key, &region.whole(), WITHIN).expect("an outcome");
    assert!(matches!(got, GetOutcome::Loaded), "{got:?}");
    region.whole().to_vec()
}

/// Puts these bytes under a key directly into the engine, in place of the object that is there.
pub fn replace(engine: &dyn Engine, key: &ObjectKey, bytes: &[u8]) {
    let region = engine.allocate(bytes.len(), WITHIN).expect("memory");
    region.whole().write(0, bytes).expect("fits");
    engine.remove_one(key, WITHIN).expect("an outcome");
    let put = engine
        .put_one(key, &region.whole(), &PutOptions::default(), WITHIN)
        .expect("an outcome");
    assert!(matches!(put, PutOutcome::Stored), "{put:?}");
}
