//! Replies that are lost: what was done is reported as done, what was not is not, and nothing is done twice.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, Retry};
use tensorhold_custody::Reason;
use tokio_util::sync::CancellationToken;

use super::check::refused;
use super::client::{CALL, Client, LONG, a, only};
use super::context::Context;
use super::lossy::LossyStore;
use super::office::lead;
use super::records::Records;
use crate::record::types::any_sample;
use crate::store::memory::Fate;
use crate::store::{Transaction, Write};
use crate::{AckOutcome, Office, Terms};

cases! {
    "ambiguity" Keys
    a_reservation
        "Every error that is not `Ambiguous` means that it was not made; the outcome of a lost reply is established.";
    a_commit
        "Every error that is not `Ambiguous` means that it was not made; the outcome of a lost reply is established.";
    a_lease
        "Every error that is not `Ambiguous` means that it was not made; the outcome of a lost reply is established.";
    a_lease_told_of_after_its_deadline
        "A take returns within its time plus the time that its terms allow to settle.";
    an_ack
        "Every error that is not `Ambiguous` means that it was not made; the outcome of a lost reply is established.";
    a_nack
        "Delivery count and dead letter are exact.";
    an_untake
        "Delivery count and dead letter are exact.";
    a_free
        "Calling freed twice is the same as once.";
    a_sweep
        "Any process may sweep at any time, several at once.";
    an_election
        "The outcome of a lost reply is established: who is told that it leads does.";
    a_resignation
        "The outcome of a lost reply is established.";
    an_office_that_no_living_session_holds
        "An office is vacant when the session of its holder has ended.";
    an_opening
        "The proof that a session existed outlives it, so that a sweep clears up after it.";
    what_is_late_is_never_done_later
        "Every error that is not `Ambiguous` means that the change was not made, and never will be.";
    two_lost_replies_in_a_row
        "The outcome of a lost reply is established, even if the reply of the fence is lost too.";
    a_full_index_says_no_only_if_nothing_was_done
        "Every error that is not `Ambiguous` means that the change was not made, even by a full index.";
    a_full_index_that_cannot_be_asked_stays_unclear_and_the_session_goes_on
        "When there is room again, the same sessions continue.";
    when_the_session_ends_meanwhile_it_stays_open
        "An error with `Ambiguous` means that it is not known whether the change was made: read back.";
}

/// A process whose replies can be lost.
async fn lossy(context: &Context) -> CaseResult<(Arc<LossyStore>, Client)> {
    let txn_store = Arc::new(LossyStore::new(context.harness().txn_store().await?));
    let index = context
        .harness()
        .index_over(Arc::clone(&txn_store) as Arc<dyn crate::store::TxnStore>)?;
    let client = Client::open(index).await?;
    // Makes the process know the shared clock, so that the next transaction it sends is the one that the case is about.
    client.tick().await?;
    Ok((txn_store, client))
}

const FATES: [Fate; 3] = [Fate::Applied, Fate::NotApplied, Fate::Later];

/// The lists follow from the records, whatever was lost; and a transaction that was in flight comes too late.
async fn all_is_well(context: &Context, txn_store: &LossyStore, lost: usize) -> CaseResult {
    ensure!(
        txn_store.is_done(),
        "not everything was sent that should have been lost"
    );
    ensure_eq!(txn_store.lost(), lost, "replies lost");
    ensure_eq!(
        txn_store.land(CALL).await?,
        0,
        "late transactions that were applied after all"
    );
    Records::read(context).await?.are_consistent()
}

async fn a_reservation(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    for (at, fate) in FATES.into_iter().enumerate() {
        txn_store.plan([Some(fate)]);
        let sample = client.reserve(&format!("s-{at}")).await?;
        all_is_well(context, &txn_store, at + 1).await?;
        client.commit(&sample, &["a"]).await?;
    }
    ensure_eq!(context.free_list().await?, [], "to be freed");
    Ok(())
}

async fn a_full_index_says_no_only_if_nothing_was_done(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    txn_store.plan([Some(Fate::Full { applied: true })]);
    let sample = client.reserve("made").await?;
    client.commit(&sample, &["a"]).await?;
    for at in 0..3 {
        txn_store.plan([Some(Fate::Full { applied: false })]);
        let answer = client.try_reserve("refused").await;
        let retry = answer.as_ref().err().map(tensorhold_core::Error::retry);
        ensure_eq!(retry, Some(Retry::Safe), "{answer:?}, time {at}");
        refused(answer, ErrorKind::Capacity, "a reservation in a full index")?;
    }
    client.reserve("refused").await?;
    all_is_well(context, &txn_store, 4).await
}

async fn a_full_index_that_cannot_be_asked_stays_unclear_and_the_session_goes_on(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    // The reply is lost, and every fence meets a full index until the deadline.
    let mut fates = vec![Some(Fate::NotApplied)];
    fates.extend([Some(Fate::Full { applied: false }); 4]);
    txn_store.plan(fates);
    client.reserve("resolved").await?;
    ensure!(txn_store.is_done(), "the fence was tried until it went through");
    txn_store.plan([Some(Fate::Later), Some(Fate::Full { applied: true })]);
    client.reserve("fenced").await?;
    all_is_well(context, &txn_store, 7).await
}

async fn a_commit(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    for (at, fate) in FATES.into_iter().enumerate() {
        let older = client.publish("s", &["a"]).await?;
        let sample = client.reserve("s").await?;
        // The first attempt assumes that nothing is live.
        txn_store.plan([None, Some(fate)]);
        client.commit(&sample, &["a"]).await?;
        all_is_well(context, &txn_store, at + 1).await?;
        let record = context.record(&sample).await?;
        ensure_eq!(record.generation, sample.generation, "{fate:?}: the generation");
        ensure!(
            context.free_list().await?.contains(&older),
            "{fate:?}: the older one is not to be freed"
        );
    }
    Ok(())
}

async fn a_lease(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    for (at, fate) in FATES.into_iter().enumerate() {
        let sample = client.publish(&format!("s-{at}"), &["a"]).await?;
        txn_store.plan([Some(fate)]);
        let held = client.lease(&sample).await?;
        all_is_well(context, &txn_store, at + 1).await?;
        ensure_eq!(context.attempts(&sample, &a()?).await?, 1, "{fate:?}: attempts");
        ensure!(client.check(&held).await?, "{fate:?}: the token is good");
        client.ack(&held).await?;
    }
    Ok(())
}

async fn a_lease_told_of_after_its_deadline(context: &Context) -> CaseResult {
    const SHORT: Duration = Duration::from_millis(300);
    let (txn_store, client) = lossy(context).await?;
    let sample = client.publish("s", &["a"]).await?;
    let terms = Terms {
        cancelled: &CancellationToken::new(),
        usable: &any_sample,
        settle: CALL,
        waits: true,
    };
    for by_name in [false, true] {
        txn_store.plan([Some(Fate::ToldAfter(2 * SHORT))]);
        let (index, session) = (client.index(), client.session());
        let held = if by_name {
            let samples = std::slice::from_ref(&sample);
            only(index.take(session, Some(&a()?), samples, LONG, terms, SHORT).await)?
        } else {
            let taken = index.take_next(session, &a()?, 1, LONG, terms, SHORT).await?;
            only(taken.into_iter().map(Ok).collect())?
        };
        ensure_eq!(held.sample, sample, "what was taken");
        client.untake(&held).await?;
        ensure_eq!(context.attempts(&sample, &a()?).await?, 0, "attempts");
    }
    all_is_well(context, &txn_store, 0).await
}

async fn an_ack(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    for (at, fate) in FATES.into_iter().enumerate() {
        let sample = client.publish(&format!("s-{at}"), &["a"]).await?;
        let held = client.lease(&sample).await?;
        txn_store.plan([Some(fate)]);
        let answer = client.ack(&held).await?;
        ensure_eq!(
            answer,
            AckOutcome::Retired {
                reason: Reason::Consumed,
                free: true
            },
            "{fate:?}: the answer"
        );
        all_is_well(context, &txn_store, at + 1).await?;
        ensure_eq!(
            context.free_list().await?,
            std::slice::from_ref(&sample),
            "{fate:?}: to be freed"
        );
        context.freed(&sample).await?;
    }
    Ok(())
}

async fn a_nack(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    for (at, fate) in FATES.into_iter().enumerate() {
        let sample = client.publish(&format!("s-{at}"), &["a"]).await?;
        let held = client.lease(&sample).await?;
        txn_store.plan([Some(fate)]);
        ensure_eq!(client.nack(&held).await?, AckOutcome::Live, "{fate:?}: the answer");
        all_is_well(context, &txn_store, at + 1).await?;
        ensure_eq!(context.attempts(&sample, &a()?).await?, 1, "{fate:?}: attempts");
        context.lease(&sample).await?;
        refused(client.nack(&held).await, ErrorKind::Fenced, "a second nack")?;
    }
    Ok(())
}

async fn an_untake(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    for (at, fate) in FATES.into_iter().enumerate() {
        let sample = client.publish(&format!("s-{at}"), &["a"]).await?;
        let held = client.lease(&sample).await?;
        txn_store.plan([Some(fate)]);
        client.untake(&held).await?;
        all_is_well(context, &txn_store, at + 1).await?;
        ensure_eq!(context.attempts(&sample, &a()?).await?, 0, "{fate:?}: attempts");
        context.lease(&sample).await?;
        refused(client.untake(&held).await, ErrorKind::Fenced, "a second one")?;
    }
    Ok(())
}

async fn a_free(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    for (at, fate) in FATES.into_iter().enumerate() {
        let sample = client.publish("s", &["a"]).await?;
        client.retire(&sample, Reason::Aborted).await?;
        txn_store.plan([Some(fate)]);
        client.freed(&sample).await?;
        ensure_eq!(context.free_list().await?, [], "{fate:?}: to be freed");
        all_is_well(context, &txn_store, at + 1).await?;
    }
    Ok(())
}

async fn a_sweep(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    for (at, fate) in FATES.into_iter().enumerate() {
        let other = context.join().await?;
        let sample = context.publish(&format!("s-{at}"), &["a"]).await?;
        other.lease(&sample).await?;
        context.harness().kill_session(other.session()).await?;
        // The transaction that takes the lease back.
        txn_store.only("/s/");
        txn_store.plan([Some(fate)]);
        let report = client.sweep().await?;
        ensure_eq!(report.taken_back, 1, "{fate:?}: leases taken back");
        all_is_well(context, &txn_store, 2 * at + 1).await?;
        ensure_eq!(context.attempts(&sample, &a()?).await?, 1, "{fate:?}: attempts");
        // The transaction that advances the clock.
        txn_store.only("/t");
        let before = client.tick().await?;
        context.harness().pass(context.harness().settings().tick * 2).await;
        txn_store.plan([Some(fate)]);
        client.sweep().await?;
        ensure_eq!(txn_store.lost(), 2 * at + 2, "replies lost");
        // The clock has no slot: a write in flight may still advance it, by the one tick that was waited for.
        txn_store.land(CALL).await?;
        let now = context.join().await?.tick().await?;
        ensure!(
            now == before || now == before.after(1),
            "{fate:?}: the clock went from {before} to {now}"
        );
    }
    Ok(())
}

async fn an_opening(context: &Context) -> CaseResult {
    for fate in FATES {
        let txn_store = Arc::new(LossyStore::new(context.harness().txn_store().await?));
        let index = context
            .harness()
            .index_over(Arc::clone(&txn_store) as Arc<dyn crate::store::TxnStore>)?;
        txn_store.plan([Some(fate)]);
        let client = Client::open(index).await?;
        let sample = client.publish("s", &["a"]).await?;
        txn_store.land(CALL).await?;
        client.lease(&sample).await?;
        context.harness().kill_session(client.session()).await?;
        let mut cleared = 0;
        for _ in 0..3 {
            cleared += context.sweep().await?.sessions_cleared;
        }
        ensure_eq!(cleared, 1, "{fate:?}: sessions cleared up");
    }
    Ok(())
}

async fn what_is_late_is_never_done_later(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    let sample = client.publish("s", &["a"]).await?;
    txn_store.plan([Some(Fate::Later)]);
    let held = client.lease(&sample).await?;
    client.nack(&held).await?;
    // The lease that was in flight would be granted now, were it not for its slot.
    ensure_eq!(
        txn_store.land(CALL).await?,
        0,
        "late transactions that were applied after all"
    );
    ensure_eq!(context.attempts(&sample, &a()?).await?, 1, "attempts");
    let reserved = client.reserve("t").await?;
    client.abort(&reserved).await?;
    txn_store.plan([Some(Fate::Later)]);
    let reserved = client.reserve("t").await?;
    client.commit(&reserved, &["a"]).await?;
    ensure_eq!(
        txn_store.land(CALL).await?,
        0,
        "late transactions that were applied after all"
    );
    client.reserve("t").await?;
    Records::read(context).await?.are_consistent()
}

async fn two_lost_replies_in_a_row(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    let mut lost = 0;
    for (at, first) in FATES.into_iter().enumerate() {
        for (and, second) in FATES.into_iter().enumerate() {
            let sample = client.publish(&format!("s-{at}-{and}"), &["a"]).await?;
            txn_store.plan([Some(first), Some(second)]);
            let held = client.lease(&sample).await?;
            lost += 2;
            all_is_well(context, &txn_store, lost).await?;
            ensure_eq!(
                context.attempts(&sample, &a()?).await?,
                1,
                "{first:?}, then {second:?}: attempts"
            );
            client.ack(&held).await?;
            context.freed(&sample).await?;
        }
    }
    Ok(())
}

async fn when_the_session_ends_meanwhile_it_stays_open(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    let sample = client.publish("s", &["a"]).await?;
    let held = client.lease(&sample).await?;
    txn_store.plan([Some(Fate::Applied)]);
    let index = Arc::new(super::lossy::EndsAfterLoss::new(txn_store.clone()));
    let over = context
        .harness()
        .index_over(index.clone() as Arc<dyn crate::store::TxnStore>)?;
    // The reply is lost, and the session has ended before the process can ask for the outcome.
    let answer = async {
        over.ack(client.session(), std::slice::from_ref(&held), CALL)
            .await
            .into_iter()
            .next()
    };
    let end = async {
        index.lost().await;
        let ended = context.harness().kill_session(client.session()).await;
        index.go_on();
        ended
    };
    let (answer, ended) = tokio::join!(answer, end);
    ended?;
    let Some(Err(error)) = answer else {
        return Err(super::Failure::new(format!("nobody can know: {answer:?}")));
    };
    ensure_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Fenced, Retry::Ambiguous),
        "{error:?}"
    );
    ensure_eq!(context.free_list().await?, [sample], "reading back tells: to be freed");
    Ok(())
}

async fn an_election(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    for (at, fate) in FATES.into_iter().enumerate() {
        txn_store.plan([Some(fate)]);
        ensure!(lead(&client, Office::Steward).await?, "it leads, after {fate:?}");
        let leaders = context.index().leaders(CALL).await?;
        ensure!(
            leaders.is_held_by(Office::Steward, client.session().id()),
            "{leaders:?} after {fate:?}"
        );
        client.index().resign(client.session(), Office::Steward, CALL).await?;
        all_is_well(context, &txn_store, 2 * at + 1).await?;
        // Another process was faster, and the reply that says so is lost.
        ensure!(lead(context, Office::Steward).await?, "the other leads");
        txn_store.plan([Some(fate)]);
        ensure!(
            !lead(&client, Office::Steward).await?,
            "it does not lead, after {fate:?}"
        );
        context.index().resign(context.session(), Office::Steward, CALL).await?;
        all_is_well(context, &txn_store, 2 * at + 2).await?;
        let leaders = context.index().leaders(CALL).await?;
        ensure_eq!(leaders.of(Office::Steward), None, "who leads, after {fate:?}");
    }
    Ok(())
}

async fn a_resignation(context: &Context) -> CaseResult {
    let (txn_store, client) = lossy(context).await?;
    for (at, fate) in FATES.into_iter().enumerate() {
        ensure!(lead(&client, Office::Sweeper).await?, "it leads");
        txn_store.plan([Some(fate)]);
        client.index().resign(client.session(), Office::Sweeper, CALL).await?;
        all_is_well(context, &txn_store, at + 1).await?;
        ensure!(
            lead(context, Office::Sweeper).await?,
            "the next one leads, after {fate:?}"
        );
        context.index().resign(context.session(), Office::Sweeper, CALL).await?;
    }
    Ok(())
}

async fn an_office_that_no_living_session_holds(context: &Context) -> CaseResult {
    let txn_store = context.harness().txn_store().await?;
    let key = format!(
        "{}/e/steward",
        tensorhold_core::key::escape(context.harness().store().as_str())
    );
    for value in [&b"nonsense"[..], b"", br#"{"session":12345}"#] {
        let put = Transaction {
            writes: vec![Write::put(key.clone(), value)],
            ..Transaction::default()
        };
        txn_store.transact(&put, CALL).await?;
        ensure!(lead(context, Office::Steward).await?, "it leads instead of {value:?}");
        let leaders = context.index().leaders(CALL).await?;
        ensure!(
            leaders.is_held_by(Office::Steward, context.session().id()),
            "{leaders:?} instead of {value:?}"
        );
    }
    let other = context.join().await?;
    ensure!(!lead(&other, Office::Steward).await?, "a living one is left in office");
    Ok(())
}
