//! One engine call of a page store: pages that go to the engine directly from their memory, or through a frame.
//!
//! The memory of all its pages is claimed first and at once ([`tensorhold_engine::busy`]): an earlier call, of any store,
//! may still touch it. Then the call waits for a frame, then for its turn; no call that has a frame or a turn waits for
//! a claim. The claim of a get without a frame travels with the call, and lasts until the engine has let go. That of a
//! put ends with the unit: memory under a late put may be used again, and the checksum refuses the object that such a
//! put then stores (`page`).

use std::ops::Range;
use std::sync::Arc;

use tensorhold_core::{Deadline, Error, Result};
use tensorhold_engine::{Access, Busy, Claim, GetOutcome, PutOutcome, Span, Transfer};

use super::footer::{FOOTER_BYTES, PageDefect, defect_of, footer_of, gather, scatter};
use super::inflight::{Loans, Settling};
use super::page::{Page, PageGot, PagePut, Stop};
use super::pipeline::{self, Then};
use super::seal::PageSeal;
use super::staging::Staging;
use super::store::{Call, GET, PUT, PageStore, other_count, out_of_time, panicked, refusal};

/// The transfers of one engine call, and the spans that the store reads afterwards.
struct Prepared {
    transfers: Vec<Transfer>,
    /// For each page: its footer, or all of it.
    own: Vec<Span>,
    staged: bool,
}

impl PageStore {
    /// The staging area and the positions in a frame, if these pages go through one.
    fn staged(&self, pages: &[Page]) -> Option<(&Staging, Vec<Range<usize>>)> {
        let staging = self.staging.as_ref()?;
        let places = staging.places(pages.iter().map(Page::stored_bytes))?;
        Some((staging, places))
    }

    /// Whether a put of these pages goes directly from their memory although there are frames.
    pub(super) fn goes_direct(&self, pages: &[Page]) -> bool {
        let (Some(least), true) = (self.config.direct_put_bytes, self.staging.is_some()) else {
            return false;
        };
        if self.config.seal.is_some() {
            return false;
        }
        let engine = self.slab.engine();
        let fits = |part: &Span| part.len() >= least && part.region().engine() == engine;
        pages.iter().all(|page| page.parts.iter().all(fits))
    }

    pub(super) fn put_unit(&self, pages: &[Page], call: &Call<'_>) -> Vec<PagePut> {
        let fail = |error: Error| pages.iter().map(|_| PagePut::Failed(error.clone())).collect::<Vec<_>>();
        let staged = if self.goes_direct(pages) {
            None
        } else {
            self.staged(pages)
        };
        let _claim = match self.claim(PUT, Access::Read, pages, call.deadline) {
            Ok(claim) => claim,
            Err(error) => return fail(error),
        };
        let prepared = match staged {
            Some((staging, places)) => self.frame(pages, staging, places, call.deadline),
            None if self.config.seal.is_some() => Err(too_large()),
            None => self.loans(pages, call.settling, None),
        };
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return fail(error),
        };
        let sealed = each(pages, &prepared.own, call.hashers, |page, own| {
            if let Some(seal) = &self.config.seal {
                seal.seal(page, own)
            } else if prepared.staged {
                gather(&page.key, &page.parts, own)
            } else {
                own.write(0, &footer_of(&page.key, &page.parts)?)
            }
        });
        if let Some(error) = sealed
            .into_iter()
            .find_map(|sealed| sealed.unwrap_or_else(|| Err(panicked(PUT))).err())
        {
            return fail(error);
        }
        let outcomes = {
            let Some(_turn) = call.turns.take(&*self.clock, call.deadline) else {
                return fail(out_of_time(PUT));
            };
            let left = call.deadline.remaining(&*self.clock);
            self.engine.put(&prepared.transfers, &self.config.put, left)
        };
        match outcomes {
            Ok(outcomes) if outcomes.len() == pages.len() => outcomes
                .into_iter()
                .map(|outcome| match outcome {
                    PutOutcome::Stored => PagePut::Stored,
                    PutOutcome::Full => PagePut::Full,
                    PutOutcome::Failed(error) => PagePut::Failed(error),
                })
                .collect(),
            Ok(_) => fail(other_count(PUT)),
            Err(error) => fail(error),
        }
    }

    pub(super) fn get_unit(&self, pages: &[Page], call: &Call<'_>) -> Vec<PageGot> {
        let fail = |error: Error| pages.iter().map(|_| PageGot::Failed(error.clone())).collect::<Vec<_>>();
        if let Some(error) = pages.iter().find_map(|page| refusal(GET, page)) {
            return fail(error);
        }
        let claim = match self.claim(GET, Access::Write, pages, call.deadline) {
            Ok(claim) => claim,
            Err(error) => return fail(error),
        };
        let prepared = match self.staged(pages) {
            Some((staging, places)) => self.frame(pages, staging, places, call.deadline),
            None if self.config.seal.is_some() => Err(too_large()),
            None => self.loans(pages, call.settling, Some(Arc::clone(&claim))),
        };
        // The old content of a footer must not be taken for bytes that the engine has loaded.
        let prepared = prepared.and_then(|prepared| {
            let clear = |own: &Span| own.write(own.len() - FOOTER_BYTES, &[0; FOOTER_BYTES]);
            prepared.own.iter().try_for_each(clear)?;
            Ok(prepared)
        });
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return fail(error),
        };
        let outcomes = {
            let Some(_turn) = call.turns.take(&*self.clock, call.deadline) else {
                return fail(out_of_time(GET));
            };
            let left = call.deadline.remaining(&*self.clock);
            self.engine.get(&prepared.transfers, left)
        };
        let outcomes = match outcomes {
            Ok(outcomes) if outcomes.len() == pages.len() => outcomes,
            Ok(_) => return fail(other_count(GET)),
            Err(error) => return fail(error),
        };
        let loaded: Vec<usize> = (0..pages.len())
            .filter(|at| matches!(outcomes[*at], GetOutcome::Loaded))
            .collect();
        let checked = pipeline::run(loaded.len(), call.hashers, &Stop::default(), |n| {
            let at = loaded[n];
            let seal = self.config.seal.as_ref();
            (check(&pages[at], &prepared.own[at], prepared.staged, seal), Then::GoOn)
        });
        let mut checked = checked.into_iter();
        outcomes
            .into_iter()
            .zip(pages)
            .map(|(outcome, page)| match outcome {
                GetOutcome::Loaded => checked
                    .next()
                    .flatten()
                    .unwrap_or_else(|| PageGot::Failed(panicked(GET))),
                // Another producer may be putting it; to a reader of a cache that is a miss.
                GetOutcome::Miss | GetOutcome::Unfinished => PageGot::Miss,
                GetOutcome::WrongLength { stored } => PageGot::WrongLength {
                    stored,
                    expected: page.stored_bytes(),
                },
                GetOutcome::Failed(error) => PageGot::Failed(error),
            })
            .collect()
    }

    /// Claims the memory of these pages, for as long as the claim lives.
    fn claim(&self, operation: &'static str, access: Access, pages: &[Page], deadline: Deadline) -> Result<Arc<Claim>> {
        let ranges = pages.iter().flat_map(|page| &page.parts).map(Span::range);
        let claim = Busy::process().claim_blocking(operation, access, ranges, &*self.clock, deadline)?;
        Ok(Arc::new(claim))
    }

    /// The transfers of one engine call directly from the pages' memory, guarded until the engine has let go of it.
    fn loans(&self, pages: &[Page], settling: &Settling, claim: Option<Arc<Claim>>) -> Result<Prepared> {
        let slots = self.slab.take(pages.len())?;
        let spans = slots.spans()?;
        let mut loans = Loans::new(settling.depart((slots, claim)));
        let mut transfers = Vec::with_capacity(pages.len());
        let mut own = Vec::with_capacity(pages.len());
        for (page, footer) in pages.iter().zip(spans) {
            let footer = loans.span(&footer)?;
            let mut parts = Vec::with_capacity(page.parts.len() + 1);
            for part in &page.parts {
                parts.push(loans.span(part)?);
            }
            parts.push(footer.clone());
            own.push(footer);
            transfers.push(Transfer::scattered(page.key.clone(), parts));
        }
        Ok(Prepared {
            transfers,
            own,
            staged: false,
        })
    }

    /// The transfers of one engine call through a frame. The engine never has the caller's memory, so only the frame
    /// has to wait until the engine lets go.
    fn frame(
        &self,
        pages: &[Page],
        staging: &Staging,
        places: Vec<Range<usize>>,
        deadline: Deadline,
    ) -> Result<Prepared> {
        let Some(frame) = staging.take(&*self.clock, deadline) else {
            let why = "no frame was free before the deadline; the engine hangs, or staging_frames is too low";
            return Err(Error::unavailable("kv.staging", why));
        };
        let spans = places
            .into_iter()
            .map(|place| frame.span(place))
            .collect::<Result<Vec<_>>>()?;
        let mut loans = Loans::new(Settling::default().depart(frame));
        let mut transfers = Vec::with_capacity(pages.len());
        let mut own = Vec::with_capacity(pages.len());
        for (page, object) in pages.iter().zip(spans) {
            let object = loans.span(&object)?;
            transfers.push(Transfer::new(page.key.clone(), object.clone()));
            own.push(object);
        }
        Ok(Prepared {
            transfers,
            own,
            staged: true,
        })
    }
}

/// Calls `work` for each page and its span, on a few threads. `None` where that panicked.
fn each<T: Send>(
    pages: &[Page],
    own: &[Span],
    hashers: usize,
    work: impl Fn(&Page, &Span) -> T + Sync,
) -> Vec<Option<T>> {
    pipeline::run(pages.len(), hashers, &Stop::default(), |at| {
        (work(&pages[at], &own[at]), Then::GoOn)
    })
}

fn too_large() -> Error {
    Error::invalid(
        "kv.staging",
        "a sealed page is larger than a frame; raise call_bytes (frame_bytes)",
    )
}

/// Whether the bytes that the engine has loaded are the page (KV16).
fn check(page: &Page, own: &Span, staged: bool, seal: Option<&PageSeal>) -> PageGot {
    let flaw: Result<Option<PageDefect>> = if let Some(seal) = seal {
        seal.open(page, own)
    } else if staged {
        scatter(&page.key, own, &page.parts)
    } else {
        let mut footer = [0; FOOTER_BYTES];
        own.read(0, &mut footer)
            .and_then(|()| defect_of(&page.key, &page.parts, &footer))
    };
    match flaw {
        Ok(None) => PageGot::Loaded,
        Ok(Some(flaw)) => PageGot::Corrupt(flaw),
        Err(error) => PageGot::Failed(error),
    }
}
