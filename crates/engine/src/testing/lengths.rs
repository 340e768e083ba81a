//! A get whose buffers are not exactly as long as the object says so, and returns no bytes that a caller could trust.

use super::Setup;
use super::check::{pattern, same_bytes};
use super::context::{CALL, Context, MIB};
use crate::{EngineExt, GetOutcome, Transfer};
use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};

cases! { "lengths"
    a_buffer_too_small (Setup::default) "`Loaded` means that the object has exactly as many bytes as its buffers.";
    a_buffer_too_large (Setup::default) "`Loaded` means that the object has exactly as many bytes as its buffers.";
    off_by_one (Setup::default) "`Loaded` means that the object has exactly as many bytes as its buffers.";
    scattered_buffers_too_small (Setup::default) "`Loaded` means that the object has exactly as many bytes as its buffers.";
    scattered_buffers_too_large (Setup::default) "`Loaded` means that the object has exactly as many bytes as its buffers.";
    wrong_lengths_do_not_spoil_their_batch (Setup::default) "What concerns one object is its outcome.";
    a_wrong_length_writes_only_its_buffers (Setup::default) "The content of the buffers is unspecified; no other memory is theirs.";
    a_wrong_length_can_be_asked_again (Setup::default) "The object has another length than the buffers: the outcome says which.";
}

/// Gets an object of `stored` bytes into parts of these lengths.
fn refused(ctx: &Context, stored: usize, parts: &[usize]) -> CaseResult {
    let key = ctx.key(format_args!("{stored}-into-{parts:?}").to_string().replace(", ", "+"))?;
    ctx.store(&key, stored, 1)?;
    let region = ctx.empty(parts.iter().sum())?;
    let mut spans = Vec::new();
    let mut begin = 0;
    for len in parts {
        spans.push(region.span(begin..begin + len)?);
        begin += len;
    }
    let outcomes = ctx.engine().get(&[Transfer::scattered(key.clone(), spans)], CALL)?;
    ensure_matches!(
        outcomes[..],
        [GetOutcome::WrongLength { stored: told }] if told == stored as u64,
        "an object of {stored} bytes got into {parts:?} bytes should be WrongLength"
    );
    Ok(())
}

fn a_buffer_too_small(ctx: &Context) -> CaseResult {
    refused(ctx, 9000, &[10])?;
    refused(ctx, 2 * MIB, &[MIB])
}

fn a_buffer_too_large(ctx: &Context) -> CaseResult {
    refused(ctx, 10, &[9000])?;
    refused(ctx, MIB, &[2 * MIB])
}

fn off_by_one(ctx: &Context) -> CaseResult {
    refused(ctx, 4096, &[4095])?;
    refused(ctx, 4096, &[4097])?;
    refused(ctx, 2, &[1])?;
    refused(ctx, 1, &[2])
}

fn scattered_buffers_too_small(ctx: &Context) -> CaseResult {
    refused(ctx, 9000, &[4500, 4499])?;
    // Also where the object ends inside, or before, the given parts.
    refused(ctx, 9000, &[1, 1, 1])
}

fn scattered_buffers_too_large(ctx: &Context) -> CaseResult {
    refused(ctx, 9000, &[4500, 4501])?;
    // The first part alone would hold the object: the second would stay unwritten.
    refused(ctx, 9000, &[9000, 1])?;
    refused(ctx, 9000, &[1, 8000, 9000])
}

fn wrong_lengths_do_not_spoil_their_batch(ctx: &Context) -> CaseResult {
    let keys = ctx.keys("object", 4)?;
    for (key, seed) in keys.iter().zip(0..) {
        ctx.store(key, 3000, seed)?;
    }
    let gone = ctx.key("never-put")?;
    let batch = [
        Transfer::new(keys[0].clone(), ctx.empty(3000)?.whole()),
        Transfer::new(keys[1].clone(), ctx.empty(2999)?.whole()),
        Transfer::new(gone, ctx.empty(3000)?.whole()),
        Transfer::new(keys[3].clone(), ctx.empty(3000)?.whole()),
        Transfer::new(keys[2].clone(), ctx.empty(3001)?.whole()),
    ];
    let outcomes = ctx.engine().get(&batch, CALL)?;
    ensure_matches!(
        outcomes[..],
        [
            GetOutcome::Loaded,
            GetOutcome::WrongLength { stored: 3000 },
            GetOutcome::Miss,
            GetOutcome::Loaded,
            GetOutcome::WrongLength { stored: 3000 }
        ],
        "the outcomes should be Loaded, WrongLength, Miss, Loaded, WrongLength"
    );
    same_bytes(&keys[0], &batch[0].parts[0].to_vec(), &pattern(3000, 0))?;
    same_bytes(&keys[3], &batch[3].parts[0].to_vec(), &pattern(3000, 3))
}

fn a_wrong_length_writes_only_its_buffers(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.store(&key, 9000, 1)?;
    let guarded = ctx.filled(30_000, 2)?;
    let outcome = ctx.engine().get_one(&key, &guarded.span(10_000..10_100)?, CALL)?;
    ensure_matches!(outcome, GetOutcome::WrongLength { stored: 9000 }, "100 bytes for 9,000");
    let (seen, wanted) = (guarded.whole().to_vec(), pattern(30_000, 2));
    same_bytes("the memory before the buffer", &seen[..10_000], &wanted[..10_000])?;
    same_bytes("the memory after the buffer", &seen[10_100..], &wanted[10_100..])
}

fn a_wrong_length_can_be_asked_again(ctx: &Context) -> CaseResult {
    let key = ctx.key("object")?;
    ctx.store(&key, 54_321, 1)?;
    let GetOutcome::WrongLength { stored } = ctx.get(&key, 1)?.0 else {
        return Err(super::Failure::new("one byte for 54,321 should be WrongLength"));
    };
    ensure!(stored == 54_321, "the stored length was told as {stored}");
    ctx.expect_bytes(&key, 54_321, 1)
}
