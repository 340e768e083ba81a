//! The terms on which samples are leased and reserved: callers that leave, and samples that a process cannot use.

use std::time::Duration;

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_core::{Error, ErrorKind, Nonce, Result, SampleId};
use tokio_util::sync::CancellationToken;

use super::check::refused;
use super::client::{CALL, Client, LONG, a, only};
use super::context::Context;
use crate::{LeaseGrant, Reserve, SampleRef, Terms};

cases! {
    "terms" Nothing
    a_caller_that_leaves_ends_the_wait_for_the_next_sample
        "Calls that wait take a cancellation token. When it is cancelled, they end as at their deadline.";
    a_caller_that_left_takes_nothing
        "It is no error if none came before the caller left.";
    a_caller_that_does_not_wait_takes_what_is_ready_or_nothing
        "A call for the next samples that does not wait takes what is ready now, or nothing.";
    a_caller_that_leaves_ends_the_wait_for_quota
        "Calls that wait take a cancellation token. When it is cancelled, they end as at their deadline.";
    what_cannot_be_used_is_passed_over
        "Samples that the terms refuse are skipped.";
    what_is_passed_over_is_not_waited_for_in_a_loop
        "Samples that the terms refuse are skipped; the call waits for the first one that is not refused.";
    what_cannot_be_used_is_refused_by_name_and_stays_as_it_is
        "A sample that the terms refuse gets their error.";
}

const PATIENT: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(5);

/// Refuses samples whose name begins with `new`.
fn old(sample: &SampleRef, _: &[u8]) -> Result<()> {
    if sample.sample.as_str().starts_with("new") {
        return Err(Error::new(ErrorKind::Unsupported, "test", "it is of a later release"));
    }
    Ok(())
}

fn any(_: &SampleRef, _: &[u8]) -> Result<()> {
    Ok(())
}

async fn next(client: &Client, count: usize, terms: Terms<'_>, within: Duration) -> Result<Vec<LeaseGrant>> {
    let group = a().map_err(|_| Error::internal("test", "a bad name"))?;
    client
        .index()
        .take_next(client.session(), &group, count, LONG, terms, within)
        .await
}

async fn promptly<T>(what: &str, call: tokio::task::JoinHandle<T>) -> CaseResult<T> {
    tokio::time::timeout(SOON, call)
        .await
        .map_err(|_| Failure::new(format!("{what} still waits after {SOON:?}")))?
        .map_err(|error| Failure::new(format!("{what}: {error}")))
}

async fn a_caller_that_leaves_ends_the_wait_for_the_next_sample(context: &Context) -> CaseResult {
    let (consumer, cancelled) = (context.join().await?, CancellationToken::new());
    let waiting = tokio::spawn({
        let cancelled = cancelled.clone();
        async move {
            let terms = Terms {
                cancelled: &cancelled,
                usable: &any,
                settle: Duration::ZERO,
                waits: true,
            };
            next(&consumer, 1, terms, PATIENT).await
        }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    ensure!(!waiting.is_finished(), "there was nothing to be had yet");
    cancelled.cancel();
    ensure_eq!(promptly("the consumer", waiting).await??, [], "what it got");
    Ok(())
}

async fn a_caller_that_left_takes_nothing(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let cancelled = CancellationToken::new();
    cancelled.cancel();
    let terms = Terms {
        cancelled: &cancelled,
        usable: &any,
        settle: Duration::ZERO,
        waits: true,
    };
    ensure_eq!(next(context, 1, terms, CALL).await?, [], "what it got");
    ensure_eq!(context.attempts(&sample, &a()?).await?, 0, "attempts");
    Ok(())
}

async fn a_caller_that_does_not_wait_takes_what_is_ready_or_nothing(context: &Context) -> CaseResult {
    let consumer = context.join().await?;
    let looked = |client| async move {
        let terms = Terms {
            cancelled: &CancellationToken::new(),
            usable: &any,
            settle: Duration::ZERO,
            waits: false,
        };
        let looking = tokio::time::timeout(SOON, next(client, 1, terms, PATIENT)).await;
        let held = looking.map_err(|_| Failure::new(format!("it still waits after {SOON:?}")))??;
        Ok::<_, Failure>(held)
    };
    ensure_eq!(looked(&consumer).await?, [], "what it got of nothing");
    let sample = context.publish("s", &["a"]).await?;
    let held = looked(&consumer).await?;
    ensure_eq!(held.len(), 1, "what it got of one");
    ensure_eq!(held[0].sample, sample, "what it got");
    ensure_eq!(looked(&consumer).await?, [], "what is left");
    Ok(())
}

async fn a_caller_that_leaves_ends_the_wait_for_quota(context: &Context) -> CaseResult {
    context.index().set_budget(10, CALL).await?;
    let wish = |name: &str, bytes| {
        Ok::<_, Error>(Reserve {
            sample: SampleId::new(name)?,
            nonce: Nonce::from_u64(1),
            bytes,
            plan: String::new(),
            claims: Vec::new(),
        })
    };
    let producer = context.join().await?;
    let first = only(
        producer
            .index()
            .reserve(producer.session(), &[wish("first", 10)?], CALL)
            .await,
    )?;
    // Several callers of one process: in the queue, and in the local queue behind it.
    let cancelled = CancellationToken::new();
    let mut waiting = Vec::new();
    for number in 0..3 {
        let (producer, cancelled) = (producer.clone(), cancelled.clone());
        let wishes = [wish(&format!("late-{number}"), 10)?];
        waiting.push(tokio::spawn(async move {
            let index = producer.index();
            only(
                index
                    .reserve_unless(producer.session(), &wishes, &cancelled, PATIENT)
                    .await,
            )
        }));
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    ensure!(
        waiting.iter().all(|one| !one.is_finished()),
        "all of the budget is spent"
    );
    cancelled.cancel();
    for one in waiting {
        refused(
            promptly("a producer", one).await?,
            ErrorKind::Capacity,
            "a wait that was ended",
        )?;
    }
    // No session is left in the queue: freed bytes go to the next one that asks.
    let first = SampleRef {
        sample: SampleId::new("first")?,
        generation: first,
    };
    producer.abort(&first).await?;
    producer.freed(&first).await?;
    only(
        producer
            .index()
            .reserve(producer.session(), &[wish("next", 10)?], SOON)
            .await,
    )?;
    Ok(())
}

async fn what_cannot_be_used_is_passed_over(context: &Context) -> CaseResult {
    // More than any one read shows, for one group and for two: the ready list has a copy of the record for the one, and
    // none for the other.
    let of_one = context.publish_many("new-one-", 300, &["a"]).await?;
    let of_two = context.publish_many("new-two-", 100, &["a", "b"]).await?;
    let usable = context.publish("s", &["a"]).await?;
    let terms = Terms {
        cancelled: &CancellationToken::new(),
        usable: &old,
        settle: Duration::ZERO,
        waits: true,
    };
    let taken = next(context, 1, terms, PATIENT).await?;
    let taken: Vec<SampleRef> = taken.into_iter().map(|held| held.sample).collect();
    ensure_eq!(taken, [usable], "what it got");
    ensure_eq!(
        next(context, 8, terms, Duration::from_millis(300)).await?,
        [],
        "what it got then"
    );
    for sample in of_one.iter().chain(&of_two) {
        ensure_eq!(context.attempts(sample, &a()?).await?, 0, "attempts of {sample:?}");
    }
    // Other processes take them.
    let other = context.join().await?;
    ensure_eq!(
        other.next(&a()?, 400, CALL).await?.is_empty(),
        false,
        "what another got"
    );
    Ok(())
}

async fn what_is_passed_over_is_not_waited_for_in_a_loop(context: &Context) -> CaseResult {
    context.publish("new", &["a"]).await?;
    let consumer = context.join().await?;
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let waiting = tokio::spawn({
        let asked = std::sync::Arc::clone(&asked);
        async move {
            let count = |sample: &SampleRef, description: &[u8]| {
                asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                old(sample, description)
            };
            let terms = Terms {
                cancelled: &CancellationToken::new(),
                usable: &count,
                settle: Duration::ZERO,
                waits: true,
            };
            next(&consumer, 1, terms, PATIENT).await
        }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let asked = asked.load(std::sync::atomic::Ordering::Relaxed);
    ensure!((1..=4).contains(&asked), "it was tried {asked} times");
    let usable = context.publish("s", &["a"]).await?;
    let taken = promptly("the consumer", waiting).await??;
    ensure_eq!(taken.len(), 1, "what it got");
    ensure_eq!(taken[0].sample, usable, "what it got");
    Ok(())
}

async fn what_cannot_be_used_is_refused_by_name_and_stays_as_it_is(context: &Context) -> CaseResult {
    let samples = [
        context.publish("new", &["a"]).await?,
        context.publish("s", &["a"]).await?,
    ];
    let before = context.look(&samples[0].sample).await?;
    let terms = Terms {
        cancelled: &CancellationToken::new(),
        usable: &old,
        settle: Duration::ZERO,
        waits: true,
    };
    for group in [Some(a()?), None] {
        let results = context
            .index()
            .take(context.session(), group.as_ref(), &samples, LONG, terms, CALL)
            .await;
        let [new, usable] =
            <[Result<LeaseGrant>; 2]>::try_from(results).map_err(|_| Failure::new("not two results"))?;
        refused(new, ErrorKind::Unsupported, "what cannot be used")?;
        context.untake(&usable?).await?;
        ensure_eq!(context.look(&samples[0].sample).await?, before, "its record");
    }
    Ok(())
}
