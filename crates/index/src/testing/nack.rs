//! Handing samples back.

use std::time::Duration;

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_custody::{Progress, Publication, Reason};

use super::check::refused;
use super::client::{LONG, a, b, published_for};
use super::context::Context;
use crate::AckOutcome;

const DEAD: AckOutcome = AckOutcome::Retired {
    reason: Reason::DeadLetter,
    free: true,
};

cases! {
    "nack" Nothing
    it_costs_one_attempt
        "A nack, or an expired lease, costs the group one attempt.";
    the_last_attempt_makes_a_dead_letter
        "Delivery count and dead letter are exact.";
    a_dead_group_waits_for_the_others
        "A sample becomes a dead letter when a group ran out of attempts and no other group waits for it.";
    a_stale_token_is_fenced
        "With another token they are `Fenced` and change nothing.";
    letting_go_of_a_groups_lease_costs_one_attempt
        "Release releases leases of either kind.";
}

async fn it_costs_one_attempt(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a", "b"]).await?;
    let held = context.lease(&sample).await?;
    ensure_eq!(context.nack(&held).await?, AckOutcome::Live, "the answer");
    let record = context.record(&sample).await?;
    ensure_eq!(record.groups[0].progress, Progress::Waiting, "a's progress");
    ensure_eq!(
        (record.groups[0].attempts, record.groups[1].attempts),
        (1, 0),
        "attempts"
    );
    let held = other.lease(&sample).await?;
    ensure_eq!(context.attempts(&sample, &a()?).await?, 2, "attempts");
    ensure_eq!(other.ack(&held).await?, AckOutcome::Live, "the answer to the ack");
    Ok(())
}

async fn the_last_attempt_makes_a_dead_letter(context: &Context) -> CaseResult {
    for most in [1, 3] {
        let publication = Publication {
            max_attempts: most,
            ..published_for(&["a"])?
        };
        let sample = context.publish_as(&format!("s-{most}"), publication).await?;
        for attempt in 1..=most {
            let held = context.lease(&sample).await?;
            ensure_eq!(context.attempts(&sample, &a()?).await?, attempt, "attempts of {most}");
            let answer = context.nack(&held).await?;
            let expected = if attempt == most { DEAD } else { AckOutcome::Live };
            ensure_eq!(answer, expected, "attempt {attempt} of {most}");
        }
        let nothing = context.next(&a()?, 1, Duration::from_millis(50)).await?;
        ensure_eq!(nothing, [], "what waits after {most} attempts");
        let tasks = context.to_free().await?;
        ensure_eq!(tasks.len(), 1, "to be freed");
        ensure_eq!(tasks[0].record.record.reason, Reason::DeadLetter, "why");
        context.freed(&sample).await?;
    }
    Ok(())
}

async fn a_dead_group_waits_for_the_others(context: &Context) -> CaseResult {
    let publication = Publication {
        max_attempts: 1,
        ..published_for(&["a", "b"])?
    };
    let sample = context.publish_as("s", publication).await?;
    let held = context.lease(&sample).await?;
    ensure_eq!(context.nack(&held).await?, AckOutcome::Live, "a is given up on");
    refused(
        context.lease_for(&a()?, &sample, LONG).await,
        ErrorKind::Conflict,
        "another attempt of a",
    )?;
    let record = context.record(&sample).await?;
    ensure_eq!(record.groups[0].progress, Progress::Dead, "a's progress");
    let held = context.lease_for(&b()?, &sample, LONG).await?;
    ensure_eq!(context.ack(&held).await?, DEAD, "b has used it");
    Ok(())
}

async fn a_stale_token_is_fenced(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let stale = context.lease(&sample).await?;
    context.nack(&stale).await?;
    let held = other.lease(&sample).await?;
    let before = context.look(&sample.sample).await?;
    refused(context.nack(&stale).await, ErrorKind::Fenced, "a second nack")?;
    ensure_eq!(context.look(&sample.sample).await?, before, "the record");
    ensure!(other.check(&held).await?, "the other one's lease is good");
    Ok(())
}

async fn letting_go_of_a_groups_lease_costs_one_attempt(context: &Context) -> CaseResult {
    let publication = Publication {
        max_attempts: 2,
        ..published_for(&["a"])?
    };
    let sample = context.publish_as("s", publication).await?;
    let first = context.lease(&sample).await?;
    context.release(&first).await?;
    ensure_eq!(context.attempts(&sample, &a()?).await?, 1, "attempts");
    refused(context.release(&first).await, ErrorKind::Fenced, "letting go twice")?;
    let second = context.lease(&sample).await?;
    context.release(&second).await?;
    let tasks = context.to_free().await?;
    ensure_eq!(tasks.len(), 1, "to be freed");
    ensure_eq!(tasks[0].record.record.reason, Reason::DeadLetter, "why");
    Ok(())
}
