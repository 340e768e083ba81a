//! Giving reservations up.

use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, Generation};
use tensorhold_custody::Reason;

use super::check::refused;
use super::client::published_for;
use super::context::Context;
use crate::SampleRef;

cases! {
    "abort" Nothing
    what_was_written_is_to_be_freed
        "Retired samples are listed by to_free when no lease on them is left.";
    only_the_producer_may
        "Only the session and generation that reserved it may do so (`Fenced`).";
    not_without_a_reservation
        "A reservation that does not exist cannot be aborted.";
    a_batch_is_done_item_by_item
        "A batch gets one result per item, in order.";
}

async fn what_was_written_is_to_be_freed(context: &Context) -> CaseResult {
    let sample = context.reserve("s").await?;
    context.abort(&sample).await?;
    let tasks = context.to_free().await?;
    ensure_eq!(tasks.len(), 1, "to be freed");
    ensure_eq!(tasks[0].sample, sample, "what is to be freed");
    ensure_eq!(tasks[0].description, None, "nobody described it");
    let record = &tasks[0].record.record;
    ensure_eq!((record.reason, record.bytes), (Reason::Aborted, 4096), "the record");
    ensure_eq!(record.plan, "plan of s", "what its producer was about to write");
    let again = context.reserve("s").await?;
    ensure!(again.generation > sample.generation, "{again:?} after {sample:?}");
    context.freed(&sample).await?;
    context.commit(&again, &["a"]).await
}

async fn only_the_producer_may(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.reserve("s").await?;
    refused(other.abort(&sample).await, ErrorKind::Fenced, "another process")?;
    let wrong = SampleRef {
        generation: Generation::new(sample.generation.get() + 1).unwrap_or(sample.generation),
        ..sample.clone()
    };
    refused(context.abort(&wrong).await, ErrorKind::Fenced, "another generation")?;
    ensure_eq!(context.free_list().await?, [], "nothing is to be freed");
    context.commit(&sample, &["a"]).await
}

async fn not_without_a_reservation(context: &Context) -> CaseResult {
    let sample = context.reserve("s").await?;
    context.abort(&sample).await?;
    refused(context.abort(&sample).await, ErrorKind::NotFound, "twice")?;
    let live = context.publish("t", &["a"]).await?;
    refused(context.abort(&live).await, ErrorKind::NotFound, "a committed one")?;
    context.record(&live).await?;
    let next = context.reserve("s").await?;
    refused(
        context.abort(&sample).await,
        ErrorKind::Fenced,
        "the old one, with a new one there",
    )?;
    context.commit_as(&next, published_for(&["a"])?).await?;
    Ok(())
}

async fn a_batch_is_done_item_by_item(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let mine = context.reserve("mine").await?;
    let theirs = other.reserve("theirs").await?;
    let also = context.reserve("also").await?;
    let items = [mine.clone(), theirs.clone(), also.clone(), mine.clone()];
    let results = context
        .index()
        .abort(context.session(), &items, super::client::CALL)
        .await;
    ensure_eq!(results.len(), 4, "one result per item");
    ensure!(results[0].is_ok() && results[2].is_ok(), "my own: {results:?}");
    refused(results[1].clone(), ErrorKind::Fenced, "somebody else's")?;
    refused(results[3].clone(), ErrorKind::NotFound, "the same again")?;
    ensure_eq!(context.free_list().await?, [also, mine], "to be freed");
    other.commit(&theirs, &["a"]).await
}
