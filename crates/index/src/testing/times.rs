//! What records say of their times, and lists of records for the people who operate a store.

use std::collections::BTreeSet;
use std::time::Duration;

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_custody::{Reason, WallTime};

use super::client::{ALL, CALL, LONG, a, b};
use super::context::Context;
use crate::{Record, RecordQuery, SampleRecord, Stage};

cases! {
    "times" Nothing
    records_say_when_and_by_whom
        "Records say when they were reserved, committed, leased and retired, and by whom.";
    records_come_in_pages
        "Looks at `limit` at most, from behind a place on, and returns those that match.";
    records_are_found_by_what_is_asked
        "Only of this stage, this group, this session, before this time.";
    all_generations_of_a_sample_are_found
        "The records of all generations of a sample, the oldest first.";
    records_are_counted
        "How many records there are.";
    leases_are_listed_the_oldest_first
        "The leases that are held now, the oldest first, up to `limit`.";
}

async fn one(context: &Context, name: &str) -> CaseResult<SampleRecord> {
    let sample = tensorhold_core::SampleId::new(name)?;
    let mut found = context.index().records_of(&sample, CALL).await?;
    ensure_eq!(found.len(), 1, "records of {name}");
    found.pop().ok_or_else(|| Failure::new("no record"))
}

async fn records_say_when_and_by_whom(context: &Context) -> CaseResult {
    let began = WallTime(context.harness().clock().wall_ms());
    let is_known = |time: WallTime| time >= began && time <= WallTime(context.harness().clock().wall_ms());
    let (me, other) = (context.session().id(), context.join().await?);
    let sample = context.reserve("s").await?;
    let Record::Reserved(record) = one(context, "s").await?.record else {
        return Err(Failure::new("it is reserved"));
    };
    ensure!(is_known(record.reserved_at), "when it was reserved: {record:?}");
    let reserved_at = record.reserved_at;
    context.commit(&sample, &["a", "b"]).await?;
    let held = other.lease_for(&a()?, &sample, LONG).await?;
    let Record::Live(record) = one(context, "s").await?.record else {
        return Err(Failure::new("it is live"));
    };
    ensure_eq!(record.reserved_at, reserved_at, "it stays as it was reserved");
    ensure!(is_known(record.committed_at), "when it was committed: {record:?}");
    let committed_at = record.committed_at;
    let lease = record.leases().next().copied();
    let lease = lease.ok_or_else(|| Failure::new("no lease"))?;
    ensure!(is_known(lease.since), "when it was leased: {lease:?}");
    ensure_eq!(lease.session, other.session().id(), "by whom");
    other.renew(&held, LONG).await?;
    let Record::Live(record) = one(context, "s").await?.record else {
        return Err(Failure::new("it is live"));
    };
    let since = record.leases().next().map(|lease| lease.since);
    ensure_eq!(since, Some(lease.since), "a renewal keeps the time of the lease");
    other.ack(&held).await?;
    let Record::Live(record) = one(context, "s").await?.record else {
        return Err(Failure::new("it is live"));
    };
    let done = record.groups[0]
        .done
        .ok_or_else(|| Failure::new("no time of the ack"))?;
    ensure!(
        is_known(done.at) && done.by == other.session().id(),
        "the ack: {done:?}"
    );
    ensure_eq!(record.groups[1].done, None, "b has not used it");
    ensure_eq!(record.committed_at, committed_at, "it stays as it was committed");
    let held = context.lease_for(&b()?, &sample, LONG).await?;
    context.ack(&held).await?;
    let Record::Retired(record) = one(context, "s").await?.record else {
        return Err(Failure::new("it is retired"));
    };
    let retired = record
        .retired
        .ok_or_else(|| Failure::new("no time of the retirement"))?;
    ensure!(is_known(retired.at) && retired.by == me, "the retirement: {retired:?}");
    ensure_eq!(
        (record.reserved_at, record.committed_at, record.reason),
        (reserved_at, committed_at, Reason::Consumed),
        "the rest of its life"
    );
    Ok(())
}

async fn records_come_in_pages(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 10, &["a"]).await?;
    let being_put = context.reserve("being-put").await?;
    context.retire(&samples[3], Reason::Aborted).await?;
    let mut expected: BTreeSet<_> = samples.iter().cloned().collect();
    expected.insert(being_put);
    let (mut seen, mut place, mut pages) = (Vec::new(), None, 0);
    loop {
        let query = RecordQuery::default();
        let page = context.index().records(&query, place.as_ref(), 4, CALL).await?;
        ensure!(page.looked_at <= 4, "a page has {}", page.looked_at);
        seen.extend(page.records.into_iter().map(|record| record.sample));
        pages += 1;
        place = page.next;
        if place.is_none() {
            break;
        }
        ensure!(pages < 20, "the list has no end");
    }
    ensure_eq!(seen.len(), expected.len(), "each record once");
    ensure_eq!(seen.into_iter().collect::<BTreeSet<_>>(), expected, "the records");
    Ok(())
}

async fn records_are_found_by_what_is_asked(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let mine = context.publish("mine", &["a"]).await?;
    let theirs = other.publish("theirs", &["b"]).await?;
    context.lease_for(&b()?, &theirs, LONG).await?;
    let find = async |query: RecordQuery| -> CaseResult<Vec<_>> {
        let page = context.index().records(&query, None, ALL, CALL).await?;
        Ok(page.records.into_iter().map(|record| record.sample).collect())
    };
    let all = RecordQuery::default;
    let stage = Some(Stage::Live);
    ensure_eq!(find(RecordQuery { stage, ..all() }).await?.len(), 2, "live");
    let stage = Some(Stage::ToFree);
    ensure_eq!(find(RecordQuery { stage, ..all() }).await?, [], "to be freed");
    let group = Some(a()?);
    ensure_eq!(find(RecordQuery { group, ..all() }).await?, [mine], "for a");
    let session = Some(other.session().id());
    ensure_eq!(find(RecordQuery { session, ..all() }).await?, [theirs], "theirs");
    let session = Some(context.session().id());
    ensure_eq!(find(RecordQuery { session, ..all() }).await?.len(), 2, "made, and held");
    let before = Some(WallTime(1));
    ensure_eq!(find(RecordQuery { before, ..all() }).await?, [], "before 1970 was over");
    let before = Some(WallTime(u64::MAX));
    ensure_eq!(find(RecordQuery { before, ..all() }).await?.len(), 2, "before the end");
    Ok(())
}

async fn all_generations_of_a_sample_are_found(context: &Context) -> CaseResult {
    let first = context.publish("s", &["a"]).await?;
    let reader = context.read(&first, LONG).await?;
    let second = context.publish("s", &["a"]).await?;
    let third = context.publish("s", &["a"]).await?;
    context.retire(&third, Reason::Lost).await?;
    let fourth = context.reserve("s").await?;
    context.publish("s-and-more", &["a"]).await?;
    let found = context.index().records_of(&first.sample, CALL).await?;
    let found: Vec<_> = found.into_iter().map(|record| (record.sample, record.stage)).collect();
    let expected = [
        (first, Stage::Retired),
        (second, Stage::ToFree),
        (third, Stage::Lost),
        (fourth, Stage::Reserved),
    ];
    ensure_eq!(found, expected, "the generations");
    context.release(&reader).await?;
    Ok(())
}

async fn records_are_counted(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 7, &["a"]).await?;
    context.reserve("being-put").await?;
    context.retire(&samples[0], Reason::Aborted).await?;
    let counts = context.index().counts(CALL).await?;
    let of = [Stage::Reserved, Stage::Live, Stage::ToFree, Stage::Dead].map(|stage| counts.of(stage));
    ensure_eq!(of, [1, 6, 1, 0], "by stage");
    ensure_eq!((counts.sessions, counts.ended_sessions), (1, 0), "sessions");
    records_wait_for_groups(context).await?;
    ensure_eq!(context.index().budget_use(CALL).await?, None, "there is no budget");
    context.index().set_budget(1 << 20, CALL).await?;
    let used = context.index().budget_use(CALL).await?;
    let used = used.ok_or_else(|| Failure::new("no budget"))?;
    ensure_eq!(
        (used.bytes, used.free),
        (1 << 20, 1 << 20),
        "samples of before hold none"
    );
    // Sessions that are opened from now on need quota.
    let other = context.join().await?;
    other.reserve("paid").await?;
    let used = context.index().budget_use(CALL).await?;
    let used = used.ok_or_else(|| Failure::new("no budget"))?;
    ensure_eq!(used.free, (1 << 20) - 4096, "what is left");
    ensure_eq!(used.waiting, [], "nobody waits");
    Ok(())
}

/// Six samples wait for `a` already.
async fn records_wait_for_groups(context: &Context) -> CaseResult {
    let early = context.publish("early", &["b"]).await?;
    context.harness().pass(Duration::from_millis(5)).await;
    context.publish("late", &["b", "c"]).await?;
    // Handed back, it keeps its place.
    let held = context.lease_for(&b()?, &early, LONG).await?;
    context.nack(&held).await?;
    let committed = async |name| match one(context, name).await?.record {
        Record::Live(live) => Ok(live.committed_at),
        other => Err(Failure::new(format!("it is live: {other:?}"))),
    };
    let (early, late) = (committed("early").await?, committed("late").await?);
    ensure!(early < late, "one after the other: {early:?}, {late:?}");
    let backlog = context.index().backlog(ALL, CALL).await?;
    let told: Vec<_> = backlog.iter().map(|one| (one.group.as_str(), one.waiting)).collect();
    ensure_eq!(told, [("a", 6), ("b", 2), ("c", 1)], "what waits for whom");
    let since: Vec<_> = backlog[1..].iter().map(|one| one.oldest).collect();
    ensure_eq!(since, [Some(early), Some(late)], "since when");
    let first = context.index().backlog(1, CALL).await?;
    ensure_eq!(first, backlog[..1], "no more than was asked for");
    Ok(())
}

async fn leases_are_listed_the_oldest_first(context: &Context) -> CaseResult {
    let none = context.index().leases(ALL, CALL).await?;
    ensure!(none.leases.is_empty() && none.complete, "nothing is held: {none:?}");
    let samples = context.publish_many("s", 4, &["a"]).await?;
    context.reserve("being-put").await?;
    let other = context.join().await?;
    let first = context.lease_for(&a()?, &samples[2], LONG).await?;
    context.harness().pass(Duration::from_millis(5)).await;
    let second = other.lease_for(&a()?, &samples[0], LONG).await?;
    context.harness().pass(Duration::from_millis(5)).await;
    let reader = other.read(&samples[1], LONG).await?;
    // Its grant list still names it.
    let answered = context.lease_for(&a()?, &samples[3], LONG).await?;
    context.ack(&answered).await?;
    // Renewing makes a lease no younger.
    context.renew(&first, LONG).await?;
    // A reader keeps its lease when the sample is out of circulation.
    context.retire(&samples[1], Reason::Aborted).await?;
    let held = context.index().leases(ALL, CALL).await?;
    ensure!(held.complete, "these are all: {held:?}");
    let told: Vec<_> = held
        .leases
        .iter()
        .map(|held| (&held.sample, held.group.is_some(), held.attempts, held.lease.session))
        .collect();
    let (me, other_id) = (context.session().id(), other.session().id());
    let expected = [
        (&samples[2], true, 1, me),
        (&samples[0], true, 1, other_id),
        (&samples[1], false, 0, other_id),
    ];
    ensure_eq!(told, expected, "who holds what, the oldest first");
    let one = context.index().leases(1, CALL).await?;
    ensure_eq!(one.leases, held.leases[..1], "the oldest one");
    other.release(&reader).await?;
    other.nack(&second).await?;
    let left = context.index().leases(ALL, CALL).await?;
    ensure_eq!(left.leases.len(), 1, "what was answered is not held: {left:?}");
    Ok(())
}
