//! Who watches is told of lost samples.

use std::collections::BTreeSet;
use std::time::Duration;

use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_custody::Reason;

use super::client::{CALL, LONG};
use super::context::Context;
use crate::{LostWatch, SampleRef};

cases! {
    "lost" Nothing
    every_watch_is_told_with_the_producer
        "A watch of the samples that are found lost, by any process.";
    what_was_lost_before_the_watch_began_is_told
        "Those included whose records are there when the watch is opened.";
    many_at_once_are_all_told
        "A watch of the samples that are found lost, by any process.";
}

const SOON: Duration = Duration::from_millis(300);

/// What the watch tells until all of these are told.
async fn told(watch: &mut LostWatch, wanted: &BTreeSet<SampleRef>) -> CaseResult {
    let mut left = wanted.clone();
    let mut rounds = 0;
    while !left.is_empty() {
        let lost = watch.next(CALL).await?;
        ensure!(!lost.is_empty(), "{left:?} were lost, and nobody is told");
        for lost in lost {
            ensure!(wanted.contains(&lost.sample), "{lost:?} is not lost");
            left.remove(&lost.sample);
        }
        rounds += 1;
        ensure!(rounds < 10_000, "it tells the same again and again");
    }
    Ok(())
}

async fn every_watch_is_told_with_the_producer(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let mut watch = other.index().watch_lost();
    ensure_eq!(watch.next(SOON).await?, vec![], "before anything is lost");
    let consumed = context.publish("consumed", &["a"]).await?;
    let held = context.lease(&consumed).await?;
    let sample = context.publish("lost", &["a"]).await?;
    let leased = context.publish("leased", &["a"]).await?;
    let reader = context.read(&leased, LONG).await?;
    context.ack(&held).await?;
    // Any process finds it lost; it was put by this one.
    other.retire(&sample, Reason::Lost).await?;
    let lost = watch.next(CALL).await?;
    let seen: Vec<_> = lost.iter().map(|lost| (&lost.sample, lost.producer)).collect();
    ensure_eq!(seen, vec![(&sample, context.session().id())], "the lost one");
    // With a reader, it is told as soon.
    other.retire(&leased, Reason::Lost).await?;
    told(&mut watch, &BTreeSet::from([leased.clone()])).await?;
    context.release(&reader).await?;
    told(&mut watch, &BTreeSet::from([leased])).await?;
    ensure_eq!(watch.next(SOON).await?, vec![], "nothing else was lost");
    Ok(())
}

async fn what_was_lost_before_the_watch_began_is_told(context: &Context) -> CaseResult {
    let sample = context.publish("lost", &["a"]).await?;
    context.retire(&sample, Reason::Lost).await?;
    let mut watch = context.index().watch_lost();
    told(&mut watch, &BTreeSet::from([sample])).await?;
    ensure_eq!(watch.next(SOON).await?, vec![], "once");
    Ok(())
}

async fn many_at_once_are_all_told(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 150, &["a"]).await?;
    let (before, after) = samples.split_at(70);
    let retire = |part: &[SampleRef]| {
        let part = part.to_vec();
        async move {
            let results = context
                .index()
                .retire(context.session(), &part, Reason::Lost, CALL)
                .await;
            results.into_iter().try_for_each(|result| result.map(drop))
        }
    };
    retire(before).await?;
    let mut watch = context.index().watch_lost();
    let all: BTreeSet<_> = samples.iter().cloned().collect();
    let (retired, told) = tokio::join!(retire(after), told(&mut watch, &all));
    retired?;
    told
}
