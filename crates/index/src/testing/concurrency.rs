//! Many processes at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, Nonce, Rng as _, SampleId, SeededRng};
use tensorhold_custody::Publication;

use super::client::{CALL, Client, LONG, a, b, published_for};
use super::context::Context;
use super::records::Records;
use crate::{AckOutcome, Commit, Reserve, SampleRef};

cases! {
    "concurrency" Keys
    one_of_many_gets_a_sample
        "Lease gives a sample to one process of a group at a time.";
    one_of_many_gets_a_reservation
        "Reserve reserves a sample id for one producer at a time.";
    one_of_many_acks_is_the_last
        "The last group's ack retires the sample.";
    one_session_many_tasks
        "One result per item, whatever other calls use the session.";
    everything_is_delivered_once_and_nothing_is_left
        "A sample is there while a group needs it, and gone the moment no group does.";
    deaths_lose_nothing_and_leave_nothing
        "An acknowledged commit is delivered, whatever dies in between.";
}

async fn all<T: Send + 'static>(
    tasks: impl IntoIterator<Item = impl Future<Output = CaseResult<T>> + Send + 'static>,
) -> CaseResult<Vec<T>> {
    let mut running = tokio::task::JoinSet::new();
    for task in tasks {
        running.spawn(task);
    }
    let mut results = Vec::new();
    // The first failure ends it: the other tasks may wait for what the failed one should have done.
    while let Some(joined) = running.join_next().await {
        results.push(joined.map_err(|error| Failure::new(format!("a task: {error}")))??);
    }
    Ok(results)
}

async fn one_of_many_gets_a_sample(context: &Context) -> CaseResult {
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(context.join().await?);
    }
    for round in 0..5 {
        let sample = context.publish(&format!("s-{round}"), &["a"]).await?;
        let tasks = (0..16).map(|at| {
            let (client, sample) = (clients[at % 4].clone(), sample.clone());
            async move { Ok(client.lease_for(&a()?, &sample, LONG).await) }
        });
        let results = all(tasks).await?;
        let (got, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        ensure_eq!(got.len(), 1, "round {round}: leases");
        for result in refused {
            ensure!(
                result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Conflict),
                "round {round}: {result:?}"
            );
        }
        ensure_eq!(context.attempts(&sample, &a()?).await?, 1, "round {round}: attempts");
    }
    Records::read(context).await?.are_consistent()
}

async fn one_of_many_gets_a_reservation(context: &Context) -> CaseResult {
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(context.join().await?);
    }
    for round in 0..5 {
        let tasks = (0..16).map(|at| {
            let client = clients[at % 4].clone();
            async move { Ok(client.try_reserve(&format!("s-{round}")).await) }
        });
        let got = all(tasks).await?.into_iter().filter(Result::is_ok).count();
        ensure_eq!(got, 1, "round {round}: reservations");
    }
    Records::read(context).await?.are_consistent()
}

async fn one_of_many_acks_is_the_last(context: &Context) -> CaseResult {
    let names = ["a", "b", "c", "d", "e", "f"];
    for round in 0..5 {
        let sample = context.publish(&format!("s-{round}"), &names).await?;
        let mut tasks = Vec::new();
        for name in names {
            let client = context.join().await?;
            let held = client.lease_for(&super::client::group(name)?, &sample, LONG).await?;
            tasks.push(async move { Ok(client.ack(&held).await?) });
        }
        let answers = all(tasks).await?;
        let last = answers
            .iter()
            .filter(|answer| matches!(answer, AckOutcome::Retired { free: true, .. }))
            .count();
        ensure_eq!(last, 1, "round {round}: last acks of {answers:?}");
        context.freed(&sample).await?;
    }
    ensure_eq!(
        Records::read(context).await?.left_over(),
        Vec::<&str>::new(),
        "keys left over"
    );
    Ok(())
}

async fn one_session_many_tasks(context: &Context) -> CaseResult {
    let client = context.first().clone();
    let tasks = (0..16).map(|task| {
        let client = client.clone();
        async move {
            for round in 0..4 {
                let sample = client.publish(&format!("s-{task}-{round}"), &["a"]).await?;
                let held = client.lease(&sample).await?;
                client.renew(&held, LONG * 2).await?;
                client.ack(&held).await?;
                client.freed(&sample).await?;
            }
            Ok(())
        }
    });
    all(tasks).await?;
    ensure_eq!(
        Records::read(context).await?.left_over(),
        Vec::<&str>::new(),
        "keys left over"
    );
    Ok(())
}

/// How often each sample was used by each group.
type Used = Arc<Mutex<BTreeMap<(SampleRef, &'static str), usize>>>;

const SAMPLES: usize = 120;

async fn produce(client: Client, producer: usize, count: usize) -> CaseResult {
    for first in (0..count).step_by(5) {
        let wishes: Vec<Reserve> = (first..count.min(first + 5))
            .map(|at| {
                Ok(Reserve {
                    sample: SampleId::new(format!("s-{producer}-{at}"))?,
                    nonce: Nonce::from_u64(3),
                    bytes: 1,
                    plan: String::new(),
                    claims: Vec::new(),
                })
            })
            .collect::<CaseResult<_>>()?;
        let mut commits = Vec::new();
        let generations = client.index().reserve(client.session(), &wishes, CALL).await;
        for (wish, generation) in wishes.into_iter().zip(generations) {
            commits.push(Commit {
                becomes: None,
                sample: SampleRef {
                    sample: wish.sample,
                    generation: generation?,
                },
                publication: published_for(&["a", "b"])?,
                description: vec![1, 2, 3],
            });
        }
        for result in client.index().commit(client.session(), &commits, CALL).await {
            result?;
        }
    }
    Ok(())
}

/// How long a consumer waits for samples. Long enough that a lease is hardly ever in flight when the wait ends: its
/// outcome would be ambiguous.
const WAIT: Duration = Duration::from_secs(2);

/// Uses samples until `total` were used by the group; now and then hands one back.
async fn consume(client: Client, name: &'static str, total: usize, used: Used, seed: u64) -> CaseResult {
    let group = super::client::group(name)?;
    let rng = SeededRng::new(seed);
    let done = || used.lock().keys().filter(|(_, by)| *by == name).count() >= total;
    while !done() {
        for held in client.next(&group, 6, WAIT).await? {
            if rng.chance(100) && client.attempts(&held.sample, &group).await? < 3 {
                client.nack(&held).await?;
                continue;
            }
            let answer = client.ack(&held).await?;
            *used.lock().entry((held.sample.clone(), name)).or_default() += 1;
            if let AckOutcome::Retired { free: true, .. } = answer {
                client.freed(&held.sample).await?;
            }
        }
    }
    Ok(())
}

async fn everything_is_delivered_once_and_nothing_is_left(context: &Context) -> CaseResult {
    let used = Used::default();
    let mut tasks: Vec<super::Running<'static>> = Vec::new();
    for at in 0..4 {
        let client = context.join().await?;
        tasks.push(Box::pin(produce(client, at, SAMPLES / 4)));
    }
    for at in 0..12_u64 {
        let client = context.join().await?;
        let name = if at % 2 == 0 { "a" } else { "b" };
        tasks.push(Box::pin(consume(client, name, SAMPLES, Arc::clone(&used), at)));
    }
    all(tasks).await?;
    let used = used.lock().clone();
    ensure_eq!(used.len(), 2 * SAMPLES, "samples used, by both groups");
    ensure!(used.values().all(|count| *count == 1), "used more than once: {used:?}");
    let records = Records::read(context).await?;
    ensure_eq!(records.left_over(), Vec::<&str>::new(), "keys left over");
    Ok(())
}

async fn deaths_lose_nothing_and_leave_nothing(context: &Context) -> CaseResult {
    let used = Used::default();
    let publication = Publication {
        max_attempts: 20,
        ..published_for(&["a", "b"])?
    };
    let mut samples = Vec::new();
    for at in 0..60 {
        samples.push(context.publish_as(&format!("s-{at}"), publication.clone()).await?);
    }
    let rng = SeededRng::new(5);
    // Processes that lease some samples each, use a few of them, and die.
    for round in 0..6_u64 {
        let client = context.join().await?;
        let (group, name) = if round % 2 == 0 { (a()?, "a") } else { (b()?, "b") };
        let taken = client.next(&group, 10, CALL).await?;
        for held in &taken {
            if rng.chance(400) {
                let answer = client.ack(held).await?;
                *used.lock().entry((held.sample.clone(), name)).or_default() += 1;
                if let AckOutcome::Retired { free: true, .. } = answer {
                    client.freed(&held.sample).await?;
                }
            }
        }
        client.reserve(&format!("never-{round}")).await?;
        context.harness().kill_session(client.session()).await?;
        if round % 2 == 1 {
            context.sweep().await?;
        }
    }
    context.sweep().await?;
    let mut tasks: Vec<super::Running<'static>> = Vec::new();
    for at in 0..4_u64 {
        let name = if at % 2 == 0 { "a" } else { "b" };
        let client = context.join().await?;
        tasks.push(Box::pin(consume(
            client,
            name,
            samples.len(),
            Arc::clone(&used),
            u64::MAX,
        )));
    }
    all(tasks).await?;
    let used = used.lock().clone();
    ensure_eq!(used.len(), 2 * samples.len(), "samples used, by both groups");
    ensure!(used.values().all(|count| *count == 1), "used more than once: {used:?}");
    let abandoned = context.free_list().await?;
    ensure_eq!(abandoned.len(), 6, "reservations of the dead, to be freed");
    for sample in &abandoned {
        context.freed(sample).await?;
    }
    for _ in 0..3 {
        context.sweep().await?;
    }
    let records = Records::read(context).await?;
    ensure_eq!(records.left_over(), Vec::<&str>::new(), "keys left over");
    // The first process and the four consumers: dropped, but perhaps not dead yet.
    ensure!(
        records.sessions() <= 5,
        "{} sessions are not cleared up",
        records.sessions()
    );
    Ok(())
}
