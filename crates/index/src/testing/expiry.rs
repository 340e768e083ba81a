//! Leases that end without an answer.

use std::time::Duration;

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_custody::{Progress, Publication, Reason};

use super::client::{LONG, a, b, published_for};
use super::context::Context;

cases! {
    "expiry" Nothing
    a_dead_sessions_leases_are_taken_back_by_one_sweep
        "The next sweeps take back what an ended session held.";
    a_session_that_was_dropped_dies_by_its_time_to_live
        "The session is kept alive until it is dropped or closed.";
    not_before_its_ticks_and_the_grace
        "Lease gives a sample for a number of ticks.";
    both_ways_to_end_count_alike
        "An expired lease costs the group one attempt.";
    the_last_attempt_makes_a_dead_letter
        "Delivery count and dead letter are exact.";
    one_sample_with_leases_of_many
        "What has expired is taken back, and nothing else.";
    what_was_answered_in_time_is_not_taken_back
        "Sweep takes back what has expired.";
}

async fn a_dead_sessions_leases_are_taken_back_by_one_sweep(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let samples = context.publish_many("s", 5, &["a"]).await?;
    for sample in &samples {
        other.lease(sample).await?;
    }
    ensure_eq!(context.sweep().await?.taken_back, 0, "while it lives");
    context.harness().kill_session(other.session()).await?;
    let report = context.sweep().await?;
    ensure_eq!((report.taken_back, report.looked_at), (5, 5), "one sweep");
    for sample in &samples {
        let record = context.record(sample).await?;
        ensure_eq!(
            (record.groups[0].progress, record.groups[0].attempts),
            (Progress::Waiting, 1),
            "{sample:?}"
        );
    }
    Ok(())
}

async fn a_session_that_was_dropped_dies_by_its_time_to_live(context: &Context) -> CaseResult {
    let ttl = context.harness().settings().session_ttl;
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    other.lease(&sample).await?;
    drop(other);
    ensure_eq!(context.sweep().await?.taken_back, 0, "at once");
    context.harness().pass(ttl / 4).await;
    ensure_eq!(context.sweep().await?.taken_back, 0, "well before its time to live");
    // A store may lengthen a time to live that is too short or too fine for it.
    for _ in 0..40 {
        context.harness().pass(ttl / 4).await;
        if context.sweep().await?.taken_back == 1 {
            ensure_eq!(context.attempts(&sample, &a()?).await?, 1, "attempts");
            return Ok(());
        }
    }
    Err(Failure::new("it lives on after ten times its time to live"))
}

async fn not_before_its_ticks_and_the_grace(context: &Context) -> CaseResult {
    let settings = context.harness().settings();
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let held = other.lease_for(&a()?, &sample, 4).await?;
    let record = context.record(&sample).await?;
    let Progress::Leased(lease) = record.groups[0].progress else {
        return Err(Failure::new(format!("it should be leased: {record:?}")));
    };
    let last = lease.until.after(settings.grace_ticks);
    let report = context.until_tick(last).await?;
    ensure_eq!(report.taken_back, 0, "taken back at {last}");
    ensure!(other.check(&held).await?, "good at {last}");
    let report = context.ticks(1).await?;
    ensure_eq!(report.taken_back, 1, "taken back one tick later");
    ensure!(!other.check(&held).await?, "bad one tick later");
    Ok(())
}

async fn both_ways_to_end_count_alike(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    context.lease_for(&a()?, &sample, 1).await?;
    ensure_eq!(context.outlive(1).await?.taken_back, 1, "by its ticks");
    ensure_eq!(context.attempts(&sample, &a()?).await?, 1, "attempts");
    let other = context.join().await?;
    other.lease(&sample).await?;
    context.harness().kill_session(other.session()).await?;
    ensure_eq!(context.sweep().await?.taken_back, 1, "by its session's end");
    ensure_eq!(context.attempts(&sample, &a()?).await?, 2, "attempts");
    context.lease(&sample).await?;
    ensure_eq!(context.attempts(&sample, &a()?).await?, 3, "attempts");
    Ok(())
}

async fn the_last_attempt_makes_a_dead_letter(context: &Context) -> CaseResult {
    let publication = Publication {
        max_attempts: 2,
        ..published_for(&["a"])?
    };
    let sample = context.publish_as("s", publication).await?;
    context.lease_for(&a()?, &sample, 1).await?;
    let report = context.outlive(1).await?;
    ensure_eq!((report.taken_back, report.retired), (1, 0), "the first attempt");
    context.lease_for(&a()?, &sample, 1).await?;
    let report = context.outlive(1).await?;
    ensure_eq!((report.taken_back, report.retired), (1, 1), "the last attempt");
    let tasks = context.to_free().await?;
    ensure_eq!(tasks.len(), 1, "to be freed");
    ensure_eq!(tasks[0].record.record.reason, Reason::DeadLetter, "why");
    let nothing = context.next(&a()?, 1, Duration::from_millis(50)).await?;
    ensure_eq!(nothing, [], "what waits");
    Ok(())
}

async fn one_sample_with_leases_of_many(context: &Context) -> CaseResult {
    let (dying, living) = (context.join().await?, context.join().await?);
    let sample = context.publish("s", &["a", "b"]).await?;
    dying.lease(&sample).await?;
    dying.read(&sample, LONG).await?;
    dying.read(&sample, LONG).await?;
    let kept = living.lease_for(&b()?, &sample, LONG).await?;
    let reader = living.read(&sample, LONG).await?;
    context.harness().kill_session(dying.session()).await?;
    let report = context.sweep().await?;
    ensure_eq!(report.taken_back, 3, "leases taken back");
    let record = context.record(&sample).await?;
    ensure_eq!(record.groups[0].progress, Progress::Waiting, "a's progress");
    ensure_eq!(record.readers.len(), 1, "readers");
    ensure!(
        living.check(&kept).await? && living.check(&reader).await?,
        "the living one's leases are good"
    );
    Ok(())
}

async fn what_was_answered_in_time_is_not_taken_back(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a", "b"]).await?;
    let held = other.lease_for(&a()?, &sample, 1).await?;
    other.ack(&held).await?;
    let again = other.lease_for(&b()?, &sample, 1).await?;
    other.nack(&again).await?;
    let before = context.look(&sample.sample).await?;
    let report = context.outlive(1).await?;
    ensure_eq!(report.taken_back, 0, "leases taken back");
    context.harness().kill_session(other.session()).await?;
    ensure_eq!(context.sweep().await?.taken_back, 0, "leases taken back");
    ensure_eq!(context.look(&sample.sample).await?, before, "the record");
    Ok(())
}
