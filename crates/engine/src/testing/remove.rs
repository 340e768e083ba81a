//! A remove is forced, takes effect at once, and for every client.

use std::time::Duration;

use super::Setup;
use super::check::pattern;
use super::context::{CALL, Context, MIB};
use super::pressure::fill_pinned;
use crate::{EngineExt, GetOutcome, Pin, RemoveOutcome};
use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};

cases! { "remove"
    removed_then_absent (Setup::default) "An object that is not there is an outcome, not a failure.";
    a_key_that_never_was (Setup::default) "An object that is not there is an outcome, not a failure.";
    removed_means_miss_and_absent (Setup::default) "Remove is forced: it is gone from DRAM, even if readers were reading it.";
    under_a_read_lease (|| Setup { lease_ttl: Duration::from_secs(30), ..Setup::default() }) "Remove is forced: it does not wait for readers nor for leases.";
    seen_by_another_client (Setup::default) "Remove is forced: it is gone from DRAM, even if readers were reading it.";
    every_pin_can_be_removed (Setup::default) "Only a remove frees a pinned object.";
    its_space_is_free_at_once (|| Setup { segment_mib: 32, ..Setup::default() }) "The space is free for the next put at once.";
    a_leased_object_frees_its_space_at_once (|| Setup { segment_mib: 32, lease_ttl: Duration::from_secs(30), ..Setup::default() }) "It does not wait for leases, and the space is free for the next put at once.";
    a_batch_leaves_other_objects_alone (Setup::default) "A call returns one outcome per object: what is not named is not touched.";
    a_removed_key_does_not_show_old_bytes (Setup::default) "`Loaded` means that the object under the key was transferred.";
}

fn removed_then_absent(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.store(&key, 5000, 1)?;
    ctx.remove(&key)?;
    for _ in 0..2 {
        ensure_matches!(
            ctx.engine().remove_one(&key, CALL)?,
            RemoveOutcome::Absent,
            "a second remove should find nothing"
        );
    }
    Ok(())
}

fn a_key_that_never_was(ctx: &Context) -> CaseResult {
    let key = ctx.key("never-put")?;
    ensure_matches!(
        ctx.engine().remove_one(&key, CALL)?,
        RemoveOutcome::Absent,
        "nothing was there"
    );
    ctx.expect_miss(&key)
}

fn removed_means_miss_and_absent(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.store(&key, MIB, 1)?;
    ctx.remove(&key)?;
    ensure_matches!(ctx.get(&key, MIB)?.0, GetOutcome::Miss, "{key} was removed");
    ctx.expect_absent(&key)
}

fn under_a_read_lease(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let reader = ctx.connect()?;
    ctx.store(&key, 5000, 1)?;
    // "A get may keep the object from eviction for a while (a read lease)": for both clients, in case they differ.
    ctx.expect_bytes(&key, 5000, 1)?;
    reader.expect_bytes(&key, 5000, 1)?;
    ctx.remove(&key)?;
    ctx.expect_miss(&key)?;
    reader.expect_miss(&key)
}

fn seen_by_another_client(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let other = ctx.connect()?;
    ctx.store(&key, 5000, 1)?;
    other.expect_bytes(&key, 5000, 1)?;
    other.remove(&key)?;
    ctx.expect_miss(&key)?;
    ctx.expect_absent(&key)?;
    ensure_matches!(
        ctx.engine().remove_one(&key, CALL)?,
        RemoveOutcome::Absent,
        "the other had removed it"
    );
    Ok(())
}

fn every_pin_can_be_removed(ctx: &Context) -> CaseResult {
    let pins = [Pin::Evictable, Pin::Soft(Duration::from_secs(600)), Pin::Hard];
    for (key, pin) in ctx.keys("object", pins.len())?.iter().zip(pins) {
        ctx.store_as(key, 5000, 1, pin)?;
        ctx.remove(key)?;
        ctx.expect_miss(key)?;
    }
    Ok(())
}

fn its_space_is_free_at_once(ctx: &Context) -> CaseResult {
    let keys = fill_pinned(ctx, "old", 2 * MIB)?;
    for (old, new) in keys.iter().zip(ctx.keys("new", 4)?) {
        ctx.remove(old)?;
        ctx.store(&new, 2 * MIB, 9)?;
        ctx.expect_bytes(&new, 2 * MIB, 9)?;
    }
    Ok(())
}

fn a_leased_object_frees_its_space_at_once(ctx: &Context) -> CaseResult {
    let keys = fill_pinned(ctx, "old", 2 * MIB)?;
    let into = ctx.empty(2 * MIB)?;
    for key in &keys {
        let outcome = ctx.engine().get_one(key, &into.whole(), CALL)?;
        ensure_matches!(outcome, GetOutcome::Loaded, "{key} should have been loaded");
    }
    ctx.remove(&keys[0])?;
    let new = ctx.key("new")?;
    ctx.store(&new, 2 * MIB, 9)?;
    ctx.expect_bytes(&new, 2 * MIB, 9)
}

fn a_batch_leaves_other_objects_alone(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 20)?;
    ctx.store_rows(&keys, 300, 4)?;
    let outcomes = ctx.engine().remove(&keys[5..15], CALL)?;
    ensure!(outcomes.len() == 10, "{} outcomes for 10 keys", outcomes.len());
    let rows = pattern(20 * 300, 4);
    for (i, key) in keys.iter().enumerate() {
        if (5..15).contains(&i) {
            ctx.expect_miss(key)?;
            continue;
        }
        let (outcome, bytes) = ctx.get(key, 300)?;
        ensure_matches!(outcome, GetOutcome::Loaded, "{key} should have been left alone");
        super::check::same_bytes(key, &bytes, &rows[i * 300..(i + 1) * 300])?;
    }
    Ok(())
}

fn a_removed_key_does_not_show_old_bytes(ctx: &Context) -> CaseResult {
    // Tensorhold never puts a key twice, but foreign keys (a serving engine's own) are put again after a remove.
    let key = ctx.key("object")?;
    for seed in 0..5_u8 {
        ctx.store(&key, 5000 + usize::from(seed), u64::from(seed))?;
        ctx.expect_bytes(&key, 5000 + usize::from(seed), u64::from(seed))?;
        ctx.remove(&key)?;
        ctx.expect_miss(&key)?;
    }
    Ok(())
}
