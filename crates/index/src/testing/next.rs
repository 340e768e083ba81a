//! Taking the next samples of a group.

use std::collections::BTreeSet;
use std::time::Duration;

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};

use super::check::refused;
use super::client::{CALL, LONG, a, b};
use super::context::Context;

cases! {
    "lease_next" Nothing
    each_sample_goes_to_one_consumer
        "Lease gives a sample to one process of a group at a time.";
    an_old_sample_is_not_passed_over_for_ever
        "Oldest first as far as that is possible without one common queue.";
    a_commit_wakes_a_waiting_consumer
        "Waits for the first one.";
    a_nack_wakes_a_waiting_consumer
        "Waits for the first one; a sample that was handed back is one.";
    a_sweep_wakes_a_waiting_consumer
        "Waits for the first one; a sample that was taken back is one.";
    nothing_at_the_deadline_is_no_error
        "It is no error if none came by the deadline.";
    no_more_than_asked_for
        "Leases the next samples of a group, up to `count`.";
    as_many_as_asked_for_if_they_are_there
        "Leases the next samples of a group, up to `count`.";
    only_what_is_for_the_group
        "Leases the next samples of a group.";
    a_session_that_ends_meanwhile_is_fenced
        "Every call in the name of an ended session is refused as `Fenced`.";
}

/// How soon a waiting consumer must be told: far below the deadline with which it waits.
const SOON: Duration = Duration::from_secs(5);
/// The deadline of consumers that wait for samples that come.
const PATIENT: Duration = Duration::from_secs(60);
/// The deadline of consumers that wait for nothing.
const SHORT: Duration = Duration::from_millis(50);

async fn each_sample_goes_to_one_consumer(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 120, &["a"]).await?;
    let mut consumers = tokio::task::JoinSet::new();
    for number in 0..8 {
        let client = context.join().await?;
        consumers.spawn(async move {
            let mut mine = Vec::new();
            loop {
                let taken = client.next(&a()?, 1 + number, Duration::from_secs(2)).await?;
                if taken.is_empty() {
                    return Ok::<_, Failure>((client, mine));
                }
                mine.extend(taken);
            }
        });
    }
    let mut seen = BTreeSet::new();
    let mut keep = Vec::new();
    while let Some(joined) = consumers.join_next().await {
        let (client, taken) = joined.map_err(|error| Failure::new(format!("a consumer: {error}")))??;
        for held in taken {
            ensure!(
                seen.insert(held.sample.clone()),
                "{:?} was given out twice",
                held.sample
            );
        }
        keep.push(client);
    }
    ensure_eq!(seen.len(), samples.len(), "samples given out");
    for sample in &samples {
        ensure_eq!(context.attempts(sample, &a()?).await?, 1, "the attempts of {sample:?}");
    }
    Ok(())
}

async fn an_old_sample_is_not_passed_over_for_ever(context: &Context) -> CaseResult {
    let old = context.publish("old", &["a"]).await?;
    // There is always a newer one as well. The contract's "as far as that is possible" gives no number; by chance alone
    // the newer one would be taken in every other round.
    for round in 0..100 {
        context.publish(&format!("newer-{round}"), &["a"]).await?;
        let taken = context.next(&a()?, 1, CALL).await?;
        ensure_eq!(taken.len(), 1, "round {round}: what it got");
        if taken[0].sample == old {
            return Ok(());
        }
        context.ack(&taken[0]).await?;
    }
    Err(Failure::new("a hundred newer ones were given out before it"))
}

async fn a_commit_wakes_a_waiting_consumer(context: &Context) -> CaseResult {
    let consumer = context.join().await?;
    let waiting = tokio::spawn(async move { Ok::<_, Failure>(consumer.next(&a()?, 3, PATIENT).await?) });
    let sample = context.reserve("s").await?;
    // Whether it is waiting by now cannot be seen; that it does not wait for long can.
    tokio::time::sleep(Duration::from_millis(200)).await;
    ensure!(!waiting.is_finished(), "there was nothing to be had yet");
    context.commit(&sample, &["a"]).await?;
    let taken = woken(waiting).await?;
    ensure_eq!(taken.len(), 1, "what it got");
    ensure_eq!(taken[0].sample, sample, "what it got");
    Ok(())
}

async fn woken(
    waiting: tokio::task::JoinHandle<CaseResult<Vec<crate::LeaseGrant>>>,
) -> CaseResult<Vec<crate::LeaseGrant>> {
    tokio::time::timeout(SOON, waiting)
        .await
        .map_err(|_| Failure::new(format!("it still waits after {SOON:?}")))?
        .map_err(|error| Failure::new(format!("the consumer: {error}")))?
}

async fn a_nack_wakes_a_waiting_consumer(context: &Context) -> CaseResult {
    let consumer = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let held = context.lease(&sample).await?;
    let waiting = tokio::spawn(async move { Ok::<_, Failure>(consumer.next(&a()?, 3, PATIENT).await?) });
    tokio::time::sleep(Duration::from_millis(200)).await;
    ensure!(!waiting.is_finished(), "there was nothing to be had yet");
    context.nack(&held).await?;
    ensure_eq!(woken(waiting).await?.len(), 1, "what it got");
    Ok(())
}

async fn a_sweep_wakes_a_waiting_consumer(context: &Context) -> CaseResult {
    let (holder, consumer) = (context.join().await?, context.join().await?);
    let sample = context.publish("s", &["a"]).await?;
    holder.lease(&sample).await?;
    context.harness().kill_session(holder.session()).await?;
    let waiting = tokio::spawn(async move { Ok::<_, Failure>(consumer.next(&a()?, 3, PATIENT).await?) });
    tokio::time::sleep(Duration::from_millis(200)).await;
    ensure!(!waiting.is_finished(), "nobody has swept yet");
    context.sweep().await?;
    ensure_eq!(woken(waiting).await?.len(), 1, "what it got");
    ensure_eq!(context.attempts(&sample, &a()?).await?, 2, "attempts");
    Ok(())
}

async fn nothing_at_the_deadline_is_no_error(context: &Context) -> CaseResult {
    let within = Duration::from_millis(400);
    let begun = tokio::time::Instant::now();
    let taken = context.next(&a()?, 3, within).await?;
    let took = begun.elapsed();
    ensure_eq!(taken, [], "what it got");
    ensure!(took >= Duration::from_millis(300), "it gave up after {took:?}");
    ensure!(took < SOON, "it took {took:?}");
    Ok(())
}

async fn no_more_than_asked_for(context: &Context) -> CaseResult {
    context.publish_many("s", 40, &["a"]).await?;
    ensure_eq!(context.next(&a()?, 0, CALL).await?, [], "none asked for");
    ensure_eq!(context.next(&a()?, 1, CALL).await?.len(), 1, "one asked for");
    let mut left = 39;
    while left > 0 {
        let taken = context.next(&a()?, 7, CALL).await?;
        ensure!((1..=7).contains(&taken.len()), "{} when 7 were asked for", taken.len());
        left -= taken.len().min(left);
    }
    ensure_eq!(context.next(&a()?, 7, SHORT).await?, [], "when all are taken");
    Ok(())
}

async fn as_many_as_asked_for_if_they_are_there(context: &Context) -> CaseResult {
    for round in 0..10 {
        let samples = context.publish_many(&format!("round-{round}-"), 3, &["a"]).await?;
        let taken = context.next(&a()?, 3, PATIENT).await?;
        ensure_eq!(taken.len(), samples.len(), "samples taken in round {round}");
    }
    Ok(())
}

async fn only_what_is_for_the_group(context: &Context) -> CaseResult {
    let for_a = context.publish("for-a", &["a"]).await?;
    let for_both = context.publish("for-both", &["a", "b"]).await?;
    context.publish("for-ab", &["ab"]).await?;
    let taken = context.next(&b()?, 9, CALL).await?;
    ensure_eq!(taken.len(), 1, "what b got");
    ensure_eq!(taken[0].sample, for_both, "what b got");
    ensure_eq!(context.next(&b()?, 9, SHORT).await?, [], "what b got then");
    let mut got = BTreeSet::new();
    while got.len() < 2 {
        let taken = context.next(&a()?, 9, CALL).await?;
        ensure!(!taken.is_empty(), "a got only {got:?}");
        got.extend(taken.into_iter().map(|held| held.sample));
    }
    ensure_eq!(got, BTreeSet::from([for_a, for_both]), "what a got");
    Ok(())
}

async fn a_session_that_ends_meanwhile_is_fenced(context: &Context) -> CaseResult {
    let consumer = context.join().await?;
    let waiting = tokio::spawn({
        let consumer = consumer.clone();
        async move {
            let group = a()?;
            Ok::<_, Failure>(
                consumer
                    .index()
                    .lease_next(consumer.session(), &group, 3, LONG, PATIENT)
                    .await,
            )
        }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    consumer.session().close(CALL).await?;
    let result = tokio::time::timeout(SOON, waiting)
        .await
        .map_err(|_| Failure::new(format!("it still waits after {SOON:?}")))?
        .map_err(|error| Failure::new(format!("the consumer: {error}")))??;
    refused(result, ErrorKind::Fenced, "a wait in a session that was closed")?;
    context.publish("s", &["a"]).await?;
    refused(
        consumer.next(&a()?, 3, SHORT).await,
        ErrorKind::Fenced,
        "another one, with something to be had",
    )
}
