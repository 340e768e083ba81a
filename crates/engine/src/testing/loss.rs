//! Servers die. Objects may be lost with them; the engine value must work on, deadlines must hold, outcomes must be
//! true.

use std::fmt::Debug;
use std::time::Duration;

use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};
use tensorhold_core::{Error, ErrorKind, Result};

use super::Setup;
use super::context::{CALL, Client, Context, MARGIN, MIB, RECOVERY};
use crate::{EngineExt, GetOutcome, Presence, PromoteOutcome, PutOptions, PutOutcome, RemoveOutcome, Transfer};

cases! { "loss"
    without_a_master_calls_are_unavailable_in_time (Setup::default) "Every call takes the time it may last and returns by then, whatever the engine does.";
    without_a_master_memory_stays_registered (Setup::default) "The last clone, span or transfer to go unregisters it, and nothing else does.";
    after_a_master_restart_the_same_engine_works (Setup::default) "After holders and engine are back, the same engine value works again.";
    a_client_that_idled_through_a_master_restart (Setup::default) "After holders and engine are back, the same engine value works again.";
    a_dead_holders_objects_fail_then_miss (Setup::default) "For a while they may be `Failed` (`Unavailable`), then they are a `Miss`.";
    without_a_holder_calls_return_in_time (Setup::default) "Every call takes the time it may last and returns by then, whatever the engine does.";
    after_a_holder_restart_the_same_engine_works (Setup::default) "After holders and engine are back, the same engine value works again.";
    a_dead_holder_leaves_the_list_and_comes_with_other_memory (two_small) "One that died is among them until the engine notices; one that comes back has other memory than before.";
    the_survivors_objects_stay (two_small) "A holder that dies takes its objects with it, and no others.";
    a_second_copy_survives (two_small) "A holder that dies takes its objects with it: its own copies.";
}

fn two_small() -> Setup {
    Setup {
        segment_mib: 32,
        holders: 2,
        ..Setup::default()
    }
}

/// The deadline of calls while a server is dead.
const SHORT: Duration = Duration::from_secs(2);

/// A call to a dead engine: in time, and Unavailable, as the error of the call or as the outcome of each object.
fn unavailable<T: Debug>(
    client: &Client,
    what: &str,
    call: impl FnOnce() -> Result<Vec<T>>,
    failed: impl Fn(&T) -> Option<&Error>,
) -> CaseResult {
    let (answer, took) = client.timed(call);
    ensure!(took <= SHORT + MARGIN, "a {what} that had {SHORT:?} took {took:?}");
    let all_unavailable = match &answer {
        Err(error) => error.kind() == ErrorKind::Unavailable,
        Ok(outcomes) => {
            let mut errors = outcomes.iter().map(failed);
            !outcomes.is_empty() && errors.all(|error| error.is_some_and(|e| e.kind() == ErrorKind::Unavailable))
        }
    };
    ensure!(
        all_unavailable,
        "without a master a {what} should be Unavailable; it was {answer:?}"
    );
    Ok(())
}

fn without_a_master_calls_are_unavailable_in_time(ctx: &Context) -> CaseResult {
    let (old, new) = (ctx.key("old")?, ctx.key("new")?);
    ctx.store(&old, 5000, 1)?;
    let region = ctx.filled(5000, 2)?;
    ctx.harness().kill_master()?;
    let engine = ctx.engine();
    let keys = [old.clone()];
    let put = [Transfer::new(new, region.whole())];
    let get = [Transfer::new(old, region.whole())];
    unavailable(
        ctx,
        "put",
        || engine.put(&put, &PutOptions::default(), SHORT),
        |outcome| match outcome {
            PutOutcome::Failed(error) => Some(error),
            _ => None,
        },
    )?;
    unavailable(
        ctx,
        "get",
        || engine.get(&get, SHORT),
        |outcome| match outcome {
            GetOutcome::Failed(error) => Some(error),
            _ => None,
        },
    )?;
    unavailable(
        ctx,
        "remove",
        || engine.remove(&keys, SHORT),
        |outcome| match outcome {
            RemoveOutcome::Failed(error) => Some(error),
            _ => None,
        },
    )?;
    unavailable(
        ctx,
        "promote",
        || engine.promote(&keys, SHORT),
        |outcome| match outcome {
            PromoteOutcome::Failed(error) => Some(error),
            _ => None,
        },
    )?;
    unavailable(ctx, "probe", || engine.probe(&keys, SHORT), |_| None)?;
    unavailable(
        ctx,
        "look at the usage",
        || engine.usage(SHORT).map(|usage| vec![usage]),
        |_| None,
    )
}

fn without_a_master_memory_stays_registered(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let before = ctx.engine().registrations();
    let region = ctx.filled(MIB, 1)?;
    ctx.harness().kill_master()?;
    // Whatever these return, and even if the engine still works on them, the memory stays the caller's and registered.
    let outcomes = [
        ctx.engine()
            .put_one(&key, &region.whole(), &PutOptions::default(), SHORT)
            .is_ok(),
        ctx.engine().get_one(&key, &region.whole(), SHORT).is_ok(),
    ];
    let now = ctx.engine().registrations();
    ensure!(
        now.regions == before.regions + 1 && now.bytes == before.bytes + MIB as u64,
        "one region of 1 MiB was registered, and after {outcomes:?} it is {now:?} instead of {before:?} and one"
    );
    ctx.harness().restart_master()?;
    ctx.works_again("memory")?;
    let now = ctx.engine().registrations();
    drop(region);
    ctx.eventually(RECOVERY, "the region is given back", || {
        let left = ctx.engine().registrations();
        Ok((left.regions < now.regions && left.bytes + MIB as u64 <= now.bytes).then_some(()))
    })
}

fn after_a_master_restart_the_same_engine_works(ctx: &Context) -> CaseResult {
    let key = ctx.key("before")?;
    let region = ctx.filled(5000, 1)?;
    ctx.store(&key, 5000, 1)?;
    ctx.harness().kill_master()?;
    let outcome = ctx.engine().get_one(&key, &region.whole(), SHORT);
    ensure!(
        !matches!(outcome, Ok(GetOutcome::Loaded | GetOutcome::Miss)),
        "without a master the outcome cannot be known: {outcome:?}"
    );
    ctx.harness().restart_master()?;
    ctx.works_again("master")?;
    // The contract does not say that an engine loses its objects; one that is still there is unchanged.
    ctx.bytes_or_nothing(&key, 5000, 1)?;
    // Memory that was registered before still works.
    let after = ctx.key("after")?;
    region.whole().write(0, &super::check::pattern(5000, 2))?;
    let outcome = ctx
        .engine()
        .put_one(&after, &region.whole(), &PutOptions::default(), CALL)?;
    ensure_matches!(
        outcome,
        PutOutcome::Stored,
        "a put from memory registered before the restart"
    );
    ctx.expect_bytes(&after, 5000, 2)
}

fn a_client_that_idled_through_a_master_restart(ctx: &Context) -> CaseResult {
    let idle = ctx.connect()?;
    ctx.harness().kill_master()?;
    ctx.harness().restart_master()?;
    ctx.works_again("busy")?;
    idle.works_again("idle")
}

fn a_dead_holders_objects_fail_then_miss(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 3)?;
    for (key, seed) in keys.iter().zip(0..) {
        ctx.store(key, 100_000, seed)?;
    }
    ctx.harness().kill_holder(0)?;
    ctx.eventually(RECOVERY, "the objects of a dead holder are a miss", || {
        let mut missing = 0;
        for (key, seed) in keys.iter().zip(0..) {
            // Loaded with other bytes, another length or another kind of failure ends the case here.
            let readable = ctx.bytes_or_nothing(key, 100_000, seed)?;
            missing += usize::from(!readable && ctx.presence(key)? == Presence::Absent);
        }
        Ok((missing == keys.len()).then_some(()))
    })?;
    for key in &keys {
        ctx.expect_miss(key)?;
        ensure_matches!(
            ctx.engine().remove_one(key, CALL)?,
            RemoveOutcome::Absent,
            "{key} is gone"
        );
    }
    Ok(())
}

fn without_a_holder_calls_return_in_time(ctx: &Context) -> CaseResult {
    let (old, new) = (ctx.key("old")?, ctx.key("new")?);
    ctx.store(&old, MIB, 1)?;
    let (from, into) = (ctx.filled(MIB, 2)?, ctx.empty(MIB)?);
    ctx.harness().kill_holder(0)?;
    let (outcome, took) = ctx.timed(|| ctx.engine().get_one(&old, &into.whole(), SHORT));
    ensure!(took <= SHORT + MARGIN, "a get that had {SHORT:?} took {took:?}");
    // "For a while they may be Failed (Unavailable), then they are a Miss": in this moment, either.
    match outcome {
        Ok(GetOutcome::Miss) => {}
        Ok(GetOutcome::Failed(error)) | Err(error) if error.kind() == ErrorKind::Unavailable => {}
        other => ensure!(false, "a get from a dead holder was {other:?}"),
    }
    let (outcome, took) = ctx.timed(|| ctx.engine().put_one(&new, &from.whole(), &PutOptions::default(), SHORT));
    ensure!(took <= SHORT + MARGIN, "a put that had {SHORT:?} took {took:?}");
    // The engine may not know of the loss yet and fail, or know that there is no room anywhere.
    match outcome {
        Ok(PutOutcome::Full) => {}
        Ok(PutOutcome::Failed(error)) | Err(error) if error.kind() == ErrorKind::Unavailable => {}
        other => ensure!(false, "a put to a dead holder was {other:?}"),
    }
    Ok(())
}

fn after_a_holder_restart_the_same_engine_works(ctx: &Context) -> CaseResult {
    let key = ctx.key("before")?;
    ctx.store(&key, 100_000, 1)?;
    ctx.harness().kill_holder(0)?;
    ctx.bytes_or_nothing(&key, 100_000, 1)?;
    ctx.harness().restart_holder(0)?;
    ctx.works_again("holder")?;
    ctx.eventually(RECOVERY, "what was in a dead holder's DRAM is a miss", || {
        Ok((!ctx.bytes_or_nothing(&key, 100_000, 1)? && ctx.presence(&key)? == Presence::Absent).then_some(()))
    })
}

fn a_dead_holder_leaves_the_list_and_comes_with_other_memory(ctx: &Context) -> CaseResult {
    let listed = |wanted: usize, what: &str| {
        ctx.eventually(RECOVERY, what, || {
            let holders = ctx.engine().holders(CALL)?;
            Ok((holders.len() == wanted).then_some(holders))
        })
    };
    let before = listed(2, "both holders are listed")?;
    let mounts = ctx.engine().usage(CALL)?.mounts;
    let is_told = |holder: &crate::Holder| !holder.memory.is_empty() && !holder.address.is_empty();
    ensure!(
        before.iter().all(is_told) && before[0].memory != before[1].memory,
        "each holder has an address, and memory of its own: {before:?}"
    );
    ctx.harness().kill_holder(0)?;
    let left = listed(1, "the dead holder is not listed any more")?;
    ensure!(before.contains(&left[0]), "{left:?} was there before: {before:?}");
    ctx.harness().restart_holder(0)?;
    let after = listed(2, "the holder is back")?;
    let new = |holder: &&crate::Holder| before.iter().all(|old| old.memory != holder.memory);
    ensure!(
        after.iter().filter(new).count() == 1,
        "one holder came back with other memory: {before:?}, then {after:?}"
    );
    let now = ctx.engine().usage(CALL)?.mounts;
    ensure!(now > mounts, "a holder came back, and {mounts} mounts became {now}");
    Ok(())
}

fn the_survivors_objects_stay(ctx: &Context) -> CaseResult {
    const LEN: usize = 2 * MIB;
    // More than one holder has room for, so both hold some, wherever the engine places them.
    let keys = ctx.keys("object", 24)?;
    for (key, seed) in keys.iter().zip(0..) {
        ctx.store(key, LEN, seed)?;
    }
    ctx.harness().kill_holder(0)?;
    // Until the loss is noticed, and while the dead holder's objects are removed from the list, some may be "present"
    // and not readable.
    let left = ctx.eventually(RECOVERY, "what is present after the loss is readable", || {
        let seen = ctx.engine().probe(&keys, CALL)?;
        let left: Vec<_> = (0..keys.len()).filter(|&i| seen[i] != Presence::Absent).collect();
        if left.len() == keys.len() {
            return Ok(None);
        }
        for &i in &left {
            if !ctx.bytes_or_nothing(&keys[i], LEN, i as u64)? {
                return Ok(None);
            }
        }
        Ok(Some(left.len()))
    })?;
    ensure!(
        left >= 8,
        "a holder that had room for 16 of 24 objects took {} with it",
        24 - left
    );
    Ok(())
}

fn a_second_copy_survives(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let options = PutOptions {
        replicas: 2,
        ..PutOptions::default()
    };
    let from = ctx.filled(MIB, 1)?;
    let outcome = ctx.engine().put_one(&key, &from.whole(), &options, CALL)?;
    ensure_matches!(outcome, PutOutcome::Stored, "{key} should have been stored");
    ctx.harness().kill_holder(0)?;
    // "For a while they may be Failed": until the engine notices which copy is left.
    ctx.eventually(RECOVERY, "the second copy is read", || {
        Ok(ctx.bytes_or_nothing(&key, MIB, 1)?.then_some(()))
    })
}
