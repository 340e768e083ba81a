//! Making samples visible.

use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, Generation};
use tensorhold_custody::{GroupName, Progress, Publication, Reason};

use super::check::refused;
use super::client::{CALL, LONG, a, b, description, group, only, published_for};
use super::context::Context;
use crate::{AckOutcome, Commit, SampleRef};

cases! {
    "commit" Nothing
    all_groups_see_it_at_once
        "Commit makes the sample visible to all its groups at once.";
    a_wrong_generation_is_fenced
        "Only the session and generation that reserved it may do so (`Fenced`).";
    a_wrong_session_is_fenced
        "Only the session and generation that reserved it may do so (`Fenced`).";
    nothing_comes_back_after_an_abort
        "Only the session and generation that reserved it may do so (`Fenced`).";
    twice_is_fenced
        "Only the session and generation that reserved it may do so (`Fenced`).";
    the_older_generation_is_retired
        "Commit retires the generation that was live before, and says so.";
    holders_of_the_older_generation_are_fenced
        "Commit retires the generation that was live before; its objects stay while a lease on it is left.";
    the_description_is_handed_out_as_it_is
        "The description is opaque to the index; handed to every reader unchanged.";
    without_groups_it_stays
        "With no groups, it stays until it is retired explicitly.";
    no_attempts_are_invalid
        "A sample needs at least one attempt per group.";
    a_group_named_twice_is_invalid
        "The groups of a publication are different ones.";
    more_groups_than_fit_are_invalid
        "Every error without `Ambiguous` means that the change was not made.";
    a_batch_is_done_item_by_item
        "A batch gets one result per item, in order; an item that is refused does not hold up the others.";
}

async fn all_groups_see_it_at_once(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.reserve("s").await?;
    let version = context.commit_as(&sample, published_for(&["b", "a", "c"])?).await?;
    let view = other.look(&sample.sample).await?;
    let Some(view) = view else {
        return Err(super::Failure::new("a look sees nothing"));
    };
    ensure_eq!(view.record.version, version, "the version of the commit");
    let record = &view.record.record;
    ensure_eq!(record.generation, sample.generation, "the generation");
    ensure_eq!((record.bytes, record.max_attempts), (4096, 3), "bytes and attempts");
    let groups: Vec<_> = record.groups.iter().map(|state| state.group.as_str()).collect();
    ensure_eq!(groups, ["a", "b", "c"], "the groups");
    for name in ["c", "a", "b"] {
        let taken = other.next(&group(name)?, 9, CALL).await?;
        ensure_eq!(taken.len(), 1, "what {name} gets");
        ensure_eq!(taken[0].sample, sample, "the sample that {name} gets");
    }
    Ok(())
}

async fn a_wrong_generation_is_fenced(context: &Context) -> CaseResult {
    let sample = context.reserve("s").await?;
    for number in [sample.generation.get() - 1, sample.generation.get() + 1, u64::MAX] {
        let Some(generation) = Generation::new(number) else {
            continue;
        };
        let wrong = SampleRef {
            generation,
            ..sample.clone()
        };
        let result = context.commit_as(&wrong, published_for(&["a"])?).await;
        refused(result, ErrorKind::Fenced, "another generation")?;
    }
    ensure_eq!(context.look(&sample.sample).await?, None, "a look");
    context.commit(&sample, &["a"]).await
}

async fn a_wrong_session_is_fenced(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.reserve("s").await?;
    let result = other.commit_as(&sample, published_for(&["a"])?).await;
    refused(result, ErrorKind::Fenced, "another process")?;
    ensure_eq!(context.look(&sample.sample).await?, None, "a look");
    context.commit(&sample, &["a"]).await
}

async fn nothing_comes_back_after_an_abort(context: &Context) -> CaseResult {
    let sample = context.reserve("s").await?;
    context.abort(&sample).await?;
    let result = context.commit_as(&sample, published_for(&["a"])?).await;
    refused(result, ErrorKind::Fenced, "a commit after the abort")?;
    let next = context.reserve("s").await?;
    let result = context.commit_as(&sample, published_for(&["a"])?).await;
    refused(result, ErrorKind::Fenced, "with the next reservation there")?;
    context.commit(&next, &["a"]).await
}

async fn twice_is_fenced(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let before = context.look(&sample.sample).await?;
    let result = context.commit_as(&sample, published_for(&["a", "b"])?).await;
    refused(result, ErrorKind::Fenced, "a second commit")?;
    ensure_eq!(context.look(&sample.sample).await?, before, "the record afterwards");
    Ok(())
}

async fn the_older_generation_is_retired(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let older = context.reserve("s").await?;
    let first = context.try_commit(&older, published_for(&["a", "b"])?).await?;
    ensure!(!first.replaced, "the first one replaced nothing");
    let newer = other.reserve("s").await?;
    let second = other.try_commit(&newer, published_for(&["a"])?).await?;
    ensure!(second.replaced, "the second one replaced the first");
    let tasks = context.to_free().await?;
    ensure_eq!(tasks.len(), 1, "to be freed");
    ensure_eq!(tasks[0].sample, older, "what is to be freed");
    ensure_eq!(tasks[0].record.record.reason, Reason::Superseded, "why");
    ensure_eq!(tasks[0].description, Some(description(&older)), "its description");
    let taken = context.next(&a()?, 9, CALL).await?;
    ensure_eq!(taken.len(), 1, "what waits for a");
    ensure_eq!(taken[0].sample, newer, "what waits for a");
    ensure_eq!(taken[0].description.to_vec(), description(&newer), "its description");
    let nothing = context.next(&b()?, 9, std::time::Duration::from_millis(50)).await?;
    ensure_eq!(nothing, [], "what waits for b, which only the older one was for");
    refused(
        context.lease_for(&b()?, &older, LONG).await,
        ErrorKind::Fenced,
        "a lease on the older one",
    )?;
    refused(
        context.read(&older, LONG).await,
        ErrorKind::Fenced,
        "a read of the older one",
    )
}

async fn holders_of_the_older_generation_are_fenced(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let older = context.publish("s", &["a"]).await?;
    let held = other.lease(&older).await?;
    let reader = context.read(&older, LONG).await?;
    let newer = context.publish("s", &["a"]).await?;
    ensure!(
        !other.check(&held).await? && !context.check(&reader).await?,
        "leases on it are not good any more"
    );
    let before = context.look(&older.sample).await?;
    refused(other.ack(&held).await, ErrorKind::Fenced, "an ack")?;
    refused(other.nack(&held).await, ErrorKind::Fenced, "a nack")?;
    refused(other.renew(&held, LONG).await, ErrorKind::Fenced, "a renewal")?;
    ensure_eq!(context.look(&newer.sample).await?, before, "the newer one's record");
    ensure_eq!(
        context.free_list().await?,
        [],
        "to be freed, with two leases on the older one"
    );
    other.release(&held).await?;
    ensure_eq!(context.free_list().await?, [], "to be freed, with one lease left");
    context.release(&reader).await?;
    ensure_eq!(context.free_list().await?, [older], "to be freed, with no lease left");
    context.record(&newer).await?;
    Ok(())
}

async fn the_description_is_handed_out_as_it_is(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    for (label, description) in [("all", bytes), ("none", Vec::new())] {
        let sample = context.reserve(label).await?;
        let item = Commit {
            becomes: None,
            sample: sample.clone(),
            publication: published_for(&["a", "b"])?,
            description: description.clone(),
        };
        only(context.index().commit(context.session(), &[item], CALL).await)?;
        let seen = other.look(&sample.sample).await?.map(|view| view.description);
        ensure!(seen.as_ref() == Some(&description), "a look at {label:?}");
        let leased = other.lease_for(&a()?, &sample, LONG).await?.description;
        let next = other.next(&b()?, 1, CALL).await?;
        let read = other.read(&sample, LONG).await?.description;
        ensure!(
            *leased == *description && *read == *description,
            "a lease and a read of {label:?}"
        );
        ensure!(
            next.iter().all(|held| *held.description == *description),
            "the next one, {label:?}"
        );
        context.retire(&sample, Reason::Aborted).await?;
    }
    Ok(())
}

async fn without_groups_it_stays(context: &Context) -> CaseResult {
    let sample = context.publish("s", &[]).await?;
    let reader = context.read(&sample, 2).await?;
    context.release(&reader).await?;
    context.ticks(4).await?;
    refused(
        context.lease_for(&a()?, &sample, LONG).await,
        ErrorKind::NotFound,
        "a lease for a group",
    )?;
    ensure_eq!(context.record(&sample).await?.groups, [], "its groups");
    let answer = context.retire(&sample, Reason::Aborted).await?;
    let expected = AckOutcome::Retired {
        reason: Reason::Aborted,
        free: true,
    };
    ensure_eq!(answer, expected, "retired by hand");
    Ok(())
}

async fn no_attempts_are_invalid(context: &Context) -> CaseResult {
    let sample = context.reserve("s").await?;
    let publication = Publication {
        max_attempts: 0,
        ..published_for(&["a"])?
    };
    refused(
        context.commit_as(&sample, publication).await,
        ErrorKind::Invalid,
        "no attempts",
    )?;
    ensure_eq!(context.look(&sample.sample).await?, None, "a look");
    context.commit(&sample, &["a"]).await
}

async fn a_group_named_twice_is_invalid(context: &Context) -> CaseResult {
    let sample = context.reserve("s").await?;
    let result = context.commit_as(&sample, published_for(&["a", "b", "a"])?).await;
    refused(result, ErrorKind::Invalid, "a group named twice")?;
    ensure_eq!(context.look(&sample.sample).await?, None, "a look");
    context.commit(&sample, &["a"]).await
}

async fn more_groups_than_fit_are_invalid(context: &Context) -> CaseResult {
    let sample = context.reserve("s").await?;
    let many: Vec<GroupName> = (0..500).map(|i| group(&format!("g{i}"))).collect::<CaseResult<_>>()?;
    let publication = Publication {
        groups: many,
        ..published_for(&[])?
    };
    // An index that accepts so many may do so; to apply half of them would be wrong.
    match context.commit_as(&sample, publication).await {
        Ok(_) => ensure_eq!(context.record(&sample).await?.groups.len(), 500, "its groups"),
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::Invalid, "why it was refused");
            ensure_eq!(context.look(&sample.sample).await?, None, "a look");
            context.commit(&sample, &["a"]).await?;
        }
    }
    Ok(())
}

async fn a_batch_is_done_item_by_item(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let commit = |sample: &SampleRef, attempts: u32| -> CaseResult<Commit> {
        Ok(Commit {
            becomes: None,
            sample: sample.clone(),
            publication: Publication {
                max_attempts: attempts,
                ..published_for(&["a"])?
            },
            description: Vec::new(),
        })
    };
    let one = context.reserve("one").await?;
    let theirs = other.reserve("theirs").await?;
    let two = context.reserve("two").await?;
    let bad = context.reserve("bad").await?;
    let items = [
        commit(&one, 3)?,
        commit(&theirs, 3)?,
        commit(&two, 3)?,
        commit(&bad, 0)?,
        commit(&one, 3)?,
    ];
    let results = context.index().commit(context.session(), &items, CALL).await;
    ensure_eq!(results.len(), 5, "one result per item");
    ensure!(results[0].is_ok() && results[2].is_ok(), "the good ones: {results:?}");
    refused(results[1].clone(), ErrorKind::Fenced, "somebody else's")?;
    refused(results[3].clone(), ErrorKind::Invalid, "the invalid one")?;
    refused(results[4].clone(), ErrorKind::Fenced, "the same again")?;
    for sample in [&one, &two] {
        let record = context.record(sample).await?;
        ensure_eq!(record.groups[0].progress, Progress::Waiting, "{sample:?}");
    }
    ensure_eq!(context.look(&theirs.sample).await?, None, "somebody else's");
    other.commit(&theirs, &["a"]).await
}
