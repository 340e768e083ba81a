//! Dead letters: what stays of a sample that a group could not use.

use std::sync::Arc;

use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, SystemRng};
use tensorhold_custody::{Progress, Publication, Reason};

use super::check::refused;
use super::client::{ALL, CALL, Client, LONG, a, b, only, published_for};
use super::context::Context;
use super::records::Records;
use crate::{AckOutcome, IndexConfig, Record, RecordQuery, SampleRecord, SampleRef, Stage, TxnIndex};

cases! {
    "letters" Nothing
    a_dead_letter_stays_until_it_is_dropped
        "Dead letters are samples of which a group ran out of attempts. Their records stay until they are dropped.";
    a_dead_letter_without_its_objects_is_not_put_back
        "`Conflict` if their objects are gone; `NotFound` if there is no such dead letter.";
}

pub(super) mod kept {
    use super::*;

    cases! {
        "letters" Keys
        a_dead_letter_is_put_back
            "Puts dead letters back into circulation: the groups that were out of attempts wait for them again.";
        a_sample_that_was_put_again_is_not_put_back
            "`Conflict` if another generation of the sample is live.";
        objects_are_kept_as_long_as_the_settings_say
            "Their objects are kept as long as the settings say.";
        a_sweeper_with_other_settings_keeps_them
            "Their objects are kept as long as the settings say.";
        objects_are_kept_from_the_nack_on
            "Their objects are kept as long as the settings say.";
        a_reader_keeps_the_objects_of_a_dead_letter
            "While a token is good, the objects are not removed.";
    }

    /// A process whose dead letters keep their objects for so many ticks.
    async fn keeping(context: &Context, dead_ticks: u64, dead_most: usize) -> CaseResult<Client> {
        let harness = context.harness();
        let config = IndexConfig {
            dead_ticks,
            dead_most,
            ..harness.settings()
        };
        let (txn_store, clock) = (harness.txn_store().await?, harness.clock());
        let index = TxnIndex::new(txn_store, harness.store(), config, clock, Arc::new(SystemRng));
        Client::open(Arc::new(index)).await
    }

    async fn a_dead_letter_is_put_back(context: &Context) -> CaseResult {
        let process = keeping(context, LONG, 10).await?;
        let publication = Publication {
            max_attempts: 1,
            ..published_for(&["a", "b"])?
        };
        let sample = process.publish_as("s", publication).await?;
        let held = process.lease_for(&b()?, &sample, LONG).await?;
        process.ack(&held).await?;
        let stale = process.lease(&sample).await?;
        let kept = AckOutcome::Retired {
            reason: Reason::DeadLetter,
            free: false,
        };
        ensure_eq!(process.nack(&stale).await?, kept, "its objects stay");
        ensure_eq!(process.to_free().await?, [], "nothing is to be freed");
        Records::read(context).await?.are_consistent()?;
        only(
            process
                .index()
                .requeue(process.session(), std::slice::from_ref(&sample), CALL)
                .await,
        )?;
        Records::read(context).await?.are_consistent()?;
        ensure_eq!(dead(&process).await?, [], "dead letters");
        let record = process.record(&sample).await?;
        let progress: Vec<_> = record.groups.iter().map(|state| state.progress).collect();
        ensure_eq!(progress, [Progress::Waiting, Progress::Acked], "only a waits again");
        refused(process.nack(&stale).await, ErrorKind::Fenced, "the token of before")?;
        let again = process.next(&a()?, 1, CALL).await?;
        ensure_eq!(again.len(), 1, "taken again");
        let used = AckOutcome::Retired {
            reason: Reason::Consumed,
            free: true,
        };
        ensure_eq!(process.ack(&again[0]).await?, used, "and used");
        process.freed(&sample).await?;
        ensure_eq!(Records::read(context).await?.left_over(), [""; 0], "what is left");
        Ok(())
    }

    async fn a_sample_that_was_put_again_is_not_put_back(context: &Context) -> CaseResult {
        let process = keeping(context, LONG, 10).await?;
        let sample = kill(&process, "s").await?;
        let again = process.publish("s", &["a"]).await?;
        let results = process
            .index()
            .requeue(process.session(), std::slice::from_ref(&sample), CALL)
            .await;
        refused(only(results), ErrorKind::Conflict, "another generation is live")?;
        ensure_eq!(process.record(&again).await?.generation, again.generation, "it stays");
        let to_remove = only(
            process
                .index()
                .drop_dead(process.session(), std::slice::from_ref(&sample), CALL)
                .await,
        )?;
        ensure!(to_remove, "its objects are still to be removed");
        let tasks = process.to_free().await?;
        ensure_eq!(tasks.len(), 1, "to be freed");
        process.freed(&sample).await?;
        ensure_eq!(
            dead(&process).await?,
            [],
            "a dead letter that was dropped leaves nothing"
        );
        Records::read(context).await?.are_consistent()?;
        Ok(())
    }

    async fn objects_are_kept_as_long_as_the_settings_say(context: &Context) -> CaseResult {
        const MOST: usize = 2;
        const TICKS: u64 = 6;
        let process = keeping(context, TICKS, MOST).await?;
        for name in ["s0", "s1", "s2"] {
            kill(&process, name).await?;
            context.ticks(1).await?;
        }
        process.sweep().await?;
        let tasks = process.to_free().await?;
        let names: Vec<_> = tasks.iter().map(|task| task.sample.sample.to_string()).collect();
        ensure_eq!(names, ["s0"], "one is too many: the oldest");
        ensure_eq!(dead(&process).await?.len(), MOST, "the others keep theirs");
        context.ticks(TICKS + 2).await?;
        process.sweep().await?;
        let tasks = process.to_free().await?;
        ensure_eq!(tasks.len(), 3, "their time is over");
        for task in &tasks {
            process.freed(&task.sample).await?;
        }
        let records = dead(&process).await?;
        ensure_eq!(records.len(), 3, "the records stay");
        let gone = |found: &SampleRecord| matches!(&found.record, Record::Retired(record) if record.freed.is_some());
        ensure!(
            records.iter().all(gone),
            "and say that the objects are gone: {records:?}"
        );
        Records::read(context).await?.are_consistent()?;
        Ok(())
    }

    /// The producer's setting is in the record: the sweeper here would remove them at once.
    async fn a_sweeper_with_other_settings_keeps_them(context: &Context) -> CaseResult {
        let process = keeping(context, LONG, 10).await?;
        let publication = Publication {
            max_attempts: 1,
            ..published_for(&["a"])?
        };
        let sample = process.publish_as("s", publication).await?;
        process.lease_for(&a()?, &sample, 1).await?;
        context.outlive(1).await?;
        ensure_eq!(context.to_free().await?, [], "nothing is to be freed");
        ensure_eq!(dead(context).await?.len(), 1, "dead letters");
        Ok(())
    }

    /// A process that has not looked at the shared clock for longer than that dates them by the clock of now.
    async fn objects_are_kept_from_the_nack_on(context: &Context) -> CaseResult {
        const TICKS: u64 = 4;
        let process = keeping(context, TICKS, 10).await?;
        let publication = Publication {
            max_attempts: 1,
            ..published_for(&["a"])?
        };
        let sample = process.publish_as("s", publication).await?;
        let held = process.lease(&sample).await?;
        context.ticks(3 * TICKS).await?;
        process.nack(&held).await?;
        context.sweep().await?;
        ensure_eq!(context.to_free().await?, [], "their time has just begun");
        ensure_eq!(dead(context).await?.len(), 1, "dead letters");
        Ok(())
    }

    async fn a_reader_keeps_the_objects_of_a_dead_letter(context: &Context) -> CaseResult {
        let process = keeping(context, 1, 10).await?;
        let publication = Publication {
            max_attempts: 1,
            ..published_for(&["a"])?
        };
        let sample = process.publish_as("s", publication).await?;
        let reader = process.read(&sample, LONG).await?;
        let held = process.lease(&sample).await?;
        process.nack(&held).await?;
        context.ticks(4).await?;
        process.sweep().await?;
        ensure_eq!(process.to_free().await?, [], "a reader has it");
        ensure_eq!(dead(&process).await?, [], "not a dead letter yet");
        process.release(&reader).await?;
        Records::read(context).await?.are_consistent()?;
        process.sweep().await?;
        ensure_eq!(process.to_free().await?.len(), 1, "its time was over long ago");
        Ok(())
    }
}

/// Makes a dead letter.
async fn kill(process: &Client, name: &str) -> CaseResult<SampleRef> {
    let publication = Publication {
        max_attempts: 1,
        ..published_for(&["a"])?
    };
    let sample = process.publish_as(name, publication).await?;
    let held = process.lease(&sample).await?;
    process.nack(&held).await?;
    Ok(sample)
}

/// The dead letters.
async fn dead(process: &Client) -> CaseResult<Vec<SampleRecord>> {
    let query = RecordQuery::of(Stage::Dead);
    Ok(process.index().records(&query, None, ALL, CALL).await?.records)
}

async fn a_dead_letter_stays_until_it_is_dropped(context: &Context) -> CaseResult {
    const BUDGET: u64 = 1 << 20;
    context.index().set_budget(BUDGET, CALL).await?;
    // A session that is opened from now on pays for what it reserves.
    let payer = context.join().await?;
    let sample = kill(&payer, "s").await?;
    ensure_eq!(dead(context).await?, [], "its objects are removed first");
    context.freed(&sample).await?;
    ensure!(!context.freed(&sample).await?, "freed twice is freed once");
    let letters = dead(context).await?;
    ensure_eq!(letters.len(), 1, "dead letters");
    let SampleRecord {
        record, description, ..
    } = &letters[0];
    ensure!(description.is_some(), "its description is kept");
    let Record::Retired(record) = record else {
        return Err(tensorhold_core::testing::Failure::new(
            "a dead letter is a retired record",
        ));
    };
    let me = context.session().id();
    let used = context.index().budget_use(CALL).await?;
    ensure_eq!(used.map(|used| used.free), Some(BUDGET), "the budget is whole again");
    ensure_eq!(record.reason, Reason::DeadLetter, "why");
    let by = |stamp: Option<tensorhold_custody::Stamp>| stamp.map(|stamp| (stamp.by, stamp.at.is_unknown()));
    let other = payer.session().id();
    ensure_eq!(by(record.retired), Some((other, false)), "retired by");
    ensure_eq!(by(record.freed), Some((me, false)), "freed by");
    let letter = record
        .letter
        .as_ref()
        .map(|letter| (letter.groups[0].attempts, letter.groups[0].progress));
    ensure_eq!(letter, Some((1, Progress::Dead)), "what the group did");
    ensure_eq!((record.paid, record.claims.len()), (0, 0), "it holds nothing");
    let to_remove = only(
        context
            .index()
            .drop_dead(context.session(), std::slice::from_ref(&sample), CALL)
            .await,
    )?;
    ensure!(!to_remove, "its objects are gone already");
    ensure_eq!(dead(context).await?, [], "dropped");
    let results = context.index().drop_dead(context.session(), &[sample], CALL).await;
    refused(only(results), ErrorKind::NotFound, "a second drop")
}

async fn a_dead_letter_without_its_objects_is_not_put_back(context: &Context) -> CaseResult {
    let sample = kill(context, "s").await?;
    let results = context
        .index()
        .requeue(context.session(), std::slice::from_ref(&sample), CALL)
        .await;
    refused(only(results), ErrorKind::NotFound, "its objects are being removed")?;
    context.freed(&sample).await?;
    let results = context.index().requeue(context.session(), &[sample], CALL).await;
    refused(only(results), ErrorKind::Conflict, "its objects are gone")?;
    ensure_eq!(dead(context).await?.len(), 1, "it stays");
    Ok(())
}
