//! A put whose producer died leaves something behind that no reader can read.

use super::Setup;
use super::check::{pattern, same_bytes};
use super::context::{CALL, Context};
use crate::{EngineExt, GetOutcome, Pin, Presence, PutOutcome, RemoveOutcome};
use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};

cases! { "unfinished"
    is_seen_and_not_readable (Setup::default) "The remains of a put that never ended are not readable.";
    is_not_removed_as_if_it_were_there (Setup::default) "Its put never ended: the engine will not remove it before its own timeout; no reader can read it.";
    a_later_put_never_shows_other_bytes (Setup::default) "A later put on that key may return `Stored` and write nothing, until the engine's own timeout.";
    other_keys_do_not_notice (Setup::default) "What concerns one object is its outcome.";
}

fn is_seen_and_not_readable(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.harness().abandon_put(&key, 100_000)?;
    ensure_matches!(ctx.presence(&key)?, Presence::Unfinished, "a put began and never ended");
    ensure_matches!(
        ctx.get(&key, 100_000)?.0,
        GetOutcome::Unfinished,
        "its put began and never ended"
    );
    ensure_matches!(ctx.get(&key, 5)?.0, GetOutcome::Unfinished, "it has no length either");
    let other = ctx.connect()?;
    ensure_matches!(
        other.get(&key, 100_000)?.0,
        GetOutcome::Unfinished,
        "not for another client either"
    );
    Ok(())
}

fn is_not_removed_as_if_it_were_there(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.harness().abandon_put(&key, 100_000)?;
    // An engine that knows of the unfinished put says Unfinished; after its own timeout there is nothing left.
    ensure_matches!(
        ctx.engine().remove_one(&key, CALL)?,
        RemoveOutcome::Unfinished | RemoveOutcome::Absent,
        "there was no object to remove"
    );
    ensure_matches!(
        ctx.get(&key, 16)?.0,
        GetOutcome::Miss | GetOutcome::Unfinished,
        "no reader can read it"
    );
    Ok(())
}

fn a_later_put_never_shows_other_bytes(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.harness().abandon_put(&key, 4000)?;
    // "May return Stored and write nothing": it may also fail, or really store. It must never show anything but the
    // bytes of this put.
    let outcome = ctx.put(&key, 9000, 2, Pin::Hard)?;
    ensure!(
        !matches!(outcome, PutOutcome::Full),
        "there is room, and the put was told Full"
    );
    for _ in 0..10 {
        let (outcome, bytes) = ctx.get(&key, 9000)?;
        match outcome {
            GetOutcome::Loaded => same_bytes(&key, &bytes, &pattern(9000, 2))?,
            GetOutcome::Miss | GetOutcome::Unfinished => {}
            other => ensure!(false, "a get after the second put was {other:?}"),
        }
        ensure_matches!(
            ctx.get(&key, 4000)?.0,
            GetOutcome::Miss | GetOutcome::Unfinished | GetOutcome::WrongLength { stored: 9000 },
            "the object that the dead writer meant should never be readable"
        );
        ctx.clock().sleep(std::time::Duration::from_millis(100));
    }
    Ok(())
}

fn other_keys_do_not_notice(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 5)?;
    ctx.harness().abandon_put(&keys[2], 100_000)?;
    for (key, seed) in keys.iter().zip(0..).filter(|(_, seed)| *seed != 2) {
        ctx.store(key, 5000, seed)?;
    }
    let into = ctx.empty(5 * 5000)?;
    let rows = ctx.rows(&keys, &into, 5000)?;
    for (i, (row, outcome)) in rows.iter().zip(ctx.engine().get(&rows, CALL)?).enumerate() {
        if i == 2 {
            ensure_matches!(outcome, GetOutcome::Unfinished, "the put of {} never ended", row.key);
        } else {
            ensure_matches!(outcome, GetOutcome::Loaded, "{} should have been loaded", row.key);
            same_bytes(&row.key, &row.parts[0].to_vec(), &pattern(5000, i as u64))?;
        }
    }
    for (i, presence) in ctx.engine().probe(&keys, CALL)?.into_iter().enumerate() {
        let as_wanted = match presence {
            Presence::Present { bytes: 5000, .. } => i != 2,
            Presence::Unfinished => i == 2,
            _ => false,
        };
        ensure!(as_wanted, "object {i} was probed as {presence:?}");
    }
    Ok(())
}
