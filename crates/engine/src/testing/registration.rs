//! Memory is registered once, unregistered once, and its owner is dropped last.

use std::ops::Range;
use std::sync::Arc;

use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};
use tensorhold_core::{ErrorKind, Result};

use super::Setup;
use super::context::{CALL, Client, Context, MIB, SOON};
use crate::{EngineExt, GetOutcome, HostMemory, Registrations, Transfer};

cases! { "registration"
    regions_are_counted (Setup::default) "Memory of this process that is registered now.";
    a_dropped_region_is_unregistered (Setup::default) "The last clone, span or transfer to go unregisters it.";
    a_span_keeps_its_region (Setup::default) "The last clone, span or transfer to go unregisters it.";
    overlapping_memory_is_refused (Setup::default) "Memory that overlaps a region that is already registered is refused (`Invalid`).";
    neighbours_are_not_overlaps (Setup::default) "Memory that overlaps a region that is already registered is refused (`Invalid`).";
    the_same_memory_again_after_a_drop (Setup::default) "The last clone, span or transfer to go unregisters it.";
    the_owner_goes_last (Setup::default) "R2: memory is unregistered exactly once, and its owner is dropped only after that.";
    fresh_memory_many_times (Setup::default) "R2: memory is unregistered exactly once, and its owner is dropped only after that.";
    refused_memory_is_given_back (Setup::default) "Memory that overlaps a region that is already registered is refused (`Invalid`).";
    regions_outlive_their_engine (Setup::default) "The last clone, span or transfer to go unregisters it, in whatever order things are dropped.";
}

/// Waits until this much is registered in addition to `before`.
fn settles(client: &Client, before: Registrations, regions: usize, bytes: u64) -> CaseResult {
    let what = format!("{regions} regions of {bytes} bytes more than {before:?}");
    client.eventually(SOON, &what, || {
        let now = client.engine().registrations();
        let as_wanted = now.regions == before.regions + regions && now.bytes == before.bytes + bytes;
        Ok(as_wanted.then_some(()))
    })?;
    let now = client.engine().registrations();
    ensure!(now.stuck == before.stuck, "memory got stuck: {now:?}");
    Ok(())
}

/// Memory that the engine does not own, in which windows can overlap.
struct Pool {
    base: *mut u8,
    owner: Arc<Vec<u8>>,
}

impl Pool {
    fn new(len: usize) -> Self {
        let mut bytes = vec![0; len];
        Self {
            base: bytes.as_mut_ptr(),
            owner: Arc::new(bytes),
        }
    }

    #[expect(unsafe_code, reason = "overlapping memory can only be made of borrowed memory")]
    fn window(&self, range: Range<usize>) -> Result<HostMemory> {
        assert_inside(&range, self.owner.len())?;
        // SAFETY: the range is inside the vector's allocation, just checked.
        let begin = unsafe { self.base.add(range.start) };
        // SAFETY: the allocation is never resized and stays valid until the last clone of its owner is dropped; no code
        // makes a reference to its bytes.
        unsafe { HostMemory::lent(begin, range.len(), Arc::clone(&self.owner)) }
    }

    /// How many windows are still held.
    fn held(&self) -> usize {
        Arc::strong_count(&self.owner) - 1
    }
}

fn assert_inside(range: &Range<usize>, len: usize) -> Result<()> {
    if range.start < range.end && range.end <= len {
        return Ok(());
    }
    Err(tensorhold_core::Error::internal(
        "testing.window",
        "a case asked for memory outside of its pool",
    ))
}

fn regions_are_counted(ctx: &Context) -> CaseResult {
    let before = ctx.engine().registrations();
    let first = ctx.empty(10_000)?;
    let second = ctx.empty(MIB)?;
    settles(ctx, before, 2, 10_000 + MIB as u64)?;
    // A clone is the same registration.
    let clone = second.clone();
    settles(ctx, before, 2, 10_000 + MIB as u64)?;
    drop((first, second, clone));
    settles(ctx, before, 0, 0)
}

fn a_dropped_region_is_unregistered(ctx: &Context) -> CaseResult {
    let before = ctx.engine().registrations();
    let key = ctx.key("object")?;
    ctx.store(&key, 10_000, 1)?;
    let into = ctx.empty(10_000)?;
    let batch = [Transfer::new(key, into.whole())];
    drop(into);
    settles(ctx, before, 1, 10_000)?;
    let outcomes = ctx.engine().get(&batch, CALL)?;
    ensure_matches!(outcomes[..], [GetOutcome::Loaded], "the object should have been loaded");
    // The call is over, so the batch is the last holder of the memory.
    drop(batch);
    settles(ctx, before, 0, 0)
}

fn a_span_keeps_its_region(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let before = ctx.engine().registrations();
    let span = ctx.filled(10_000, 1)?.span(5000..5100)?;
    settles(ctx, before, 1, 10_000)?;
    let put = ctx.engine().put_one(&key, &span, &crate::PutOptions::default(), CALL)?;
    ensure_matches!(put, crate::PutOutcome::Stored, "a put from the span should have stored");
    drop(span);
    settles(ctx, before, 0, 0)
}

fn overlapping_memory_is_refused(ctx: &Context) -> CaseResult {
    let pool = Pool::new(64 << 10);
    let region = ctx.engine().register(pool.window(8192..16_384)?, CALL)?;
    let before = ctx.engine().registrations();
    for range in [
        8192..16_384,
        8192..8193,
        10_000..11_000,
        0..8193,
        16_383..20_000,
        0..60_000,
        8192..20_000,
    ] {
        let answer = ctx.engine().register(pool.window(range.clone())?, CALL);
        ensure!(
            answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid),
            "{range:?} overlaps 8192..16384 and should be refused; it was {answer:?}"
        );
    }
    settles(ctx, before, 0, 0)?;
    // The first registration still works.
    let key = ctx.key("object")?;
    let put = ctx
        .engine()
        .put_one(&key, &region.whole(), &crate::PutOptions::default(), CALL)?;
    ensure_matches!(put, crate::PutOutcome::Stored, "the region should still be usable");
    Ok(())
}

fn neighbours_are_not_overlaps(ctx: &Context) -> CaseResult {
    let pool = Pool::new(64 << 10);
    let before = ctx.engine().registrations();
    let mut regions = Vec::new();
    for range in [8192..16_384, 0..8192, 16_384..24_576] {
        regions.push(ctx.engine().register(pool.window(range)?, CALL)?);
    }
    settles(ctx, before, 3, 24_576)?;
    let key = ctx.key("object")?;
    ctx.store(&key, 8192, 1)?;
    for region in &regions {
        let get = ctx.engine().get_one(&key, &region.whole(), CALL)?;
        ensure_matches!(get, GetOutcome::Loaded, "{region:?} should be usable");
    }
    Ok(())
}

fn the_same_memory_again_after_a_drop(ctx: &Context) -> CaseResult {
    let pool = Pool::new(16 << 10);
    for _ in 0..5 {
        // Unregistering must not block the thread that drops, so it may end a little later. Until then the memory is
        // "already registered".
        let region = ctx.eventually(SOON, "the memory can be registered again", || {
            match ctx.engine().register(pool.window(0..16_384)?, CALL) {
                Ok(region) => Ok(Some(region)),
                Err(error) if error.kind() == ErrorKind::Invalid => Ok(None),
                Err(error) => Err(error.into()),
            }
        })?;
        drop(region);
    }
    Ok(())
}

fn the_owner_goes_last(ctx: &Context) -> CaseResult {
    let pool = Pool::new(16 << 10);
    let before = ctx.engine().registrations();
    let region = ctx.engine().register(pool.window(0..16_384)?, CALL)?;
    let span = region.span(0..10)?;
    drop(region);
    ensure!(pool.held() == 1, "a span is left, and the memory's owner is gone");
    drop(span);
    ctx.eventually(SOON, "the memory's owner is dropped", || {
        Ok((pool.held() == 0).then_some(()))
    })?;
    // "Its owner is dropped only after that": so nothing is registered now, without any further wait.
    let now = ctx.engine().registrations();
    ensure!(
        now.regions == before.regions,
        "the owner is gone and its memory still registered: {now:?}"
    );
    Ok(())
}

fn fresh_memory_many_times(ctx: &Context) -> CaseResult {
    let before = ctx.engine().registrations();
    // Allocators return the same addresses again at once; by R2 no registration is left on them by then.
    for (key, seed) in ctx.keys("object", 16)?.iter().zip(0..) {
        ctx.store(key, MIB, seed)?;
        ctx.expect_bytes(key, MIB, seed)?;
    }
    settles(ctx, before, 0, 0)
}

fn refused_memory_is_given_back(ctx: &Context) -> CaseResult {
    let pool = Pool::new(16 << 10);
    let region = ctx.engine().register(pool.window(0..8192)?, CALL)?;
    let refused = ctx.engine().register(pool.window(4096..12_288)?, CALL);
    ensure!(refused.is_err(), "overlapping memory should be refused");
    drop(refused);
    ctx.eventually(SOON, "the refused memory's owner is dropped", || {
        Ok((pool.held() == 1).then_some(()))
    })?;
    drop(region);
    ctx.eventually(SOON, "the region's owner is dropped", || {
        Ok((pool.held() == 0).then_some(()))
    })
}

fn regions_outlive_their_engine(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let other = ctx.connect()?;
    let region = other.filled(10_000, 1)?;
    let put = other
        .engine()
        .put_one(&key, &region.whole(), &crate::PutOptions::default(), CALL)?;
    ensure_matches!(put, crate::PutOutcome::Stored, "{key} should have been stored");
    drop(other);
    // The memory stays usable, even if no engine is left to move bytes from it.
    region.whole().write(0, &[1, 2, 3])?;
    ensure!(
        region.whole().to_vec()[..3] == [1, 2, 3],
        "the memory is not ours any more"
    );
    drop(region);
    ctx.expect_bytes(&key, 10_000, 1)
}
