//! Answering that samples were used.

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq, ensure_matches};
use tensorhold_custody::{Progress, Publication, Reason};

use super::check::refused;
use super::client::{CALL, LONG, a, b, group, published_for};
use super::context::Context;
use crate::AckOutcome;

const CONSUMED: AckOutcome = AckOutcome::Retired {
    reason: Reason::Consumed,
    free: true,
};

cases! {
    "ack" Nothing
    the_last_group_retires_the_sample
        "The last group's ack retires the sample.";
    before_the_last_group_it_stays
        "A sample is consumed only when every group has acknowledged it.";
    twice_is_fenced
        "An ack is final.";
    after_the_lease_ended_it_changes_nothing
        "With another token they are `Fenced` and change nothing.";
    the_token_of_an_earlier_lease_is_fenced
        "With another token they are `Fenced` and change nothing.";
    a_forged_token_is_fenced
        "With another token they are `Fenced` and change nothing.";
    another_groups_token_is_fenced
        "With another token they are `Fenced` and change nothing.";
    a_retained_sample_stays_for_the_next_epoch
        "A retained sample stays when every group has acknowledged it; reopen is another epoch.";
    several_groups_of_one_sample_in_one_batch
        "Several items of one batch may concern the same sample; they are applied one after the other.";
    two_generations_of_one_sample_in_one_batch
        "Several items of one batch may concern the same sample; they are applied one after the other.";
    a_batch_is_done_item_by_item
        "A batch gets one result per item, in order; an item that is refused does not hold up the others.";
}

async fn the_last_group_retires_the_sample(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let held = context.lease(&sample).await?;
    ensure_eq!(context.ack(&held).await?, CONSUMED, "the answer");
    ensure_eq!(context.look(&sample.sample).await?, None, "a look");
    let tasks = context.to_free().await?;
    ensure_eq!(tasks.len(), 1, "to be freed");
    ensure_eq!(tasks[0].sample, sample, "what is to be freed");
    ensure_eq!(tasks[0].record.record.reason, Reason::Consumed, "why");
    Ok(())
}

async fn before_the_last_group_it_stays(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a", "b", "c"]).await?;
    for name in ["c", "a"] {
        let held = context.lease_for(&group(name)?, &sample, LONG).await?;
        ensure_eq!(context.ack(&held).await?, AckOutcome::Live, "the answer to {name}");
        ensure_eq!(context.free_list().await?, [], "to be freed after {name}");
    }
    let progress: Vec<_> = context.record(&sample).await?.groups;
    let progress: Vec<_> = progress.into_iter().map(|state| state.progress).collect();
    ensure_eq!(
        progress,
        [Progress::Acked, Progress::Waiting, Progress::Acked],
        "the groups"
    );
    let held = context.lease_for(&b()?, &sample, LONG).await?;
    ensure_eq!(context.ack(&held).await?, CONSUMED, "the answer to b");
    Ok(())
}

async fn twice_is_fenced(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a", "b"]).await?;
    let for_a = context.lease(&sample).await?;
    context.ack(&for_a).await?;
    let before = context.look(&sample.sample).await?;
    refused(context.ack(&for_a).await, ErrorKind::Fenced, "a second ack")?;
    refused(context.nack(&for_a).await, ErrorKind::Fenced, "a nack after the ack")?;
    ensure_eq!(context.look(&sample.sample).await?, before, "the record");
    let for_b = context.lease_for(&b()?, &sample, LONG).await?;
    context.ack(&for_b).await?;
    let before = context.to_free().await?;
    refused(context.ack(&for_b).await, ErrorKind::Fenced, "a second last ack")?;
    refused(context.release(&for_b).await, ErrorKind::Fenced, "letting go after it")?;
    ensure_eq!(context.to_free().await?, before, "to be freed");
    Ok(())
}

async fn after_the_lease_ended_it_changes_nothing(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let stale = context.lease_for(&a()?, &sample, 1).await?;
    ensure_eq!(context.outlive(1).await?.taken_back, 1, "leases taken back");
    let before = context.look(&sample.sample).await?;
    refused(context.ack(&stale).await, ErrorKind::Fenced, "an ack")?;
    refused(context.nack(&stale).await, ErrorKind::Fenced, "a nack")?;
    refused(context.release(&stale).await, ErrorKind::Fenced, "letting go")?;
    ensure_eq!(context.look(&sample.sample).await?, before, "the record");
    ensure_eq!(context.free_list().await?, [], "to be freed");
    Ok(())
}

async fn the_token_of_an_earlier_lease_is_fenced(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let earlier = context.lease(&sample).await?;
    context.nack(&earlier).await?;
    // The same process has it again: only the token tells the two leases apart.
    let later = context.lease(&sample).await?;
    let before = context.look(&sample.sample).await?;
    refused(context.ack(&earlier).await, ErrorKind::Fenced, "an ack")?;
    refused(context.nack(&earlier).await, ErrorKind::Fenced, "a nack")?;
    ensure_eq!(context.look(&sample.sample).await?, before, "the record");
    ensure_eq!(context.ack(&later).await?, CONSUMED, "the later lease's ack");
    Ok(())
}

async fn a_forged_token_is_fenced(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let held = context.lease(&sample).await?;
    let before = context.look(&sample.sample).await?;
    for token in [0, held.token.0 - 1, held.token.0 + 1, u64::MAX] {
        let mut forged = held.clone();
        forged.token = tensorhold_custody::Token(token);
        refused(context.ack(&forged).await, ErrorKind::Fenced, &format!("token {token}"))?;
    }
    ensure_eq!(context.look(&sample.sample).await?, before, "the record");
    Ok(())
}

async fn another_groups_token_is_fenced(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a", "b"]).await?;
    let for_a = context.lease(&sample).await?;
    let before = context.look(&sample.sample).await?;
    let mut for_b = for_a.clone();
    for_b.group = Some(b()?);
    refused(context.ack(&for_b).await, ErrorKind::Fenced, "in the name of b")?;
    let mut for_c = for_a.clone();
    for_c.group = Some(group("c")?);
    // Not one of its groups: there is nothing that could be acknowledged. The index may refuse in either way.
    let result = context.ack(&for_c).await;
    ensure_matches!(
        result.as_ref().map_err(|error| error.kind()),
        Err(ErrorKind::Fenced | ErrorKind::NotFound),
        "in the name of c"
    );
    ensure_eq!(context.look(&sample.sample).await?, before, "the record");
    Ok(())
}

async fn a_retained_sample_stays_for_the_next_epoch(context: &Context) -> CaseResult {
    let publication = Publication {
        retain: true,
        max_attempts: 2,
        ..published_for(&["a", "b"])?
    };
    let sample = context.publish_as("s", publication).await?;
    for epoch in 0..3 {
        for group in [a()?, b()?] {
            // One attempt is lost in each epoch, and does not count in the next.
            let held = context.lease_for(&group, &sample, LONG).await?;
            context.nack(&held).await?;
            let taken = context.next(&group, 1, CALL).await?;
            ensure_eq!(taken.len(), 1, "epoch {epoch}: what {group} gets");
            ensure_eq!(
                context.ack(&taken[0]).await?,
                AckOutcome::Live,
                "epoch {epoch}: the answer to {group}"
            );
            ensure_eq!(context.attempts(&sample, &group).await?, 2, "epoch {epoch}: attempts");
        }
        ensure_eq!(context.free_list().await?, [], "epoch {epoch}: to be freed");
        refused(
            context.lease_for(&a()?, &sample, LONG).await,
            ErrorKind::Conflict,
            "a lease before the next epoch",
        )?;
        context.reopen(&sample).await?;
        ensure_eq!(
            context.attempts(&sample, &a()?).await?,
            0,
            "epoch {epoch}: attempts after reopening"
        );
    }
    context.retire(&sample, Reason::Consumed).await?;
    refused(
        context.reopen(&sample).await,
        ErrorKind::NotFound,
        "reopening a retired one",
    )
}

async fn several_groups_of_one_sample_in_one_batch(context: &Context) -> CaseResult {
    for (label, backwards) in [("forth", false), ("back", true)] {
        let sample = context.publish(label, &["a", "b", "c"]).await?;
        let mut held = Vec::new();
        for name in ["a", "b", "c"] {
            held.push(context.lease_for(&group(name)?, &sample, LONG).await?);
        }
        if backwards {
            held.reverse();
        }
        let results = context.index().ack(context.session(), &held, CALL).await;
        let answers: Vec<_> = results.into_iter().collect::<Result<_, _>>()?;
        ensure_eq!(
            answers,
            [AckOutcome::Live, AckOutcome::Live, CONSUMED],
            "{label}: the answers"
        );
    }
    Ok(())
}

async fn two_generations_of_one_sample_in_one_batch(context: &Context) -> CaseResult {
    for (label, backwards) in [("forth", false), ("back", true)] {
        let older = context.publish(label, &["a"]).await?;
        let stale = context.lease(&older).await?;
        let newer = context.publish(label, &["a"]).await?;
        let good = context.lease(&newer).await?;
        let mut items = vec![stale, good];
        if backwards {
            items.reverse();
        }
        for (item, result) in items
            .iter()
            .zip(context.index().ack(context.session(), &items, CALL).await)
        {
            if item.sample == newer {
                ensure_eq!(result?, CONSUMED, "{label}: the live one");
            } else {
                refused(result, ErrorKind::Fenced, &format!("{label}: the older one"))?;
            }
        }
    }
    Ok(())
}

async fn a_batch_is_done_item_by_item(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 5, &["a"]).await?;
    let mut held = Vec::new();
    for sample in &samples {
        held.push(context.lease(sample).await?);
    }
    context.nack(&held[2]).await?;
    held.push(held[4].clone());
    let results = context.index().ack(context.session(), &held, CALL).await;
    ensure_eq!(results.len(), 6, "one result per item");
    for at in [0, 1, 3, 4] {
        let result = results[at].as_ref();
        ensure!(result.is_ok_and(|answer| *answer == CONSUMED), "item {at}: {result:?}");
    }
    refused(results[2].clone(), ErrorKind::Fenced, "the one that was handed back")?;
    refused(results[5].clone(), ErrorKind::Fenced, "the same again")?;
    let left = context.record(&samples[2]).await?;
    ensure_matches!(
        left.groups[0].progress,
        Progress::Waiting,
        "the one that was handed back"
    );
    ensure_eq!(context.free_list().await?.len(), 4, "to be freed");
    Ok::<_, Failure>(())
}
