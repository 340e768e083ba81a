//! `bench`: is the cluster as fast as it should be? Samples of a scratch store are put, taken, got and acknowledged, one
//! after the other, in turns with the same bytes on the bare engine, so that both meet the same machine.
//!
//! The scratch store is ended and forgotten at the end, also if something fails. What a killed command leaves is freed by
//! `tensorhold end --store bench-…`; a bare object that it leaves has a key of that store, so `tensorhold audit --repair` removes
//! it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tensorhold_core::{
    Clock as _, DType, Error, ObjectKey, Result, Rng as _, StoreId, SystemClock, SystemRng, TensorSpec,
};
use tensorhold_custody::{GroupName, Publication};
use tensorhold_engine::{Engine, EngineExt as _, GetOutcome, PutOptions, PutOutcome, RemoveOutcome, Span};
use tensorhold_features::{FeatureStore, PutItem, TensorIn, Wanted};
use tensorhold_index::store::{Read, Transaction, TxnStore, Write};

use super::Context;
use super::reclaim::{close, engine, open_on};
use crate::args::Bench;
use crate::failure::Failure;
use crate::io::Progress;
use crate::output::{Answer, draw, number, object, table};
use crate::reach::Reach;
use crate::text::bytes;

/// The steps, in the order in which they are shown; the last three are the bare engine's.
const STEPS: [&str; 7] = ["put", "take", "get", "ack", "bare put", "bare get", "bare remove"];

/// Where the bare engine's begin.
const BARE: usize = 4;

type Times = [Vec<Duration>; STEPS.len()];

pub(crate) async fn run(
    reach: &Reach,
    wanted: Bench,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let failed = |error: &Error| Failure::of("the benchmark ended early", error);
    let name = format!("bench-{:012x}", SystemRng.next_u64() >> 16);
    let name: StoreId = name.parse().map_err(|error| failed(&error))?;
    let engine = engine(reach, &name, context, progress).await?;
    reach.begin(&name).await?;
    let store = open_on(Arc::clone(&engine), reach, &name, progress).await?;
    let mut times = Times::default();
    let measured = measure(&store, &engine, &name, wanted, reach, &mut times, progress).await;
    let ended = progress.wait("freeing", store.end(false, reach.left().max(END))).await;
    close(reach, store, progress).await;
    drop(tokio::task::spawn_blocking(move || drop(engine)).await);
    measured.map_err(|error| failed(&error))?;
    ended.map_err(|error| Failure::of("the scratch store of the benchmark was not ended", &error))?;
    if let Err(error) = forget(reach, &name).await {
        progress.note(&format!("note: the index still has the empty store {name}: {error}"));
    }
    Ok(Answer::new(value(wanted, &times), text(wanted, &times, context)))
}

/// Removes what is left of the scratch store in the index: its clock, and what its session left. It has no samples, and its
/// name is not used again.
async fn forget(reach: &Reach, name: &StoreId) -> Result<()> {
    let left = Read::Range {
        keys: format!("{name}/")..format!("{name}0"),
        limit: 100,
        keys_only: true,
    };
    // The cluster that it is on, and then the home, which says where it is.
    let there = reach.txn_store(name).await;
    let there = there.map_err(|failure| Error::unavailable("command.bench", failure.what))?;
    for txn_store in [&*there, &reach.etcd as &dyn TxnStore] {
        let snapshot = txn_store.read(std::slice::from_ref(&left), END).await?;
        let keys = snapshot.entries.into_iter().flatten().map(|entry| entry.key);
        let transaction = Transaction {
            conditions: Vec::new(),
            writes: keys.map(Write::Delete).collect(),
        };
        txn_store.transact(&transaction, END).await?;
    }
    Ok(())
}

/// What freeing has at least.
const END: Duration = Duration::from_secs(20);

async fn measure(
    store: &FeatureStore,
    engine: &Arc<dyn Engine>,
    name: &StoreId,
    wanted: Bench,
    reach: &Reach,
    times: &mut Times,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let length = usize::try_from(wanted.bytes)
        .map_err(|_| Error::invalid("command.bench", "this machine cannot address so many bytes"))?;
    let group = GroupName::new("bench")?;
    let spec = TensorSpec::new("bytes".parse()?, DType::Uint8, [wanted.bytes])?;
    let clock = SystemClock::new();
    for round in 0..wanted.samples {
        progress.show(&format!("sample {round} of {}", wanted.samples));
        let memory = store.pool().buffer(length, reach.left()).await?;
        let mut begun = clock.now();
        let mut step = |at: usize| {
            times[at].push(clock.now().since(begun));
            begun = clock.now();
        };
        let item = PutItem {
            sample: format!("sample-{round}").parse()?,
            tensors: vec![TensorIn::new(spec.clone(), memory)],
            publication: Publication {
                groups: vec![group.clone()],
                retain: false,
                max_attempts: 1,
            },
        };
        store.put(item, reach.left()).await?;
        step(0);
        let leases = store.lease_next(&group, 1, reach.left()).await?;
        step(1);
        for lease in &leases {
            drop(store.get(lease, Wanted::All, reach.left()).await?);
        }
        step(2);
        store
            .ack(&leases, reach.left())
            .await
            .into_iter()
            .try_for_each(|acked| acked.map(drop))?;
        step(3);

        let memory = store.pool().buffer(length, reach.left()).await?;
        let key = ObjectKey::new(format!("{name}/bare-{round}/g1-{:016x}/t0", SystemRng.next_u64()))?;
        let (engine, left) = (Arc::clone(engine), reach.left());
        let bare = tokio::task::spawn_blocking(move || {
            let measured = bare(&*engine, &key, &memory, left);
            if measured.is_err() {
                // What could not be measured may be there all the same; the first error is what counts.
                drop(engine.remove_one(&key, left));
            }
            measured
        });
        let bare = bare.await.map_err(|failure| {
            Error::internal("command.bench", "the task of the bare engine panicked or was cancelled").caused_by(failure)
        })??;
        for (times, took) in times.iter_mut().skip(BARE).zip(bare) {
            times.push(took);
        }
    }
    Ok(())
}

/// One object on the bare engine: how long put, get and remove took.
fn bare(engine: &dyn Engine, key: &ObjectKey, memory: &Span, within: Duration) -> Result<[Duration; 3]> {
    let clock = SystemClock::new();
    let refused = |outcome: String| {
        let message = "the bare engine did not do what it was asked";
        Error::unavailable("command.bench", message).with("outcome", outcome)
    };
    let begun = clock.now();
    match engine.put_one(key, memory, &PutOptions::default(), within)? {
        PutOutcome::Stored => {}
        other => return Err(refused(format!("{other:?}"))),
    }
    let put = clock.now();
    match engine.get_one(key, memory, within)? {
        GetOutcome::Loaded => {}
        other => return Err(refused(format!("{other:?}"))),
    }
    let got = clock.now();
    match engine.remove_one(key, within)? {
        RemoveOutcome::Removed => {}
        other => return Err(refused(format!("{other:?}"))),
    }
    Ok([put.since(begun), got.since(put), clock.now().since(got)])
}

/// The value below which this part of the times lies.
fn quantile(times: &[Duration], part: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a list of at most 100,000"
    )]
    let place = ((sorted.len() as f64 * part).ceil() as usize).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// How long the bare engine takes, as a part of what Tensorhold takes.
fn ratio(bare: &[Duration], ours: &[Duration]) -> f64 {
    let (bare, ours) = (quantile(bare, 0.5), quantile(ours, 0.5));
    (bare.as_secs_f64() / ours.as_secs_f64().max(f64::MIN_POSITIVE) * 100.0).round() / 100.0
}

fn text(wanted: Bench, times: &Times, context: &Context<'_>) -> String {
    let mut rows = table(context.output, &["step", "median", "p99"]);
    for (step, times) in STEPS.iter().zip(times) {
        let shown = |part| number(format!("{:.2} ms", ms(quantile(times, part))));
        rows.add_row(vec![(*step).into(), shown(0.5), shown(0.99)]);
    }
    let [put, _, get, _, bare_put, bare_get, _] = times;
    format!(
        "{} samples of {}, one at a time, in turns with the bare engine\n\n{}\nput is {} of the bare engine's speed, get {}\n",
        wanted.samples,
        bytes(wanted.bytes),
        draw(&rows),
        ratio(bare_put, put),
        ratio(bare_get, get),
    )
}

fn value(wanted: Bench, times: &Times) -> Value {
    let of = |(step, times): (&&str, &Vec<Duration>)| object!("step": step, "median_ms": ms(quantile(times, 0.5)), "p99_ms": ms(quantile(times, 0.99)),);
    let steps: Vec<Value> = STEPS.iter().zip(times).map(of).collect();
    let [put, _, get, _, bare_put, bare_get, _] = times;
    object!("samples": wanted.samples, "bytes": wanted.bytes, "steps": steps, "put_ratio": ratio(bare_put, put),
        "get_ratio": ratio(bare_get, get),)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(quantile(&times, 0.5), Duration::from_millis(50));
        assert_eq!(quantile(&times, 0.99), Duration::from_millis(99));
        assert_eq!(quantile(&times[..1], 0.99), Duration::from_millis(100));
        assert_eq!(quantile(&[], 0.5), Duration::ZERO);
    }
}
