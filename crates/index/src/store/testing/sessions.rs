//! Sessions: what vanishes, when, and which holders learn of it.

use std::collections::BTreeSet;
use std::time::Duration;

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_custody::SessionId;

use super::context::{CALL, Context, SOON, is_kind, with_session};
use crate::store::{Condition, StoreSession, TxnOutcome, Write};

cases! { "sessions"
    take_their_keys_along_when_closed "A session ends when it is closed.";
    take_their_keys_along_when_they_die "It ends when its keep-alives have not arrived for the time to live.";
    live_while_they_are_kept "A session is kept alive in the background.";
    that_are_closed_are_fenced "A transaction that writes a key with an ended session fails with Fenced.";
    that_died_are_fenced "A transaction that writes a key with an ended session fails with Fenced.";
    that_never_were_are_fenced "A transaction that writes a key with an ended session fails with Fenced.";
    that_ended_do_not_matter_to_failed_conditions "Fenced is for a transaction whose conditions hold.";
    have_ids_that_are_never_given_out_again "A session's id is never given out again.";
    tell_their_end_when_closed "From its end on, its holder is fenced.";
    tell_their_end_when_ended_from_outside "A holder learns of an end from outside soon after.";
    leave_what_others_took_over "Keys that are written with a session vanish when it ends.";
    may_be_closed_twice "Ends the session now.";
    need_a_time_to_live "Opens a session that ends if its keep-alives do not arrive for its time to live.";
}

async fn told(session: &dyn StoreSession) -> CaseResult {
    let told = tokio::time::timeout(SOON, session.ended()).await;
    ensure!(told.is_ok(), "nobody told that {session:?} ended");
    ensure!(!session.is_alive(), "{session:?} ended and says that it is alive");
    Ok(())
}

async fn take_their_keys_along_when_closed(cx: &Context) -> CaseResult {
    let session = cx.session().await?;
    cx.write(vec![
        with_session("s/1", session.id()),
        with_session("s/2", session.id()),
        Write::put("s/3", "stays"),
    ])
    .await?;
    ensure!(session.is_alive(), "{session:?} should be alive");
    ensure_eq!(cx.keys("s/").await?.len(), 3, "the keys before");
    session.close(CALL).await?;
    ensure_eq!(cx.keys("s/").await?, ["s/3"], "the keys after");
    Ok(())
}

async fn take_their_keys_along_when_they_die(cx: &Context) -> CaseResult {
    let session = cx.session().await?;
    cx.put_with("s", session.id()).await?;
    cx.put("other", "stays").await?;
    drop(session); // its keeper has stopped
    cx.until_gone("s").await?;
    ensure_eq!(cx.value("other").await?.as_deref(), Some("stays"), "a key of nobody's");
    Ok(())
}

async fn live_while_they_are_kept(cx: &Context) -> CaseResult {
    let session = cx.session().await?;
    cx.put_with("s", session.id()).await?;
    for _ in 0..10 {
        cx.harness().pass(cx.time_to_live() / 4).await;
        ensure!(session.is_alive(), "{session:?} died although it is kept");
        ensure!(cx.get("s").await?.is_some(), "its key vanished although it is kept");
    }
    Ok(())
}

async fn that_are_closed_are_fenced(cx: &Context) -> CaseResult {
    let session = cx.session().await?;
    session.close(CALL).await?;
    fenced(cx, session.id()).await
}

async fn that_died_are_fenced(cx: &Context) -> CaseResult {
    let session = cx.session().await?;
    let id = session.id();
    cx.put_with("s", id).await?;
    drop(session);
    cx.until_gone("s").await?;
    fenced(cx, id).await
}

async fn that_never_were_are_fenced(cx: &Context) -> CaseResult {
    for id in [4_711_000_000, 0, u64::MAX] {
        fenced(cx, SessionId(id)).await?;
    }
    Ok(())
}

/// A transaction with this session writes nothing, not even its keys without a session.
async fn fenced(cx: &Context, session: SessionId) -> CaseResult {
    let error = cx
        .refused(Vec::new(), vec![Write::put("a", "1"), with_session("b", session)])
        .await?;
    is_kind(&error, ErrorKind::Fenced)?;
    ensure_eq!(cx.get("a").await?, None, "a key beside the fenced one");
    ensure_eq!(cx.get("b").await?, None, "the fenced key");
    Ok(())
}

async fn that_ended_do_not_matter_to_failed_conditions(cx: &Context) -> CaseResult {
    let session = cx.session().await?;
    session.close(CALL).await?;
    let condition = vec![Condition::Present("none".to_owned())];
    let outcome = cx.transact(condition, vec![with_session("a", session.id())]).await?;
    ensure_eq!(outcome, TxnOutcome::Rejected, "a condition that does not hold");
    Ok(())
}

async fn have_ids_that_are_never_given_out_again(cx: &Context) -> CaseResult {
    let mut ids = BTreeSet::new();
    let mut open = Vec::new();
    for round in 0..12 {
        let session = cx.session().await?;
        ensure!(ids.insert(session.id()), "{} was given out twice", session.id());
        if round % 2 == 0 {
            session.close(CALL).await?;
        } else {
            open.push(session);
        }
    }
    Ok(())
}

async fn tell_their_end_when_closed(cx: &Context) -> CaseResult {
    let session = cx.session().await?;
    let early = tokio::time::timeout(Duration::from_millis(20), session.ended()).await;
    ensure!(early.is_err(), "a session that lives was told to have ended");
    session.close(CALL).await?;
    told(session.as_ref()).await
}

async fn tell_their_end_when_ended_from_outside(cx: &Context) -> CaseResult {
    let session = cx.session().await?;
    cx.put_with("s", session.id()).await?;
    cx.harness().end_session(session.id()).await?;
    ensure_eq!(cx.get("s").await?, None, "its key");
    told(session.as_ref()).await
}

async fn leave_what_others_took_over(cx: &Context) -> CaseResult {
    let (first, second) = (cx.session().await?, cx.session().await?);
    for key in ["theirs", "nobodys", "mine"] {
        cx.put_with(key, first.id()).await?;
    }
    cx.put_with("theirs", second.id()).await?;
    cx.put("nobodys", "1").await?;
    first.close(CALL).await?;
    ensure!(
        cx.get("theirs").await?.is_some(),
        "a key that another session wrote since"
    );
    ensure!(
        cx.get("nobodys").await?.is_some(),
        "a key that was written without a session since"
    );
    ensure_eq!(cx.get("mine").await?, None, "a key that it wrote last");
    second.close(CALL).await?;
    ensure_eq!(cx.get("theirs").await?, None, "the other session's key after its end");
    Ok(())
}

async fn may_be_closed_twice(cx: &Context) -> CaseResult {
    let session = cx.session().await?;
    session.close(CALL).await?;
    session.close(CALL).await?;
    told(session.as_ref()).await
}

async fn need_a_time_to_live(cx: &Context) -> CaseResult {
    match cx.txn_store().open_session(Duration::ZERO, CALL).await {
        Err(error) => is_kind(&error, ErrorKind::Invalid),
        Ok(session) => Err(Failure::new(format!("{session:?} has no time to live"))),
    }
}
