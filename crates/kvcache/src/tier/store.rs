//! Content-addressed pages over an engine. See the documentation of [`super`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Error, ErrorKind, ObjectKey, Result};
use tensorhold_engine::{Engine, Presence, RemoveOutcome, metered};
use tensorhold_metrics::{Registration, registry};
use tensorhold_prefetch::{Prefetch, PrefetchEngine, PrefetchStats, Priority};

use super::exposed::{LABEL, PageSource};
use super::footer::FOOTER_BYTES;
use super::inflight::Settling;
use super::page::{CallOptions, GetReport, Hint, Page, PageGot, PagePut, PutReport, StoreConfig};
use super::pipeline::{self, Most, Then, Turns};
use super::quarantine::Quarantine;
use super::slab::FooterSlab;
use super::staging::Staging;
use super::stats::{Counters, StoreStats};

pub(super) const PUT: &str = "kv.put";
pub(super) const GET: &str = "kv.get";

/// How long a backup may ask which of its pages are there: an answer that takes longer saves nothing.
const LOOK_WITHIN: Duration = Duration::from_millis(500);

/// Pages in an engine, each with its length and its checksum. May be used from many threads at once.
///
/// Every call blocks, but no longer than its deadline. A caller that must not block uses a [`super::Tier`].
pub struct PageStore {
    /// Dropped before what it reads.
    _metrics: Registration,
    pub(super) engine: Arc<dyn Engine>,
    /// The same engine, by its own type.
    prefetch: Arc<PrefetchEngine>,
    pub(super) config: StoreConfig,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) slab: FooterSlab,
    pub(super) staging: Option<Staging>,
    bad: Arc<Quarantine>,
    /// Pages that a caller found to have another length than it expected.
    suspect: Quarantine,
    count: Arc<Counters>,
}

impl fmt::Debug for PageStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageStore")
            .field("engine", &self.engine)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// The state that one put or get shares between its lanes.
pub(super) struct Call<'a> {
    pub(super) settling: &'a Settling,
    pub(super) turns: Turns,
    pub(super) deadline: Deadline,
    /// Threads for the checksums of one unit. With several units, the lanes already hash in parallel.
    pub(super) hashers: usize,
}

impl PageStore {
    /// A store on this engine. Registers a little memory for its own use, within the given time.
    pub fn new(engine: Arc<dyn Engine>, config: StoreConfig, clock: Arc<dyn Clock>, within: Duration) -> Result<Self> {
        if config.call_pages == 0 || config.footer_slots < config.call_pages {
            return Err(Error::invalid(
                "kv.store",
                "call_pages must be at least one, and footer_slots at least as many",
            ));
        }
        if config.seal.is_some() && config.staging_frames == 0 {
            return Err(Error::invalid(
                "kv.store",
                "sealed pages pass through frames, so that no plaintext is in memory that other processes can reach; \
                 set staging_frames",
            ));
        }
        let engine = metered(engine, LABEL, &clock);
        let prefetch = PrefetchEngine::new(engine, config.prefetch.clone(), Arc::clone(&clock))?;
        let prefetch = Arc::new(prefetch);
        let engine: Arc<dyn Engine> = Arc::clone(&prefetch) as Arc<dyn Engine>;
        let slab = FooterSlab::new(&*engine, config.footer_slots, within)?;
        let staging = match config.staging_frames {
            0 => None,
            frames => {
                let bytes = usize::try_from(config.call_bytes).unwrap_or(usize::MAX);
                Some(Staging::new(&*engine, frames, bytes, config.call_pages, within)?)
            }
        };
        let (count, bad) = (
            Arc::new(Counters::default()),
            Arc::new(Quarantine::new(config.bad_pages)),
        );
        let source = PageSource::new(&count, &bad, &prefetch);
        Ok(Self {
            _metrics: registry().register(Arc::new(source)),
            engine,
            prefetch,
            slab,
            staging,
            bad,
            suspect: Quarantine::new(config.bad_pages),
            count,
            config,
            clock,
        })
    }

    /// The engine, with a prefetcher around it. The owner of memory for pages registers it there.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// The settings.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// The clock that its deadlines are on.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The counters so far.
    pub fn stats(&self) -> StoreStats {
        self.count.snapshot(self.bad.len())
    }

    /// The counters of its prefetcher so far.
    pub fn prefetch_stats(&self) -> PrefetchStats {
        self.prefetch.stats()
    }

    /// Ends all prefetches and joins their threads; everything else goes on to work.
    pub fn end_prefetches(&self) {
        self.prefetch.close();
    }

    /// `framed`: in a frame a page is one piece.
    fn most(&self, framed: bool) -> Most {
        Most {
            pages: self.config.call_pages.min(self.engine.capabilities().max_batch).max(1),
            bytes: self.config.call_bytes,
            parts: if framed { usize::MAX } else { self.config.call_parts },
        }
    }

    /// The names of these pages' objects: the page keys, or in a sealed store the keyed names.
    pub fn object_names<'a>(&self, keys: &'a [ObjectKey]) -> Result<Cow<'a, [ObjectKey]>> {
        match &self.config.seal {
            None => Ok(Cow::Borrowed(keys)),
            Some(seal) => keys
                .iter()
                .map(|key| seal.name(key))
                .collect::<Result<_>>()
                .map(Cow::Owned),
        }
    }

    /// The same pages under the names of their objects.
    fn under_object_names<'a>(&self, pages: &'a [Page]) -> Result<Cow<'a, [Page]>> {
        let Some(seal) = &self.config.seal else {
            return Ok(Cow::Borrowed(pages));
        };
        let named = |page: &Page| Ok(Page::new(seal.name(&page.key)?, page.parts.clone()));
        pages.iter().map(named).collect::<Result<_>>().map(Cow::Owned)
    }

    /// What is known about these pages, without side effects and without reading them. `Unsupported` if the engine
    /// cannot tell (Mooncake needs its admin address for that).
    pub fn exists(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Hint>> {
        let keys = &*self.object_names(keys)?;
        let (hints, _) = self.probe(keys, within)?;
        Ok(hints)
    }

    /// [`PageStore::exists`], and pages that are on SSD only are on their way to memory when it returns.
    pub fn exists_and_prefetch(
        &self,
        keys: &[ObjectKey],
        priority: Priority,
        within: Duration,
    ) -> Result<(Vec<Hint>, Prefetch)> {
        let keys = &*self.object_names(keys)?;
        let (hints, found) = self.probe(keys, within)?;
        Ok((hints, self.prefetch.prefetch_found(keys, &found, priority)))
    }

    /// Brings pages that are on SSD only to memory. Never blocks; what it returns tells how far it is.
    pub fn prefetch(&self, keys: &[ObjectKey], priority: Priority) -> Result<Prefetch> {
        Ok(self.prefetch.prefetch(&self.object_names(keys)?, priority))
    }

    /// How many of these pages from the start are present without a gap; with `bytes`, only pages of that length count.
    /// With `prefetch`, those of them that are on SSD only are on their way to memory when it returns.
    pub fn prefix_hits(
        &self,
        keys: &[ObjectKey],
        bytes: Option<u64>,
        prefetch: Option<Priority>,
        within: Duration,
    ) -> Result<usize> {
        let keys = &*self.object_names(keys)?;
        let deadline = Deadline::after(&*self.clock, within);
        let mut hits = 0;
        for batch in keys.chunks(self.engine.capabilities().max_batch.max(1)) {
            let (hints, found) = self.probe(batch, deadline.remaining(&*self.clock))?;
            // The page is wrong, or the caller is: the put of the page will tell, because it knows the length.
            for (key, hint) in batch.iter().zip(&hints) {
                if has_other_length(hint, bytes) {
                    self.suspect.add(key);
                }
            }
            let here = hints.iter().take_while(|hint| hint.is_present(bytes)).count();
            hits += here;
            let on_ssd = |hint: &Hint| matches!(hint, Hint::Present { in_dram: false, .. });
            if let Some(priority) = prefetch
                && hints[..here].iter().any(on_ssd)
            {
                // Nobody waits for it but the get that follows, which finds it by its keys.
                drop(self.prefetch.prefetch_found(&batch[..here], &found[..here], priority));
            }
            if here < batch.len() {
                break;
            }
        }
        Ok(hits)
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<(Vec<Hint>, Vec<Presence>)> {
        let found = self.prefetch.exists(keys, within)?;
        Ok((self.hints(keys, &found)?, found))
    }

    fn hints(&self, keys: &[ObjectKey], found: &[Presence]) -> Result<Vec<Hint>> {
        if found.len() != keys.len() {
            return Err(other_count("kv.exists"));
        }
        let bad = self.bad.among(keys.iter());
        let hints: Vec<Hint> = keys
            .iter()
            .zip(found)
            .map(|(key, presence)| match *presence {
                Presence::Present { bytes, dram, .. } if !bad.contains(key) => Hint::Present {
                    bytes: bytes.saturating_sub(FOOTER_BYTES as u64),
                    in_dram: dram > 0,
                },
                _ => Hint::Absent,
            })
            .collect();
        let present = hints.iter().filter(|hint| hint.is_present(None)).count();
        self.count.probed(keys.len(), present);
        Ok(hints)
    }

    /// Which pages the store has at this moment: evidence, unlike [`PageStore::exists`], which may be told what another
    /// caller was told a moment ago.
    fn look(&self, pages: &[Page], within: Duration) -> Result<Vec<Hint>> {
        let keys: Vec<ObjectKey> = pages.iter().map(|page| page.key.clone()).collect();
        let keys = &*self.object_names(&keys)?;
        let deadline = Deadline::after(&*self.clock, within);
        let mut found = Vec::with_capacity(keys.len());
        for batch in keys.chunks(self.engine.capabilities().max_batch.max(1)) {
            found.extend(self.engine.probe(batch, deadline.remaining(&*self.clock))?);
        }
        let hints = self.hints(keys, &found)?;
        for ((key, hint), page) in keys.iter().zip(&hints).zip(pages) {
            if has_other_length(hint, Some(page.bytes())) {
                self.bad.add(key);
            }
        }
        Ok(hints)
    }

    /// Looks at those of the pages that a caller found to have another length than it expected: no get will find out that
    /// they are wrong, because they do not count as present, and the engine would take them for these pages.
    fn look_at_suspects(&self, pages: &[Page], by_key: &HashMap<&ObjectKey, usize>, within: Duration) {
        let suspects = self.suspect.among(by_key.keys().copied());
        for batch in suspects.chunks(self.engine.capabilities().max_batch.max(1)) {
            let found = match self.engine.probe(batch, within) {
                Ok(found) if found.len() == batch.len() => found,
                // They stay suspect, and the next put looks at them.
                Ok(_) => continue,
                Err(error) => {
                    tracing::debug!(%error, "it is not known whether pages have the right length");
                    continue;
                }
            };
            for (key, presence) in batch.iter().zip(found) {
                let page = by_key.get(key).map(|at| &pages[*at]);
                let right = page.map(|page| page.bytes().saturating_add(FOOTER_BYTES as u64));
                if matches!(presence, Presence::Present { bytes, .. } if Some(bytes) != right) {
                    self.bad.add(key);
                }
                self.suspect.remove(key);
            }
        }
    }

    /// Stores pages. A key that has a page already counts as success, and no bytes move for it. A key named twice is
    /// put once.
    pub fn put(&self, pages: &[Page], options: &CallOptions) -> PutReport {
        let settling = Settling::default();
        let pages = self.put_settling(pages, options, &settling);
        PutReport { pages, settling }
    }

    /// Puts those of the pages that the store does not have. To the engine a put of a page that it has is no work
    /// either, but it would be hashed and copied before the engine can say so.
    pub(super) fn put_missing(&self, pages: &[Page], options: &CallOptions, settling: &Settling) -> Vec<PagePut> {
        let deadline = Deadline::after(&*self.clock, options.within);
        // Most of the time is for the pages: without an answer all of them are put, as if none were there.
        let hints = self
            .look(pages, (options.within / 4).min(LOOK_WITHIN))
            .unwrap_or_else(|error| {
                tracing::debug!(%error, "it is not known which pages the store has; all are put");
                vec![Hint::Absent; pages.len()]
            });
        let is_there = |at: usize| hints[at].is_present(Some(pages[at].bytes()));
        let missing: Vec<Page> = (0..pages.len())
            .filter(|at| !is_there(*at))
            .map(|at| pages[at].clone())
            .collect();
        let options = CallOptions {
            within: deadline.remaining(&*self.clock),
            ..options.clone()
        };
        let mut put = self.put_settling(&missing, &options, settling).into_iter();
        let outcome = |at| match is_there(at) {
            true => PagePut::Stored,
            false => put.next().unwrap_or(PagePut::Skipped),
        };
        (0..pages.len()).map(outcome).collect()
    }

    pub(super) fn put_settling(&self, pages: &[Page], options: &CallOptions, settling: &Settling) -> Vec<PagePut> {
        let pages = match self.under_object_names(pages) {
            Ok(named) => named,
            Err(error) => return pages.iter().map(|_| PagePut::Failed(error.clone())).collect(),
        };
        let pages = &*pages;
        let deadline = Deadline::after(&*self.clock, options.within);
        let mut first: HashMap<&ObjectKey, usize> = HashMap::with_capacity(pages.len());
        let once: Vec<usize> = pages
            .iter()
            .enumerate()
            .map(|(at, page)| *first.entry(&page.key).or_insert(at))
            .collect();
        self.look_at_suspects(pages, &first, (options.within / 4).min(LOOK_WITHIN));
        let blocked = self.purge(self.bad.among(first.keys().copied()), deadline);
        let mut outcomes: Vec<PagePut> = pages.iter().map(|_| PagePut::Skipped).collect();
        let mut open: Vec<usize> = Vec::with_capacity(first.len());
        for (at, page) in pages.iter().enumerate().filter(|(at, _)| once[*at] == *at) {
            match refusal(PUT, page).or_else(|| blocked.get(&page.key).cloned()) {
                Some(error) => outcomes[at] = PagePut::Failed(error),
                None => open.push(at),
            }
        }
        let mut pause = self.config.full_pause;
        for turn in 0..=self.config.full_retries {
            if turn > 0 {
                if deadline.remaining(&*self.clock) <= pause || options.stop.is_stopped() {
                    break;
                }
                // The engine reports neither when it evicts nor when it is done.
                self.clock.sleep(pause);
                pause *= 2;
            }
            self.put_all(pages, &open, &mut outcomes, options, deadline, settling);
            open.retain(|at| matches!(outcomes[*at], PagePut::Full));
            if open.is_empty() {
                break;
            }
        }
        for at in 0..pages.len() {
            if once[at] == at {
                self.count.put(&outcomes[at], pages[at].bytes());
            } else {
                outcomes[at] = outcomes[once[at]].clone();
            }
        }
        outcomes
    }

    /// One attempt for each of the pages at `open`.
    fn put_all(
        &self,
        pages: &[Page],
        open: &[usize],
        outcomes: &mut [PagePut],
        options: &CallOptions,
        deadline: Deadline,
        settling: &Settling,
    ) {
        let chosen: Vec<Page> = open.iter().map(|at| pages[*at].clone()).collect();
        let framed = self.staging.is_some() && !self.goes_direct(&chosen);
        let units = pipeline::units(&chosen, self.most(framed));
        let call = Call {
            settling,
            turns: Turns::new(self.config.streams),
            deadline,
            hashers: if units.len() > 1 { 1 } else { self.config.lanes },
        };
        let results = pipeline::run(units.len(), self.config.lanes, &options.stop, |unit| {
            (self.put_unit(&chosen[units[unit].clone()], &call), Then::GoOn)
        });
        for (unit, result) in units.into_iter().zip(results) {
            let begun = match result {
                Some(outcomes) => outcomes,
                None if options.stop.is_stopped() => continue,
                None => unit.clone().map(|_| PagePut::Failed(panicked(PUT))).collect(),
            };
            for (at, outcome) in unit.zip(begun) {
                outcomes[open[at]] = outcome;
            }
        }
    }

    /// Reads pages into their memory and checks each of them.
    pub fn get(&self, pages: &[Page], options: &CallOptions) -> GetReport {
        let settling = Settling::default();
        let pages = self.get_settling(pages, options, &settling);
        GetReport { pages, settling }
    }

    pub(super) fn get_settling(&self, pages: &[Page], options: &CallOptions, settling: &Settling) -> Vec<PageGot> {
        let pages = match self.under_object_names(pages) {
            Ok(named) => named,
            Err(error) => return pages.iter().map(|_| PageGot::Failed(error.clone())).collect(),
        };
        let pages = &*pages;
        let deadline = Deadline::after(&*self.clock, options.within);
        let mut outcomes = self.get_all(pages, options, deadline, settling);
        self.retry_wrong(pages, &mut outcomes, options, deadline, settling);
        for (page, outcome) in pages.iter().zip(&outcomes) {
            self.count.got(outcome, page.bytes());
        }
        self.evict_corrupt(pages, &outcomes);
        outcomes
    }

    /// A page that was read ahead may have been torn on its way, while the engine's copy is good. The first get has taken
    /// it out of the buffer: the second one reads the engine's.
    fn retry_wrong(
        &self,
        pages: &[Page],
        outcomes: &mut [PageGot],
        options: &CallOptions,
        deadline: Deadline,
        settling: &Settling,
    ) {
        if !self.prefetch.was_used() || !outcomes.iter().any(|outcome| matches!(outcome, PageGot::Corrupt(_))) {
            return;
        }
        // Where only a prefix counts, what was cut off behind the wrong page comes along.
        let again = |outcome: &PageGot| match outcome {
            PageGot::Corrupt(_) => true,
            PageGot::Skipped => options.prefix_only && !options.stop.is_stopped(),
            _ => false,
        };
        let open: Vec<usize> = (0..outcomes.len()).filter(|at| again(&outcomes[*at])).collect();
        let chosen: Vec<Page> = open.iter().map(|at| pages[*at].clone()).collect();
        let got = self.get_all(&chosen, options, deadline, settling);
        for (at, outcome) in open.into_iter().zip(got) {
            // A wrong page stays one, unless the engine says that its own is good or gone.
            let told = matches!(outcome, PageGot::Loaded | PageGot::Miss | PageGot::Corrupt(_));
            if told || !matches!(outcomes[at], PageGot::Corrupt(_)) {
                outcomes[at] = outcome;
            }
        }
    }

    fn get_all(&self, pages: &[Page], options: &CallOptions, deadline: Deadline, settling: &Settling) -> Vec<PageGot> {
        let units: Vec<Range<usize>> = pipeline::units(pages, self.most(self.staging.is_some()));
        let call = Call {
            settling,
            turns: Turns::new(self.config.streams),
            deadline,
            hashers: if units.len() > 1 { 1 } else { self.config.lanes },
        };
        let results = pipeline::run(units.len(), self.config.lanes, &options.stop, |unit| {
            let outcomes = self.get_unit(&pages[units[unit].clone()], &call);
            let then = if options.prefix_only && !outcomes.iter().all(PageGot::is_loaded) {
                Then::Cut
            } else {
                Then::GoOn
            };
            (outcomes, then)
        });
        let mut outcomes: Vec<PageGot> = Vec::with_capacity(pages.len());
        let mut cut = false;
        for (unit, result) in units.into_iter().zip(results) {
            match result {
                Some(begun) => {
                    cut |= options.prefix_only && !begun.iter().all(PageGot::is_loaded);
                    outcomes.extend(begun);
                }
                None if cut || options.stop.is_stopped() => outcomes.extend(unit.map(|_| PageGot::Skipped)),
                None => outcomes.extend(unit.map(|_| PageGot::Failed(panicked(GET)))),
            }
        }
        outcomes
    }

    /// Removes wrong pages from the engine, so that they can be put again.
    fn evict_corrupt(&self, pages: &[Page], outcomes: &[PageGot]) {
        let wrong = |outcome: &PageGot| matches!(outcome, PageGot::WrongLength { .. } | PageGot::Corrupt(_));
        let wrong: Vec<ObjectKey> = pages
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| wrong(outcome))
            .map(|(page, _)| page.key.clone())
            .collect();
        for (page, outcome) in pages
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| !matches!(outcome, PageGot::Loaded))
        {
            if wrong.contains(&page.key) {
                tracing::warn!(key = %page.key, ?outcome, "a wrong page was refused");
            }
        }
        for key in &wrong {
            self.bad.add(key);
        }
        let deadline = Deadline::after(&*self.clock, self.config.remove_within);
        self.purge(wrong, deadline);
    }

    /// Removes wrong pages. Returns the keys that could not be removed, each with the reason.
    fn purge(&self, keys: Vec<ObjectKey>, deadline: Deadline) -> HashMap<ObjectKey, Error> {
        let mut blocked = HashMap::new();
        for batch in keys.chunks(self.engine.capabilities().max_batch.max(1)) {
            let left = deadline.remaining(&*self.clock).min(self.config.remove_within);
            let outcomes = match self.engine.remove(batch, left) {
                Ok(outcomes) if outcomes.len() == batch.len() => outcomes,
                Ok(_) => batch.iter().map(|_| RemoveOutcome::Failed(other_count(PUT))).collect(),
                Err(error) => batch.iter().map(|_| RemoveOutcome::Failed(error.clone())).collect(),
            };
            for (key, outcome) in batch.iter().zip(outcomes) {
                match outcome {
                    RemoveOutcome::Removed => {
                        self.bad.remove(key);
                        self.count.removed();
                    }
                    RemoveOutcome::Absent => self.bad.remove(key),
                    RemoveOutcome::Unfinished => {
                        let why = "a put of this page never ended; it can be put again after the engine's timeout";
                        blocked.insert(key.clone(), Error::unavailable(PUT, why).with("key", key));
                    }
                    RemoveOutcome::Failed(error) => {
                        blocked.insert(key.clone(), error);
                    }
                }
            }
        }
        blocked
    }
}

/// Whether a page is there, but not with this length.
fn has_other_length(hint: &Hint, bytes: Option<u64>) -> bool {
    hint.is_present(None) && !hint.is_present(bytes)
}

pub(super) fn refusal(operation: &'static str, page: &Page) -> Option<Error> {
    page.parts
        .is_empty()
        .then(|| Error::invalid(operation, "a page needs at least one piece of memory").with("key", &page.key))
}

pub(super) fn out_of_time(operation: &'static str) -> Error {
    Error::unavailable(
        operation,
        "the deadline passed before these pages were begun; nothing was done for them",
    )
}

pub(super) fn panicked(operation: &'static str) -> Error {
    Error::internal(operation, "a thread of the page store panicked; see the log")
}

pub(super) fn other_count(operation: &'static str) -> Error {
    Error::new(
        ErrorKind::Internal,
        operation,
        "the engine returned a different number of outcomes than objects in the batch",
    )
}
