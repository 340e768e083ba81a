//! A call returns by its deadline, and with no time at all it does nothing.

use std::fmt::Debug;
use std::time::Duration;

use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};
use tensorhold_core::{ErrorKind, Result, Retry};

use super::Setup;
use super::context::{CALL, Client, Context, MARGIN, MIB, SOON};
use crate::{GetOutcome, HostMemory, Presence, PutOptions, PutOutcome, RemoveOutcome, Transfer};

cases! { "deadlines"
    a_put_without_time (Setup::default) "With no time at all it does nothing and returns `Unavailable`.";
    a_get_without_time (Setup::default) "With no time at all it does nothing and returns `Unavailable`.";
    a_remove_without_time (Setup::default) "With no time at all it does nothing and returns `Unavailable`.";
    a_registration_without_time (Setup::default) "With no time at all it does nothing and returns `Unavailable`.";
    a_look_without_time (Setup::default) "With no time at all it does nothing and returns `Unavailable`.";
    a_put_with_hardly_any_time (Setup::default) "A put that ran out of time may still take effect later; its error says `Ambiguous`.";
    a_remove_with_hardly_any_time (Setup::default) "A remove that ran out of time may still take effect later; its error says `Ambiguous`.";
    a_get_with_hardly_any_time (Setup::default) "Its memory stays registered until the engine lets go of it.";
}

/// Hardly any time: a call over the network cannot meet it, a call in memory can. Both are right.
const BLINK: Duration = Duration::from_micros(200);

/// A call without time must be refused at once.
fn refused<T: Debug>(client: &Client, what: &str, call: impl FnOnce() -> Result<T>) -> CaseResult {
    let (answer, took) = client.timed(call);
    match answer {
        Err(error) if error.kind() == ErrorKind::Unavailable => {}
        other => ensure!(false, "a {what} without time should be Unavailable; it was {other:?}"),
    }
    ensure!(took < MARGIN, "a {what} without time took {took:?}");
    Ok(())
}

fn a_put_without_time(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let batch = [Transfer::new(key.clone(), ctx.filled(5000, 1)?.whole())];
    refused(ctx, "put", || {
        ctx.engine().put(&batch, &PutOptions::default(), Duration::ZERO)
    })?;
    ctx.expect_absent(&key)?;
    ctx.store(&key, 5000, 2)?;
    ctx.expect_bytes(&key, 5000, 2)
}

fn a_get_without_time(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.store(&key, 5000, 1)?;
    let into = ctx.filled(5000, 2)?;
    let batch = [Transfer::new(key.clone(), into.whole())];
    refused(ctx, "get", || ctx.engine().get(&batch, Duration::ZERO))?;
    super::check::same_bytes("the buffer", &into.whole().to_vec(), &super::check::pattern(5000, 2))?;
    ctx.expect_bytes(&key, 5000, 1)
}

fn a_remove_without_time(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.store(&key, 5000, 1)?;
    refused(ctx, "remove", || {
        ctx.engine().remove(std::slice::from_ref(&key), Duration::ZERO)
    })?;
    ctx.expect_bytes(&key, 5000, 1)
}

fn a_registration_without_time(ctx: &Context) -> CaseResult {
    let before = ctx.engine().registrations();
    let memory = HostMemory::allocate(5000)?;
    refused(ctx, "registration", || ctx.engine().register(memory, Duration::ZERO))?;
    let now = ctx.engine().registrations();
    ensure!(now == before, "{before:?} was registered, and now {now:?}");
    Ok(())
}

fn a_look_without_time(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 2)?;
    ctx.store(&keys[0], 5000, 1)?;
    refused(ctx, "probe", || ctx.engine().probe(&keys, Duration::ZERO))?;
    refused(ctx, "promote", || ctx.engine().promote(&keys, Duration::ZERO))?;
    refused(ctx, "usage", || ctx.engine().usage(Duration::ZERO))
}

/// A call that had hardly any time. Returns its answer, if it came in time.
fn hurried<T: Debug>(client: &Client, call: impl FnOnce() -> Result<T>) -> CaseResult<Option<T>> {
    let (answer, took) = client.timed(call);
    ensure!(took < BLINK + MARGIN, "a call that had {BLINK:?} took {took:?}");
    match answer {
        Ok(outcomes) => Ok(Some(outcomes)),
        Err(error) => {
            ensure!(
                error.kind() == ErrorKind::Unavailable,
                "out of time is Unavailable, not {error}"
            );
            Ok(None)
        }
    }
}

/// Waits until the engine holds no more memory than before.
fn let_go(client: &Client, before: crate::Registrations) -> CaseResult {
    client.eventually(SOON, "the engine lets go of all memory", || {
        Ok((client.engine().registrations() == before).then_some(()))
    })
}

fn a_put_with_hardly_any_time(ctx: &Context) -> CaseResult {
    let before = ctx.engine().registrations();
    let keys = ctx.keys("object", 4)?;
    let from = ctx.filled(4 * 4 * MIB, 1)?;
    let batch = ctx.rows(&keys, &from, 4 * MIB)?;
    let mut retry = Retry::Ambiguous;
    let answer = hurried(ctx, || {
        ctx.engine()
            .put(&batch, &PutOptions::default(), BLINK)
            .inspect_err(|error| retry = error.retry())
    })?;
    drop((from, batch));
    let_go(ctx, before)?;
    let wanted = super::check::pattern(4 * 4 * MIB, 1);
    for (i, key) in keys.iter().enumerate() {
        let (outcome, bytes) = ctx.get(key, 4 * MIB)?;
        match outcome {
            // The engine let go of the memory, so it has written by now all that it will write, and wrote it whole.
            GetOutcome::Loaded => {
                super::check::same_bytes(key, &bytes, &wanted[i * 4 * MIB..(i + 1) * 4 * MIB])?;
                ensure!(
                    retry == Retry::Ambiguous,
                    "a put that took effect said that it had none"
                );
            }
            GetOutcome::Miss | GetOutcome::Unfinished => {
                let stored = answer.as_ref().and_then(|outcomes| outcomes.get(i));
                ensure!(
                    !matches!(stored, Some(PutOutcome::Stored)),
                    "{key} was Stored in time, and is a miss"
                );
            }
            other => ensure!(false, "{key} was got as {other:?}"),
        }
    }
    Ok(())
}

fn a_remove_with_hardly_any_time(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 256)?;
    ctx.store_rows(&keys, 100, 1)?;
    let mut retry = Retry::Ambiguous;
    let answer = hurried(ctx, || {
        ctx.engine()
            .remove(&keys, BLINK)
            .inspect_err(|error| retry = error.retry())
    })?;
    match answer {
        Some(outcomes) => {
            for (key, outcome) in keys.iter().zip(outcomes) {
                if matches!(outcome, RemoveOutcome::Removed) {
                    ctx.expect_absent(key)?;
                }
            }
        }
        None if retry == Retry::Ambiguous => {}
        None => {
            ctx.clock().sleep(Duration::from_secs(1));
            for (key, presence) in keys.iter().zip(ctx.engine().probe(&keys, CALL)?) {
                ensure_matches!(
                    presence,
                    Presence::Present { .. },
                    "{key} is gone, and the remove said no effect"
                );
            }
        }
    }
    Ok(())
}

fn a_get_with_hardly_any_time(ctx: &Context) -> CaseResult {
    let before = ctx.engine().registrations();
    let key = ctx.key("object")?;
    ctx.store(&key, 8 * MIB, 1)?;
    let into = ctx.empty(8 * MIB)?;
    let batch = [Transfer::new(key.clone(), into.whole())];
    let answer = hurried(ctx, || ctx.engine().get(&batch, BLINK))?;
    if let Some([GetOutcome::Loaded]) = answer.as_deref() {
        super::check::same_bytes(&key, &into.whole().to_vec(), &super::check::pattern(8 * MIB, 1))?;
    }
    drop((into, batch));
    let_go(ctx, before)?;
    ctx.expect_bytes(&key, 8 * MIB, 1)
}
