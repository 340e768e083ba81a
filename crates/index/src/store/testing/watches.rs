//! Watches: all changes, in order, and an error rather than a gap.

use std::time::Duration;

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_custody::Version;

use super::context::{CALL, Context, SOON, changes, in_short, is_kind, with_session};
use crate::store::{Condition, Read, TxnOutcome, Write, prefix};

cases! { "watches"
    tell_every_change_in_order "Every change of a key in their range, in order of versions.";
    begin_after_a_version_in_the_past "Delivers changes after a version.";
    begin_after_a_snapshot_without_a_gap "A watch from a snapshot's version misses nothing.";
    tell_deletions "The new value; None if the key was deleted.";
    tell_keys_that_vanish_with_their_session "Keys that are written with a session vanish when it ends.";
    tell_only_of_their_range "A watch delivers changes of keys in its range.";
    tell_what_a_transaction_changed_together "Changes of one version are delivered together.";
    do_not_disturb_each_other "Every watch delivers every change.";
    pend_while_nothing_changes "Pends until there are changes.";
    from_a_forgotten_version_end_with_an_error "NotFound if the changes are no longer kept.";
    do_not_tell_of_what_was_not_applied "A transaction that fails writes nothing.";
    need_a_range "A watch of an empty range is an error.";
}

async fn tell_every_change_in_order(cx: &Context) -> CaseResult {
    let mut watch = cx.watch("w/", cx.version().await?).await?;
    let mut wanted = Vec::new();
    for i in 0..50 {
        let key = format!("w/{}", i % 7);
        wanted.push((format!("+{key}={i}"), cx.put(&key, &i.to_string()).await?));
    }
    let seen = changes(watch.as_mut(), wanted.len()).await?;
    let seen: Vec<_> = in_short(&seen)
        .into_iter()
        .zip(seen.iter().map(|change| change.version))
        .collect();
    ensure_eq!(seen, wanted, "the changes and their versions");
    Ok(())
}

async fn begin_after_a_version_in_the_past(cx: &Context) -> CaseResult {
    cx.put("w/a", "1").await?;
    let after = cx.put("w/a", "2").await?;
    cx.put("w/b", "3").await?;
    cx.write(vec![Write::Delete("w/a".to_owned())]).await?;
    let mut watch = cx.watch("w/", after).await?;
    cx.put("w/c", "4").await?;
    let seen = in_short(&changes(watch.as_mut(), 3).await?);
    ensure_eq!(seen, ["+w/b=3", "-w/a", "+w/c=4"], "what was after that version");
    Ok(())
}

async fn begin_after_a_snapshot_without_a_gap(cx: &Context) -> CaseResult {
    cx.put("w/before", "1").await?;
    let reads = [Read::Range {
        keys: prefix("w/"),
        limit: 9,
        keys_only: false,
    }];
    let snapshot = cx.txn_store().read(&reads, CALL).await?;
    ensure_eq!(snapshot.entries.concat().len(), 1, "what the snapshot saw");
    cx.put("w/between", "1").await?;
    let mut watch = cx.watch("w/", snapshot.version).await?;
    ensure_eq!(
        in_short(&changes(watch.as_mut(), 1).await?),
        ["+w/between=1"],
        "what was after the snapshot"
    );
    Ok(())
}

async fn tell_deletions(cx: &Context) -> CaseResult {
    cx.put("w/a", "1").await?;
    let mut watch = cx.watch("w/", cx.version().await?).await?;
    cx.write(vec![Write::Delete("w/none".to_owned())]).await?;
    let version = cx.write(vec![Write::Delete("w/a".to_owned())]).await?;
    let seen = changes(watch.as_mut(), 1).await?;
    ensure_eq!(in_short(&seen), ["-w/a"], "the deletion");
    ensure_eq!(seen[0].version, version, "its version");
    Ok(())
}

async fn tell_keys_that_vanish_with_their_session(cx: &Context) -> CaseResult {
    let (closed, dying) = (cx.session().await?, cx.session().await?);
    cx.put_with("w/closed", closed.id()).await?;
    cx.put_with("w/dying", dying.id()).await?;
    let after = cx.version().await?;
    let mut watch = cx.watch("w/", after).await?;
    closed.close(CALL).await?;
    ensure_eq!(
        in_short(&changes(watch.as_mut(), 1).await?),
        ["-w/closed"],
        "the key of a closed session"
    );
    drop(dying);
    cx.until_gone("w/dying").await?;
    let seen = changes(watch.as_mut(), 1).await?;
    ensure_eq!(in_short(&seen), ["-w/dying"], "the key of a dead session");
    ensure!(
        seen[0].version > after,
        "its version is {}, not after {after}",
        seen[0].version
    );
    Ok(())
}

async fn tell_only_of_their_range(cx: &Context) -> CaseResult {
    let after = cx.version().await?;
    let mut one = cx
        .txn_store()
        .watch("w/b".to_owned().."w/c".to_owned(), after, CALL)
        .await?;
    for key in ["w/a", "w/b", "w/b1", "w/c", "w", "x/b", "w/b/2", "v"] {
        cx.put(key, "1").await?;
    }
    let seen = in_short(&changes(one.as_mut(), 3).await?);
    ensure_eq!(seen, ["+w/b=1", "+w/b1=1", "+w/b/2=1"], "the range w/b..w/c");
    Ok(())
}

async fn tell_what_a_transaction_changed_together(cx: &Context) -> CaseResult {
    cx.put("w/c", "old").await?;
    let mut watch = cx.watch("w/", cx.version().await?).await?;
    let writes = vec![
        Write::put("w/a", "1"),
        Write::put("w/b", "2"),
        Write::Delete("w/c".to_owned()),
    ];
    let version = cx.write(writes).await?;
    let told = tokio::time::timeout(SOON, watch.next())
        .await
        .map_err(|_| Failure::new("no change was told"))??;
    let mut seen = in_short(&told);
    seen.sort();
    ensure_eq!(seen, ["+w/a=1", "+w/b=2", "-w/c"], "what one transaction changed");
    ensure!(
        told.iter().all(|change| change.version == version),
        "one version for all of {told:?}"
    );
    Ok(())
}

async fn do_not_disturb_each_other(cx: &Context) -> CaseResult {
    let after = cx.version().await?;
    let other = cx.harness().connect().await?;
    let mut first = cx.watch("w/", after).await?;
    let mut second = cx.watch("w/", after).await?;
    let mut third = other.watch(prefix("w/b"), after, CALL).await?;
    cx.put("w/a", "1").await?;
    ensure_eq!(
        in_short(&changes(first.as_mut(), 1).await?),
        ["+w/a=1"],
        "the first watch"
    );
    drop(first);
    cx.put("w/b", "2").await?;
    ensure_eq!(
        in_short(&changes(second.as_mut(), 2).await?),
        ["+w/a=1", "+w/b=2"],
        "the second watch"
    );
    ensure_eq!(
        in_short(&changes(third.as_mut(), 1).await?),
        ["+w/b=2"],
        "another client's watch"
    );
    Ok(())
}

async fn pend_while_nothing_changes(cx: &Context) -> CaseResult {
    let mut watch = cx.watch("w/", cx.version().await?).await?;
    cx.put("elsewhere", "1").await?;
    let early = tokio::time::timeout(Duration::from_millis(300), watch.next()).await;
    ensure!(early.is_err(), "nothing changed, and the watch told {early:?}");
    // A call of `next` that was dropped has lost nothing.
    cx.put("w/a", "1").await?;
    ensure_eq!(
        in_short(&changes(watch.as_mut(), 1).await?),
        ["+w/a=1"],
        "after a call that was given up"
    );
    Ok(())
}

async fn from_a_forgotten_version_end_with_an_error(cx: &Context) -> CaseResult {
    let first = cx.put("w/a", "1").await?;
    for i in 0..5 {
        cx.put("w/a", &i.to_string()).await?;
    }
    let last = cx.version().await?;
    if !cx.harness().compact(last).await? {
        return Ok(());
    }
    // The watch may fail when it begins, or when `next` is called.
    let error = match cx.txn_store().watch(prefix("w/"), Version(first.0 - 1), CALL).await {
        Err(error) => error,
        Ok(mut watch) => match tokio::time::timeout(SOON, watch.next()).await {
            Ok(Err(error)) => error,
            other => {
                return Err(Failure::new(format!(
                    "the history is gone, and the watch gave {other:?}"
                )));
            }
        },
    };
    is_kind(&error, ErrorKind::NotFound)?;
    let mut watch = cx.watch("w/", last).await?;
    cx.put("w/b", "new").await?;
    ensure_eq!(
        in_short(&changes(watch.as_mut(), 1).await?),
        ["+w/b=new"],
        "a watch from what is still kept"
    );
    Ok(())
}

async fn do_not_tell_of_what_was_not_applied(cx: &Context) -> CaseResult {
    let mut watch = cx.watch("w/", cx.version().await?).await?;
    let gone = cx.session().await?;
    gone.close(CALL).await?;
    let no = cx
        .transact(
            vec![Condition::Present("none".to_owned())],
            vec![Write::put("w/a", "1")],
        )
        .await?;
    ensure_eq!(no, TxnOutcome::Rejected, "a condition that does not hold");
    let fenced = cx
        .refused(Vec::new(), vec![with_session("w/b", gone.id()), Write::put("w/c", "1")])
        .await?;
    is_kind(&fenced, ErrorKind::Fenced)?;
    cx.put("w/d", "1").await?;
    ensure_eq!(
        in_short(&changes(watch.as_mut(), 1).await?),
        ["+w/d=1"],
        "only what was applied"
    );
    Ok(())
}

async fn need_a_range(cx: &Context) -> CaseResult {
    for keys in ["b".to_owned().."b".to_owned(), "b".to_owned().."a".to_owned()] {
        match cx.txn_store().watch(keys.clone(), Version(1), CALL).await {
            Err(error) => is_kind(&error, ErrorKind::Invalid)?,
            Ok(_) => return Err(Failure::new(format!("a watch of {keys:?} can never tell anything"))),
        }
    }
    Ok(())
}
