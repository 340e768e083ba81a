//! Reservations made ahead, which get their sample's name when they are committed.

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, ObjectKey};
use tensorhold_custody::{Publication, Reason};

use super::check::refused;
use super::client::{CALL, Client, a, b, description, published_for};
use super::context::Context;
use crate::{Known, SampleRef, Stage};

cases! {
    "ahead" Nothing
    it_becomes_the_sample
        "A reservation that was made ahead gets its sample's name with the commit.";
    each_group_gets_its_generation
        "Its generation is the version of the commit.";
    two_of_one_write_are_two_generations
        "Its generation is the version of the commit.";
    it_replaces_and_is_replaced
        "Commit retires the generation that was live before.";
    not_while_the_sample_is_reserved
        "`Conflict` while another producer has that sample reserved.";
    only_its_session_may_commit
        "Only the session and generation that reserved it may do so (`Fenced`).";
    it_becomes_one_sample_only
        "Only the session and generation that reserved it may do so (`Fenced`).";
    a_dead_producer_leaves_its_plan
        "The next sweeps take back what an ended session held.";
    unreserved_it_leaves_nothing
        "There is nothing to remove, so nothing stays of them.";
    its_objects_have_an_owner_until_they_are_freed
        "Whether records own the objects of these generations.";
    a_dead_letter_without_objects_owns_none
        "Whether records own the objects of these generations.";
}

async fn one(client: &Client) -> CaseResult<SampleRef> {
    let mut reserved = client.reserve_ahead(1).await?;
    reserved.pop().ok_or_else(|| Failure::new("nothing was reserved"))
}

async fn it_becomes_the_sample(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let reserved = one(context).await?;
    ensure_eq!(context.look(&reserved.sample).await?, None, "a look at the reservation");
    let counts = context.index().counts(CALL).await?;
    ensure_eq!(counts.of(Stage::Reserved), 0, "reserved for a sample");
    let sample = context.commit_ahead(&reserved, "s", published_for(&["a"])?).await?;
    ensure!(
        sample.generation > reserved.generation,
        "the generation is the commit's"
    );
    let Some(view) = other.look(&sample.sample).await? else {
        return Err(Failure::new("a look sees nothing"));
    };
    ensure_eq!(view.sample, sample, "what a look sees");
    ensure_eq!(view.record.record.bytes, 4096, "the bytes");
    ensure_eq!(view.description, description(&reserved), "the description");
    let taken = other.next(&a()?, 9, CALL).await?;
    ensure_eq!(taken.len(), 1, "what waits");
    ensure_eq!(taken[0].sample, sample, "what waits");
    ensure_eq!(
        other.look(&sample.sample).await?.map(|view| view.sample),
        Some(sample.clone()),
        "leased"
    );
    other.ack(&taken[0]).await?;
    ensure_eq!(context.free_list().await?, std::slice::from_ref(&sample), "to be freed");
    ensure!(context.freed(&sample).await?, "it was there");
    ensure_eq!(context.look(&sample.sample).await?, None, "freed");
    Ok(())
}

async fn each_group_gets_its_generation(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let reserved = one(context).await?;
    let sample = context
        .commit_ahead(&reserved, "s", published_for(&["a", "b"])?)
        .await?;
    let taken = other.next(&a()?, 9, CALL).await?;
    ensure_eq!(taken.len(), 1, "what waits for a");
    ensure_eq!(taken[0].sample, sample, "what waits for a");
    // It comes back into the list by a later write.
    other.nack(&taken[0]).await?;
    for group in [a()?, b()?] {
        let taken = context.next(&group, 9, CALL).await?;
        ensure_eq!(taken.len(), 1, "what waits for {group}");
        ensure_eq!(taken[0].sample, sample, "what waits for {group}");
        context.ack(&taken[0]).await?;
    }
    ensure_eq!(context.free_list().await?, [sample], "to be freed");
    Ok(())
}

async fn two_of_one_write_are_two_generations(context: &Context) -> CaseResult {
    for groups in [&["a"][..], &["a", "b"]] {
        let reserved = context.reserve_ahead(2).await?;
        ensure_eq!(reserved[0].generation, reserved[1].generation, "one write");
        let first = context.commit_ahead(&reserved[0], "s", published_for(groups)?).await?;
        let second = context.commit_ahead(&reserved[1], "s", published_for(groups)?).await?;
        ensure!(second.generation > first.generation, "{first:?} and {second:?}");
        ensure_eq!(
            context.free_list().await?,
            std::slice::from_ref(&first),
            "the first is superseded"
        );
        context.freed(&first).await?;
        let taken = context.next(&a()?, 9, CALL).await?;
        ensure_eq!(taken.len(), 1, "what waits");
        ensure_eq!(taken[0].sample, second, "what waits");
        refused(context.read(&first, 9).await, ErrorKind::Fenced, "a read of the first")?;
        context.retire(&second, Reason::Aborted).await?;
        context.release(&taken[0]).await?;
        context.freed(&second).await?;
    }
    Ok(())
}

async fn it_replaces_and_is_replaced(context: &Context) -> CaseResult {
    let older = context.publish("s", &["a"]).await?;
    let held = context.lease(&older).await?;
    let reserved = one(context).await?;
    let sample = context.commit_ahead(&reserved, "s", published_for(&["a"])?).await?;
    ensure!(sample.generation > older.generation, "generations grow");
    ensure_eq!(context.free_list().await?, [], "the older one has a reader");
    context.release(&held).await?;
    ensure_eq!(
        context.free_list().await?,
        std::slice::from_ref(&older),
        "the older one"
    );
    context.freed(&older).await?;
    let newer = context.publish("s", &["a"]).await?;
    ensure!(newer.generation > sample.generation, "generations grow");
    ensure_eq!(
        context.free_list().await?,
        std::slice::from_ref(&sample),
        "the one that was reserved ahead"
    );
    context.freed(&sample).await?;
    let taken = context.next(&a()?, 9, CALL).await?;
    ensure_eq!(taken.len(), 1, "what waits");
    ensure_eq!(taken[0].sample, newer, "what waits");
    Ok(())
}

async fn not_while_the_sample_is_reserved(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let theirs = other.reserve("s").await?;
    let reserved = one(context).await?;
    let result = context.commit_ahead(&reserved, "s", published_for(&["a"])?).await;
    refused(result, ErrorKind::Conflict, "while it is reserved")?;
    other.abort(&theirs).await?;
    context.commit_ahead(&reserved, "s", published_for(&["a"])?).await?;
    Ok(())
}

async fn only_its_session_may_commit(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let reserved = one(context).await?;
    let result = other.commit_ahead(&reserved, "s", published_for(&["a"])?).await;
    refused(result, ErrorKind::Fenced, "another process")?;
    refused(other.unreserve(&reserved).await, ErrorKind::Fenced, "another process")?;
    context.commit_ahead(&reserved, "s", published_for(&["a"])?).await?;
    Ok(())
}

async fn it_becomes_one_sample_only(context: &Context) -> CaseResult {
    let reserved = one(context).await?;
    context.commit_ahead(&reserved, "s", published_for(&["a"])?).await?;
    let result = context.commit_ahead(&reserved, "t", published_for(&["a"])?).await;
    refused(result, ErrorKind::Fenced, "a second sample")?;
    refused(context.abort(&reserved).await, ErrorKind::NotFound, "an abort")?;
    refused(
        context.unreserve(&reserved).await,
        ErrorKind::NotFound,
        "taking it back",
    )
}

async fn a_dead_producer_leaves_its_plan(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let reserved = other.reserve_ahead(3).await?;
    let sample = other.commit_ahead(&reserved[0], "s", published_for(&["a"])?).await?;
    context.harness().kill_session(other.session()).await?;
    let result = other.commit_ahead(&reserved[1], "t", published_for(&["a"])?).await;
    refused(result, ErrorKind::Fenced, "a commit of the dead")?;
    let report = context.sweep().await?;
    ensure_eq!(report.abandoned, 2, "given up");
    let tasks = context.to_free().await?;
    let plans: Vec<_> = tasks.iter().map(|task| task.record.record.plan.as_str()).collect();
    ensure_eq!(plans, ["plan of a reservation made ahead"; 2], "the plans");
    let mut named: Vec<SampleRef> = tasks.into_iter().map(|task| task.sample).collect();
    named.sort();
    ensure_eq!(named, reserved[1..], "to be freed");
    ensure_eq!(
        context.look(&sample.sample).await?.map(|view| view.sample),
        Some(sample),
        "the sample stays"
    );
    Ok(())
}

async fn unreserved_it_leaves_nothing(context: &Context) -> CaseResult {
    let reserved = context.reserve_ahead(2).await?;
    for reserved in &reserved {
        context.unreserve(reserved).await?;
        refused(context.unreserve(reserved).await, ErrorKind::NotFound, "a second time")?;
        let result = context.commit_ahead(reserved, "s", published_for(&["a"])?).await;
        refused(result, ErrorKind::Fenced, "a commit afterwards")?;
        ensure_eq!(known(context, reserved).await?, Known::No, "its objects");
    }
    ensure_eq!(context.free_list().await?, [], "to be freed");
    Ok(())
}

async fn known(context: &Context, sample: &SampleRef) -> CaseResult<Known> {
    let known = context.index().known(std::slice::from_ref(sample), CALL).await?;
    known.first().copied().ok_or_else(|| Failure::new("no answer"))
}

async fn its_objects_have_an_owner_until_they_are_freed(context: &Context) -> CaseResult {
    let reserved = one(context).await?;
    ensure_eq!(known(context, &reserved).await?, Known::Yes, "reserved");
    let sample = context.commit_ahead(&reserved, "s", published_for(&["a"])?).await?;
    ensure_eq!(known(context, &reserved).await?, Known::Yes, "live");
    let key = format!(
        "store/{}/g{}-00000000000000aa/o/3",
        reserved.sample, reserved.generation
    );
    let key = ObjectKey::new(key)?;
    let owners = context.index().owners(std::slice::from_ref(&key), CALL).await?;
    ensure_eq!(owners, [Some(sample.clone())], "the owner of an object");
    let held = context.lease(&sample).await?;
    context.retire(&sample, Reason::Aborted).await?;
    ensure_eq!(known(context, &reserved).await?, Known::Yes, "retired, with a reader");
    context.release(&held).await?;
    ensure_eq!(known(context, &reserved).await?, Known::Yes, "to be freed");
    context.freed(&sample).await?;
    ensure_eq!(known(context, &reserved).await?, Known::No, "freed");
    let aborted = one(context).await?;
    context.abort(&aborted).await?;
    ensure_eq!(known(context, &aborted).await?, Known::Yes, "given up, to be freed");
    context.freed(&aborted).await?;
    ensure_eq!(known(context, &aborted).await?, Known::No, "given up and freed");
    Ok(())
}

async fn a_dead_letter_without_objects_owns_none(context: &Context) -> CaseResult {
    let publication = Publication {
        max_attempts: 1,
        ..published_for(&["a"])?
    };
    let reserved = one(context).await?;
    let sample = context.commit_ahead(&reserved, "s", publication).await?;
    let held = context.lease(&sample).await?;
    context.nack(&held).await?;
    // Its bytes are not kept by default: the record stays when they are freed, and owns nothing.
    ensure_eq!(context.free_list().await?, std::slice::from_ref(&sample), "to be freed");
    ensure_eq!(
        known(context, &reserved).await?,
        Known::Yes,
        "a dead letter, to be freed"
    );
    context.freed(&sample).await?;
    ensure_eq!(
        known(context, &reserved).await?,
        Known::No,
        "a dead letter without its objects"
    );
    Ok(())
}
