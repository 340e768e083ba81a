//! Objects are offloaded to SSD, can be read from there, and are promoted when asked.
//!
//! No call puts an object on SSD. It gets there at a holder's heartbeat if it may be evicted, and is on SSD only once
//! its copy in DRAM has been evicted. So a case puts a herd of objects, pushes them out of DRAM with others, and works
//! with those that got to SSD first: engines differ in which ones these are.

use std::time::Duration;

use tensorhold_core::ObjectKey;
use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};

use super::context::{CALL, Context, MIB, SOON};
use super::pressure::push;
use super::{Failure, Setup};
use crate::{EngineExt, GetOutcome, Pin, Presence, PromoteOutcome, RemoveOutcome};

cases! { "ssd"
    evictable_objects_get_a_copy_on_ssd (with_ssd) "A probe tells the copies on SSD.";
    pinned_objects_stay_in_dram (with_ssd) "Only a remove frees a hard-pinned object, and a copy may go to SSD all the same.";
    an_object_on_ssd_only_is_readable (with_ssd) "`Loaded` means that the object has exactly as many bytes as its buffers, and that they were transferred.";
    an_object_on_ssd_only_has_its_length (with_ssd) "`Loaded` means that the object has exactly as many bytes as its buffers.";
    a_probe_raises_nothing (with_ssd) "Probe has no side effects: it promotes nothing.";
    a_promotion_brings_it_up (with_ssd) "It is on SSD only, and the engine has been told.";
    a_promotion_of_a_herd_keeps_its_order (with_ssd) "A call returns one outcome per object, in the order of the batch.";
    a_remove_takes_both_copies_from_sight (with_ssd) "Remove is forced: copies that it leaves on SSD come back only when a holder or the engine restarts.";
    a_remove_of_what_is_on_ssd_only (with_ssd) "Remove is forced: copies that it leaves on SSD come back only when a holder or the engine restarts.";
    what_comes_back_after_a_holder_restart (with_ssd) "Copies on SSD may come back when a holder restarts.";
    what_comes_back_after_a_master_restart (with_ssd) "Copies on SSD may come back when the engine restarts.";
}

pub(super) fn with_ssd() -> Setup {
    Setup {
        lease_ttl: Duration::from_secs(1),
        ssd: true,
        ..Setup::default()
    }
}

const LEN: usize = MIB;
const HERD: usize = 24;

/// An object and the seed of its pattern.
pub(super) type Object = (ObjectKey, u64);

/// Those of `objects` whose presence is `wanted`.
fn which(ctx: &Context, objects: &[Object], wanted: fn(u32, u32) -> bool) -> CaseResult<Vec<Object>> {
    let keys: Vec<_> = objects.iter().map(|(key, _)| key.clone()).collect();
    let seen = ctx.engine().probe(&keys, CALL)?;
    let chosen = objects.iter().zip(seen).filter(|(_, presence)| match presence {
        Presence::Present { dram, ssd, .. } => wanted(*dram, *ssd),
        _ => false,
    });
    Ok(chosen.map(|(object, _)| object.clone()).collect())
}

/// Puts evictable objects and waits until some of them have a copy on SSD: at least one, mostly all but the last few,
/// because engines write to SSD in buckets. Returns all of them.
fn offloaded(ctx: &Context) -> CaseResult<Vec<Object>> {
    let herd: Vec<Object> = ctx.keys("herd", HERD)?.into_iter().zip(1000..).collect();
    for (key, seed) in &herd {
        ctx.store_as(key, LEN, *seed, Pin::Evictable)?;
    }
    ctx.eventually(SOON, "a third of the objects have a copy on SSD", || {
        Ok((which(ctx, &herd, |_, ssd| ssd > 0)?.len() >= HERD / 3).then_some(()))
    })?;
    Ok(herd)
}

/// Objects that are on SSD only, with plenty of room in DRAM.
pub(super) fn on_ssd_only(ctx: &Context) -> CaseResult<Vec<Object>> {
    let herd = offloaded(ctx)?;
    let crowd = ctx.keys("crowd", 256)?;
    let mut cold = Vec::new();
    let mut pushed = 0;
    for (i, key) in crowd.iter().enumerate() {
        push(ctx, key, 2 * MIB, i as u64)?;
        pushed = i + 1;
        if pushed % 4 == 0 {
            // Heartbeats need time to pass, on the clock of the harness.
            ctx.clock().sleep(Duration::from_millis(100));
            cold = which(ctx, &herd, |dram, ssd| dram == 0 && ssd > 0)?;
            if cold.len() >= 4 {
                break;
            }
        }
    }
    ensure!(
        !cold.is_empty(),
        "{pushed} objects of 2 MiB crowded none out of a pool of 64 MiB onto SSD"
    );
    for outcome in ctx.engine().remove(&crowd[..pushed], CALL)? {
        if let RemoveOutcome::Failed(error) = outcome {
            return Err(error.into());
        }
    }
    Ok(cold)
}

fn first(objects: &[Object]) -> CaseResult<&Object> {
    objects.first().ok_or_else(|| Failure::new("no object to work with"))
}

fn evictable_objects_get_a_copy_on_ssd(ctx: &Context) -> CaseResult {
    let herd = offloaded(ctx)?;
    for (key, seed) in &herd {
        ensure_matches!(
            ctx.presence(key)?,
            Presence::Present { bytes, .. } if bytes == LEN as u64,
            "{key} should be present"
        );
        ctx.expect_bytes(key, LEN, *seed)?;
    }
    Ok(())
}

fn pinned_objects_stay_in_dram(ctx: &Context) -> CaseResult {
    let pinned = ctx.keys("pinned", 10)?;
    ctx.store_rows(&pinned, LEN / 2, 1)?;
    offloaded(ctx)?;
    for key in &pinned {
        ensure_matches!(
            ctx.presence(key)?,
            Presence::Present { dram: 1, .. },
            "{key} is pinned and should be in DRAM"
        );
    }
    Ok(())
}

fn an_object_on_ssd_only_is_readable(ctx: &Context) -> CaseResult {
    for (key, seed) in on_ssd_only(ctx)? {
        ctx.expect_bytes(&key, LEN, seed)?;
    }
    Ok(())
}

fn an_object_on_ssd_only_has_its_length(ctx: &Context) -> CaseResult {
    let cold = on_ssd_only(ctx)?;
    let (key, seed) = first(&cold)?;
    ensure_matches!(
        ctx.presence(key)?,
        Presence::Present { dram: 0, bytes, .. } if bytes == LEN as u64,
        "{key} should be on SSD with {LEN} bytes"
    );
    for len in [LEN - 1, LEN + 1, 10] {
        let (outcome, _) = ctx.get(key, len)?;
        ensure_matches!(
            outcome,
            GetOutcome::WrongLength { stored } if stored == LEN as u64,
            "{LEN} bytes on SSD got into {len}"
        );
    }
    ctx.expect_bytes(key, LEN, *seed)
}

fn a_probe_raises_nothing(ctx: &Context) -> CaseResult {
    let cold = on_ssd_only(ctx)?;
    // Four heartbeats, and eight probes to each.
    for _ in 0..32 {
        let still = which(ctx, &cold, |dram, ssd| dram == 0 && ssd > 0)?;
        ensure!(
            still.len() == cold.len(),
            "{} of {} came up by being probed",
            cold.len() - still.len(),
            cold.len()
        );
        ctx.clock().sleep(Duration::from_millis(125));
    }
    Ok(())
}

fn a_promotion_brings_it_up(ctx: &Context) -> CaseResult {
    let cold = on_ssd_only(ctx)?;
    let (key, seed) = first(&cold)?;
    let asked = ctx.engine().promote(std::slice::from_ref(key), CALL)?;
    ensure_matches!(asked[..], [PromoteOutcome::Asked], "{key} is on SSD only");
    // "The engine promotes it later, or not at all": the engine may drop a hint, so the case repeats it. But if a
    // cluster with room never promoted, a promotion would be worth nothing.
    ctx.eventually(SOON, "an object that was asked for is in DRAM", || {
        let outcomes = ctx.engine().promote(std::slice::from_ref(key), CALL)?;
        match outcomes[..] {
            [PromoteOutcome::InDram] => Ok(Some(())),
            [PromoteOutcome::Asked] => Ok(None),
            ref other => Err(Failure::new(format!("{key} is there, and its promotion was {other:?}"))),
        }
    })?;
    ensure_matches!(
        ctx.presence(key)?,
        Presence::Present { dram, bytes, .. } if dram > 0 && bytes == LEN as u64,
        "{key} was told to be in DRAM"
    );
    ctx.expect_bytes(key, LEN, *seed)
}

fn a_promotion_of_a_herd_keeps_its_order(ctx: &Context) -> CaseResult {
    let cold = on_ssd_only(ctx)?;
    let warm = ctx.key("warm")?;
    ctx.store(&warm, 5000, 1)?;
    let (cold, _) = first(&cold)?;
    let keys = [ctx.key("never-put")?, cold.clone(), warm, ctx.key("nor-this")?];
    let outcomes = ctx.engine().promote(&keys, CALL)?;
    ensure_matches!(
        outcomes[..],
        [
            PromoteOutcome::Absent,
            PromoteOutcome::Asked,
            PromoteOutcome::InDram,
            PromoteOutcome::Absent
        ],
        "nowhere, on SSD, in DRAM, nowhere"
    );
    Ok(())
}

fn a_remove_takes_both_copies_from_sight(ctx: &Context) -> CaseResult {
    let herd = offloaded(ctx)?;
    for (key, _) in which(ctx, &herd, |dram, ssd| dram > 0 && ssd > 0)?.iter().take(8) {
        ctx.remove(key)?;
        ctx.expect_miss(key)?;
        ctx.expect_absent(key)?;
    }
    Ok(())
}

fn a_remove_of_what_is_on_ssd_only(ctx: &Context) -> CaseResult {
    for (key, _) in on_ssd_only(ctx)? {
        ctx.remove(&key)?;
        ctx.expect_miss(&key)?;
        ctx.expect_absent(&key)?;
        ensure_matches!(
            ctx.engine().remove_one(&key, CALL)?,
            RemoveOutcome::Absent,
            "{key} was removed"
        );
    }
    Ok(())
}

/// Removes objects that are on SSD, runs `accident`, and checks which objects come back.
fn after(ctx: &Context, accident: fn(&Context) -> CaseResult) -> CaseResult {
    let herd = which(ctx, &offloaded(ctx)?, |_, ssd| ssd > 0)?;
    let keys: Vec<_> = herd.iter().map(|(key, _)| key.clone()).collect();
    ctx.engine().remove(&keys, CALL)?;
    for key in &keys {
        ctx.expect_miss(key)?;
    }
    accident(ctx)?;
    ctx.works_again("after")?;
    // "May come back": all, some or none, now or a little later. An object that comes back is unchanged.
    for (key, seed) in &herd {
        ctx.bytes_or_nothing(key, LEN, *seed)?;
    }
    // It can also be removed again.
    for (key, outcome) in keys.iter().zip(ctx.engine().remove(&keys, CALL)?) {
        match outcome {
            RemoveOutcome::Removed => ctx.expect_miss(key)?,
            RemoveOutcome::Absent => {}
            other => ensure!(false, "{key} may have come back, and its remove was {other:?}"),
        }
    }
    Ok(())
}

fn what_comes_back_after_a_holder_restart(ctx: &Context) -> CaseResult {
    after(ctx, |ctx| {
        ctx.harness().kill_holder(0)?;
        Ok(ctx.harness().restart_holder(0)?)
    })
}

fn what_comes_back_after_a_master_restart(ctx: &Context) -> CaseResult {
    after(ctx, |ctx| {
        ctx.harness().kill_master()?;
        Ok(ctx.harness().restart_master()?)
    })
}
