//! Content-addressed pages over an engine. See the documentation of [`super`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Clock, Deadline, Error, ErrorKind, ObjectKey, Result};
use holdfast_engine::{Engine, Presence, RemoveOutcome};

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

/// Pages in an engine, each with its length and its checksum. May be used from many threads at once.
///
/// Every call blocks, but no longer than its deadline. A caller that must not block uses a [`super::Tier`].
pub struct PageStore {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) config: StoreConfig,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) slab: FooterSlab,
    pub(super) staging: Option<Staging>,
    bad: Quarantine,
    count: Counters,
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
        let slab = FooterSlab::new(&*engine, config.footer_slots, within)?;
        let staging = match config.staging_frames {
            0 => None,
            frames => {
                let bytes = usize::try_from(config.call_bytes).unwrap_or(usize::MAX);
                Some(Staging::new(&*engine, frames, bytes, config.call_pages, within)?)
            }
        };
        Ok(Self {
            engine,
            slab,
            staging,
            bad: Quarantine::new(config.bad_pages),
            count: Counters::default(),
            config,
            clock,
        })
    }

    /// The engine. The owner of memory for pages registers it there.
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
        let deadline = Deadline::after(&*self.clock, within);
        let mut hints = Vec::with_capacity(keys.len());
        for batch in keys.chunks(self.engine.capabilities().max_batch.max(1)) {
            hints.extend(self.probe(batch, deadline)?);
        }
        Ok(hints)
    }

    /// How many of these pages from the start are present without a gap; with `bytes`, only pages of that length count.
    pub fn prefix_hits(&self, keys: &[ObjectKey], bytes: Option<u64>, within: Duration) -> Result<usize> {
        let keys = &*self.object_names(keys)?;
        let deadline = Deadline::after(&*self.clock, within);
        let mut hits = 0;
        for batch in keys.chunks(self.engine.capabilities().max_batch.max(1)) {
            let hints = self.probe(batch, deadline)?;
            let here = hints.iter().take_while(|hint| hint.is_present(bytes)).count();
            hits += here;
            if here < batch.len() {
                break;
            }
        }
        Ok(hits)
    }

    fn probe(&self, keys: &[ObjectKey], deadline: Deadline) -> Result<Vec<Hint>> {
        let found = self.engine.probe(keys, deadline.remaining(&*self.clock))?;
        if found.len() != keys.len() {
            return Err(other_count("kv.exists"));
        }
        let bad = self.bad.among(keys.iter());
        let hints: Vec<Hint> = keys
            .iter()
            .zip(found)
            .map(|(key, presence)| match presence {
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

    /// Stores pages. A key that has a page already counts as success, and no bytes move for it. A key named twice is
    /// put once.
    pub fn put(&self, pages: &[Page], options: &CallOptions) -> PutReport {
        let settling = Settling::default();
        let pages = self.put_settling(pages, options, &settling);
        PutReport { pages, settling }
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
        for (page, outcome) in pages.iter().zip(&outcomes) {
            self.count.got(outcome, page.bytes());
        }
        self.evict_corrupt(pages, &outcomes);
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
