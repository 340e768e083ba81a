//! Whatever is done in whatever order: the lists follow from the records.

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_core::{ErrorKind, Rng as _, SeededRng};
use tensorhold_custody::{Progress, Publication, Reason, invariants};

use super::client::{Client, a, b, published_for};
use super::context::Context;
use super::records::Records;
use crate::{LeaseGrant, SampleRef};

cases! {
    "layout" Keys
    lists_follow_from_records_seed_1
        "An index is consistent when its lists are exactly what follows from its records.";
    lists_follow_from_records_seed_2
        "An index is consistent when its lists are exactly what follows from its records.";
    lists_follow_from_records_seed_3
        "An index is consistent when its lists are exactly what follows from its records.";
    a_store_next_door_is_not_touched
        "The custody records of one store.";
}

async fn lists_follow_from_records_seed_1(context: &Context) -> CaseResult {
    random_walk(context, 1).await
}

async fn lists_follow_from_records_seed_2(context: &Context) -> CaseResult {
    random_walk(context, 2).await
}

async fn lists_follow_from_records_seed_3(context: &Context) -> CaseResult {
    random_walk(context, 3).await
}

/// The leases and references that the walk holds, good or stale.
#[derive(Default)]
struct Bag {
    reserved: Vec<SampleRef>,
    ahead: Vec<SampleRef>,
    samples: Vec<SampleRef>,
    held: Vec<LeaseGrant>,
}

fn pick<T: Clone>(rng: &SeededRng, from: &[T]) -> Option<T> {
    let at = rng.below(u64::try_from(from.len()).ok()?);
    from.get(usize::try_from(at).ok()?).cloned()
}

async fn random_walk(context: &Context, seed: u64) -> CaseResult {
    let rng = SeededRng::new(seed);
    let mut clients = vec![context.join().await?, context.join().await?];
    let mut bag = Bag::default();
    for step in 0..300 {
        let at = usize::from(rng.chance(500));
        let what = one_step(context, &clients[at], &rng, &mut bag).await?;
        if rng.chance(15) {
            context.harness().kill_session(clients[at].session()).await?;
            clients[at] = context.join().await?;
        }
        // Each check costs a read of everything.
        if step % 10 == 9 {
            let records = Records::read(context).await?;
            records
                .are_consistent()
                .map_err(|failure| Failure::new(format!("step {step}, {what}: {failure}")))?;
        }
    }
    drain(context, &clients).await
}

/// One random step. Refusals that the contract allows are fine.
async fn one_step(context: &Context, client: &Client, rng: &SeededRng, bag: &mut Bag) -> CaseResult<&'static str> {
    let label = format!("s-{}", rng.below(6));
    let group = if rng.chance(500) { a()? } else { b()? };
    let publication = Publication {
        retain: rng.chance(100),
        max_attempts: 1 + u32::from(rng.chance(500)),
        ..published_for(if rng.chance(300) { &["a"] } else { &["a", "b"] })?
    };
    let ticks = rng.below(4);
    let (what, result) = match rng.below(15) {
        0 if rng.chance(700) => {
            let reserved = client.reserve_ahead(1 + usize::from(rng.chance(500))).await;
            ("reserve ahead", reserved.map(|names| bag.ahead.extend(names)))
        }
        2 if rng.chance(800) => match pick(rng, &bag.ahead) {
            Some(reserved) => {
                let result = client.commit_ahead(&reserved, &label, publication).await;
                ("commit ahead", result.map(|sample| bag.samples.push(sample)))
            }
            None => return Ok("nothing"),
        },
        4 if rng.chance(300) => match pick(rng, &bag.ahead) {
            Some(reserved) if rng.chance(500) => ("unreserve", client.unreserve(&reserved).await),
            Some(reserved) => ("abort ahead", client.abort(&reserved).await),
            None => return Ok("nothing"),
        },
        0 | 1 => (
            "reserve",
            client.try_reserve(&label).await.map(|sample| bag.reserved.push(sample)),
        ),
        2 | 3 => match pick(rng, &bag.reserved) {
            Some(sample) => {
                let result = client.commit_as(&sample, publication).await;
                bag.samples.push(sample);
                ("commit", result.map(drop))
            }
            None => return Ok("nothing"),
        },
        4 => match pick(rng, &bag.reserved) {
            Some(sample) => ("abort", client.abort(&sample).await),
            None => return Ok("nothing"),
        },
        5 | 6 => match pick(rng, &bag.samples) {
            Some(sample) => {
                let result = client.lease_for(&group, &sample, ticks).await;
                ("lease", result.map(|held| bag.held.push(held)))
            }
            None => return Ok("nothing"),
        },
        7 => match pick(rng, &bag.samples) {
            Some(sample) => {
                let result = client.read(&sample, ticks).await;
                ("read", result.map(|held| bag.held.push(held)))
            }
            None => return Ok("nothing"),
        },
        8 => match pick(rng, &bag.samples) {
            Some(sample) if rng.chance(300) => ("retire", client.retire(&sample, Reason::Aborted).await.map(drop)),
            Some(sample) => ("reopen", client.reopen(&sample).await),
            None => return Ok("nothing"),
        },
        9..=12 => match pick(rng, &bag.held) {
            Some(held) => match rng.below(5) {
                0 => ("ack", client.ack(&held).await.map(drop)),
                1 => ("nack", client.nack(&held).await.map(drop)),
                2 => ("renew", client.renew(&held, ticks + 2).await.map(drop)),
                3 => ("untake", client.untake(&held).await),
                _ => ("release", client.release(&held).await),
            },
            None => return Ok("nothing"),
        },
        13 => {
            context.harness().pass(context.harness().settings().tick).await;
            client.sweep().await?;
            return Ok("sweep");
        }
        _ => {
            for sample in client.free_list().await? {
                client.freed(&sample).await?;
            }
            return Ok("freed");
        }
    };
    match result {
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::Fenced | ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Invalid
            ) =>
        {
            Err(Failure::new(format!("{what}: {error:?}")))
        }
        _ => Ok(what),
    }
}

/// When every session is gone and everything was swept, retired and freed, nothing is left.
async fn drain(context: &Context, clients: &[Client]) -> CaseResult {
    for client in clients {
        context.harness().kill_session(client.session()).await?;
    }
    for _ in 0..3 {
        context.sweep().await?;
    }
    let records = Records::read(context).await?;
    records.are_consistent()?;
    for live in records.live()? {
        ensure_eq!(live.leases().count(), 0, "leases of the dead on {live:?}");
        ensure!(invariants::attempts_are_exact(&live), "LC9 does not hold: {live:?}");
        let leased = |progress: &Progress| matches!(progress, Progress::Leased(_));
        ensure!(
            !live.groups.iter().any(|state| leased(&state.progress)),
            "leased by nobody: {live:?}"
        );
    }
    for at in 0..6 {
        let sample = tensorhold_core::SampleId::new(format!("s-{at}"))?;
        if let Some(view) = context.look(&sample).await? {
            context.retire(&view.sample, Reason::Aborted).await?;
        }
    }
    for sample in context.free_list().await? {
        context.freed(&sample).await?;
    }
    let records = Records::read(context).await?;
    ensure_eq!(records.left_over(), Vec::<&str>::new(), "keys left over");
    ensure_eq!(records.notes(), Vec::<&str>::new(), "notes left over");
    ensure_eq!(records.sessions(), 1, "sessions that are not cleared up");
    Ok(())
}

async fn a_store_next_door_is_not_touched(context: &Context) -> CaseResult {
    use std::sync::Arc;
    // Names of which one is a prefix of the other.
    let next_door = tensorhold_core::StoreId::new(format!("{}x", context.harness().store()))?;
    let index = crate::TxnIndex::new(
        context.harness().txn_store().await?,
        &next_door,
        context.harness().settings(),
        context.harness().clock(),
        Arc::new(SeededRng::new(1)),
    );
    let neighbour = Client::open(Arc::new(index)).await?;
    let theirs = neighbour.publish("s", &["a"]).await?;
    let mine = context.publish("s", &["a"]).await?;
    let held = neighbour.lease(&theirs).await?;
    context.harness().kill_session(neighbour.session()).await?;
    let report = context.sweep().await?;
    ensure_eq!((report.looked_at, report.sessions_cleared), (0, 0), "a sweep here");
    let taken = context.next(&a()?, 5, super::client::CALL).await?;
    ensure_eq!(taken.len(), 1, "what waits here");
    ensure_eq!(taken[0].sample, mine, "what waits here");
    context.ack(&taken[0]).await?;
    ensure_eq!(context.free_list().await?, [mine], "to be freed here");
    ensure_eq!(neighbour.free_list().await?, [], "to be freed next door");
    let record = neighbour.record(&theirs).await?;
    ensure!(record.holds(held.token), "the lease next door: {record:?}");
    Ok(())
}
