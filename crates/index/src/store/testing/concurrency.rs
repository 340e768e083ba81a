//! Many clients at once.

use std::sync::Arc;

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_core::{Error, ErrorKind, Result};

use super::context::{CALL, Context, changes, is_kind, with_session};
use crate::store::{Condition, Read, Transaction, TxnOutcome, TxnStore, Write, prefix};

cases! { "concurrency"
    increments_are_not_lost "All conditions are checked and all writes are done at one moment.";
    one_of_many_creates_a_key "All conditions are checked and all writes are done at one moment.";
    one_of_many_fills_an_empty_range "All conditions are checked and all writes are done at one moment.";
    neither_of_two_undoes_what_the_other_requires "As if they had come one after the other.";
    one_whose_session_has_ended_spoils_it_for_nobody "A transaction that writes with an ended session fails.";
    what_is_read_along_is_all_of_its_version "A watch from a snapshot's version misses nothing.";
    watches_see_one_order "Every change, in order of versions.";
}

const TASKS: u64 = 16;
const ROUNDS: u64 = 5;

async fn increment(txn_store: &dyn TxnStore) -> Result<()> {
    loop {
        let snapshot = txn_store.read(&[Read::Key("counter".to_owned())], CALL).await?;
        let entry = snapshot.entries.concat().into_iter().next();
        let (condition, count) = match entry {
            None => (Condition::Absent("counter".to_owned()), 0),
            Some(entry) => {
                let count = String::from_utf8_lossy(&entry.value).parse::<u64>();
                let count = count.map_err(|error| Error::internal("kv.testing", error.to_string()))?;
                (Condition::Unchanged(entry.key, entry.version), count)
            }
        };
        let writes = vec![Write::put("counter", (count + 1).to_string())];
        let transaction = Transaction {
            conditions: vec![condition],
            writes,
        };
        if let TxnOutcome::Committed(_) = txn_store.transact(&transaction, CALL).await? {
            return Ok(());
        }
    }
}

/// Runs tasks, all at once, and returns their results.
async fn all<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
    cx: &Context,
    task: impl Fn(u64, Arc<dyn TxnStore>) -> F,
) -> CaseResult<Vec<T>> {
    let mut clients = Vec::new();
    for i in 0..TASKS {
        // Half of them share a client, as the threads of a process do.
        clients.push(match i % 2 {
            0 => Arc::clone(cx.txn_store()),
            _ => cx.harness().connect().await?,
        });
    }
    let mut tasks = tokio::task::JoinSet::new();
    for (i, txn_store) in (0..TASKS).zip(clients) {
        tasks.spawn(task(i, txn_store));
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = tasks.join_next().await {
        outcomes.push(outcome.map_err(|error| Failure::new(error.to_string()))??);
    }
    Ok(outcomes)
}

async fn increments_are_not_lost(cx: &Context) -> CaseResult {
    all(cx, |_, txn_store| async move {
        for _ in 0..ROUNDS {
            increment(txn_store.as_ref()).await?;
        }
        Ok(())
    })
    .await?;
    ensure_eq!(
        cx.value("counter").await?,
        Some((TASKS * ROUNDS).to_string()),
        "the counter"
    );
    Ok(())
}

async fn one_of_many_creates_a_key(cx: &Context) -> CaseResult {
    let outcomes = all(cx, |i, txn_store| async move {
        let writes = vec![Write::put("mine", i.to_string())];
        let conditions = vec![Condition::Absent("mine".to_owned())];
        Ok((i, txn_store.transact(&Transaction { conditions, writes }, CALL).await?))
    })
    .await?;
    let winners: Vec<_> = outcomes
        .iter()
        .filter(|(_, outcome)| matches!(outcome, TxnOutcome::Committed(_)))
        .collect();
    ensure_eq!(winners.len(), 1, "the winners {winners:?}");
    ensure_eq!(
        cx.value("mine").await?,
        Some(winners[0].0.to_string()),
        "whose key it is"
    );
    Ok(())
}

/// Four rooms: of the tasks that share a client, two enter each room, and not only as the first of all.
async fn one_of_many_fills_an_empty_range(cx: &Context) -> CaseResult {
    const ROOMS: u64 = 4;
    let outcomes = all(cx, |i, txn_store| async move {
        let room = i / 2 % ROOMS;
        let transaction = Transaction {
            conditions: vec![Condition::NoneIn(prefix(format!("room/{room}/")))],
            writes: vec![Write::put(format!("room/{room}/{i}"), "here")],
        };
        Ok((room, txn_store.transact(&transaction, CALL).await?))
    })
    .await?;
    for room in 0..ROOMS {
        let here = outcomes.iter().filter(|(which, _)| *which == room);
        let applied = here.filter(|(_, outcome)| matches!(outcome, TxnOutcome::Committed(_)));
        ensure_eq!(applied.count(), 1, "how many found room {room} empty");
        ensure_eq!(
            cx.keys(&format!("room/{room}/")).await?.len(),
            1,
            "what is in room {room}"
        );
    }
    Ok(())
}

/// Each task of a pair writes the key that the other requires to be absent.
async fn neither_of_two_undoes_what_the_other_requires(cx: &Context) -> CaseResult {
    for round in 0..ROUNDS {
        let mut outcomes = all(cx, |i, txn_store| async move {
            let (mine, other) = (format!("{round}/{i}"), format!("{round}/{}", i ^ 2));
            let transaction = Transaction {
                conditions: vec![Condition::Absent(other)],
                writes: vec![Write::put(mine, "first")],
            };
            Ok((i, txn_store.transact(&transaction, CALL).await?))
        })
        .await?;
        outcomes.sort_by_key(|(i, _)| *i);
        for (i, outcome) in &outcomes {
            let both = [*outcome, outcomes[usize::try_from(i ^ 2).unwrap_or(0)].1];
            let applied = both
                .iter()
                .filter(|outcome| matches!(outcome, TxnOutcome::Committed(_)))
                .count();
            ensure_eq!(applied, 1, "how many of {i} and {} came first in round {round}", i ^ 2);
        }
    }
    Ok(())
}

async fn one_whose_session_has_ended_spoils_it_for_nobody(cx: &Context) -> CaseResult {
    let session = cx.session().await?;
    let ended = session.id();
    session.close(CALL).await?;
    for round in 0..ROUNDS {
        let outcomes = all(cx, |i, txn_store| async move {
            let key = format!("{round}/{i}");
            let write = if i % 4 == 0 {
                with_session(&key, ended)
            } else {
                Write::put(key, "v")
            };
            let transaction = Transaction {
                conditions: Vec::new(),
                writes: vec![write],
            };
            Ok((i, txn_store.transact(&transaction, CALL).await))
        })
        .await?;
        for (i, outcome) in outcomes {
            match outcome {
                Err(error) if i % 4 == 0 => is_kind(&error, ErrorKind::Fenced)?,
                Ok(TxnOutcome::Committed(_)) if i % 4 != 0 => {}
                other => return Err(Failure::new(format!("{i} got {other:?} in round {round}"))),
            }
        }
    }
    Ok(())
}

async fn what_is_read_along_is_all_of_its_version(cx: &Context) -> CaseResult {
    let snapshots = all(cx, |i, txn_store| async move {
        let mut snapshots = Vec::new();
        for round in 0..ROUNDS {
            let transaction = Transaction {
                conditions: Vec::new(),
                writes: vec![Write::put(format!("r/{i}/{round}"), "v")],
            };
            let everything = Read::Range {
                keys: prefix("r/"),
                limit: 1000,
                keys_only: true,
            };
            let (_, snapshot) = txn_store.transact_and_read(&transaction, &[everything], CALL).await?;
            snapshots.extend(snapshot);
        }
        Ok(snapshots)
    })
    .await?;
    let everything = Read::Range {
        keys: prefix("r/"),
        limit: 1000,
        keys_only: true,
    };
    let written = cx.read(everything).await?;
    ensure_eq!(written.len() as u64, TASKS * ROUNDS, "what was written");
    for snapshot in snapshots.concat() {
        let by_then = written.iter().filter(|entry| entry.version <= snapshot.version).count();
        let read: usize = snapshot.entries.iter().map(Vec::len).sum();
        ensure_eq!(read, by_then, "what was read of what was there at {}", snapshot.version);
    }
    Ok(())
}

async fn watches_see_one_order(cx: &Context) -> CaseResult {
    let after = cx.version().await?;
    let mut watch = cx.watch("w/", after).await?;
    let mut versions = all(cx, |i, txn_store| async move {
        let mut versions = Vec::new();
        for round in 0..ROUNDS {
            let writes = vec![Write::put(format!("w/{i}"), round.to_string())];
            if let TxnOutcome::Committed(version) = txn_store
                .transact(
                    &Transaction {
                        conditions: Vec::new(),
                        writes,
                    },
                    CALL,
                )
                .await?
            {
                versions.push(version);
            }
        }
        Ok(versions)
    })
    .await?
    .concat();
    versions.sort_unstable();
    let seen = changes(watch.as_mut(), versions.len()).await?;
    let told: Vec<_> = seen.iter().map(|change| change.version).collect();
    ensure_eq!(
        told,
        versions,
        "the versions that were told, and those that were acknowledged"
    );
    let of_each = |key: &str| {
        let changes = seen.iter().filter(|change| change.key == key);
        changes.map(|change| change.version).collect::<Vec<_>>()
    };
    for i in 0..TASKS {
        let versions = of_each(&format!("w/{i}"));
        ensure!(
            versions.is_sorted_by(|a, b| a < b),
            "two writes of one key have one version: {versions:?}"
        );
    }
    Ok(())
}
