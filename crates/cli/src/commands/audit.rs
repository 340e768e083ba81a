//! `audit`: objects that no record owns, and samples whose objects are gone. It needs a session and an engine.
//!
//! Without `--repair` it only reports. What it was told to repair and could not is left to the next audit.

use serde_json::Value;
use tensorhold_features::{LossAudit, LossReport, OrphanAudit, OrphanReport};

use super::Context;
use super::reclaim::{close, open};
use crate::failure::{Failure, WRONG};
use crate::io::Progress;
use crate::output::{Answer, draw, number, object, table};
use crate::reach::Reach;
use crate::text::{bytes, count, shown};

/// What to do about what is found.
pub(crate) struct Wanted {
    pub(crate) repair: bool,
    pub(crate) force: bool,
}

pub(crate) async fn run(
    reach: &Reach,
    wanted: Wanted,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let name = progress.wait("asking etcd", reach.store()).await?;
    let store = open(reach, &name, context, progress).await?;
    let orphans = OrphanAudit {
        read_only: !wanted.repair,
        force: wanted.force,
        ..OrphanAudit::default()
    };
    // Verdicts of loss are this process's: it must wait for them.
    let losses = LossAudit {
        read_only: !wanted.repair,
        wait: wanted.repair,
        ..LossAudit::default()
    };
    let audited = async {
        let orphans = store.audit_orphans(orphans, reach.left()).await?;
        Ok((orphans, store.audit_losses(losses, reach.left()).await?))
    };
    let audited: tensorhold_core::Result<_> = progress.wait("auditing", audited).await;
    close(reach, store, progress).await;
    let (orphans, losses) = audited.map_err(|error| {
        let what = format!("the audit of store {} ended early", shown(name.as_str()));
        Failure::of(what, &error)
    })?;
    let is_clean = orphans.orphans == orphans.removed && losses.missing == 0 && orphans.complete && losses.complete;
    let answer = Answer::new(
        value(name.as_str(), &orphans, &losses),
        text(&orphans, &losses, &wanted, context),
    );
    Ok(if is_clean { answer } else { answer.with_code(WRONG) })
}

fn text(orphans: &OrphanReport, losses: &LossReport, wanted: &Wanted, context: &Context<'_>) -> String {
    let mut rows = table(context.output, &["looked for", "among", "found", "repaired"]);
    rows.add_row(vec![
        "objects without a record".into(),
        number(count(orphans.objects, "object", "objects")),
        number(format!("{} ({})", orphans.orphans, bytes(orphans.bytes))),
        number(orphans.removed),
    ]);
    rows.add_row(vec![
        "samples without an object".into(),
        number(count(losses.samples, "sample", "samples")),
        number(losses.missing),
        number(losses.lost),
    ]);
    let mut text = draw(&rows);
    let mut line = |line: String| text.extend([line.as_str(), "\n"]);
    for example in &orphans.examples {
        line(format!("{}: {}", shown(example.key.as_str()), example.reason.as_str()));
    }
    for (sample, key) in &losses.examples {
        line(format!(
            "{}: the engine does not have {}",
            shown(sample.sample.as_str()),
            shown(key.as_str())
        ));
    }
    if let Some(refused) = &orphans.refused {
        line(format!("left alone: {}", shown(refused)));
    } else if let Some(error) = &orphans.stopped {
        line(format!("ended early: {}", shown(error.message())));
    }
    if !orphans.complete || !losses.complete {
        line("not everything was looked at and settled in time; run it again, with a longer --timeout".to_owned());
    }
    if !wanted.repair && orphans.refused.is_none() && orphans.orphans + losses.missing > 0 {
        line("repair it: tensorhold audit --repair".to_owned());
    }
    text
}

fn value(store: &str, orphans: &OrphanReport, losses: &LossReport) -> Value {
    let of_orphan =
        |one: &tensorhold_features::OrphanExample| object!("key": one.key.as_str(), "why": one.reason.as_str());
    let examples: Vec<Value> = orphans.examples.iter().map(of_orphan).collect();
    let orphans = object!("objects": orphans.objects, "other_keys": orphans.other_keys, "found": orphans.orphans,
        "ahead": orphans.ahead, "bytes": orphans.bytes, "removed": orphans.removed, "unfinished": orphans.unfinished,
        "failed": orphans.failed, "refused": orphans.refused, "complete": orphans.complete, "examples": examples,
        "stopped": orphans.stopped.as_ref().map(|error| error.message().to_owned()),);
    let of_loss = |(sample, key): &(tensorhold_index::SampleRef, tensorhold_core::ObjectKey)| object!("sample": sample.sample.as_str(), "key": key.as_str());
    let examples: Vec<Value> = losses.examples.iter().map(of_loss).collect();
    let losses = object!("samples": losses.samples, "objects": losses.objects, "missing": losses.missing,
        "lost": losses.lost, "unreadable": losses.unreadable, "complete": losses.complete, "examples": examples,);
    object!("store": store, "orphans": orphans, "losses": losses)
}
