//! Many clients at once.

use std::sync::Arc;

use holdfast_core::{Error, Result};

use super::check::{CaseResult, Failure};
use super::context::{CALL, Context, changes};
use crate::kv::{Applied, Condition, Kv, Read, Transaction, Write};

cases! { "concurrency"
    increments_are_not_lost "All conditions are checked and all writes are done at one moment.";
    one_of_many_creates_a_key "All conditions are checked and all writes are done at one moment.";
    watches_see_one_order "Every change, in order of versions.";
}

const TASKS: u64 = 16;
const ROUNDS: u64 = 5;

async fn increment(kv: &dyn Kv) -> Result<()> {
    loop {
        let snapshot = kv.read(&[Read::Key("counter".to_owned())], CALL).await?;
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
        if let Applied::Yes(_) = kv.transact(&transaction, CALL).await? {
            return Ok(());
        }
    }
}

/// Runs a task per client and gives what they gave.
async fn all<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
    cx: &Context,
    task: impl Fn(u64, Arc<dyn Kv>) -> F,
) -> CaseResult<Vec<T>> {
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..TASKS {
        // Half of them share a client, as the threads of a process do.
        let kv = if i % 2 == 0 {
            Arc::clone(cx.kv())
        } else {
            cx.harness().connect().await?
        };
        tasks.spawn(task(i, kv));
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = tasks.join_next().await {
        outcomes.push(outcome.map_err(|error| Failure::new(error.to_string()))??);
    }
    Ok(outcomes)
}

async fn increments_are_not_lost(cx: &Context) -> CaseResult {
    all(cx, |_, kv| async move {
        for _ in 0..ROUNDS {
            increment(kv.as_ref()).await?;
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
    let outcomes = all(cx, |i, kv| async move {
        let writes = vec![Write::put("mine", i.to_string())];
        let conditions = vec![Condition::Absent("mine".to_owned())];
        Ok((i, kv.transact(&Transaction { conditions, writes }, CALL).await?))
    })
    .await?;
    let winners: Vec<_> = outcomes
        .iter()
        .filter(|(_, outcome)| matches!(outcome, Applied::Yes(_)))
        .collect();
    ensure_eq!(winners.len(), 1, "the winners {winners:?}");
    ensure_eq!(
        cx.value("mine").await?,
        Some(winners[0].0.to_string()),
        "whose key it is"
    );
    Ok(())
}

async fn watches_see_one_order(cx: &Context) -> CaseResult {
    let after = cx.version().await?;
    let mut watch = cx.watch("w/", after).await?;
    let mut versions = all(cx, |i, kv| async move {
        let mut versions = Vec::new();
        for round in 0..ROUNDS {
            let writes = vec![Write::put(format!("w/{i}"), round.to_string())];
            if let Applied::Yes(version) = kv
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
    let seen: Vec<_> = seen.iter().map(|change| change.version).collect();
    ensure_eq!(
        seen,
        versions,
        "the versions that were told, and those that were acknowledged"
    );
    ensure!(
        seen.is_sorted_by(|a, b| a < b),
        "two transactions have one version: {seen:?}"
    );
    Ok(())
}
