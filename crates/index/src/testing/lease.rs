//! Taking given samples.

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, Generation, SampleId};
use tensorhold_custody::{Progress, Token};

use super::check::refused;
use super::client::{CALL, LONG, a, b, description};
use super::context::Context;
use crate::SampleRef;

cases! {
    "lease" Nothing
    one_process_of_a_group_at_a_time
        "Lease gives a sample to one process of a group at a time.";
    groups_do_not_disturb_each_other
        "Each group uses the sample once, whatever the others do.";
    the_record_tells_who_has_it_until_when
        "Lease gives a sample for a number of ticks, and returns a token.";
    tokens_grow
        "A token is never given out twice.";
    what_is_not_there_is_not_found
        "There is nothing to lease but live samples.";
    another_generation_is_fenced
        "A lease is on one generation of a sample.";
    what_a_group_has_used_it_cannot_take_again
        "An ack is final.";
    a_batch_is_done_item_by_item
        "A batch gets one result per item, in order; items about the same sample are applied one after the other.";
}

async fn one_process_of_a_group_at_a_time(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let held = context.lease(&sample).await?;
    for client in [context.first(), &other] {
        refused(
            client.lease_for(&a()?, &sample, LONG).await,
            ErrorKind::Conflict,
            "a second lease",
        )?;
    }
    ensure!(context.check(&held).await?, "the first one is good");
    ensure_eq!(context.attempts(&sample, &a()?).await?, 1, "attempts");
    context.nack(&held).await?;
    other.lease(&sample).await?;
    Ok(())
}

async fn groups_do_not_disturb_each_other(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a", "b"]).await?;
    let for_a = context.lease(&sample).await?;
    let for_b = other.lease_for(&b()?, &sample, LONG).await?;
    ensure!(for_a.token != for_b.token, "both have {:?}", for_a.token);
    context.nack(&for_a).await?;
    ensure!(other.check(&for_b).await?, "b's lease is good after a's nack");
    ensure_eq!(context.attempts(&sample, &b()?).await?, 1, "b's attempts");
    let again = context.lease(&sample).await?;
    other.ack(&for_b).await?;
    ensure!(context.check(&again).await?, "a's lease is good after b's ack");
    Ok(())
}

async fn the_record_tells_who_has_it_until_when(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    context.ticks(2).await?;
    let now = context.tick().await?;
    let held = context.lease_for(&a()?, &sample, 7).await?;
    ensure_eq!(held.sample, sample, "the sample");
    ensure_eq!(held.group, Some(a()?), "the group");
    ensure_eq!(held.description.to_vec(), description(&sample), "the description");
    let record = context.record(&sample).await?;
    let state = &record.groups[0];
    ensure_eq!(state.attempts, 1, "attempts");
    let Progress::Leased(lease) = state.progress else {
        return Err(Failure::new(format!("it should be leased: {state:?}")));
    };
    ensure_eq!(lease.session, context.session().id(), "the session");
    ensure_eq!(lease.token, held.token, "the token");
    ensure_eq!(lease.until, now.after(7), "the end");
    Ok(())
}

async fn tokens_grow(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let another = context.publish("t", &["a"]).await?;
    let mut last = Token(0);
    for round in 0..3 {
        for (client, sample) in [(context.first(), &sample), (&other, &another)] {
            let held = client.lease(sample).await?;
            ensure!(held.token > last, "round {round}: {:?} after {last:?}", held.token);
            last = held.token;
            if round < 2 {
                client.nack(&held).await?;
            }
        }
    }
    Ok(())
}

async fn what_is_not_there_is_not_found(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let missing = SampleRef {
        sample: SampleId::new("missing")?,
        ..sample.clone()
    };
    refused(
        context.lease_for(&a()?, &missing, LONG).await,
        ErrorKind::NotFound,
        "no such sample",
    )?;
    refused(
        context.lease_for(&b()?, &sample, LONG).await,
        ErrorKind::NotFound,
        "a group that it is not for",
    )?;
    let held = context.lease(&sample).await?;
    context.ack(&held).await?;
    refused(
        context.lease_for(&a()?, &sample, LONG).await,
        ErrorKind::NotFound,
        "a retired one",
    )
}

async fn another_generation_is_fenced(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let wrong = SampleRef {
        generation: Generation::new(sample.generation.get() + 1).unwrap_or(sample.generation),
        ..sample.clone()
    };
    refused(
        context.lease_for(&a()?, &wrong, LONG).await,
        ErrorKind::Fenced,
        "another generation",
    )?;
    ensure_eq!(context.attempts(&sample, &a()?).await?, 0, "attempts");
    Ok(())
}

async fn what_a_group_has_used_it_cannot_take_again(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a", "b"]).await?;
    let held = context.lease(&sample).await?;
    context.ack(&held).await?;
    refused(
        context.lease_for(&a()?, &sample, LONG).await,
        ErrorKind::Conflict,
        "a lease after the ack",
    )?;
    let next = context.next(&a()?, 3, std::time::Duration::from_millis(50)).await?;
    ensure_eq!(next, [], "what waits for a");
    ensure_eq!(context.attempts(&sample, &a()?).await?, 1, "attempts");
    Ok(())
}

async fn a_batch_is_done_item_by_item(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let samples = context.publish_many("s", 4, &["a"]).await?;
    other.lease(&samples[1]).await?;
    let missing = SampleRef {
        sample: SampleId::new("missing")?,
        ..samples[0].clone()
    };
    let items = [
        samples[0].clone(),
        samples[1].clone(),
        missing,
        samples[2].clone(),
        samples[0].clone(),
        samples[3].clone(),
    ];
    let results = context
        .index()
        .lease(context.session(), &a()?, &items, LONG, CALL)
        .await;
    ensure_eq!(results.len(), 6, "one result per item");
    for at in [0, 3, 5] {
        let result = results[at].as_ref();
        ensure!(
            result.is_ok_and(|held| held.sample == items[at]),
            "item {at}: {result:?}"
        );
    }
    refused(results[1].clone(), ErrorKind::Conflict, "a taken one")?;
    refused(results[2].clone(), ErrorKind::NotFound, "a missing one")?;
    refused(results[4].clone(), ErrorKind::Conflict, "the same again")?;
    for sample in &samples {
        ensure_eq!(context.attempts(sample, &a()?).await?, 1, "the attempts of {sample:?}");
    }
    Ok(())
}
