//! Asking for more time.

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_custody::Reason;

use super::check::refused;
use super::client::{CALL, LONG, a};
use super::context::Context;

cases! {
    "renew" Nothing
    it_prolongs_a_lease
        "Renew extends leases to this many ticks from now.";
    it_never_shortens_one
        "Renew extends leases.";
    the_token_stays
        "Ack, nack, renew, release need the token.";
    a_stale_token_is_fenced
        "With another token they are `Fenced` and change nothing.";
    another_leases_token_is_fenced
        "With another token they are `Fenced` and change nothing.";
    a_batch_is_done_item_by_item
        "A batch gets one result per item, in order.";
}

async fn it_prolongs_a_lease(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let mut held = context.lease_for(&a()?, &sample, 3).await?;
    let reader = context.read(&sample, 3).await?;
    for _ in 0..3 {
        let report = context.ticks(3).await?;
        ensure_eq!(report.taken_back, 0, "leases taken back");
        held = context.renew(&held, 3).await?;
        context.renew(&reader, 3).await?;
    }
    ensure!(
        context.check(&held).await? && context.check(&reader).await?,
        "both are good after nine ticks"
    );
    let report = context.outlive(3).await?;
    ensure_eq!(report.taken_back, 2, "leases taken back without a renewal");
    Ok(())
}

async fn it_never_shortens_one(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let held = context.lease_for(&a()?, &sample, 10).await?;
    let before = context.record(&sample).await?;
    context.renew(&held, 1).await?;
    ensure_eq!(context.record(&sample).await?, before, "the record");
    ensure_eq!(context.outlive(1).await?.taken_back, 0, "leases taken back");
    ensure!(context.check(&held).await?, "it is good");
    Ok(())
}

async fn the_token_stays(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let held = context.lease_for(&a()?, &sample, 3).await?;
    let longer = context.renew(&held, 20).await?;
    ensure_eq!(longer.token, held.token, "the token");
    ensure_eq!(
        (longer.sample, longer.group, longer.description),
        (held.sample.clone(), held.group.clone(), held.description.clone()),
        "the rest"
    );
    // What the holder had before it renewed is as good.
    context.renew(&held, 30).await?;
    context.ack(&held).await?;
    Ok(())
}

async fn a_stale_token_is_fenced(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let stale = context.lease_for(&a()?, &sample, 1).await?;
    context.outlive(1).await?;
    let before = context.look(&sample.sample).await?;
    refused(context.renew(&stale, LONG).await, ErrorKind::Fenced, "after its end")?;
    ensure_eq!(context.look(&sample.sample).await?, before, "the record");
    let held = other.lease(&sample).await?;
    let before = context.look(&sample.sample).await?;
    refused(
        context.renew(&stale, LONG).await,
        ErrorKind::Fenced,
        "when somebody else has it",
    )?;
    ensure_eq!(context.look(&sample.sample).await?, before, "the record");
    other.retire(&sample, Reason::Aborted).await?;
    refused(other.renew(&held, LONG).await, ErrorKind::Fenced, "when it is retired")
}

async fn another_leases_token_is_fenced(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let another = context.publish("t", &["a"]).await?;
    let held = context.lease(&sample).await?;
    let mut forged = context.lease(&another).await?;
    let before = context.look(&another.sample).await?;
    for token in [held.token.0, 0, u64::MAX] {
        forged.token = tensorhold_custody::Token(token);
        refused(
            context.renew(&forged, LONG * 2).await,
            ErrorKind::Fenced,
            &format!("token {token}"),
        )?;
    }
    ensure_eq!(context.look(&another.sample).await?, before, "the record");
    Ok(())
}

async fn a_batch_is_done_item_by_item(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 3, &["a"]).await?;
    let mut held = Vec::new();
    for sample in &samples {
        held.push(context.lease(sample).await?);
    }
    context.nack(&held[1]).await?;
    held.push(held[0].clone());
    let results = context.index().renew(context.session(), &held, LONG * 2, CALL).await;
    ensure_eq!(results.len(), 4, "one result per item");
    for at in [0, 2, 3] {
        ensure!(results[at].is_ok(), "item {at}: {:?}", results[at]);
    }
    refused(results[1].clone(), ErrorKind::Fenced, "the one that was handed back")
}
