//! Taking samples out of circulation.

use std::time::Duration;

use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, Generation, SampleId};
use tensorhold_custody::Reason;

use super::check::refused;
use super::client::{CALL, LONG, a};
use super::context::Context;
use super::records::Records;
use crate::{AckOutcome, SampleRef};

cases! {
    "retire" Nothing
    it_hides_a_sample_at_once
        "Retired samples are no longer live.";
    readers_keep_the_objects_until_they_let_go
        "Retired samples are listed by to_free when no lease on them is left.";
    readers_whose_time_is_over_do_not
        "Retired samples are listed by to_free when no lease on them is left.";
    readers_whose_session_ended_do_not
        "The next sweeps take back what an ended session held.";
    only_what_is_live
        "A retired sample cannot be retired.";
    the_reason_is_kept
        "A retired record says why it was retired.";
    a_lost_one_is_kept_for_a_while
        "A lost one is listed only some ticks later: its objects may come back until then.";
}

async fn a_lost_one_is_kept_for_a_while(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let (free, read) = (
        context.publish("free", &["a"]).await?,
        context.publish("read", &["a"]).await?,
    );
    let reader = other.read(&read, LONG).await?;
    let before = context.tick().await?;
    for (sample, free) in [(&free, true), (&read, false)] {
        let reason = Reason::Lost;
        let answer = context.retire(sample, reason).await?;
        ensure_eq!(
            answer,
            AckOutcome::Retired { reason, free },
            "whether its objects may be removed"
        );
        ensure_eq!(context.look(&sample.sample).await?, None, "a look");
    }
    other.release(&reader).await?;
    // Its objects were removed; the record stays all the same.
    context.freed(&free).await?;
    Records::read(context).await?.are_consistent()?;
    let last = before.after(context.harness().settings().lost_ticks);
    context.until_tick(last).await?;
    ensure_eq!(context.free_list().await?, [], "to be freed at {last}");
    context.ticks(2).await?;
    ensure_eq!(
        context.free_list().await?,
        [free.clone(), read.clone()],
        "to be freed after {last}"
    );
    let reasons = context.to_free().await?;
    ensure!(
        reasons.iter().all(|task| task.record.record.reason == Reason::Lost),
        "why: {reasons:?}"
    );
    context.freed(&free).await?;
    context.freed(&read).await?;
    ensure_eq!(
        Records::read(context).await?.left_over(),
        Vec::<&str>::new(),
        "what is left"
    );
    Ok(())
}

async fn it_hides_a_sample_at_once(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let answer = other.retire(&sample, Reason::Aborted).await?;
    ensure_eq!(
        answer,
        AckOutcome::Retired {
            reason: Reason::Aborted,
            free: true
        },
        "the answer"
    );
    ensure_eq!(context.look(&sample.sample).await?, None, "a look");
    refused(
        context.lease_for(&a()?, &sample, LONG).await,
        ErrorKind::NotFound,
        "a lease",
    )?;
    refused(context.read(&sample, LONG).await, ErrorKind::NotFound, "a read")?;
    let nothing = context.next(&a()?, 1, Duration::from_millis(50)).await?;
    ensure_eq!(nothing, [], "what waits");
    Ok(())
}

async fn readers_keep_the_objects_until_they_let_go(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a", "b"]).await?;
    let held = context.lease(&sample).await?;
    let reader = other.read(&sample, LONG).await?;
    let answer = context.retire(&sample, Reason::Aborted).await?;
    ensure_eq!(
        answer,
        AckOutcome::Retired {
            reason: Reason::Aborted,
            free: false
        },
        "the answer"
    );
    context.ticks(2).await?;
    ensure_eq!(context.free_list().await?, [], "to be freed, with two leases");
    refused(context.ack(&held).await, ErrorKind::Fenced, "an ack")?;
    context.release(&held).await?;
    ensure_eq!(context.free_list().await?, [], "to be freed, with one lease");
    refused(context.release(&held).await, ErrorKind::Fenced, "letting go twice")?;
    other.release(&reader).await?;
    ensure_eq!(context.free_list().await?, [sample], "to be freed");
    Ok(())
}

async fn readers_whose_time_is_over_do_not(context: &Context) -> CaseResult {
    let settings = context.harness().settings();
    let sample = context.publish("s", &["a"]).await?;
    let now = context.tick().await?;
    context.read(&sample, 3).await?;
    context.lease_for(&a()?, &sample, 1).await?;
    context.retire(&sample, Reason::Aborted).await?;
    let last = now.after(3 + settings.grace_ticks);
    let report = context.until_tick(last).await?;
    ensure_eq!(report.taken_back, 1, "leases taken back at {last}");
    ensure_eq!(context.free_list().await?, [], "to be freed at {last}");
    let report = context.ticks(1).await?;
    ensure_eq!(report.taken_back, 1, "leases taken back one tick later");
    ensure_eq!(context.free_list().await?, [sample], "to be freed one tick later");
    Ok(())
}

async fn readers_whose_session_ended_do_not(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let held = other.lease(&sample).await?;
    other.read(&sample, LONG).await?;
    context.retire(&sample, Reason::Aborted).await?;
    context.harness().kill_session(other.session()).await?;
    ensure_eq!(context.free_list().await?, [], "to be freed before a sweep");
    refused(
        other.release(&held).await,
        ErrorKind::Fenced,
        "letting go in a session that ended",
    )?;
    let report = context.sweep().await?;
    ensure_eq!((report.taken_back, report.retired), (2, 0), "one sweep");
    ensure_eq!(context.free_list().await?, [sample], "to be freed");
    Ok(())
}

async fn only_what_is_live(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let wrong = SampleRef {
        generation: Generation::new(sample.generation.get() + 1).unwrap_or(sample.generation),
        ..sample.clone()
    };
    let missing = SampleRef {
        sample: SampleId::new("missing")?,
        ..sample.clone()
    };
    let reserved = context.reserve("reserved").await?;
    let items = [wrong, missing, reserved, sample.clone(), sample.clone()];
    let results = context
        .index()
        .retire(context.session(), &items, Reason::Aborted, CALL)
        .await;
    ensure_eq!(results.len(), 5, "one result per item");
    refused(results[0].clone(), ErrorKind::Fenced, "another generation")?;
    refused(results[1].clone(), ErrorKind::NotFound, "a missing one")?;
    refused(results[2].clone(), ErrorKind::NotFound, "a reserved one")?;
    ensure!(results[3].is_ok(), "the live one: {:?}", results[3]);
    refused(results[4].clone(), ErrorKind::NotFound, "the same again")?;
    ensure_eq!(context.free_list().await?, [sample], "to be freed");
    Ok(())
}

async fn the_reason_is_kept(context: &Context) -> CaseResult {
    let reasons = [
        Reason::Aborted,
        Reason::Consumed,
        Reason::DeadLetter,
        Reason::Superseded,
        Reason::Abandoned,
    ];
    for (at, reason) in reasons.into_iter().enumerate() {
        let sample = context.publish(&format!("s-{at}"), &["a"]).await?;
        context.retire(&sample, reason).await?;
    }
    let seen: Vec<_> = context
        .to_free()
        .await?
        .iter()
        .map(|task| task.record.record.reason)
        .collect();
    ensure_eq!(seen, reasons, "the reasons");
    Ok(())
}
