//! A full pool says so, and drops only objects that it may drop.

use std::time::Duration;

use tensorhold_core::ObjectKey;
use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};

use super::context::{CALL, Context, MIB, SOON};
use super::{Failure, Setup};
use crate::{EngineExt, GetOutcome, Pin, Presence, PutOptions, PutOutcome};

cases! { "pressure"
    a_pool_full_of_pinned_objects_is_full (small) "A full pool is an outcome: there is no room now; nothing was written.";
    full_is_said_at_once (small) "A full pool is an outcome, not a failure and not a wait.";
    full_then_room (small) "There is no room now: try again later.";
    a_batch_that_fits_in_part (small) "What concerns one object is its outcome.";
    an_object_larger_than_the_pool (small) "`Stored` means that an object is under the key.";
    evictable_objects_give_way (small) "Evictable: the engine may evict it, when memory gets short.";
    pinned_objects_never_give_way (small) "Pin::Hard: never evicted. Only a remove frees the object.";
    pinned_objects_outlive_their_lease (|| Setup { lease_ttl: Duration::from_secs(1), ..small() }) "Pin::Hard: never evicted. Only a remove frees the object.";
}

fn small() -> Setup {
    Setup {
        segment_mib: 32,
        ..Setup::default()
    }
}

/// Puts pinned objects of `len` bytes until the pool is full; object `i` has the pattern of `i`. The key of the put
/// that was refused is not among the returned ones.
pub(super) fn fill_pinned(ctx: &Context, label: &str, len: usize) -> CaseResult<Vec<ObjectKey>> {
    let pool = usize::try_from(ctx.setup().segment_mib << 20).unwrap_or(usize::MAX) * ctx.setup().holders;
    let mut keys = ctx.keys(label, pool / len + 1)?;
    for (i, key) in keys.iter().enumerate() {
        match ctx.put(key, len, i as u64, Pin::Hard)? {
            PutOutcome::Stored => {}
            PutOutcome::Full => {
                // An allocator may lose some of the pool to fragmentation, but not most of it.
                ensure!(
                    i * len * 2 >= pool,
                    "full after {i} objects of {len} bytes in a pool of {pool}"
                );
                keys.truncate(i);
                return Ok(keys);
            }
            PutOutcome::Failed(error) => return Err(error.into()),
        }
    }
    Err(Failure::new(format!(
        "{} objects of {len} bytes were stored in a pool of {pool}",
        keys.len()
    )))
}

/// Puts one evictable object, and retries for as long as the engine makes room.
pub(super) fn push(ctx: &Context, key: &ObjectKey, len: usize, seed: u64) -> CaseResult {
    ctx.eventually(SOON, "the engine makes room for an object", || {
        match ctx.put(key, len, seed, Pin::Evictable)? {
            PutOutcome::Stored => Ok(Some(())),
            PutOutcome::Full => Ok(None),
            PutOutcome::Failed(error) => Err(error.into()),
        }
    })
}

fn a_pool_full_of_pinned_objects_is_full(ctx: &Context) -> CaseResult {
    let keys = fill_pinned(ctx, "object", 2 * MIB)?;
    let late = ctx.key("late")?;
    ensure_matches!(
        ctx.put(&late, 2 * MIB, 99, Pin::Hard)?,
        PutOutcome::Full,
        "the pool is full"
    );
    ensure_matches!(
        ctx.put(&late, 2 * MIB, 99, Pin::Evictable)?,
        PutOutcome::Full,
        "the pool is full"
    );
    ctx.expect_absent(&late)?;
    ctx.expect_miss(&late)?;
    for (key, seed) in keys.iter().zip(0..) {
        ctx.expect_bytes(key, 2 * MIB, seed)?;
    }
    Ok(())
}

fn full_is_said_at_once(ctx: &Context) -> CaseResult {
    fill_pinned(ctx, "object", 2 * MIB)?;
    let late = ctx.key("late")?;
    let from = ctx.filled(2 * MIB, 1)?;
    let within = Duration::from_secs(30);
    let (outcome, took) = ctx.timed(|| {
        ctx.engine()
            .put_one(&late, &from.whole(), &PutOptions::default(), within)
    });
    ensure_matches!(outcome?, PutOutcome::Full, "the pool is full");
    ensure!(
        took < Duration::from_secs(5),
        "it took {took:?} to say that the pool is full"
    );
    Ok(())
}

fn full_then_room(ctx: &Context) -> CaseResult {
    let keys = fill_pinned(ctx, "object", 2 * MIB)?;
    let late = ctx.key("late")?;
    ensure_matches!(
        ctx.put(&late, 2 * MIB, 99, Pin::Hard)?,
        PutOutcome::Full,
        "the pool is full"
    );
    ctx.remove(&keys[keys.len() / 2])?;
    // The refused put left nothing behind, so the same key can be used again.
    ctx.store(&late, 2 * MIB, 99)?;
    ctx.expect_bytes(&late, 2 * MIB, 99)
}

fn a_batch_that_fits_in_part(ctx: &Context) -> CaseResult {
    let old = fill_pinned(ctx, "object", 2 * MIB)?;
    for key in &old[..3] {
        ctx.remove(key)?;
    }
    let keys = ctx.keys("late", 8)?;
    let from = ctx.filled(2 * MIB, 7)?;
    let batch: Vec<_> = keys
        .iter()
        .map(|key| crate::Transfer::new(key.clone(), from.whole()))
        .collect();
    let outcomes = ctx.engine().put(&batch, &PutOptions::default(), CALL)?;
    ensure!(outcomes.len() == 8, "{} outcomes for 8 objects", outcomes.len());
    let mut stored = 0;
    for (key, outcome) in keys.iter().zip(outcomes) {
        match outcome {
            PutOutcome::Stored => {
                stored += 1;
                ctx.expect_bytes(key, 2 * MIB, 7)?;
            }
            PutOutcome::Full => ctx.expect_absent(key)?,
            PutOutcome::Failed(error) => return Err(error.into()),
        }
    }
    ensure!(stored < 8, "all 8 were stored, and there was room for 3");
    // The contract does not say that a batch is all or nothing, so at least an object that fits alone is stored.
    if stored == 0 {
        ctx.store(&ctx.key("alone")?, 2 * MIB, 8)?;
    }
    Ok(())
}

fn an_object_larger_than_the_pool(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let len = 48 * MIB;
    // The contract has Full for "no room now" and Failed for a failed put; here both are true.
    let outcome = ctx.put(&key, len, 1, Pin::Hard)?;
    ensure!(
        !matches!(outcome, PutOutcome::Stored),
        "48 MiB were stored in a pool of 32"
    );
    ensure!(
        !matches!(ctx.presence(&key)?, Presence::Present { .. }),
        "an object that was refused is present"
    );
    ctx.expect_miss(&key)?;
    let fits = ctx.key("fits")?;
    ctx.store(&fits, MIB, 1)?;
    ctx.expect_bytes(&fits, MIB, 1)
}

fn evictable_objects_give_way(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 48)?;
    for (key, seed) in keys.iter().zip(0..) {
        push(ctx, key, 2 * MIB, seed)?;
    }
    let present = ctx
        .engine()
        .probe(&keys, CALL)?
        .into_iter()
        .filter(|presence| matches!(presence, Presence::Present { .. }))
        .count();
    ensure!(
        present <= 16,
        "{present} objects of 2 MiB are present in a pool of 32 MiB"
    );
    // An object that is left is whole, and one that is gone is a miss.
    for (key, seed) in keys.iter().zip(0..) {
        ctx.bytes_or_nothing(key, 2 * MIB, seed)?;
    }
    Ok(())
}

fn pinned_objects_never_give_way(ctx: &Context) -> CaseResult {
    let pinned = ctx.keys("pinned", 6)?;
    for (key, seed) in pinned.iter().zip(100..) {
        ctx.store(key, 2 * MIB, seed)?;
    }
    for (key, seed) in ctx.keys("object", 32)?.iter().zip(0..) {
        push(ctx, key, 2 * MIB, seed)?;
    }
    for (key, seed) in pinned.iter().zip(100..) {
        ctx.expect_bytes(key, 2 * MIB, seed)?;
    }
    Ok(())
}

fn pinned_objects_outlive_their_lease(ctx: &Context) -> CaseResult {
    let key = ctx.key("pinned")?;
    ctx.store(&key, 2 * MIB, 100)?;
    ctx.expect_bytes(&key, 2 * MIB, 100)?;
    ctx.clock().sleep(2 * ctx.setup().lease_ttl);
    for (key, seed) in ctx.keys("object", 32)?.iter().zip(0..) {
        push(ctx, key, 2 * MIB, seed)?;
    }
    ensure_matches!(
        ctx.get(&key, 2 * MIB)?.0,
        GetOutcome::Loaded,
        "a pinned object should still be there"
    );
    ctx.expect_bytes(&key, 2 * MIB, 100)
}
