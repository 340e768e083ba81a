//! Objects move from one holder to another.

use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};

use super::Setup;
use super::context::{CALL, Context, MIB, RECOVERY};
use crate::{EngineExt, Pin, Presence, PutOptions, PutOutcome, RelocateOutcome};

cases! { "relocate"
    objects_lie_elsewhere_afterwards (|| Setup { holders: 2, ..Setup::default() }) "An object that moves keeps its key and its bytes.";
}

/// Two objects change places. Then a holder dies, and the object that lay there at first, and no other, is readable.
fn objects_lie_elsewhere_afterwards(ctx: &Context) -> CaseResult {
    let engine = ctx.engine();
    let names: Vec<String> = engine.holders(CALL)?.into_iter().map(|one| one.name).collect();
    let [one, other] = names.as_slice() else {
        return Err(super::Failure::new(format!("two holders were to be told: {names:?}")));
    };
    let keys = ctx.keys("object", 2)?;
    for (key, (seed, holder)) in keys.iter().zip((0..).zip(&names)) {
        let from = ctx.filled(MIB, seed)?;
        let options = PutOptions {
            pin: Pin::Hard,
            preferred_segments: vec![holder.clone()],
            ..PutOptions::default()
        };
        let outcome = engine.put_one(key, &from.whole(), &options, CALL)?;
        ensure_matches!(outcome, PutOutcome::Stored, "{key} should have been stored");
    }

    let absent = ctx.key("absent")?;
    let asked = engine.relocate(&[absent, keys[0].clone()], one, other, CALL)?;
    ensure_matches!(
        asked[..],
        [RelocateOutcome::Absent, RelocateOutcome::Asked],
        "one is nowhere, one can move"
    );
    let asked = engine.relocate(&keys[1..], other, one, CALL)?;
    ensure_matches!(asked[..], [RelocateOutcome::Asked], "the other can move as well");
    // "Later or never": but nothing hinders these.
    ctx.eventually(RECOVERY, "both have moved", || {
        for (key, seed) in keys.iter().zip(0..) {
            ctx.expect_bytes(key, MIB, seed)?;
        }
        // A request for what has moved is refused: it has no copy there any more.
        let first = engine.relocate(&keys[..1], one, other, CALL)?;
        let second = engine.relocate(&keys[1..], other, one, CALL)?;
        let is_refused = |asked: &[RelocateOutcome]| matches!(asked, [RelocateOutcome::Failed(_)]);
        Ok((is_refused(&first) && is_refused(&second)).then_some(()))
    })?;
    for presence in engine.probe(&keys, CALL)? {
        ensure_matches!(presence, Presence::Present { dram: 1, .. }, "a move leaves one copy");
    }

    ctx.harness().kill_holder(0)?;
    let survivor = ctx.eventually(RECOVERY, "the dead holder leaves the list", || {
        let holders = engine.holders(CALL)?;
        Ok((holders.len() == 1).then(|| holders.into_iter().map(|one| one.name)))
    })?;
    let (mut stays, mut goes) = ((&keys[0], 0), (&keys[1], 1));
    if survivor.into_iter().any(|name| name == *one) {
        std::mem::swap(&mut stays, &mut goes);
    }
    ctx.expect_bytes(stays.0, MIB, stays.1)?;
    let is_there = ctx.bytes_or_nothing(goes.0, MIB, goes.1)?;
    ensure!(!is_there, "{} moved to the holder that has died", goes.0);
    Ok(())
}
