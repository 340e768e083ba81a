//! One outcome per object, in order; an invalid batch is refused whole.

use std::fmt::Debug;

use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};
use tensorhold_core::{ErrorKind, ObjectKey, Result};

use super::Setup;
use super::check::{pattern, same_bytes};
use super::context::{CALL, Context};
use crate::{GetOutcome, Presence, PromoteOutcome, PutOptions, PutOutcome, RemoveOutcome, Transfer};

cases! { "batches"
    a_thousand_small_objects (Setup::default) "A call returns one outcome per object, in the order of the batch.";
    present_and_absent_keys_keep_their_order (Setup::default) "A call returns one outcome per object, in the order of the batch.";
    empty_batches (Setup::default) "An empty batch returns no outcomes.";
    too_many_objects_in_a_put (Setup::default) "At most `max_batch` objects; a batch that breaks this rule is refused whole, and nothing of it is done.";
    too_many_objects_in_other_calls (Setup::default) "At most `max_batch` objects; a batch that breaks this rule is refused whole, and nothing of it is done.";
    a_key_twice_in_a_put (Setup::default) "In a put and in a get no key occurs twice; a batch that breaks this rule is refused whole, and nothing of it is done.";
    a_key_twice_in_a_large_put (Setup::default) "In a put and in a get no key occurs twice; a batch that breaks this rule is refused whole, and nothing of it is done.";
    a_key_twice_in_a_get (Setup::default) "In a get no key occurs twice; a batch that breaks this rule is refused whole.";
    memory_of_another_engine (Setup::default) "All parts are registered with this engine; a batch that breaks this rule is refused whole, and nothing of it is done.";
    a_transfer_without_parts (Setup::default) "Every transfer has at least one part; a batch that breaks this rule is refused whole, and nothing of it is done.";
}

/// A call that must be refused as invalid.
fn invalid<T: Debug>(what: &str, answer: Result<T>) -> CaseResult {
    match answer {
        Err(error) if error.kind() == ErrorKind::Invalid => Ok(()),
        other => Err(super::Failure::new(format!(
            "{what} should be refused as invalid; it was {other:?}"
        ))),
    }
}

fn a_thousand_small_objects(ctx: &Context) -> CaseResult {
    const LEN: usize = 96;
    let count = ctx.engine().capabilities().max_batch.min(1024);
    let keys = ctx.keys("object", count)?;
    ctx.store_rows(&keys, LEN, 1)?;

    let seen = ctx.engine().probe(&keys, CALL)?;
    ensure!(seen.len() == count, "{} answers for {count} keys", seen.len());
    for (key, presence) in keys.iter().zip(seen) {
        ensure_matches!(presence, Presence::Present { bytes: 96, .. }, "{key} should be present");
    }

    let into = ctx.empty(count * LEN)?;
    let outcomes = ctx.engine().get(&ctx.rows(&keys, &into, LEN)?, CALL)?;
    ensure!(
        outcomes.len() == count,
        "{} outcomes for {count} objects",
        outcomes.len()
    );
    for (key, outcome) in keys.iter().zip(outcomes) {
        ensure_matches!(outcome, GetOutcome::Loaded, "{key} should have been loaded");
    }
    same_bytes("all rows", &into.whole().to_vec(), &pattern(count * LEN, 1))?;

    let outcomes = ctx.engine().remove(&keys, CALL)?;
    ensure!(
        outcomes.len() == count,
        "{} outcomes for {count} objects",
        outcomes.len()
    );
    for (key, outcome) in keys.iter().zip(outcomes) {
        ensure_matches!(outcome, RemoveOutcome::Removed, "{key} should have been removed");
    }
    for (key, presence) in keys.iter().zip(ctx.engine().probe(&keys, CALL)?) {
        ensure_matches!(presence, Presence::Absent, "{key} should be absent");
    }
    Ok(())
}

/// Every third object is there, beginning with the first: reversed, this is a different list.
fn present_and_absent_keys_keep_their_order(ctx: &Context) -> CaseResult {
    const LEN: usize = 1000;
    let keys = ctx.keys("object", 30)?;
    let is_there = |i: usize| i.is_multiple_of(3);
    for (i, key) in keys.iter().enumerate().filter(|(i, _)| is_there(*i)) {
        ctx.store(key, LEN, i as u64)?;
    }
    let into = ctx.empty(keys.len() * LEN)?;
    let rows = ctx.rows(&keys, &into, LEN)?;
    let outcomes = ctx.engine().get(&rows, CALL)?;
    ensure!(
        outcomes.len() == keys.len(),
        "{} outcomes for {} objects",
        outcomes.len(),
        keys.len()
    );
    for (i, (row, outcome)) in rows.iter().zip(outcomes).enumerate() {
        match outcome {
            GetOutcome::Loaded if is_there(i) => same_bytes(&row.key, &row.parts[0].to_vec(), &pattern(LEN, i as u64))?,
            GetOutcome::Miss if !is_there(i) => {}
            other => ensure!(false, "object {i} of the batch was got as {other:?}"),
        }
    }
    for (i, presence) in ctx.engine().probe(&keys, CALL)?.into_iter().enumerate() {
        ensure!(
            matches!(presence, Presence::Present { .. }) == is_there(i),
            "object {i} was probed as {presence:?}"
        );
    }
    for (i, outcome) in ctx.engine().promote(&keys, CALL)?.into_iter().enumerate() {
        match outcome {
            PromoteOutcome::InDram if is_there(i) => {}
            PromoteOutcome::Absent if !is_there(i) => {}
            other => ensure!(false, "object {i} of the batch was raised as {other:?}"),
        }
    }
    for (i, outcome) in ctx.engine().remove(&keys, CALL)?.into_iter().enumerate() {
        match outcome {
            RemoveOutcome::Removed if is_there(i) => {}
            RemoveOutcome::Absent if !is_there(i) => {}
            other => ensure!(false, "object {i} of the batch was removed as {other:?}"),
        }
    }
    Ok(())
}

fn empty_batches(ctx: &Context) -> CaseResult {
    let engine = ctx.engine();
    ensure!(
        engine.put(&[], &PutOptions::default(), CALL)?.is_empty(),
        "an empty put had outcomes"
    );
    ensure!(engine.get(&[], CALL)?.is_empty(), "an empty get had outcomes");
    ensure!(engine.remove(&[], CALL)?.is_empty(), "an empty remove had outcomes");
    ensure!(engine.probe(&[], CALL)?.is_empty(), "an empty probe had outcomes");
    ensure!(engine.promote(&[], CALL)?.is_empty(), "an empty promote had outcomes");
    Ok(())
}

/// One key more than the engine takes, or none if its limit is too large to test.
fn one_too_many(ctx: &Context) -> CaseResult<Option<Vec<ObjectKey>>> {
    let most = ctx.engine().capabilities().max_batch;
    ensure!(most > 0, "an engine whose batches have no objects is none");
    if most > 1 << 20 {
        return Ok(None);
    }
    ctx.keys("object", most + 1).map(Some)
}

fn too_many_objects_in_a_put(ctx: &Context) -> CaseResult {
    let Some(keys) = one_too_many(ctx)? else { return Ok(()) };
    let from = ctx.filled(keys.len(), 1)?;
    let batch = ctx.rows(&keys, &from, 1)?;
    invalid(
        "a put of too many",
        ctx.engine().put(&batch, &PutOptions::default(), CALL),
    )?;
    for key in [&keys[0], &keys[keys.len() / 2], &keys[keys.len() - 1]] {
        ctx.expect_absent(key)?;
    }
    Ok(())
}

fn too_many_objects_in_other_calls(ctx: &Context) -> CaseResult {
    let Some(keys) = one_too_many(ctx)? else { return Ok(()) };
    ctx.store(&keys[0], 1, 1)?;
    let into = ctx.empty(keys.len())?;
    let engine = ctx.engine();
    invalid("a get of too many", engine.get(&ctx.rows(&keys, &into, 1)?, CALL))?;
    invalid("a probe of too many", engine.probe(&keys, CALL))?;
    invalid("a promotion of too many", engine.promote(&keys, CALL))?;
    invalid("a remove of too many", engine.remove(&keys, CALL))?;
    ctx.expect_bytes(&keys[0], 1, 1)
}

/// Puts an invalid batch, and checks that nothing of it was done.
fn refused_put(ctx: &Context, what: &str, batch: &[Transfer]) -> CaseResult {
    invalid(what, ctx.engine().put(batch, &PutOptions::default(), CALL))?;
    for transfer in batch {
        ctx.expect_absent(&transfer.key)?;
    }
    Ok(())
}

fn a_key_twice(ctx: &Context, count: usize) -> CaseResult {
    let mut keys = ctx.keys("object", count)?;
    keys.push(keys[0].clone());
    let from = ctx.filled(keys.len() * 100, 1)?;
    refused_put(ctx, "a put with a key twice", &ctx.rows(&keys, &from, 100)?)
}

fn a_key_twice_in_a_put(ctx: &Context) -> CaseResult {
    a_key_twice(ctx, 1)?;
    a_key_twice(ctx, 3)
}

fn a_key_twice_in_a_large_put(ctx: &Context) -> CaseResult {
    a_key_twice(ctx, ctx.engine().capabilities().max_batch.min(200) - 1)
}

/// Refused because an engine may fill only one buffer and report both as loaded.
fn a_key_twice_in_a_get(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 2)?;
    ctx.store(&keys[0], 7000, 1)?;
    ctx.store(&keys[1], 7000, 2)?;
    let batch = [&keys[0], &keys[1], &keys[0]].map(Clone::clone);
    let into = ctx.empty(3 * 7000)?;
    invalid(
        "a get with a key twice",
        ctx.engine().get(&ctx.rows(&batch, &into, 7000)?, CALL),
    )
}

fn memory_of_another_engine(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 2)?;
    let other = ctx.connect()?;
    let (ours, theirs) = (ctx.filled(500, 1)?, other.filled(500, 2)?);
    let foreign = [
        Transfer::new(keys[0].clone(), ours.whole()),
        Transfer::new(keys[1].clone(), theirs.whole()),
    ];
    refused_put(ctx, "a put from memory of another engine", &foreign)?;
    let half = [Transfer::scattered(keys[0].clone(), vec![ours.whole(), theirs.whole()])];
    refused_put(ctx, "a put of which one part is in memory of another engine", &half)?;
    ctx.store(&keys[1], 500, 3)?;
    invalid("a get into memory of another engine", ctx.engine().get(&foreign, CALL))?;
    same_bytes("their memory", &theirs.whole().to_vec(), &pattern(500, 2))?;
    // The batch that is invalid for one engine is valid for the other.
    let lawful = [Transfer::new(keys[1].clone(), theirs.whole())];
    let outcomes = other.engine().get(&lawful, CALL)?;
    ensure_matches!(outcomes[..], [GetOutcome::Loaded], "the other engine should load it");
    same_bytes(&keys[1], &theirs.whole().to_vec(), &pattern(500, 3))
}

fn a_transfer_without_parts(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 2)?;
    let batch = [
        Transfer::new(keys[0].clone(), ctx.filled(500, 1)?.whole()),
        Transfer::scattered(keys[1].clone(), Vec::new()),
    ];
    refused_put(ctx, "a put without parts", &batch)?;
    invalid("a get without parts", ctx.engine().get(&batch, CALL))?;
    let alone = [PutOutcome::Stored];
    let outcomes = ctx.engine().put(&batch[..1], &PutOptions::default(), CALL)?;
    ensure!(outcomes.len() == alone.len(), "the lawful half alone should work");
    ctx.expect_bytes(&keys[0], 500, 1)
}
