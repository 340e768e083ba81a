//! The clock that all processes share.

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_core::{Clock, SystemClock};
use tensorhold_custody::{Progress, Tick};

use super::client::a;
use super::context::Context;

cases! {
    "clock" Nothing
    it_moves_by_one_per_tick_at_most
        "A process advances the shared clock only if it has watched the present tick for a whole tick's length.";
    many_sweepers_do_not_make_it_fast
        "The shared clock never runs fast.";
    it_stands_still_when_nobody_sweeps
        "If no process advances it nothing expires.";
    a_late_comer_waits_a_whole_tick
        "A process advances it only if it has, by its own clock, watched the present tick for a whole tick's length.";
    a_process_that_was_away_sets_no_deadline_in_the_past
        "A lease is for a number of ticks from now.";
    everybody_reads_the_same
        "Deadlines are ticks of a clock that all users of the index share.";
}

async fn it_moves_by_one_per_tick_at_most(context: &Context) -> CaseResult {
    let mut last = context.tick().await?;
    let (clock, tick) = (SystemClock::new(), context.harness().settings().tick);
    for _ in 0..10 {
        let begun = clock.now();
        context.sweep().await?;
        context.sweep().await?;
        let now = context.tick().await?;
        // On a real store two sweeps may take longer than a tick.
        let most = 1 + u64::try_from(clock.now().since(begun).as_nanos() / tick.as_nanos()).unwrap_or(u64::MAX);
        ensure!(
            last <= now && now <= last.after(most),
            "from {last} to {now} in less time than that"
        );
        last = now;
        // However long no process has swept: one sweep, one tick.
        context.harness().pass(context.harness().settings().tick * 2).await;
    }
    Ok(())
}

async fn many_sweepers_do_not_make_it_fast(context: &Context) -> CaseResult {
    let tick = context.harness().settings().tick;
    let clock = context.harness().clock();
    let mut sweepers = Vec::new();
    for _ in 0..4 {
        sweepers.push(context.join().await?);
    }
    for sweeper in &sweepers {
        sweeper.sweep().await?;
    }
    let (begun, first) = (clock.now(), context.tick().await?);
    for _ in 0..30 {
        context.harness().pass(tick / 5).await;
        for sweeper in &sweepers {
            sweeper.sweep().await?;
        }
    }
    context.sweep().await?;
    let moved = context.tick().await?.0 - first.0;
    let real = clock.now().since(begun).as_nanos() / tick.as_nanos();
    // The tick that it began in was old already.
    ensure!(
        u128::from(moved) <= real + 1,
        "{moved} ticks in the time of {real} and a bit"
    );
    ensure!(moved >= 2, "only {moved} ticks in the time of {real}");
    Ok(())
}

async fn it_stands_still_when_nobody_sweeps(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let held = context.lease_for(&a()?, &sample, 1).await?;
    let before = other.tick().await?;
    context.harness().pass(context.harness().settings().tick * 10).await;
    let reader = other.read(&sample, 1).await?;
    ensure_eq!(other.tick().await?, before, "the clock");
    ensure!(context.check(&held).await?, "the lease is good");
    let report = other.sweep().await?;
    ensure_eq!(report.taken_back, 0, "leases taken back by the first sweep");
    other.release(&reader).await?;
    context.ack(&held).await?;
    Ok(())
}

async fn a_late_comer_waits_a_whole_tick(context: &Context) -> CaseResult {
    context.sweep().await?;
    let before = context.tick().await?;
    context.harness().pass(context.harness().settings().tick * 3).await;
    // It sees the clock for the first time, and cannot know how long it has stood.
    let other = context.join().await?;
    other.sweep().await?;
    ensure_eq!(other.tick().await?, before, "the clock after its first sweep");
    context.harness().pass(context.harness().settings().tick * 2).await;
    other.sweep().await?;
    ensure_eq!(other.tick().await?, before.after(1), "the clock a tick later");
    Ok(())
}

async fn a_process_that_was_away_sets_no_deadline_in_the_past(context: &Context) -> CaseResult {
    let away = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let other = context.publish("t", &["a"]).await?;
    let known = away.tick().await?;
    let mine = away.lease_for(&a()?, &other, 30).await?;
    context.ticks(8).await?;
    let now = context.tick().await?;
    ensure!(now >= known.after(8), "the clock went from {known} to {now}");
    away.lease_for(&a()?, &sample, 3).await?;
    ensure_eq!(until(context, &sample).await?, now.after(3), "the end of a lease");
    // The same with the leases that it holds, which it answers without reading.
    context.ticks(3).await?;
    let now = context.tick().await?;
    away.renew(&mine, 40).await?;
    ensure_eq!(
        until(context, &other).await?,
        now.after(40),
        "the end of a renewed lease"
    );
    let reserved = away.reserve("u").await?;
    let settings = context.harness().settings();
    let report = context.ticks(settings.reserve_ticks).await?;
    ensure_eq!(report.abandoned, 0, "reservations taken back in time");
    away.commit(&reserved, &["a"]).await
}

async fn until(context: &Context, sample: &crate::SampleRef) -> CaseResult<Tick> {
    match context.record(sample).await?.groups[0].progress {
        Progress::Leased(lease) => Ok(lease.until),
        other => Err(Failure::new(format!("{sample:?} should be leased, not {other:?}"))),
    }
}

async fn everybody_reads_the_same(context: &Context) -> CaseResult {
    let other = context.join().await?;
    context.ticks(3).await?;
    let tick = context.tick().await?;
    other.sweep().await?;
    ensure_eq!(other.tick().await?, tick, "the clock, for another process");
    Ok(())
}
