//! Transactions: versions, atomicity, sizes.

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};

use super::context::{CALL, Context, is_kind};
use crate::store::{Condition, Read, Snapshot, Transaction, TxnOutcome, Write, prefix};

cases! { "transactions"
    have_versions_that_grow "Every transaction that changes something gets a version larger than all before it.";
    give_all_their_keys_one_version "All keys that a transaction writes carry its version.";
    that_change_nothing_keep_the_version "A transaction that changes nothing gets the store's version at that moment.";
    delete "A deleted key is gone.";
    may_delete_what_is_not_there "Deletes a key. An absent key is no error.";
    give_a_key_that_returns_a_new_version "A key that was deleted and written again is not unchanged.";
    that_fail_write_nothing "All writes are done at one moment, or nothing is.";
    may_read_at_the_same_moment "Reads at the same moment: after the writes, or without them.";
    must_not_write_a_key_twice "A transaction that writes one key twice is an error.";
    have_at_most_so_many_operations "A transaction that exceeds the limits fails with Invalid.";
    have_at_most_so_many_bytes "A transaction that exceeds the limits fails with Invalid.";
    keep_any_bytes "A value is bytes, whatever they are.";
    keep_large_values "Bytes of keys and values together, up to the limit.";
}

async fn have_versions_that_grow(cx: &Context) -> CaseResult {
    let mut last = cx.version().await?;
    for round in 0..20 {
        let write = if round % 3 == 2 {
            Write::Delete("k".to_owned())
        } else {
            Write::put("k", "v")
        };
        let version = cx.write(vec![write]).await?;
        ensure!(version > last, "version {version} after {last}, in round {round}");
        ensure!(version.0 > 0, "no version is zero");
        last = version;
    }
    Ok(())
}

async fn give_all_their_keys_one_version(cx: &Context) -> CaseResult {
    cx.put("b", "old").await?;
    let version = cx
        .write(vec![Write::put("a", "1"), Write::put("b", "2"), Write::put("c", "")])
        .await?;
    for (key, value) in [("a", "1"), ("b", "2"), ("c", "")] {
        let entry = cx.get(key).await?;
        let seen = entry.map(|entry| (entry.value, entry.version));
        ensure_eq!(
            seen,
            Some((value.as_bytes().to_vec(), version)),
            "value and version of {key}"
        );
    }
    Ok(())
}

async fn that_change_nothing_keep_the_version(cx: &Context) -> CaseResult {
    let version = cx.put("a", "1").await?;
    ensure_eq!(cx.write(Vec::new()).await?, version, "no writes");
    ensure_eq!(
        cx.write(vec![Write::Delete("none".to_owned())]).await?,
        version,
        "a delete of nothing"
    );
    ensure_eq!(cx.version().await?, version, "the store's version");
    Ok(())
}

async fn delete(cx: &Context) -> CaseResult {
    cx.write(vec![Write::put("a", "1"), Write::put("b", "1")]).await?;
    cx.write(vec![Write::Delete("a".to_owned())]).await?;
    ensure_eq!(cx.get("a").await?, None, "after the delete");
    ensure_eq!(cx.value("b").await?.as_deref(), Some("1"), "its neighbour");
    Ok(())
}

async fn may_delete_what_is_not_there(cx: &Context) -> CaseResult {
    let version = cx
        .write(vec![Write::Delete("none".to_owned()), Write::put("a", "1")])
        .await?;
    ensure_eq!(
        cx.get("a").await?.map(|entry| entry.version),
        Some(version),
        "the put beside the delete"
    );
    Ok(())
}

async fn give_a_key_that_returns_a_new_version(cx: &Context) -> CaseResult {
    let first = cx.put("a", "same").await?;
    cx.write(vec![Write::Delete("a".to_owned())]).await?;
    let second = cx.put("a", "same").await?;
    ensure!(second > first, "version {second} after {first}");
    let stale = cx
        .transact(
            vec![Condition::Unchanged("a".to_owned(), first)],
            vec![Write::put("a", "x")],
        )
        .await?;
    ensure_eq!(stale, TxnOutcome::Rejected, "a condition on its first life");
    Ok(())
}

async fn that_fail_write_nothing(cx: &Context) -> CaseResult {
    let version = cx.put("a", "1").await?;
    let writes = vec![
        Write::put("a", "2"),
        Write::put("b", "2"),
        Write::Delete("a2".to_owned()),
    ];
    let outcome = cx.transact(vec![Condition::Absent("a".to_owned())], writes).await?;
    ensure_eq!(outcome, TxnOutcome::Rejected, "a condition that does not hold");
    ensure_eq!(cx.value("a").await?.as_deref(), Some("1"), "the old value");
    ensure_eq!(cx.get("b").await?, None, "the new key");
    ensure_eq!(cx.version().await?, version, "the store's version");
    Ok(())
}

async fn may_read_at_the_same_moment(cx: &Context) -> CaseResult {
    let first = cx.put("a", "1").await?;
    let reads = [
        Read::Key("a".to_owned()),
        Read::Range {
            keys: prefix("b"),
            limit: 9,
            keys_only: false,
        },
    ];
    let transaction = Transaction {
        conditions: vec![Condition::Unchanged("a".to_owned(), first)],
        writes: vec![Write::put("a", "2"), Write::put("b", "3")],
    };
    let seen = |snapshot: &Snapshot| -> Vec<_> {
        let entries = snapshot.entries.iter().flatten();
        entries
            .map(|entry| (entry.key.clone(), entry.value.clone(), entry.version))
            .collect()
    };
    let (applied, snapshot) = cx.txn_store().transact_and_read(&transaction, &reads, CALL).await?;
    let TxnOutcome::Committed(second) = applied else {
        return Err(Failure::new("its condition holds, but it was not applied"));
    };
    let wanted = vec![
        ("a".to_owned(), b"2".to_vec(), second),
        ("b".to_owned(), b"3".to_vec(), second),
    ];
    if let Some(snapshot) = &snapshot {
        ensure_eq!(snapshot.version, second, "the moment of a transaction that was applied");
        ensure_eq!(seen(snapshot), wanted, "what it wrote");
    }
    let (applied, snapshot) = cx.txn_store().transact_and_read(&transaction, &reads, CALL).await?;
    ensure_eq!(applied, TxnOutcome::Rejected, "its condition does not hold any more");
    if let Some(snapshot) = &snapshot {
        ensure_eq!(seen(snapshot), wanted, "what is there, as it was not applied");
    }
    let many = vec![Read::Key("a".to_owned()); cx.txn_store().limits().operations];
    let error = cx.txn_store().transact_and_read(&transaction, &many, CALL).await;
    is_kind(
        &error.err().ok_or_else(|| Failure::new("too many, but not refused"))?,
        ErrorKind::Invalid,
    )
}

async fn must_not_write_a_key_twice(cx: &Context) -> CaseResult {
    let twice = [
        vec![Write::put("a", "1"), Write::put("b", "1"), Write::put("a", "2")],
        vec![Write::put("a", "1"), Write::Delete("a".to_owned())],
        vec![Write::Delete("a".to_owned()), Write::Delete("a".to_owned())],
    ];
    for writes in twice {
        is_kind(&cx.refused(Vec::new(), writes).await?, ErrorKind::Invalid)?;
    }
    ensure_eq!(
        (cx.get("a").await?, cx.get("b").await?),
        (None, None),
        "what was written"
    );
    Ok(())
}

async fn have_at_most_so_many_operations(cx: &Context) -> CaseResult {
    let most = cx.txn_store().limits().operations;
    let writes: Vec<_> = (0..=most).map(|i| Write::put(format!("many/{i}"), "1")).collect();
    let conditions: Vec<_> = (0..=most).map(|i| Condition::Absent(format!("many/{i}"))).collect();
    is_kind(&cx.refused(Vec::new(), writes.clone()).await?, ErrorKind::Invalid)?;
    is_kind(
        &cx.refused(conditions.clone(), vec![Write::put("one", "1")]).await?,
        ErrorKind::Invalid,
    )?;
    ensure_eq!(cx.keys("many/").await?.len(), 0, "what a refused transaction wrote");
    let outcome = cx.transact(conditions[1..].to_vec(), writes[1..].to_vec()).await?;
    ensure!(
        matches!(outcome, TxnOutcome::Committed(_)),
        "as many conditions and writes as the limit says: {outcome:?}"
    );
    ensure_eq!(
        cx.keys("many/").await?.len(),
        most,
        "what the largest transaction wrote"
    );
    Ok(())
}

async fn have_at_most_so_many_bytes(cx: &Context) -> CaseResult {
    let most = cx.txn_store().limits().bytes;
    let half = vec![7_u8; most / 2 + 1];
    let error = cx
        .refused(Vec::new(), vec![Write::put("a", half.clone()), Write::put("b", half)])
        .await?;
    is_kind(&error, ErrorKind::Invalid)?;
    ensure_eq!(cx.get("a").await?, None, "what a refused transaction wrote");
    Ok(())
}

async fn keep_any_bytes(cx: &Context) -> CaseResult {
    let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
    for (key, value) in [
        ("all", all),
        ("none", Vec::new()),
        ("zero", vec![0]),
        ("not-utf8", vec![0xff, 0xfe, 0x80]),
    ] {
        cx.write(vec![Write::put(key, value.clone())]).await?;
        ensure_eq!(
            cx.get(key).await?.map(|entry| entry.value),
            Some(value),
            "the bytes of {key:?}"
        );
    }
    Ok(())
}

async fn keep_large_values(cx: &Context) -> CaseResult {
    let key = "large";
    let value: Vec<u8> = (0..cx.txn_store().limits().bytes - key.len())
        .map(|i| u8::try_from(i % 251).unwrap_or(0))
        .collect();
    cx.write(vec![Write::put(key, value.clone())]).await?;
    let seen = cx.get(key).await?.map(|entry| entry.value);
    ensure!(
        seen.as_ref() == Some(&value),
        "{} bytes came back as {:?}",
        value.len(),
        seen.map(|seen| seen.len())
    );
    Ok(())
}
