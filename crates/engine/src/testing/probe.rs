//! A probe tells where objects are, and has no side effects.

use std::time::Duration;

use super::Setup;
use super::context::{CALL, Context, MIB, SOON};
use crate::{Pin, Presence, PromoteOutcome, PutOutcome};
use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};

cases! { "probe"
    absent_present_absent (Setup::default) "Absent: no readable object and no put in flight.";
    lengths_are_exact (Setup::default) "A readable object, and the object's length.";
    presents_and_absents_in_one_batch (Setup::default) "A call returns one outcome per object, in the order of the batch.";
    a_key_twice (Setup::default) "Only in a put and in a get a key may not occur twice.";
    another_client_sees_the_same (Setup::default) "Tells where objects are, whichever client put them.";
    probed_objects_stay_evictable (|| Setup { segment_mib: 32, lease_ttl: Duration::from_secs(120), ..Setup::default() }) "Probe has no side effects: it grants no lease, counts as no use.";
    promote_of_what_is_in_dram_or_nowhere (Setup::default) "Promote has an effect only on objects that are on SSD and not in DRAM.";
    capacity_is_the_segments (|| Setup { segment_mib: 32, holders: 2, ..Setup::default() }) "Bytes of DRAM in all segments.";
    holders_add_up_to_the_usage (|| Setup { segment_mib: 32, holders: 2, ..Setup::default() }) "What `usage` sums up, in the order of their names.";
    usage_follows_puts_and_removes (Setup::default) "Bytes of DRAM given to objects; figures are as fresh as the engine makes them.";
}

fn absent_present_absent(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.expect_absent(&key)?;
    ctx.store(&key, 5000, 1)?;
    ensure_matches!(
        ctx.presence(&key)?,
        Presence::Present {
            dram: 1,
            ssd: 0,
            bytes: 5000
        },
        "one copy in DRAM should be seen"
    );
    ctx.remove(&key)?;
    ctx.expect_absent(&key)
}

fn lengths_are_exact(ctx: &Context) -> CaseResult {
    for len in [1, 17, 4095, 4096, 4097, 1_000_003, 3 * MIB] {
        let key = ctx.key(format_args!("bytes-{len}"))?;
        ctx.store(&key, len, 1)?;
        ensure_matches!(
            ctx.presence(&key)?,
            Presence::Present { bytes, .. } if bytes == len as u64,
            "an object of {len} bytes was probed"
        );
    }
    Ok(())
}

fn presents_and_absents_in_one_batch(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 100)?;
    for (i, key) in keys.iter().enumerate().filter(|(i, _)| i % 7 == 3) {
        ctx.store(key, 100 + i, 1)?;
    }
    let seen = ctx.engine().probe(&keys, CALL)?;
    ensure!(seen.len() == 100, "{} answers for 100 keys", seen.len());
    for (i, presence) in seen.into_iter().enumerate() {
        let wanted = if i % 7 == 3 {
            Presence::Present {
                dram: 1,
                ssd: 0,
                bytes: 100 + i as u64,
            }
        } else {
            Presence::Absent
        };
        ensure!(
            presence == wanted,
            "object {i} was probed as {presence:?} instead of {wanted:?}"
        );
    }
    Ok(())
}

fn a_key_twice(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 2)?;
    ctx.store(&keys[1], 10, 1)?;
    let asked = [&keys[1], &keys[0], &keys[1], &keys[0]].map(Clone::clone);
    let seen = ctx.engine().probe(&asked, CALL)?;
    ensure_matches!(
        seen[..],
        [
            Presence::Present { .. },
            Presence::Absent,
            Presence::Present { .. },
            Presence::Absent
        ],
        "present and absent should take turns"
    );
    Ok(())
}

fn another_client_sees_the_same(ctx: &Context) -> CaseResult {
    let other = ctx.connect()?;
    let key = ctx.key("object")?;
    ctx.store(&key, 5000, 1)?;
    let (ours, theirs) = (ctx.presence(&key)?, other.presence(&key)?);
    ensure!(ours == theirs, "one client sees {ours:?}, the other {theirs:?}");
    Ok(())
}

fn probed_objects_stay_evictable(ctx: &Context) -> CaseResult {
    // Twice the pool, and every object probed after every put. If a probe granted a lease (two minutes here), the
    // engine could evict nothing and the puts would stay Full.
    let keys = ctx.keys("object", 32)?;
    for (i, key) in keys.iter().enumerate() {
        ctx.eventually(SOON, "an evictable object gives way, though it was probed", || {
            ctx.engine().probe(&keys[..=i], CALL)?;
            match ctx.put(key, 2 * MIB, 1, Pin::Evictable)? {
                PutOutcome::Stored => Ok(Some(())),
                PutOutcome::Full => Ok(None),
                PutOutcome::Failed(error) => Err(error.into()),
            }
        })?;
    }
    Ok(())
}

fn promote_of_what_is_in_dram_or_nowhere(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 2)?;
    ctx.store(&keys[0], 5000, 1)?;
    let outcomes = ctx.engine().promote(&keys, CALL)?;
    ensure_matches!(
        outcomes[..],
        [PromoteOutcome::InDram, PromoteOutcome::Absent],
        "one is in DRAM, one is nowhere"
    );
    ctx.expect_bytes(&keys[0], 5000, 1)?;
    ctx.expect_absent(&keys[1])
}

fn capacity_is_the_segments(ctx: &Context) -> CaseResult {
    let wanted = (ctx.setup().segment_mib << 20) * ctx.setup().holders as u64;
    ctx.eventually(SOON, "the capacity is that of all holders", || {
        Ok((ctx.engine().usage(CALL)?.dram_capacity == wanted).then_some(()))
    })
}

fn holders_add_up_to_the_usage(ctx: &Context) -> CaseResult {
    ctx.store(&ctx.key("object")?, MIB, 1)?;
    let wanted = ctx.setup().holders;
    ctx.eventually(SOON, "all holders are told, and their sums are the usage", || {
        let (holders, usage) = (ctx.engine().holders(CALL)?, ctx.engine().usage(CALL)?);
        let capacity: u64 = holders.iter().map(|holder| holder.dram_capacity).sum();
        let used: u64 = holders.iter().map(|holder| holder.dram_used).sum();
        let are_sorted = holders.windows(2).all(|pair| pair[0].name <= pair[1].name);
        let add_up = (capacity, used) == (usage.dram_capacity, usage.dram_used) && used >= MIB as u64;
        Ok((holders.len() == wanted && add_up && are_sorted).then_some(()))
    })
}

fn usage_follows_puts_and_removes(ctx: &Context) -> CaseResult {
    let before = ctx.engine().usage(CALL)?;
    let keys = ctx.keys("object", 8)?;
    ctx.store_rows(&keys, MIB, 1)?;
    let bytes = 8 * MIB as u64;
    ctx.eventually(SOON, "eight objects of 1 MiB more are in use", || {
        let now = ctx.engine().usage(CALL)?;
        let grown = now.dram_used.saturating_sub(before.dram_used);
        // An allocator rounds up, but not to twice the size.
        Ok((now.objects == before.objects + 8 && (bytes..2 * bytes).contains(&grown)).then_some(()))
    })?;
    ctx.engine().remove(&keys, CALL)?;
    ctx.eventually(SOON, "as much is in use as before", || {
        let now = ctx.engine().usage(CALL)?;
        Ok((now.dram_used == before.dram_used && now.objects == before.objects).then_some(()))
    })
}
