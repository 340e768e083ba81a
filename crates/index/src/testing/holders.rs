//! The record of the engine's holders: what one process has seen, the next one reads.

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, ensure_eq};

use super::check::refused;
use super::client::CALL;
use super::context::Context;
use crate::{HolderSeen, HoldersSeen, MissingHolder};

cases! {
    "holders" Nothing
    what_one_process_saw_another_one_reads
        "The engine's holders, as the process that looks after the store has seen them last; nothing before the first look.";
    what_another_process_saw_is_not_overwritten
        "`Conflict` if it is not the one any more that was read.";
    an_ended_session_is_fenced
        "Every call in the name of an ended session is refused as `Fenced`.";
}

fn seen(names: &[&str]) -> HoldersSeen {
    let holder = |name: &&str| HolderSeen {
        name: (*name).to_owned(),
        memory: format!("{name}'s"),
    };
    HoldersSeen {
        at_ms: 7,
        listed: names.iter().map(holder).collect(),
        ..HoldersSeen::default()
    }
}

async fn what_one_process_saw_another_one_reads(context: &Context) -> CaseResult {
    let other = context.join().await?;
    ensure_eq!(
        other.index().holders_seen(CALL).await?,
        HoldersSeen::default(),
        "nothing"
    );
    let mut first = seen(&["a", "b"]);
    first.version = context.index().note_holders(context.session(), &first, CALL).await?;
    ensure_eq!(
        other.index().holders_seen(CALL).await?,
        first.clone(),
        "what was written"
    );
    let mut next = HoldersSeen {
        missing: vec![MissingHolder {
            name: "b".to_owned(),
            since_ms: 9,
        }],
        suspected: 3,
        version: first.version,
        ..seen(&["a"])
    };
    next.version = other.index().note_holders(other.session(), &next, CALL).await?;
    ensure_eq!(
        context.index().holders_seen(CALL).await?,
        next,
        "what the other one wrote"
    );
    Ok(())
}

async fn what_another_process_saw_is_not_overwritten(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let stale = context.index().holders_seen(CALL).await?;
    let written = seen(&["a"]);
    other.index().note_holders(other.session(), &written, CALL).await?;
    let late = HoldersSeen {
        version: stale.version,
        ..seen(&["old"])
    };
    let result = context.index().note_holders(context.session(), &late, CALL).await;
    refused(result, ErrorKind::Conflict, "a late write")?;
    ensure_eq!(
        context.index().holders_seen(CALL).await?.listed,
        written.listed,
        "unchanged"
    );
    Ok(())
}

async fn an_ended_session_is_fenced(context: &Context) -> CaseResult {
    let other = context.join().await?;
    context.harness().kill_session(other.session()).await?;
    let result = other.index().note_holders(other.session(), &seen(&["a"]), CALL).await;
    refused(result, ErrorKind::Fenced, "a write of an ended session")
}
