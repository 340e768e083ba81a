//! Sessions, and what is refused when they have ended.

use std::collections::BTreeSet;
use std::time::Duration;

use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, Nonce, Result, SampleId};
use tensorhold_custody::Reason;

use super::check::refused;
use super::client::{ALL, CALL, Client, LONG, a, only, published_for};
use super::context::Context;
use crate::{Commit, LeaseGrant, Reserve, SampleRef};

cases! {
    "session" Nothing
    ids_differ
        "A session's id is never given out again.";
    a_closed_one_is_fenced
        "Every call in the name of an ended session is refused as `Fenced`.";
    one_that_ended_behind_its_holders_back_is_fenced
        "Every call in the name of an ended session is refused, even by an index that does not know yet that it ended.";
    one_that_was_cleared_up_stays_fenced
        "Refused as `Fenced`, at once and for ever.";
    a_live_one_is_not_disturbed
        "What an ended session held is taken back, and nothing else.";
    closing_twice_is_closing_once
        "Close ends it now.";
    a_committed_sample_outlives_its_producer
        "An acknowledged commit is never lost.";
}

/// What a process holds when its session ends.
struct Hands {
    reserved: SampleRef,
    live: SampleRef,
    held: LeaseGrant,
    reader: LeaseGrant,
    to_free: SampleRef,
}

async fn fill(client: &Client) -> CaseResult<Hands> {
    let live = client.publish("live", &["a", "b"]).await?;
    let to_free = client.publish("to-free", &["a"]).await?;
    client.retire(&to_free, Reason::Aborted).await?;
    Ok(Hands {
        reserved: client.reserve("reserved").await?,
        held: client.lease(&live).await?,
        reader: client.read(&live, LONG).await?,
        live,
        to_free,
    })
}

/// Every intent, in the name of a session that has ended.
async fn everything_is_fenced(client: &Client, hands: &Hands) -> CaseResult {
    let (index, session) = (client.index(), client.session());
    let one = std::slice::from_ref::<SampleRef>;
    let reserve = Reserve {
        sample: SampleId::new("new")?,
        nonce: Nonce::from_u64(1),
        bytes: 1,
        plan: String::new(),
        claims: Vec::new(),
    };
    let commit = Commit {
        becomes: None,
        sample: hands.reserved.clone(),
        publication: published_for(&["a"])?,
        description: Vec::new(),
    };
    let missing = SampleRef {
        sample: SampleId::new("missing")?,
        ..hands.live.clone()
    };
    fn nothing<T>(results: Vec<Result<T>>) -> Result<()> {
        only(results).map(|_| ())
    }
    let held = std::slice::from_ref(&hands.held);
    let reader = std::slice::from_ref(&hands.reader);
    let refusals = [
        ("reserve", nothing(index.reserve(session, &[reserve], CALL).await)),
        ("commit", nothing(index.commit(session, &[commit], CALL).await)),
        ("abort", nothing(index.abort(session, one(&hands.reserved), CALL).await)),
        (
            "lease",
            nothing(index.lease(session, &a()?, one(&hands.live), LONG, CALL).await),
        ),
        (
            "a lease on what is not there",
            nothing(index.lease(session, &a()?, one(&missing), LONG, CALL).await),
        ),
        (
            "lease_next",
            index
                .lease_next(session, &a()?, 1, LONG, Duration::from_millis(100))
                .await
                .map(|_| ()),
        ),
        (
            "read",
            nothing(index.lease_shared(session, one(&hands.live), LONG, CALL).await),
        ),
        ("renew", nothing(index.renew(session, held, LONG * 2, CALL).await)),
        ("ack", nothing(index.ack(session, held, CALL).await)),
        ("nack", nothing(index.nack(session, held, CALL).await)),
        ("release", nothing(index.release(session, reader, CALL).await)),
        ("use_up", nothing(index.use_up(session, reader, CALL).await)),
        (
            "retire",
            nothing(index.retire(session, one(&hands.live), Reason::Aborted, CALL).await),
        ),
        ("reopen", nothing(index.reopen(session, one(&hands.live), CALL).await)),
        ("sweep", index.sweep(session, ALL, CALL).await.map(|_| ())),
        ("freed", nothing(index.freed(session, one(&hands.to_free), CALL).await)),
        (
            "free_failed",
            nothing(index.free_failed(session, one(&hands.to_free), CALL).await),
        ),
    ];
    for (what, result) in refusals {
        refused(result, ErrorKind::Fenced, what)?;
    }
    let good = index
        .check(session, &[hands.held.clone(), hands.reader.clone()], CALL)
        .await?;
    ensure_eq!(good, [false, false], "check");
    Ok(())
}

async fn ids_differ(context: &Context) -> CaseResult {
    let mut ids = BTreeSet::new();
    for _ in 0..4 {
        let client = context.join().await?;
        ensure!(
            ids.insert(client.session().id()),
            "{:?} was given out twice",
            client.session()
        );
        client.session().close(CALL).await?;
        context.sweep().await?;
    }
    ensure!(
        !ids.contains(&context.session().id()),
        "the first one's is among {ids:?}"
    );
    Ok(())
}

async fn a_closed_one_is_fenced(context: &Context) -> CaseResult {
    let client = context.join().await?;
    let hands = fill(&client).await?;
    client.session().close(CALL).await?;
    ensure!(!client.session().is_alive(), "it should know");
    let before = (context.look(&hands.live.sample).await?, context.to_free().await?);
    everything_is_fenced(&client, &hands).await?;
    let after = (context.look(&hands.live.sample).await?, context.to_free().await?);
    ensure_eq!(after, before, "the records");
    Ok(())
}

async fn one_that_ended_behind_its_holders_back_is_fenced(context: &Context) -> CaseResult {
    let client = context.join().await?;
    let hands = fill(&client).await?;
    context.harness().kill_session(client.session()).await?;
    let before = (context.look(&hands.live.sample).await?, context.to_free().await?);
    everything_is_fenced(&client, &hands).await?;
    let after = (context.look(&hands.live.sample).await?, context.to_free().await?);
    ensure_eq!(after, before, "the records");
    // It learns of it soon.
    tokio::time::timeout(CALL, client.session().ended())
        .await
        .map_err(|_| super::Failure::new("its holder was not told"))?;
    Ok(())
}

async fn one_that_was_cleared_up_stays_fenced(context: &Context) -> CaseResult {
    let client = context.join().await?;
    let hands = fill(&client).await?;
    context.harness().kill_session(client.session()).await?;
    let mut cleared = 0;
    for _ in 0..3 {
        cleared += context.sweep().await?.sessions_cleared;
    }
    ensure_eq!(cleared, 1, "sessions cleared up");
    everything_is_fenced(&client, &hands).await
}

async fn a_live_one_is_not_disturbed(context: &Context) -> CaseResult {
    let (living, dying) = (context.join().await?, context.join().await?);
    let sample = living.publish("s", &["a", "b"]).await?;
    let held = living.lease(&sample).await?;
    let reserved = living.reserve("t").await?;
    dying.read(&sample, LONG).await?;
    context.harness().kill_session(dying.session()).await?;
    for _ in 0..3 {
        context.sweep().await?;
    }
    ensure!(living.session().is_alive(), "it lives");
    ensure!(living.check(&held).await?, "its lease is good");
    living.commit(&reserved, &["a"]).await?;
    living.ack(&held).await?;
    Ok(())
}

async fn closing_twice_is_closing_once(context: &Context) -> CaseResult {
    let client = context.join().await?;
    client.session().close(CALL).await?;
    client.session().close(CALL).await?;
    tokio::time::timeout(CALL, client.session().ended())
        .await
        .map_err(|_| super::Failure::new("it has not ended"))?;
    Ok(())
}

async fn a_committed_sample_outlives_its_producer(context: &Context) -> CaseResult {
    let producer = context.join().await?;
    let sample = producer.publish("s", &["a"]).await?;
    producer.session().close(CALL).await?;
    for _ in 0..3 {
        context.sweep().await?;
    }
    ensure_eq!(context.free_list().await?, [], "to be freed");
    let taken = context.next(&a()?, 1, CALL).await?;
    ensure_eq!(taken.len(), 1, "what waits");
    ensure_eq!(taken[0].sample, sample, "what waits");
    context.ack(&taken[0]).await?;
    Ok(())
}
