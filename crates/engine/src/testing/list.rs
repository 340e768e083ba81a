//! A list has every object, in DRAM or on SSD, in parts, and has no side effects.

use std::collections::BTreeSet;
use std::time::Duration;

use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};
use tensorhold_core::{ErrorKind, ObjectKey};

use super::Setup;
use super::context::{CALL, Context, MARGIN, MIB, SOON};
use super::ssd::{on_ssd_only, with_ssd};
use crate::{Pin, Presence, PutOutcome};

cases! { "list"
    what_is_put_is_listed_until_it_is_removed (Setup::default) "It has every object that is readable from the beginning to the end of the call.";
    only_what_begins_with_the_prefix (Setup::default) "The keys of objects that begin with `prefix`.";
    the_list_comes_in_parts (Setup::default) "In the order of their bytes: after this one or from the start, up to `limit`.";
    odd_keys_are_listed_as_they_are (Setup::default) "It has every object.";
    listed_objects_stay_evictable (|| Setup { segment_mib: 32, lease_ttl: Duration::from_secs(120), ..Setup::default() }) "List has no side effects either.";
    what_is_on_ssd_only_is_listed (with_ssd) "It has every object that is readable, in DRAM or on SSD.";
    a_list_raises_nothing (with_ssd) "List has no side effects either.";
    what_comes_back_is_listed (with_ssd) "It has every object that is readable, in DRAM or on SSD.";
    an_unfinished_put_harms_no_list (Setup::default) "An object whose put has not ended may be in it or not.";
    a_list_of_nothing (Setup::default) "Up to `limit` (at least one).";
    a_list_without_time (Setup::default) "With no time at all it does nothing and returns `Unavailable`.";
    without_a_master_no_list (Setup::default) "While the master is dead, the call is `Unavailable`.";
}

/// All keys of this case, read in parts of `limit`.
fn all(ctx: &Context, limit: usize) -> CaseResult<Vec<ObjectKey>> {
    let prefix = ctx.key("")?;
    let (mut keys, mut parts) = (Vec::<ObjectKey>::new(), 0);
    loop {
        let part = ctx.engine().list(prefix.as_str(), keys.last(), limit, CALL)?;
        ensure!(
            part.keys.len() <= limit,
            "{} keys in a part of {limit}",
            part.keys.len()
        );
        ensure!(!(part.more && part.keys.is_empty()), "more, and nothing in this part");
        keys.extend(part.keys);
        parts += 1;
        ensure!(parts < 1000, "the list has no end");
        if !part.more {
            return Ok(keys);
        }
    }
}

fn same(listed: &[ObjectKey], wanted: &[ObjectKey]) -> CaseResult {
    let wanted: Vec<_> = wanted.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
    ensure!(listed == wanted, "listed were {listed:?}, and not {wanted:?}");
    Ok(())
}

fn what_is_put_is_listed_until_it_is_removed(ctx: &Context) -> CaseResult {
    same(&all(ctx, 100)?, &[])?;
    let keys = ctx.keys("object", 20)?;
    ctx.store_rows(&keys, 5000, 1)?;
    same(&all(ctx, 100)?, &keys)?;
    ctx.engine().remove(&keys[..7], CALL)?;
    same(&all(ctx, 100)?, &keys[7..])
}

fn only_what_begins_with_the_prefix(ctx: &Context) -> CaseResult {
    let (ours, theirs) = (ctx.keys("ours/object", 5)?, ctx.keys("our", 5)?);
    ctx.store_rows(&ours, 5000, 1)?;
    ctx.store_rows(&theirs, 5000, 2)?;
    let listed = ctx.engine().list(ctx.key("ours/")?.as_str(), None, 100, CALL)?;
    ensure!(!listed.more, "there are five, and a hundred were asked for");
    same(&listed.keys, &ours)?;
    let listed = ctx.engine().list("nothing begins like this", None, 100, CALL)?;
    same(&listed.keys, &[])?;
    let everything = ctx.engine().list("", None, 100, CALL)?;
    ensure!(everything.keys.len() >= 10, "an empty prefix is everything");
    Ok(())
}

fn the_list_comes_in_parts(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 50)?;
    ctx.store_rows(&keys, 500, 1)?;
    for limit in [1, 7, 49, 50, 51] {
        same(&all(ctx, limit)?, &keys)?;
    }
    let exactly = ctx.engine().list(ctx.key("")?.as_str(), None, 50, CALL)?;
    ensure!(!exactly.more, "there are no more than these fifty");
    Ok(())
}

fn odd_keys_are_listed_as_they_are(ctx: &Context) -> CaseResult {
    let odd = ["a b", "a+b", "a%2Cb", "\"quoted\"", "back\\slash", "ü/é", "?&=#", "…"];
    let keys = odd.iter().map(ctx_key(ctx)).collect::<CaseResult<Vec<_>>>()?;
    ctx.store_rows(&keys, 500, 1)?;
    same(&all(ctx, 3)?, &keys)
}

fn ctx_key<'a>(ctx: &'a Context) -> impl Fn(&&str) -> CaseResult<ObjectKey> + 'a {
    |label| ctx.key(label)
}

fn listed_objects_stay_evictable(ctx: &Context) -> CaseResult {
    // As for a probe: if a list granted a lease (two minutes here), the puts would stay Full.
    for key in ctx.keys("object", 32)? {
        ctx.eventually(SOON, "an evictable object gives way, though it was listed", || {
            all(ctx, 100)?;
            match ctx.put(&key, 2 * MIB, 1, Pin::Evictable)? {
                PutOutcome::Stored => Ok(Some(())),
                PutOutcome::Full => Ok(None),
                PutOutcome::Failed(error) => Err(error.into()),
            }
        })?;
    }
    Ok(())
}

fn what_is_on_ssd_only_is_listed(ctx: &Context) -> CaseResult {
    let cold = on_ssd_only(ctx)?;
    let listed: BTreeSet<_> = all(ctx, 100)?.into_iter().collect();
    for (key, _) in cold {
        ensure!(listed.contains(&key), "{key} is on SSD only, and not listed");
    }
    Ok(())
}

fn a_list_raises_nothing(ctx: &Context) -> CaseResult {
    let cold = on_ssd_only(ctx)?;
    for _ in 0..30 {
        all(ctx, 100)?;
        ctx.clock().sleep(Duration::from_millis(100));
    }
    for (key, _) in cold {
        ensure_matches!(
            ctx.presence(&key)?,
            Presence::Present { dram: 0, .. },
            "{key} was listed, and not asked for"
        );
    }
    Ok(())
}

fn what_comes_back_is_listed(ctx: &Context) -> CaseResult {
    let cold: Vec<_> = on_ssd_only(ctx)?.into_iter().map(|(key, _)| key).collect();
    ctx.engine().remove(&cold, CALL)?;
    ctx.harness().kill_holder(0)?;
    ctx.harness().restart_holder(0)?;
    // "Copies on SSD may come back": those that do are listed, whenever they do.
    ctx.eventually(SOON, "what a probe sees is listed", || {
        let seen = match ctx.engine().probe(&cold, CALL) {
            Ok(seen) => seen,
            Err(error) if error.kind() == ErrorKind::Unavailable => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let back = cold.iter().zip(seen).filter(|(_, seen)| *seen != Presence::Absent);
        let back: BTreeSet<_> = back.map(|(key, _)| key.clone()).collect();
        let listed: BTreeSet<_> = all(ctx, 100)?.into_iter().collect();
        Ok(back.is_subset(&listed).then_some(()))
    })
}

fn an_unfinished_put_harms_no_list(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 3)?;
    ctx.harness().abandon_put(&keys[1], 100_000)?;
    ctx.store(&keys[0], 5000, 1)?;
    ctx.store(&keys[2], 5000, 2)?;
    let listed = all(ctx, 100)?;
    let ended: Vec<_> = listed.iter().filter(|key| **key != keys[1]).cloned().collect();
    same(&ended, &[keys[0].clone(), keys[2].clone()])
}

fn a_list_of_nothing(ctx: &Context) -> CaseResult {
    match ctx.engine().list("", None, 0, CALL) {
        Err(error) if error.kind() == ErrorKind::Invalid => Ok(()),
        other => {
            ensure!(false, "a part of no keys should be Invalid; it was {other:?}");
            Ok(())
        }
    }
}

fn a_list_without_time(ctx: &Context) -> CaseResult {
    let (answer, took) = ctx.timed(|| ctx.engine().list("", None, 10, Duration::ZERO));
    ensure!(took < MARGIN, "a list without time took {took:?}");
    unavailable(answer)
}

fn without_a_master_no_list(ctx: &Context) -> CaseResult {
    ctx.store(&ctx.key("object")?, 5000, 1)?;
    ctx.harness().kill_master()?;
    let (answer, took) = ctx.timed(|| ctx.engine().list("", None, 10, Duration::from_secs(3)));
    ensure!(took < Duration::from_secs(3) + MARGIN, "a list took {took:?} of 3 s");
    unavailable(answer)
}

fn unavailable(answer: tensorhold_core::Result<crate::Listing>) -> CaseResult {
    match answer {
        Err(error) if error.kind() == ErrorKind::Unavailable => Ok(()),
        other => {
            ensure!(false, "the list should be Unavailable; it was {other:?}");
            Ok(())
        }
    }
}
