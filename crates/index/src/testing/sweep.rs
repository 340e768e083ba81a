//! Taking back what has ended.

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_custody::Progress;

use super::client::{ALL, CALL, LONG, a};
use super::context::Context;
use crate::SweepReport;

cases! {
    "sweep" Nothing
    it_looks_at_nothing_but_what_is_due
        "Sweep takes back what has expired, at a cost that depends on what is due.";
    several_at_once_do_each_thing_once
        "Any process may sweep at any time, several at once.";
    a_second_one_finds_nothing
        "Sweep takes back what has expired.";
    it_stops_at_the_limit_and_says_so
        "Sweep looks at no more than `limit` records.";
    ended_sessions_are_cleared_up
        "The next sweeps take back what an ended session held.";
    a_session_that_held_nothing_is_cleared_up
        "The next sweeps take back what an ended session held.";
    a_sweeper_takes_back_its_own
        "Any process may sweep at any time.";
    more_than_fits_into_one_transaction
        "Sweep takes back what has expired.";
}

async fn it_looks_at_nothing_but_what_is_due(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let samples = context.publish_many("s", 40, &["a"]).await?;
    for sample in &samples[..10] {
        other.lease(sample).await?;
    }
    other.lease_for(&a()?, &samples[10], 1).await?;
    context.reserve("reserved").await?;
    ensure_eq!(context.sweep().await?, SweepReport::default(), "nothing is due");
    let Progress::Leased(lease) = context.record(&samples[10]).await?.groups[0].progress else {
        return Err(Failure::new("the one with little time should be leased"));
    };
    let last = lease.until.after(context.harness().settings().grace_ticks);
    let report = context.until_tick(last).await?;
    ensure_eq!(report.looked_at, 0, "records looked at, nothing is due");
    let report = context.ticks(1).await?;
    ensure_eq!((report.looked_at, report.taken_back), (1, 1), "one lease is due");
    Ok(())
}

async fn several_at_once_do_each_thing_once(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let samples = context.publish_many("s", 60, &["a"]).await?;
    for result in other.index().lease(other.session(), &a()?, &samples, LONG, CALL).await {
        result?;
    }
    for at in 0..10 {
        other.reserve(&format!("r-{at}")).await?;
    }
    context.harness().kill_session(other.session()).await?;
    let [one, two, three] = [context.join().await?, context.join().await?, context.join().await?];
    // In one task, so that they run step by step, all reading before one of them writes.
    let reports = tokio::join!(context.sweep(), one.sweep(), two.sweep(), three.sweep());
    let reports = [reports.0?, reports.1?, reports.2?, reports.3?];
    let taken_back: usize = reports.iter().map(|report| report.taken_back).sum();
    let abandoned: usize = reports.iter().map(|report| report.abandoned).sum();
    ensure_eq!((taken_back, abandoned), (60, 10), "all sweeps together");
    for sample in &samples {
        ensure_eq!(context.attempts(sample, &a()?).await?, 1, "the attempts of {sample:?}");
    }
    ensure_eq!(context.free_list().await?.len(), 10, "to be freed");
    Ok(())
}

async fn a_second_one_finds_nothing(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    other.lease(&sample).await?;
    other.read(&sample, LONG).await?;
    other.reserve("t").await?;
    context.harness().kill_session(other.session()).await?;
    let report = context.sweep().await?;
    ensure_eq!((report.taken_back, report.abandoned), (2, 1), "the first sweep");
    let before = (context.look(&sample.sample).await?, context.to_free().await?);
    for _ in 0..3 {
        let report = context.sweep().await?;
        ensure_eq!(
            (report.looked_at, report.taken_back, report.abandoned, report.retired),
            (0, 0, 0, 0),
            "the next sweep"
        );
    }
    let after = (context.look(&sample.sample).await?, context.to_free().await?);
    ensure_eq!(after, before, "the records");
    Ok(())
}

async fn it_stops_at_the_limit_and_says_so(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let samples = context.publish_many("s", 10, &["a"]).await?;
    for sample in &samples {
        other.lease(sample).await?;
    }
    context.harness().kill_session(other.session()).await?;
    let mut taken_back = 0;
    for (limit, more) in [(4, true), (4, true), (2, false), (4, false)] {
        let report = context.index().sweep(context.session(), limit, CALL).await?;
        ensure!(
            report.looked_at <= limit,
            "{} were looked at, the limit is {limit}",
            report.looked_at
        );
        taken_back += report.taken_back;
        ensure_eq!(report.more, more, "more to do after {taken_back} of 10");
    }
    ensure_eq!(taken_back, 10, "leases taken back");
    Ok(())
}

async fn ended_sessions_are_cleared_up(context: &Context) -> CaseResult {
    let (first, second) = (context.join().await?, context.join().await?);
    let sample = context.publish("s", &["a"]).await?;
    first.lease(&sample).await?;
    second.reserve("t").await?;
    first.session().close(CALL).await?;
    context.harness().kill_session(second.session()).await?;
    let mut cleared = 0;
    for _ in 0..3 {
        cleared += context.sweep().await?.sessions_cleared;
    }
    ensure_eq!(cleared, 2, "sessions cleared up by three sweeps");
    // The living one was not among them.
    context.publish("u", &["a"]).await?;
    Ok(())
}

async fn a_session_that_held_nothing_is_cleared_up(context: &Context) -> CaseResult {
    let other = context.join().await?;
    other.session().close(CALL).await?;
    ensure_eq!(context.sweep().await?.sessions_cleared, 1, "the first sweep");
    ensure_eq!(context.sweep().await?.sessions_cleared, 0, "the second sweep");
    Ok(())
}

async fn a_sweeper_takes_back_its_own(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let held = context.lease_for(&a()?, &sample, 1).await?;
    ensure_eq!(context.outlive(1).await?.taken_back, 1, "leases taken back");
    ensure!(!context.check(&held).await?, "the token is bad");
    context.lease(&sample).await?;
    Ok(())
}

async fn more_than_fits_into_one_transaction(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let samples = context.publish_many("s", 200, &["a"]).await?;
    for result in other.index().lease(other.session(), &a()?, &samples, LONG, CALL).await {
        result?;
    }
    context.harness().kill_session(other.session()).await?;
    let report = context.index().sweep(context.session(), ALL, CALL).await?;
    ensure_eq!((report.taken_back, report.more), (200, false), "one sweep");
    Ok(())
}
