//! An index that is restored to an earlier state under its processes.

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};

use super::check::refused;
use super::client::{CALL, Client};
use super::context::Context;

cases! {
    "history" Keys
    that_is_cut_fences_every_process
        "An index that was restored fences every process that had used it before.";
    goes_on_by_itself_when_it_was_declared
        "Then the processes continue by themselves, in new sessions.";
    names_nothing_that_is_gone
        "Tokens and generations that were lost are never given out again.";
}

async fn that_is_cut_fences_every_process(context: &Context) -> CaseResult {
    let client = context.join().await?;
    client.publish("kept", &["a"]).await?;
    context.harness().save().await?;
    client.publish("gone", &["a"]).await?;
    context.harness().put_back().await?;
    refused(client.try_reserve("new").await, ErrorKind::Fenced, "a reservation")?;
    refused(client.index().open_session(CALL).await, ErrorKind::Fenced, "a session")?;
    ensure!(!client.session().is_alive(), "its session should have ended");
    ensure!(
        client.index().history().refuses.is_some(),
        "nothing tells what is to be done"
    );
    Ok(())
}

async fn goes_on_by_itself_when_it_was_declared(context: &Context) -> CaseResult {
    let index = context.harness().connect().await?;
    let client = Client::open(std::sync::Arc::clone(&index)).await?;
    let kept = client.publish("kept", &["a"]).await?;
    let tick = context.harness().settings().tick;
    client.sweep().await?;
    context.harness().save().await?;
    for _ in 0..3 {
        context.harness().pass(tick * 2).await;
        client.sweep().await?;
    }
    client.publish("gone", &["a"]).await?;
    context.harness().put_back().await?;
    refused(client.try_reserve("new").await, ErrorKind::Fenced, "a reservation")?;
    context.harness().declare().await?;

    let again = Client::open(index).await?;
    let held = again.lease(&kept).await?;
    again.ack(&held).await?;
    again.publish("new", &["a"]).await?;
    let before = again.tick().await?;
    for _ in 0..2 {
        context.harness().pass(tick * 2).await;
        again.sweep().await?;
    }
    let after = again.tick().await?;
    ensure!(after > before, "the shared clock stands at {before}");
    Ok(())
}

async fn names_nothing_that_is_gone(context: &Context) -> CaseResult {
    let index = context.harness().connect().await?;
    let client = Client::open(std::sync::Arc::clone(&index)).await?;
    context.harness().save().await?;
    let gone = client.publish("s", &["a"]).await?;
    let held = client.lease(&gone).await?;
    context.harness().put_back().await?;
    refused(client.try_reserve("new").await, ErrorKind::Fenced, "a reservation")?;
    context.harness().declare().await?;
    let again = Client::open(index).await?;
    for _ in 0..10 {
        let other = again.publish("s", &["a"]).await?;
        ensure!(other.generation > gone.generation, "{other:?} after {gone:?}");
        ensure_eq!(again.check(&held).await?, false, "a lease on what is gone");
    }
    Ok(())
}
