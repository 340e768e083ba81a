//! The tools of a case: clients, patterned memory, bounded waits.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_matches};
use tensorhold_core::{Clock, ErrorKind, ObjectKey, poll_until};

use super::check::{pattern, same_bytes};
use super::{Backend, Harness, Setup};
use crate::{Engine, EngineExt, GetOutcome, Pin, Presence, PutOptions, PutOutcome, Region, RemoveOutcome, Transfer};

/// How long a call of a healthy cluster may take. Generous: other tests compile and run at the same time.
pub(super) const CALL: Duration = Duration::from_secs(10);
/// How much longer than its deadline a call may take: "plus the delay of the scheduler".
pub(super) const MARGIN: Duration = Duration::from_secs(2);
/// How long the engine may take for its background work: a heartbeat, an eviction, a refresh of its metrics.
pub(super) const SOON: Duration = Duration::from_secs(20);
/// How long a cluster may take to notice that a server died, or that it is back.
pub(super) const RECOVERY: Duration = Duration::from_secs(90);
/// One mebibyte.
pub(super) const MIB: usize = 1 << 20;

const POLL: Duration = Duration::from_millis(100);
/// The content of memory before a get, so that a case sees bytes that no transfer wrote.
const UNTOUCHED: u8 = 0xEE;

/// One client of the case's cluster, with convenience methods. May be used by many threads.
#[derive(Clone)]
pub struct Client {
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    case: &'static str,
}

impl Client {
    /// The engine itself.
    pub fn engine(&self) -> &dyn Engine {
        self.engine.as_ref()
    }

    /// The cluster's clock.
    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// A key that belongs to this case.
    pub fn key(&self, label: impl fmt::Display) -> CaseResult<ObjectKey> {
        Ok(ObjectKey::new(format!("contract/{}/{label}", self.case))?)
    }

    /// Keys that belong to this case: `{label}-0`, `{label}-1`, and so on.
    pub fn keys(&self, label: &str, count: usize) -> CaseResult<Vec<ObjectKey>> {
        (0..count).map(|i| self.key(format_args!("{label}-{i}"))).collect()
    }

    /// Registered memory that holds the pattern of `seed`.
    pub fn filled(&self, len: usize, seed: u64) -> CaseResult<Region> {
        let region = self.engine.allocate(len, CALL)?;
        region.whole().write(0, &pattern(len, seed))?;
        Ok(region)
    }

    /// Registered memory that holds no pattern.
    pub fn empty(&self, len: usize) -> CaseResult<Region> {
        let region = self.engine.allocate(len, CALL)?;
        region.whole().write(0, &vec![UNTOUCHED; len])?;
        Ok(region)
    }

    /// One transfer per key from or to one region, `len` bytes each, one after the other.
    pub fn rows(&self, keys: &[ObjectKey], region: &Region, len: usize) -> CaseResult<Vec<Transfer>> {
        keys.iter()
            .enumerate()
            .map(|(i, key)| Ok(Transfer::new(key.clone(), region.span(i * len..(i + 1) * len)?)))
            .collect()
    }

    /// Puts one object with the pattern of `seed`.
    pub fn put(&self, key: &ObjectKey, len: usize, seed: u64, pin: Pin) -> CaseResult<PutOutcome> {
        let options = PutOptions {
            pin,
            ..PutOptions::default()
        };
        let from = self.filled(len, seed)?;
        Ok(self.engine.put_one(key, &from.whole(), &options, CALL)?)
    }

    /// Puts one object with this pin; it must be stored.
    pub fn store_as(&self, key: &ObjectKey, len: usize, seed: u64, pin: Pin) -> CaseResult {
        ensure_matches!(
            self.put(key, len, seed, pin)?,
            PutOutcome::Stored,
            "{key} should have been stored"
        );
        Ok(())
    }

    /// Puts one hard-pinned object; it must be stored.
    pub fn store(&self, key: &ObjectKey, len: usize, seed: u64) -> CaseResult {
        self.store_as(key, len, seed, Pin::Hard)
    }

    /// Puts a batch of hard-pinned objects from one region; all of them must be stored. Object `i` is row `i` of the
    /// pattern of `seed`.
    pub fn store_rows(&self, keys: &[ObjectKey], len: usize, seed: u64) -> CaseResult {
        let from = self.filled(keys.len() * len, seed)?;
        let outcomes = self
            .engine
            .put(&self.rows(keys, &from, len)?, &PutOptions::default(), CALL)?;
        ensure!(
            outcomes.len() == keys.len(),
            "{} outcomes for {} objects",
            outcomes.len(),
            keys.len()
        );
        for (key, outcome) in keys.iter().zip(outcomes) {
            ensure_matches!(outcome, PutOutcome::Stored, "{key} should have been stored");
        }
        Ok(())
    }

    /// Gets one object into memory of `len` bytes. Returns the outcome and the content of that memory.
    pub fn get(&self, key: &ObjectKey, len: usize) -> CaseResult<(GetOutcome, Vec<u8>)> {
        self.get_within(key, len, CALL)
    }

    /// [`Client::get`] with a deadline.
    pub fn get_within(&self, key: &ObjectKey, len: usize, within: Duration) -> CaseResult<(GetOutcome, Vec<u8>)> {
        let into = self.empty(len)?;
        let outcome = self.engine.get_one(key, &into.whole(), within)?;
        Ok((outcome, into.whole().to_vec()))
    }

    /// The object must be readable, and hold the pattern of `seed`.
    pub fn expect_bytes(&self, key: &ObjectKey, len: usize, seed: u64) -> CaseResult {
        let (outcome, bytes) = self.get(key, len)?;
        ensure_matches!(outcome, GetOutcome::Loaded, "{key} should have been loaded");
        same_bytes(key, &bytes, &pattern(len, seed))
    }

    /// A get of the object must be a miss.
    pub fn expect_miss(&self, key: &ObjectKey) -> CaseResult {
        ensure_matches!(
            self.get(key, 16)?.0,
            GetOutcome::Miss | GetOutcome::Unfinished,
            "{key} should be a miss"
        );
        Ok(())
    }

    /// Whether the object is readable. It must be a miss or hold the pattern of `seed`; an unreachable object counts as
    /// not readable.
    pub fn bytes_or_nothing(&self, key: &ObjectKey, len: usize, seed: u64) -> CaseResult<bool> {
        let answer = self.engine.allocate(len, CALL).and_then(|into| {
            into.whole().write(0, &vec![UNTOUCHED; len])?;
            Ok((self.engine.get_one(key, &into.whole(), CALL)?, into))
        });
        let error = match answer {
            Ok((GetOutcome::Loaded, into)) => {
                return same_bytes(key, &into.whole().to_vec(), &pattern(len, seed)).map(|()| true);
            }
            Ok((GetOutcome::Miss | GetOutcome::Unfinished, _)) => return Ok(false),
            Ok((GetOutcome::WrongLength { stored }, _)) => {
                return Err(Failure::new(format!("{key}: {stored} bytes instead of {len}")));
            }
            // What concerns one object is its outcome; a deadline that passed is the error of the whole call.
            Ok((GetOutcome::Failed(error), _)) | Err(error) => error,
        };
        ensure!(
            error.kind() == ErrorKind::Unavailable,
            "{key} should be there, missing or unavailable, not {error:?}"
        );
        Ok(false)
    }

    /// What a probe sees.
    pub fn presence(&self, key: &ObjectKey) -> CaseResult<Presence> {
        Ok(self.engine.probe_one(key, CALL)?)
    }

    /// A probe must find the object absent.
    pub fn expect_absent(&self, key: &ObjectKey) -> CaseResult {
        ensure_matches!(self.presence(key)?, Presence::Absent, "{key} should be absent");
        Ok(())
    }

    /// Removes an object that must be there.
    pub fn remove(&self, key: &ObjectKey) -> CaseResult {
        ensure_matches!(
            self.engine.remove_one(key, CALL)?,
            RemoveOutcome::Removed,
            "{key} should have been removed"
        );
        Ok(())
    }

    /// Repeats the question until it has an answer, at most for `within` of the cluster's time. An error ends it at
    /// once.
    pub fn eventually<T>(
        &self,
        within: Duration,
        what: &str,
        mut ready: impl FnMut() -> CaseResult<Option<T>>,
    ) -> CaseResult<T> {
        poll_until(self.clock(), within, POLL, || ready().transpose())
            .unwrap_or_else(|| Err(Failure::new(format!("after {within:?} still not: {what}"))))
    }

    /// A whole round trip must work again within the time that a cluster may take to recover. Every attempt uses a key
    /// of its own, because no key is ever put twice.
    pub fn works_again(&self, label: &str) -> CaseResult {
        let mut attempt = 0_u32;
        let mut last = String::new();
        let outcome = self.eventually(RECOVERY, "a round trip through the same engine value", || {
            attempt += 1;
            let key = self.key(format_args!("{label}-again-{attempt}"))?;
            let put = self.put(&key, 5000, 77, Pin::Hard);
            last = format!("{put:?}");
            // "For a while they may be Failed", and a pool whose holders are not back yet has no room.
            Ok(matches!(put, Ok(PutOutcome::Stored)) && self.bytes_or_nothing(&key, 5000, 77)?)
                .map(|works| works.then_some(()))
        });
        outcome.map_err(|failure| Failure::new(format!("{failure}; the last put: {last}")))
    }

    /// How long something took.
    pub fn timed<T>(&self, what: impl FnOnce() -> T) -> (T, Duration) {
        let begin = self.clock.now();
        let answer = what();
        (answer, self.clock.now().since(begin))
    }
}

/// The environment of a case: a cluster of its own and a first client, whose methods it has too.
pub struct Context {
    // Before the harness: clients are dropped before their cluster.
    first: Client,
    harness: Box<dyn Harness>,
    setup: Setup,
}

impl Context {
    /// Starts a cluster for a case.
    pub fn start(backend: &dyn Backend, case: &'static str, setup: &Setup) -> CaseResult<Self> {
        let harness = backend.start(setup)?;
        let first = Client {
            engine: harness.connect()?,
            clock: harness.clock(),
            case,
        };
        Ok(Self {
            first,
            harness,
            setup: setup.clone(),
        })
    }

    /// Another client of the same cluster.
    pub fn connect(&self) -> CaseResult<Client> {
        Ok(Client {
            engine: self.harness.connect()?,
            ..self.first.clone()
        })
    }

    /// The cluster, from outside.
    pub fn harness(&self) -> &dyn Harness {
        self.harness.as_ref()
    }

    /// The setup of the cluster.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }
}

impl Deref for Context {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.first
    }
}
