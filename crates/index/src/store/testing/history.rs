//! A store that is restored to an earlier state under its clients.

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_custody::Version;

use super::context::{CALL, Context, SOON, changes, in_short, is_kind};
use crate::store::{Condition, Read, TxnOutcome, Write};

cases! { "history"
    that_is_cut_fences_every_client "A client that detects that its store was restored is fenced.";
    goes_on_by_itself_when_it_was_declared "Then the client continues by itself.";
    never_gives_a_version_out_again "A version is given out only once, even by a store that was restored.";
    that_is_cut_ends_watches "Its watches end with an error.";
}

/// Writes, saves, writes more, and restores the store. Returns the versions of `kept` and of `gone`.
async fn put_back(cx: &Context) -> CaseResult<(Version, Version)> {
    let kept = cx.put("kept", "1").await?;
    cx.harness().save().await?;
    for n in 0..5 {
        cx.put("more", &n.to_string()).await?;
    }
    let gone = cx.put("gone", "1").await?;
    cx.harness().put_back().await?;
    Ok((kept, gone))
}

async fn that_is_cut_fences_every_client(cx: &Context) -> CaseResult {
    let session = cx.session().await?;
    put_back(cx).await?;
    let read = cx.txn_store().read(&[Read::Key("kept".to_owned())], CALL).await;
    let Err(error) = read else {
        return Err(Failure::new(format!("a read went well: {read:?}")));
    };
    is_kind(&error, ErrorKind::Fenced)?;
    is_kind(
        &cx.refused(vec![], vec![Write::put("new", "1")]).await?,
        ErrorKind::Fenced,
    )?;
    let told = tokio::time::timeout(SOON, session.ended()).await;
    ensure!(told.is_ok() && !session.is_alive(), "{session:?} should have ended");
    let history = cx.txn_store().history();
    ensure!(
        history.cuts == 1 && history.refuses.is_some(),
        "{history:?} does not tell"
    );
    Ok(())
}

async fn goes_on_by_itself_when_it_was_declared(cx: &Context) -> CaseResult {
    let before = cx.txn_store().history();
    let (kept, _) = put_back(cx).await?;
    cx.txn_store().read(&[Read::Key("kept".to_owned())], CALL).await.err();
    cx.harness().declare().await?;
    let entry = cx.get("kept").await?;
    ensure_eq!(
        entry.map(|entry| entry.version),
        Some(kept),
        "what was saved is there, as it was"
    );
    ensure!(cx.get("gone").await?.is_none(), "what came later is not");
    let session = cx.session().await?;
    cx.put_with("s", session.id()).await?;
    ensure!(session.is_alive(), "a new session is alive");
    let unchanged = vec![Condition::Unchanged("kept".to_owned(), kept)];
    let applied = cx.transact(unchanged, vec![Write::put("kept", "2")]).await?;
    ensure!(
        matches!(applied, TxnOutcome::Committed(_)),
        "what was known of it still is"
    );
    let history = cx.txn_store().history();
    ensure!(
        history.refuses.is_none() && history.epoch != before.epoch,
        "{history:?} after {before:?}"
    );
    Ok(())
}

async fn never_gives_a_version_out_again(cx: &Context) -> CaseResult {
    let (kept, gone) = put_back(cx).await?;
    cx.txn_store().read(&[Read::Key("kept".to_owned())], CALL).await.err();
    cx.harness().declare().await?;
    for n in 0..20 {
        let version = cx.put("gone", &n.to_string()).await?;
        ensure!(version > gone, "version {version} after {gone}");
        let stale = vec![Condition::Unchanged("gone".to_owned(), gone)];
        let applied = cx.transact(stale, vec![Write::put("wrong", "1")]).await?;
        ensure_eq!(applied, TxnOutcome::Rejected, "a condition on what is gone");
    }
    let oldest = cx
        .read(Read::Range {
            keys: crate::store::prefix(""),
            limit: 100,
            keys_only: true,
        })
        .await?;
    let versions: Vec<Version> = oldest
        .iter()
        .filter(|entry| entry.key == "kept")
        .map(|entry| entry.version)
        .collect();
    ensure_eq!(versions, [kept], "what was saved has its version");
    Ok(())
}

async fn that_is_cut_ends_watches(cx: &Context) -> CaseResult {
    let session = cx.session().await?;
    let mut watch = cx.watch("w", cx.version().await?).await?;
    put_back(cx).await?;
    let told = tokio::time::timeout(SOON, session.ended()).await;
    ensure!(told.is_ok(), "{session:?} should have ended");
    cx.harness().declare().await?;
    let next = tokio::time::timeout(SOON, watch.next()).await;
    ensure!(matches!(next, Ok(Err(_))), "a watch that was cut gave {next:?}");
    let mut watch = cx.watch("w", cx.version().await?).await?;
    cx.put("w", "1").await?;
    ensure_eq!(in_short(&changes(watch.as_mut(), 1).await?), ["+w=1"], "another one");
    Ok(())
}
