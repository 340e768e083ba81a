//! Reads: what they see, and at which moment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};

use super::context::{CALL, Context, is_kind};
use crate::store::{Entry, Read, Transaction, Write, prefix};

cases! { "reads"
    see_acknowledged_writes "Reads see every write that was acknowledged before the read began.";
    of_absent_keys_are_empty "An absent key has no entry.";
    of_one_call_see_one_moment "All reads of one call see one moment.";
    tell_the_version_of_their_moment "The version of a snapshot is the store's at that moment.";
    answer_in_the_order_of_the_reads "The entries of each read come in the order of the reads.";
    of_nothing_tell_the_version "A read of nothing returns the store's version.";
    of_too_much_are_refused "A call that exceeds the limits fails with Invalid.";
}

async fn see_acknowledged_writes(cx: &Context) -> CaseResult {
    let other = cx.harness().connect().await?;
    for round in 0..20 {
        let version = cx.put("k", &round.to_string()).await?;
        let snapshot = other.read(&[Read::Key("k".to_owned())], CALL).await?;
        let entry = snapshot.entries.first().and_then(|entries| entries.first());
        let entry = entry.ok_or_else(|| Failure::new("an acknowledged write is not there"))?;
        ensure_eq!(entry.value, round.to_string().into_bytes(), "an old value");
        ensure_eq!(entry.version, version, "the version that the write was told");
    }
    Ok(())
}

async fn of_absent_keys_are_empty(cx: &Context) -> CaseResult {
    cx.put("ab", "1").await?;
    ensure_eq!(cx.get("a").await?, None, "a key that is a beginning of another");
    ensure_eq!(cx.get("abc").await?, None, "a key that another is a beginning of");
    Ok(())
}

async fn of_one_call_see_one_moment(cx: &Context) -> CaseResult {
    let pair = |value: u32| {
        vec![
            Write::put("pair/a", value.to_string()),
            Write::put("pair/b", value.to_string()),
        ]
    };
    cx.write(pair(0)).await?;
    let txn_store = cx.harness().connect().await?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let writer = tokio::spawn(async move {
        for value in 1.. {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            let writes = pair(value);
            txn_store
                .transact(
                    &Transaction {
                        conditions: Vec::new(),
                        writes,
                    },
                    CALL,
                )
                .await?;
        }
        Ok::<_, tensorhold_core::Error>(())
    });
    let reads = [
        Read::Key("pair/a".to_owned()),
        Read::Range {
            keys: prefix("pair/"),
            limit: 9,
            keys_only: false,
        },
        Read::Key("pair/b".to_owned()),
    ];
    let (mut torn, mut moments) = (None, BTreeSet::new());
    for _ in 0..2000 {
        let seen: Vec<_> = cx.txn_store().read(&reads, CALL).await?.entries.concat();
        let same = |entry: &Entry| (&entry.value, entry.version) == (&seen[0].value, seen[0].version);
        if seen.len() != 4 || !seen.iter().all(same) {
            torn = Some(seen);
            break;
        }
        moments.insert(seen[0].version);
        if moments.len() >= 20 {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.map_err(|error| Failure::new(error.to_string()))??;
    ensure!(torn.is_none(), "one read saw two moments: {torn:?}");
    Ok(())
}

async fn tell_the_version_of_their_moment(cx: &Context) -> CaseResult {
    let first = cx.put("a", "1").await?;
    ensure_eq!(cx.version().await?, first, "the version after a write");
    let second = cx.put("b", "1").await?;
    ensure_eq!(cx.version().await?, second, "the version after another write");
    ensure_eq!(cx.version().await?, second, "reading changes nothing");
    ensure_eq!(
        cx.get("a").await?.map(|entry| entry.version),
        Some(first),
        "an entry keeps its version"
    );
    Ok(())
}

async fn answer_in_the_order_of_the_reads(cx: &Context) -> CaseResult {
    for key in ["a", "b", "c/1", "c/2"] {
        cx.put(key, key).await?;
    }
    let key = |key: &str| Read::Key(key.to_owned());
    let range = Read::Range {
        keys: prefix("c/"),
        limit: 9,
        keys_only: false,
    };
    let reads = [key("b"), key("none"), range.clone(), key("a"), key("b"), range];
    let snapshot = cx.txn_store().read(&reads, CALL).await?;
    let keys = |entries: &Vec<Entry>| entries.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>();
    let seen: Vec<_> = snapshot.entries.iter().map(keys).collect();
    ensure_eq!(
        seen,
        [
            vec!["b"],
            vec![],
            vec!["c/1", "c/2"],
            vec!["a"],
            vec!["b"],
            vec!["c/1", "c/2"]
        ],
        "the answers"
    );
    Ok(())
}

async fn of_nothing_tell_the_version(cx: &Context) -> CaseResult {
    let version = cx.put("a", "1").await?;
    let snapshot = cx.txn_store().read(&[], CALL).await?;
    ensure_eq!(
        (snapshot.version, snapshot.entries.len()),
        (version, 0),
        "what a read of nothing tells"
    );
    Ok(())
}

async fn of_too_much_are_refused(cx: &Context) -> CaseResult {
    let most = cx.txn_store().limits().operations;
    let reads = vec![Read::Key("a".to_owned()); most + 1];
    ensure_eq!(
        cx.txn_store().read(&reads[1..], CALL).await?.entries.len(),
        most,
        "as many as the limit says"
    );
    match cx.txn_store().read(&reads, CALL).await {
        Err(error) => is_kind(&error, ErrorKind::Invalid),
        Ok(_) => Err(Failure::new("more reads than the limit were let through")),
    }
}
