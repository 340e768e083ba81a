//! Batches that are larger than one transaction, and deadlines.

use std::time::Duration;

use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, Retry};
use tensorhold_custody::Reason;

use super::client::{CALL, LONG, a, published_for};
use super::context::Context;
use crate::{AckOutcome, Commit};

cases! {
    "batch" Nothing
    of_nothing_has_no_results
        "A batch gets one result per item.";
    larger_than_a_transaction
        "A batch gets one result per item, in order.";
    of_large_descriptions
        "A batch gets one result per item, in order.";
    a_description_that_is_too_large_is_refused_alone
        "An item that is refused does not hold up the others.";
    without_time_nothing_is_done
        "Every call returns within its time; an error that is not `Ambiguous` means that the change was not made.";
}

async fn of_nothing_has_no_results(context: &Context) -> CaseResult {
    let (index, session) = (context.index(), context.session());
    ensure_eq!(index.reserve(session, &[], CALL).await.len(), 0, "reserve");
    ensure_eq!(index.commit(session, &[], CALL).await.len(), 0, "commit");
    ensure_eq!(index.lease(session, &a()?, &[], LONG, CALL).await.len(), 0, "lease");
    ensure_eq!(index.ack(session, &[], CALL).await.len(), 0, "ack");
    ensure_eq!(index.freed(session, &[], CALL).await.len(), 0, "freed");
    ensure_eq!(index.look(&[], CALL).await?.len(), 0, "look");
    Ok(())
}

async fn larger_than_a_transaction(context: &Context) -> CaseResult {
    const MANY: usize = 300;
    let (index, session) = (context.index(), context.session());
    let samples = context.publish_many("s", MANY, &["a", "b"]).await?;
    let ids: Vec<_> = samples.iter().map(|sample| sample.sample.clone()).collect();
    let views = index.look(&ids, CALL).await?;
    for (sample, view) in samples.iter().zip(&views) {
        ensure!(
            view.as_ref().is_some_and(|view| view.sample == *sample),
            "{sample:?} is seen as {view:?}"
        );
    }
    let mut held = Vec::new();
    for (sample, result) in samples
        .iter()
        .zip(index.lease(session, &a()?, &samples, LONG, CALL).await)
    {
        let result = result?;
        ensure_eq!(result.sample, *sample, "what was leased");
        held.push(result);
    }
    let good = index.check(session, &held, CALL).await?;
    ensure!(
        good.len() == MANY && good.iter().all(|good| *good),
        "{} of {MANY} are good",
        good.iter().filter(|good| **good).count()
    );
    for result in index.renew(session, &held, LONG * 2, CALL).await {
        result?;
    }
    for result in index.ack(session, &held, CALL).await {
        ensure_eq!(result?, AckOutcome::Live, "an answer");
    }
    for result in index.retire(session, &samples, Reason::Aborted, CALL).await {
        result?;
    }
    ensure_eq!(context.free_list().await?, samples, "to be freed");
    for result in index.freed(session, &samples, CALL).await {
        result?;
    }
    ensure_eq!(context.free_list().await?, [], "to be freed");
    Ok(())
}

async fn of_large_descriptions(context: &Context) -> CaseResult {
    const MANY: usize = 24;
    const LARGE: usize = 250_000;
    let mut items = Vec::new();
    for at in 0..MANY {
        items.push(Commit {
            becomes: None,
            sample: context.reserve(&format!("s-{at:02}")).await?,
            publication: published_for(&["a"])?,
            description: vec![u8::try_from(at).unwrap_or(0); LARGE],
        });
    }
    for (at, result) in context
        .index()
        .commit(context.session(), &items, CALL)
        .await
        .into_iter()
        .enumerate()
    {
        ensure!(result.is_ok(), "item {at}: {result:?}");
    }
    let samples: Vec<_> = items.iter().map(|item| item.sample.clone()).collect();
    let results = context
        .index()
        .lease(context.session(), &a()?, &samples, LONG, CALL)
        .await;
    for (item, result) in items.iter().zip(results) {
        let held = result?;
        ensure!(
            *held.description == *item.description,
            "{:?} has another description",
            held.sample
        );
    }
    let ids: Vec<_> = samples.iter().map(|sample| sample.sample.clone()).collect();
    let views = context.index().look(&ids, CALL).await?;
    for (item, view) in items.iter().zip(&views) {
        ensure!(
            view.as_ref().is_some_and(|view| view.description == item.description),
            "{:?} looks otherwise",
            item.sample
        );
    }
    Ok(())
}

async fn a_description_that_is_too_large_is_refused_alone(context: &Context) -> CaseResult {
    let mut items = Vec::new();
    for (label, bytes) in [("before", 10), ("large", 8 << 20), ("after", 10)] {
        items.push(Commit {
            becomes: None,
            sample: context.reserve(label).await?,
            publication: published_for(&["a"])?,
            description: vec![1; bytes],
        });
    }
    let results = context.index().commit(context.session(), &items, CALL).await;
    ensure_eq!(results.len(), 3, "one result per item");
    ensure!(results[0].is_ok() && results[2].is_ok(), "the small ones: {results:?}");
    // An index that accepts 8 MiB may do so.
    if let Err(error) = &results[1] {
        ensure_eq!(error.kind(), ErrorKind::Invalid, "why it was refused");
        let sample = &items[1].sample;
        ensure_eq!(context.look(&sample.sample).await?, None, "the large one");
        context.commit(sample, &["a"]).await?;
    }
    Ok(())
}

async fn without_time_nothing_is_done(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let held = context.lease(&sample).await?;
    let reserved = context.reserve("t").await?;
    let before = context.look(&sample.sample).await?;
    let (index, session) = (context.index(), context.session());
    let begun = tokio::time::Instant::now();
    let ack = index.ack(session, std::slice::from_ref(&held), Duration::ZERO).await;
    let abort = index
        .abort(session, std::slice::from_ref(&reserved), Duration::ZERO)
        .await;
    ensure!(
        begun.elapsed() < Duration::from_secs(5),
        "it took {:?}",
        begun.elapsed()
    );
    for error in [
        ack.into_iter().next().and_then(Result::err),
        abort.into_iter().next().and_then(Result::err),
    ] {
        let Some(error) = error else {
            return Err(super::Failure::new("something was done in no time"));
        };
        ensure_eq!(
            (error.kind(), error.retry()),
            (ErrorKind::Unavailable, Retry::Safe),
            "{error:?}"
        );
    }
    ensure_eq!(context.look(&sample.sample).await?, before, "the record");
    context.commit(&reserved, &["a"]).await?;
    context.ack(&held).await?;
    Ok(())
}
