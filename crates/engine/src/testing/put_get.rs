//! Objects are written and read back whole, wherever their bytes lie.

use super::Setup;
use super::check::{pattern, same_bytes};
use super::context::{CALL, Client, Context, MIB};
use crate::{EngineExt, GetOutcome, Pin, PutOptions, PutOutcome, Region, Span, Transfer};
use std::time::Duration;
use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};

cases! { "put_get"
    one_byte (Setup::default) "`Loaded` means that the object has exactly as many bytes as its buffers, and that they were transferred.";
    one_page (Setup::default) "`Loaded` means that the object has exactly as many bytes as its buffers, and that they were transferred.";
    odd_sizes (Setup::default) "`Loaded` means that the object has exactly as many bytes as its buffers, and that they were transferred.";
    eight_mebibytes (Setup::default) "`Loaded` means that the object has exactly as many bytes as its buffers, and that they were transferred.";
    five_tensors_at_once (Setup::default) "A call returns one outcome per object, in the order of the batch.";
    scattered_put_whole_get (Setup::default) "The object is the bytes of its buffers, one after the other.";
    whole_put_scattered_get (Setup::default) "The object is the bytes of its buffers, one after the other.";
    scattered_in_two_ways (Setup::default) "The object is the bytes of its buffers, one after the other.";
    sixty_four_parts (Setup::default) "The object is the bytes of its buffers, one after the other.";
    parts_of_several_regions (Setup::default) "The object is the bytes of its buffers, one after the other; all parts are registered with this engine.";
    whole_and_scattered_in_one_batch (Setup::default) "A call returns one outcome per object, in the order of the batch.";
    a_get_writes_only_its_buffers (Setup::default) "`Loaded` means that the buffers are full; no other memory is theirs.";
    a_put_on_an_existing_key_changes_nothing (Setup::default) "If an object was under the key before, it is unchanged.";
    a_put_of_another_length_changes_nothing (Setup::default) "If an object was under the key before, it is unchanged.";
    a_put_by_another_client_changes_nothing (Setup::default) "If an object was under the key before, it is unchanged.";
    an_existing_key_beside_new_ones (Setup::default) "`Stored` means that an object is under the key; if one was there before, it is unchanged.";
    a_put_is_seen_by_another_client (Setup::default) "`Stored` means that an object is under the key, for every client.";
    an_object_outlives_the_client_that_put_it (Setup::default) "A holder, not a client, takes its objects with it when it dies.";
    every_pin_round_trips (Setup::default) "`Stored` means that an object is under the key, however it is kept.";
    reading_twice_gives_the_same (Setup::default) "`Loaded` means that the bytes were transferred, as often as they are asked for.";
    the_source_may_change_after_the_put (Setup::default) "`Stored` means that an object is under the key: its bytes are the engine's own.";
    two_copies_on_two_holders (|| Setup { holders: 2, ..Setup::default() }) "As many copies in DRAM as asked for, at most one per holder.";
    more_copies_than_holders (Setup::default) "An engine with fewer holders makes fewer copies.";
}

fn round_trip(ctx: &Context, len: usize) -> CaseResult {
    let key = ctx.key(format_args!("bytes-{len}"))?;
    ctx.store(&key, len, len as u64)?;
    ctx.expect_bytes(&key, len, len as u64)
}

fn one_byte(ctx: &Context) -> CaseResult {
    round_trip(ctx, 1)
}

fn one_page(ctx: &Context) -> CaseResult {
    round_trip(ctx, 4096)
}

fn odd_sizes(ctx: &Context) -> CaseResult {
    for len in [2, 3, 7, 63, 65, 511, 4095, 4097, 65_537, 100_003, MIB - 1, MIB + 1] {
        round_trip(ctx, len)?;
    }
    Ok(())
}

fn eight_mebibytes(ctx: &Context) -> CaseResult {
    round_trip(ctx, 8 * MIB)
}

fn five_tensors_at_once(ctx: &Context) -> CaseResult {
    let lens = [MIB, 2 * MIB, 12_288, 8, 3 * MIB + 5];
    let keys = ctx.keys("tensor", lens.len())?;
    let mut puts = Vec::new();
    let mut gets = Vec::new();
    for ((key, &len), seed) in keys.iter().zip(&lens).zip(10..) {
        puts.push(Transfer::new(key.clone(), ctx.filled(len, seed)?.whole()));
        gets.push(Transfer::new(key.clone(), ctx.empty(len)?.whole()));
    }
    for outcome in ctx.engine().put(&puts, &PutOptions::default(), CALL)? {
        ensure_matches!(outcome, PutOutcome::Stored, "each tensor should have been stored");
    }
    let outcomes = ctx.engine().get(&gets, CALL)?;
    ensure!(outcomes.len() == 5, "{} outcomes for 5 tensors", outcomes.len());
    for ((outcome, get), put) in outcomes.iter().zip(&gets).zip(&puts) {
        ensure_matches!(outcome, GetOutcome::Loaded, "{} should have been loaded", get.key);
        same_bytes(&get.key, &get.parts[0].to_vec(), &put.parts[0].to_vec())?;
    }
    Ok(())
}

/// Spans of these lengths with gaps between them, from the end of the region to its start. So a case notices an engine
/// that takes parts in the order of their addresses, or as one contiguous range.
fn scatter(region: &Region, lens: &[usize]) -> CaseResult<Vec<Span>> {
    let mut end = region.len();
    let mut parts = Vec::new();
    for &len in lens {
        parts.push(region.span(end - len..end)?);
        end -= len + 3;
    }
    Ok(parts)
}

/// Memory that [`scatter`] can cut into these lengths, and the parts of it.
fn scattered(client: &Client, lens: &[usize]) -> CaseResult<Vec<Span>> {
    let region = client.empty(lens.iter().sum::<usize>() + 3 * lens.len())?;
    scatter(&region, lens)
}

fn write_parts(parts: &[Span], bytes: &[u8]) -> CaseResult {
    let mut rest = bytes;
    for part in parts {
        let (head, tail) = rest.split_at(part.len());
        part.write(0, head)?;
        rest = tail;
    }
    Ok(())
}

/// Puts from parts of the lengths `from` and gets into parts of the lengths `into`.
fn through(ctx: &Context, from: &[usize], into: &[usize]) -> CaseResult {
    let key = ctx.key(format_args!("{}-to-{}", from.len(), into.len()))?;
    let bytes = pattern(from.iter().sum(), 5);
    let sources = scattered(ctx, from)?;
    write_parts(&sources, &bytes)?;
    let put = [Transfer::scattered(key.clone(), sources)];
    let outcomes = ctx.engine().put(&put, &PutOptions::default(), CALL)?;
    ensure_matches!(outcomes[..], [PutOutcome::Stored], "the put should have stored");
    let get = [Transfer::scattered(key.clone(), scattered(ctx, into)?)];
    let outcomes = ctx.engine().get(&get, CALL)?;
    ensure_matches!(outcomes[..], [GetOutcome::Loaded], "the get should have loaded");
    let seen: Vec<u8> = get[0].parts.iter().flat_map(Span::to_vec).collect();
    same_bytes(key, &seen, &bytes)
}

fn scattered_put_whole_get(ctx: &Context) -> CaseResult {
    through(ctx, &[1000, 1, 70_000, 4096], &[75_097])
}

fn whole_put_scattered_get(ctx: &Context) -> CaseResult {
    through(ctx, &[75_097], &[4096, 70_000, 1, 1000])
}

fn scattered_in_two_ways(ctx: &Context) -> CaseResult {
    through(ctx, &[10, 20, 30, 40], &[33, 67])?;
    through(ctx, &[MIB, 1, MIB], &[1, 2 * MIB])
}

fn sixty_four_parts(ctx: &Context) -> CaseResult {
    let mut lens: Vec<usize> = (0..64).map(|i| 100 + 37 * i).collect();
    let upwards = lens.clone();
    lens.reverse();
    through(ctx, &upwards, &lens)
}

fn parts_of_several_regions(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let from = [ctx.filled(5000, 1)?, ctx.filled(300, 2)?, ctx.filled(70_000, 3)?];
    let put = Transfer::scattered(key.clone(), from.iter().map(Region::whole).collect());
    let outcomes = ctx.engine().put(&[put], &PutOptions::default(), CALL)?;
    ensure_matches!(outcomes[..], [PutOutcome::Stored], "the put should have stored");
    let (outcome, bytes) = ctx.get(&key, 75_300)?;
    ensure_matches!(outcome, GetOutcome::Loaded, "{key} should have been loaded");
    let wanted = [pattern(5000, 1), pattern(300, 2), pattern(70_000, 3)].concat();
    same_bytes(key, &bytes, &wanted)
}

fn whole_and_scattered_in_one_batch(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 3)?;
    let parts = scattered(ctx, &[500, 4, 3000])?;
    write_parts(&parts, &pattern(3504, 2))?;
    let batch = [
        Transfer::new(keys[0].clone(), ctx.filled(9000, 1)?.whole()),
        Transfer::scattered(keys[1].clone(), parts),
        Transfer::new(keys[2].clone(), ctx.filled(1, 3)?.whole()),
    ];
    for outcome in ctx.engine().put(&batch, &PutOptions::default(), CALL)? {
        ensure_matches!(outcome, PutOutcome::Stored, "each should have been stored");
    }
    for ((key, len), seed) in keys.iter().zip([9000, 3504, 1]).zip(1..) {
        ctx.expect_bytes(key, len, seed)?;
    }
    Ok(())
}

fn a_get_writes_only_its_buffers(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.store(&key, 5000, 1)?;
    let guarded = ctx.filled(10_000, 2)?;
    let outcome = ctx.engine().get_one(&key, &guarded.span(2500..7500)?, CALL)?;
    ensure_matches!(outcome, GetOutcome::Loaded, "{key} should have been loaded");
    let mut wanted = pattern(10_000, 2);
    wanted[2500..7500].copy_from_slice(&pattern(5000, 1));
    same_bytes("the memory around the buffer", &guarded.whole().to_vec(), &wanted)
}

fn a_put_on_an_existing_key_changes_nothing(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.store(&key, 9000, 1)?;
    ctx.store(&key, 9000, 2)?;
    ctx.expect_bytes(&key, 9000, 1)
}

fn a_put_of_another_length_changes_nothing(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.store(&key, 9000, 1)?;
    ctx.store(&key, 12_000, 2)?;
    ctx.store(&key, 30, 3)?;
    ctx.expect_bytes(&key, 9000, 1)
}

fn a_put_by_another_client_changes_nothing(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let other = ctx.connect()?;
    ctx.store(&key, 9000, 1)?;
    other.store(&key, 9000, 2)?;
    ctx.expect_bytes(&key, 9000, 1)?;
    other.expect_bytes(&key, 9000, 1)
}

fn an_existing_key_beside_new_ones(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 5)?;
    ctx.store(&keys[2], 700, 1)?;
    ctx.store_rows(&keys, 700, 9)?;
    let rows = pattern(5 * 700, 9);
    for (i, key) in keys.iter().enumerate() {
        let wanted = if i == 2 {
            pattern(700, 1)
        } else {
            rows[i * 700..(i + 1) * 700].to_vec()
        };
        let (outcome, bytes) = ctx.get(key, 700)?;
        ensure_matches!(outcome, GetOutcome::Loaded, "{key} should have been loaded");
        same_bytes(key, &bytes, &wanted)?;
    }
    Ok(())
}

fn a_put_is_seen_by_another_client(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let other = ctx.connect()?;
    other.expect_miss(&key)?;
    ctx.store(&key, 123_456, 1)?;
    other.expect_bytes(&key, 123_456, 1)
}

fn an_object_outlives_the_client_that_put_it(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let writer = ctx.connect()?;
    writer.store(&key, 123_456, 1)?;
    drop(writer);
    ctx.expect_bytes(&key, 123_456, 1)
}

fn every_pin_round_trips(ctx: &Context) -> CaseResult {
    let pins = [Pin::Evictable, Pin::Soft(Duration::from_secs(60)), Pin::Hard];
    for (key, pin) in ctx.keys("object", pins.len())?.iter().zip(pins) {
        ctx.store_as(key, 50_000, 4, pin)?;
        ctx.expect_bytes(key, 50_000, 4)?;
    }
    Ok(())
}

fn reading_twice_gives_the_same(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.store(&key, MIB, 1)?;
    for _ in 0..5 {
        ctx.expect_bytes(&key, MIB, 1)?;
    }
    Ok(())
}

fn the_source_may_change_after_the_put(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    let from = ctx.filled(MIB, 1)?;
    let outcome = ctx
        .engine()
        .put_one(&key, &from.whole(), &PutOptions::default(), CALL)?;
    ensure_matches!(outcome, PutOutcome::Stored, "{key} should have been stored");
    from.whole().write(0, &pattern(MIB, 2))?;
    ctx.expect_bytes(&key, MIB, 1)
}

fn copies(ctx: &Context, wanted: u32) -> CaseResult {
    let key = ctx.key("object")?;
    let options = PutOptions {
        replicas: 2,
        ..PutOptions::default()
    };
    let from = ctx.filled(100_000, 1)?;
    let outcome = ctx.engine().put_one(&key, &from.whole(), &options, CALL)?;
    ensure_matches!(outcome, PutOutcome::Stored, "{key} should have been stored");
    let presence = ctx.presence(&key)?;
    ensure_matches!(
        presence,
        crate::Presence::Present { dram, ssd: 0, bytes: 100_000 } if dram == wanted,
        "{wanted} copies in DRAM were to be seen"
    );
    ctx.expect_bytes(&key, 100_000, 1)
}

fn two_copies_on_two_holders(ctx: &Context) -> CaseResult {
    copies(ctx, 2)
}

fn more_copies_than_holders(ctx: &Context) -> CaseResult {
    copies(ctx, 1)
}
