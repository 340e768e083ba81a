//! Setting samples aside.

use std::time::Duration;

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, Nonce, ObjectKey, SampleId};
use tensorhold_custody::Reason;

use super::check::refused;
use super::client::{CALL, Client, LONG, a};
use super::context::Context;
use super::records::Records;
use crate::{MOST_CLAIMS, Reserve, SampleRef};

cases! {
    "reserve" Nothing
    a_second_producer_is_refused
        "Reserve reserves a sample id for one producer at a time (`Conflict` for a second one).";
    generations_grow
        "Its generation is larger than that of every reservation before it.";
    nobody_sees_it_before_the_commit
        "Commit makes the sample visible; nothing else does.";
    a_live_sample_stays_live_meanwhile
        "A live sample of that id stays live meanwhile.";
    one_taken_item_does_not_hold_up_the_others
        "An item that is refused does not hold up the others.";
    the_same_sample_twice_in_a_batch
        "Several items of one batch may concern the same sample; they are applied one after the other.";
    a_reservation_ends_after_its_ticks_and_grace
        "Sweep takes back what has expired; a reservation lasts for its ticks and the grace period.";
    a_dead_producers_reservation_is_taken_back
        "The next sweeps take back what an ended session held.";
    any_name_will_do
        "A sample may have any name.";
    an_object_has_one_owner_until_it_is_freed
        "The objects that it claims belong to it until it is freed; no other can claim them before (`Conflict`).";
    claims_that_cannot_be_kept_are_refused
        "At most `MOST_CLAIMS`, each once.";
}

fn claiming(label: &str, keys: &[&str]) -> CaseResult<Reserve> {
    let claims = keys
        .iter()
        .map(ObjectKey::new)
        .collect::<tensorhold_core::Result<_>>()?;
    Ok(Reserve { claims, ..wish(label)? })
}

async fn an_object_has_one_owner_until_it_is_freed(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let reserve = async |client: &Client, wish: Reserve| {
        let sample = wish.sample.clone();
        let mut generations = client.index().reserve(client.session(), &[wish], CALL).await;
        let generation = generations.pop().ok_or_else(|| Failure::new("no answer"))?;
        Ok::<_, Failure>(generation.map(|generation| SampleRef { sample, generation }))
    };
    let keys = [
        ObjectKey::new("x,y".replace(',', "/"))?,
        ObjectKey::new("x:%")?,
        ObjectKey::new("z")?,
    ];
    let owners = async || -> CaseResult<_> { Ok(other.index().owners(&keys, CALL).await?) };
    ensure_eq!(owners().await?, [None, None, None], "owners of nothing");
    let first = reserve(context, claiming("s", &["x/y", "x:%"])?).await??;
    let owned = [Some(first.clone()), Some(first.clone()), None];
    ensure_eq!(owners().await?, owned, "owners when it is reserved");
    let refusal = || claiming("t", &["z", "x:%"]);
    refused(
        reserve(&other, refusal()?).await?,
        ErrorKind::Conflict,
        "while it is reserved",
    )?;
    context.commit(&first, &["a"]).await?;
    refused(
        reserve(&other, refusal()?).await?,
        ErrorKind::Conflict,
        "while it is live",
    )?;
    let again = reserve(context, claiming("s", &["x/y"])?).await?;
    refused(again, ErrorKind::Conflict, "for another generation of the same sample")?;
    Records::read(context).await?.are_consistent()?;
    context.retire(&first, Reason::Aborted).await?;
    refused(
        reserve(&other, refusal()?).await?,
        ErrorKind::Conflict,
        "while it is retired",
    )?;
    ensure_eq!(owners().await?, owned, "owners when it is retired");
    context.freed(&first).await?;
    ensure_eq!(owners().await?, [None, None, None], "owners when it is freed");
    let second = reserve(&other, refusal()?).await??;
    ensure_eq!(
        owners().await?,
        [None, Some(second.clone()), Some(second.clone())],
        "owners after that"
    );
    Records::read(context).await?.are_consistent()
}

async fn claims_that_cannot_be_kept_are_refused(context: &Context) -> CaseResult {
    let many: Vec<String> = (0..=MOST_CLAIMS).map(|n| format!("x:{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let wishes = [
        claiming("s", &many)?,
        claiming("t", &["x", "x"])?,
        claiming("u", &many[1..])?,
    ];
    let results = context.index().reserve(context.session(), &wishes, CALL).await;
    refused(results[0].clone(), ErrorKind::Invalid, "too many")?;
    refused(results[1].clone(), ErrorKind::Invalid, "one twice")?;
    ensure!(results[2].is_ok(), "as many as there may be: {results:?}");
    Ok(())
}

fn wish(label: &str) -> CaseResult<Reserve> {
    Ok(Reserve {
        sample: SampleId::new(label)?,
        nonce: Nonce::from_u64(9),
        bytes: 1,
        plan: String::new(),
        claims: Vec::new(),
    })
}

async fn a_second_producer_is_refused(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let mine = context.reserve("s").await?;
    refused(other.try_reserve("s").await, ErrorKind::Conflict, "another process")?;
    refused(context.try_reserve("s").await, ErrorKind::Conflict, "the same process")?;
    // It is still the first one's.
    context.commit(&mine, &["a"]).await?;
    // Committed, it is no longer in the way.
    other.reserve("s").await?;
    Ok(())
}

async fn generations_grow(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let mut last = None;
    for round in 0..4 {
        let one = context.reserve("s").await?;
        let another = other.reserve(&format!("t-{round}")).await?;
        for sample in [&one, &another] {
            ensure!(
                Some(sample.generation) > last,
                "{sample:?} should be larger than {last:?}"
            );
            last = Some(sample.generation);
        }
        if round % 2 == 0 {
            context.abort(&one).await?;
        } else {
            context.commit(&one, &["a"]).await?;
        }
    }
    Ok(())
}

async fn nobody_sees_it_before_the_commit(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.reserve("s").await?;
    for client in [context.first(), &other] {
        ensure_eq!(client.look(&sample.sample).await?, None, "a look");
        refused(
            client.lease_for(&a()?, &sample, LONG).await,
            ErrorKind::NotFound,
            "a lease",
        )?;
        refused(client.read(&sample, LONG).await, ErrorKind::NotFound, "a read")?;
        let taken = client.next(&a()?, 5, Duration::from_millis(50)).await?;
        ensure_eq!(taken, [], "what waits for a group");
    }
    ensure_eq!(context.free_list().await?, [], "what is to be freed");
    Ok(())
}

async fn a_live_sample_stays_live_meanwhile(context: &Context) -> CaseResult {
    let first = context.publish("s", &["a"]).await?;
    let held = context.lease(&first).await?;
    let second = context.reserve("s").await?;
    ensure!(second.generation > first.generation, "{second:?} after {first:?}");
    ensure!(context.check(&held).await?, "the lease on the live one is good");
    context.abort(&second).await?;
    ensure!(
        context.check(&held).await?,
        "giving the second one up does not touch the first"
    );
    context.ack(&held).await?;
    Ok(())
}

async fn one_taken_item_does_not_hold_up_the_others(context: &Context) -> CaseResult {
    let other = context.join().await?;
    other.reserve("middle").await?;
    let wishes = [wish("left")?, wish("middle")?, wish("right")?];
    let results = context.index().reserve(context.session(), &wishes, CALL).await;
    ensure_eq!(results.len(), 3, "one result per item");
    ensure!(results[0].is_ok() && results[2].is_ok(), "the free ones: {results:?}");
    refused(results[1].clone(), ErrorKind::Conflict, "the taken one")
}

async fn the_same_sample_twice_in_a_batch(context: &Context) -> CaseResult {
    let wishes = [wish("s")?, wish("t")?, wish("s")?];
    let results = context.index().reserve(context.session(), &wishes, CALL).await;
    ensure_eq!(results.len(), 3, "one result per item");
    ensure!(results[0].is_ok() && results[1].is_ok(), "the first two: {results:?}");
    refused(results[2].clone(), ErrorKind::Conflict, "the second of one sample")
}

async fn a_reservation_ends_after_its_ticks_and_grace(context: &Context) -> CaseResult {
    let settings = context.harness().settings();
    let other = context.join().await?;
    let before = context.tick().await?;
    let sample = other.reserve("s").await?;
    let last = before.after(settings.reserve_ticks + settings.grace_ticks);
    let report = context.until_tick(last).await?;
    ensure_eq!(report.abandoned, 0, "taken back at {last}, which is in time still");
    refused(
        context.try_reserve("s").await,
        ErrorKind::Conflict,
        "a second producer, in time",
    )?;
    let report = context.ticks(1).await?;
    ensure_eq!(report.abandoned, 1, "taken back one tick later");
    let tasks = context.to_free().await?;
    ensure_eq!(tasks.len(), 1, "to be freed");
    ensure_eq!(tasks[0].sample, sample, "what is to be freed");
    ensure_eq!(tasks[0].description, None, "nobody described it");
    ensure_eq!(tasks[0].record.record.reason, Reason::Abandoned, "why");
    refused(
        other.commit_as(&sample, super::client::published_for(&["a"])?).await,
        ErrorKind::Fenced,
        "its producer's late commit",
    )?;
    let again = context.reserve("s").await?;
    ensure!(again.generation > sample.generation, "{again:?} after {sample:?}");
    context.commit(&again, &["a"]).await
}

async fn a_dead_producers_reservation_is_taken_back(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = other.reserve("s").await?;
    context.harness().kill_session(other.session()).await?;
    let report = context.sweep().await?;
    ensure_eq!((report.abandoned, report.looked_at), (1, 1), "one sweep");
    ensure_eq!(context.free_list().await?, [sample], "to be freed");
    context.publish("s", &["a"]).await?;
    Ok(())
}

async fn any_name_will_do(context: &Context) -> CaseResult {
    let long = "x".repeat(255);
    for label in ["a/b//c", "100%", "%2F", "p", "é 水 🦀", "..", " ", "\u{ffff}", &long] {
        let sample = context.publish(label, &["a"]).await?;
        let taken = context.next(&a()?, 5, CALL).await?;
        ensure_eq!(taken.len(), 1, "what waits after {label:?}");
        ensure_eq!(taken[0].sample, sample, "the sample called {label:?}");
        context.ack(&taken[0]).await?;
        ensure_eq!(
            context.free_list().await?,
            std::slice::from_ref(&sample),
            "to be freed: {label:?}"
        );
        context.freed(&sample).await?;
        ensure_eq!(context.free_list().await?, [], "freed: {label:?}");
    }
    Ok(())
}
