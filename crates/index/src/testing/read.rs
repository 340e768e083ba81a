//! Reading without using up, and checking whether a token is good.

use std::time::Duration;

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_custody::Reason;

use super::check::refused;
use super::client::{CALL, LONG, a};
use super::context::Context;
use crate::AckOutcome;

cases! {
    "read" Nothing
    many_may_at_once
        "Read gives the sample to any number.";
    it_does_not_use_the_sample_up
        "Read gives the sample to any number, whatever its groups do.";
    two_leases_of_one_reader_are_two
        "While a token is good, the objects are not removed.";
    a_read_is_not_acknowledged
        "Ack and nack are a group's answers.";
    the_last_that_uses_a_sample_up_retires_it
        "So does the last reader that uses it up.";
    all_may_use_it_up_at_once
        "So does the last reader that uses it up.";
    what_is_for_groups_is_not_used_up_by_readers
        "Unless it was published for groups or is retained.";
    what_was_retired_meanwhile_is_not_used_up
        "With another token they are `Fenced` and change nothing.";
    check_tells_good_tokens_from_bad_ones
        "Check tells whether tokens are still good.";
    check_says_no_when_the_lease_has_ended
        "Check tells whether tokens are still good. A reader calls it after its bytes have arrived.";
    check_says_no_when_the_sample_is_retired
        "Check tells whether tokens are still good. A reader calls it after its bytes have arrived.";
}

async fn many_may_at_once(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let mut readers = Vec::new();
    for client in [context.first(), &other, context.first(), &other] {
        readers.push((client, client.read(&sample, LONG).await?));
    }
    let held = context.lease(&sample).await?;
    for (client, reader) in &readers {
        ensure!(client.check(reader).await?, "{:?} is good", reader.token);
        ensure_eq!(reader.group, None, "the group of a read");
    }
    ensure!(context.check(&held).await?, "the group's lease is good");
    ensure_eq!(context.record(&sample).await?.readers.len(), 4, "readers");
    for (client, reader) in &readers {
        client.release(reader).await?;
        refused(client.release(reader).await, ErrorKind::Fenced, "releasing twice")?;
    }
    ensure_eq!(context.record(&sample).await?.readers, [], "readers");
    Ok(())
}

async fn it_does_not_use_the_sample_up(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let reader = context.read(&sample, LONG).await?;
    ensure_eq!(context.attempts(&sample, &a()?).await?, 0, "attempts");
    context.release(&reader).await?;
    ensure_eq!(context.attempts(&sample, &a()?).await?, 0, "attempts");
    let taken = context.next(&a()?, 1, CALL).await?;
    ensure_eq!(taken.len(), 1, "what waits for the group");
    context.ack(&taken[0]).await?;
    refused(
        context.read(&sample, LONG).await,
        ErrorKind::NotFound,
        "a read after the last ack",
    )
}

async fn two_leases_of_one_reader_are_two(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    // Same sample, same session, same end: told apart by their tokens alone.
    let one = context.read(&sample, LONG).await?;
    let two = context.read(&sample, LONG).await?;
    ensure!(one.token != two.token, "both have {:?}", one.token);
    context.retire(&sample, Reason::Aborted).await?;
    context.release(&one).await?;
    ensure_eq!(context.free_list().await?, [], "to be freed while one is left");
    refused(context.release(&one).await, ErrorKind::Fenced, "the released one")?;
    ensure_eq!(context.free_list().await?, [], "to be freed while one is left");
    context.release(&two).await?;
    ensure_eq!(context.free_list().await?, [sample], "to be freed");
    Ok(())
}

async fn a_read_is_not_acknowledged(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let reader = context.read(&sample, LONG).await?;
    refused(context.ack(&reader).await, ErrorKind::Invalid, "an ack")?;
    refused(context.nack(&reader).await, ErrorKind::Invalid, "a nack")?;
    let mut for_a = reader.clone();
    for_a.group = Some(a()?);
    refused(
        context.ack(&for_a).await,
        ErrorKind::Fenced,
        "an ack in the name of a group",
    )?;
    ensure!(context.check(&reader).await?, "the lease is good");
    Ok(())
}

async fn the_last_that_uses_a_sample_up_retires_it(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &[]).await?;
    let (one, two) = (context.read(&sample, LONG).await?, other.read(&sample, LONG).await?);
    ensure_eq!(context.use_up(&one).await?, AckOutcome::Live, "while another reads");
    refused(context.use_up(&one).await, ErrorKind::Fenced, "the released one")?;
    ensure_eq!(context.free_list().await?, [], "to be freed while one is left");
    let (reason, free) = (Reason::Aborted, true);
    let retired = AckOutcome::Retired { reason, free };
    ensure_eq!(other.use_up(&two).await?, retired, "the last");
    refused(
        context.read(&sample, LONG).await,
        ErrorKind::NotFound,
        "a read afterwards",
    )?;
    refused(other.use_up(&two).await, ErrorKind::Fenced, "the last, again")?;
    ensure_eq!(context.free_list().await?, [sample], "to be freed");
    Ok(())
}

async fn all_may_use_it_up_at_once(context: &Context) -> CaseResult {
    let sample = context.publish("s", &[]).await?;
    let mut readers = Vec::new();
    for _ in 0..4 {
        readers.push(context.read(&sample, LONG).await?);
    }
    let one = |reader| async move { context.use_up(reader).await };
    let answers = futures_util::future::try_join_all(readers.iter().map(one)).await?;
    let retired = answers.iter().filter(|answer| **answer != AckOutcome::Live).count();
    ensure_eq!(retired, 1, "retirements");
    ensure_eq!(context.free_list().await?, [sample], "to be freed");
    Ok(())
}

async fn what_is_for_groups_is_not_used_up_by_readers(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let reader = context.read(&sample, LONG).await?;
    let held = context.lease(&sample).await?;
    refused(context.use_up(&held).await, ErrorKind::Invalid, "a group's lease")?;
    ensure_eq!(context.use_up(&reader).await?, AckOutcome::Live, "a group has it");
    ensure!(context.check(&held).await?, "the group's lease is good");
    ensure_eq!(context.record(&sample).await?.readers, [], "readers");
    Ok(())
}

async fn what_was_retired_meanwhile_is_not_used_up(context: &Context) -> CaseResult {
    let sample = context.publish("s", &[]).await?;
    let reader = context.read(&sample, LONG).await?;
    context.retire(&sample, Reason::Aborted).await?;
    refused(context.use_up(&reader).await, ErrorKind::Fenced, "of a retired sample")?;
    let again = context.publish("s", &[]).await?;
    refused(
        context.use_up(&reader).await,
        ErrorKind::Fenced,
        "of an earlier generation",
    )?;
    ensure_eq!(context.record(&again).await?.readers, [], "readers of the later one");
    context.release(&reader).await?;
    ensure_eq!(context.free_list().await?, [sample], "to be freed");
    Ok(())
}

async fn check_tells_good_tokens_from_bad_ones(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 4, &["a"]).await?;
    let mut held = Vec::new();
    for sample in &samples {
        held.push(context.lease(sample).await?);
    }
    context.ack(&held[1]).await?;
    context.nack(&held[3]).await?;
    let mut forged = held[2].clone();
    forged.token = held[0].token;
    let mut zero = held[2].clone();
    zero.token = tensorhold_custody::Token(0);
    held.extend([forged, zero, held[0].clone()]);
    let answers = context.index().check(context.session(), &held, CALL).await?;
    ensure_eq!(answers, [true, false, true, false, false, false, true], "the answers");
    ensure_eq!(
        context.index().check(context.session(), &[], CALL).await?,
        Vec::<bool>::new(),
        "the answers to nothing"
    );
    Ok(())
}

async fn check_says_no_when_the_lease_has_ended(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    let short = context.lease_for(&a()?, &sample, 2).await?;
    let reader = other.read(&sample, 2).await?;
    ensure!(context.check(&short).await?, "good at first");
    let report = context.outlive(2).await?;
    ensure_eq!(report.taken_back, 2, "leases taken back");
    ensure!(
        !context.check(&short).await? && !other.check(&reader).await?,
        "bad when taken back"
    );
    let long = other.lease(&sample).await?;
    other.session().close(CALL).await?;
    ensure!(!other.check(&long).await?, "bad when its session has ended");
    Ok(())
}

async fn check_says_no_when_the_sample_is_retired(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let held = context.lease(&sample).await?;
    let reader = context.read(&sample, LONG).await?;
    let answer = context.ack(&held).await?;
    ensure_eq!(
        answer,
        AckOutcome::Retired {
            reason: Reason::Consumed,
            free: false
        },
        "the last ack, with a reader there"
    );
    ensure!(!context.check(&reader).await?, "the reader's token");
    ensure!(!context.check(&held).await?, "the used token");
    let nothing = context.next(&a()?, 1, Duration::from_millis(50)).await?;
    ensure_eq!(nothing, [], "what waits");
    context.release(&reader).await?;
    ensure_eq!(context.free_list().await?, [sample], "to be freed");
    Ok(())
}
