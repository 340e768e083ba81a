//! Leases that are undone, because they did not reach the consumer for which they were taken.

use std::time::Duration;

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_custody::{Progress, Publication, Reason};

use super::check::refused;
use super::client::{CALL, LONG, a, b, published_for, unserved};
use super::context::Context;

cases! {
    "untake" Nothing
    it_costs_no_attempt
        "The release of a lease that served no caller costs no attempt: the sample is as if it had never been leased.";
    the_sample_waits_where_it_did
        "The release of a lease that served no caller leaves the sample as if it had never been leased.";
    it_wakes_a_waiting_consumer
        "Waits for the first one; a sample whose lease was undone is one.";
    a_stale_token_is_fenced
        "With another token they are `Fenced` and change nothing.";
    of_a_read_it_lets_go
        "Releases leases of either kind.";
    of_a_retired_sample_it_lets_go
        "Releases leases even on samples that were retired meanwhile.";
    a_batch_is_done_item_by_item
        "An item that is refused does not hold up the others.";
}

async fn it_costs_no_attempt(context: &Context) -> CaseResult {
    let publication = Publication {
        max_attempts: 1,
        ..published_for(&["a", "b"])?
    };
    let sample = context.publish_as("s", publication).await?;
    let before = context.record(&sample).await?;
    for round in 0..3 {
        let held = context.lease(&sample).await?;
        ensure_eq!(context.attempts(&sample, &a()?).await?, 1, "attempts while it is held");
        context.untake(&held).await?;
        ensure_eq!(context.record(&sample).await?, before, "the record after round {round}");
    }
    let held = context.lease(&sample).await?;
    context.ack(&held).await?;
    let record = context.record(&sample).await?;
    ensure_eq!(record.groups[0].progress, Progress::Acked, "a's progress");
    Ok(())
}

async fn the_sample_waits_where_it_did(context: &Context) -> CaseResult {
    let first = context.publish("s", &["a"]).await?;
    let taken = context.next(&a()?, 1, CALL).await?;
    ensure_eq!(taken.len(), 1, "what it got");
    context.untake(&taken[0]).await?;
    for round in 0..3 {
        let taken = context.next(&a()?, 1, CALL).await?;
        ensure_eq!(taken.len(), 1, "what it got in round {round}");
        ensure_eq!(taken[0].sample, first, "what it got in round {round}");
        context.untake(&taken[0]).await?;
    }
    Ok(())
}

async fn it_wakes_a_waiting_consumer(context: &Context) -> CaseResult {
    let consumer = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let held = context.lease(&sample).await?;
    let patient = Duration::from_secs(60);
    let waiting = tokio::spawn(async move { Ok::<_, Failure>(consumer.next(&a()?, 1, patient).await?) });
    tokio::time::sleep(Duration::from_millis(200)).await;
    ensure!(!waiting.is_finished(), "there was nothing to be had yet");
    context.untake(&held).await?;
    let taken = tokio::time::timeout(Duration::from_secs(5), waiting)
        .await
        .map_err(|_| Failure::new("it still waits"))?
        .map_err(|error| Failure::new(format!("the consumer: {error}")))??;
    ensure_eq!(taken.len(), 1, "what it got");
    ensure_eq!(context.attempts(&sample, &a()?).await?, 1, "attempts");
    Ok(())
}

async fn a_stale_token_is_fenced(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let stale = context.lease(&sample).await?;
    context.untake(&stale).await?;
    refused(context.untake(&stale).await, ErrorKind::Fenced, "a second one")?;
    let held = other.lease(&sample).await?;
    let before = context.look(&sample.sample).await?;
    refused(context.untake(&stale).await, ErrorKind::Fenced, "when another has it")?;
    refused(context.ack(&stale).await, ErrorKind::Fenced, "an ack after it")?;
    ensure_eq!(context.look(&sample.sample).await?, before, "the record");
    ensure!(other.check(&held).await?, "the other one's lease is good");
    Ok(())
}

async fn of_a_read_it_lets_go(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let before = context.record(&sample).await?;
    let read = context.read(&sample, LONG).await?;
    context.untake(&read).await?;
    ensure_eq!(context.record(&sample).await?, before, "the record");
    Ok(())
}

async fn of_a_retired_sample_it_lets_go(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a", "b"]).await?;
    let held = context.lease_for(&b()?, &sample, LONG).await?;
    context.retire(&sample, Reason::Aborted).await?;
    ensure_eq!(context.free_list().await?, [], "what may be freed while it is held");
    context.untake(&held).await?;
    ensure_eq!(context.free_list().await?, [sample], "what may be freed then");
    Ok(())
}

async fn a_batch_is_done_item_by_item(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 5, &["a"]).await?;
    let mut held = Vec::new();
    for sample in &samples {
        held.push(context.lease(sample).await?);
    }
    context.nack(&held[2]).await?;
    let held: Vec<_> = held.iter().map(unserved).collect();
    let results = context.index().release(context.session(), &held, CALL).await;
    ensure_eq!(results.len(), 5, "results");
    for (at, result) in results.into_iter().enumerate() {
        if at == 2 {
            refused(result, ErrorKind::Fenced, "one that was handed back")?;
        } else {
            result?;
        }
        let counted = u32::from(at == 2);
        ensure_eq!(
            context.attempts(&samples[at], &a()?).await?,
            counted,
            "attempts of {at}"
        );
    }
    Ok(())
}
