//! `restore-guard`: after etcd was restored from a snapshot, or replaced (docs/etcd-restore.md).

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ErrorKind, SystemClock};
use tensorhold_index::placement::read_map;
use tensorhold_index_etcd::restore_guard;

use super::clusters::found;
use crate::failure::{Failure, WRONG};
use crate::io::Progress;
use crate::output::{Answer, object};
use crate::reach::Reach;
use crate::settings::Settings;
use crate::text::shown;

pub(crate) async fn run(
    settings: Settings,
    yes: bool,
    within: Duration,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let at = settings.etcd_shown();
    let root = shown(&settings.etcd.root);
    if !yes {
        // The operator compares: a snapshot knows nothing of clusters that were added after it.
        let known = known_clusters(&settings, within, progress).await;
        return Err(Failure::new(
            ErrorKind::Conflict,
            "nothing was done: the guard begins only with --yes",
            format!(
                "every process that uses the index {root} in etcd at {at} would lose its sessions, leases and reservations, \
                 whether etcd was restored or not; {known}"
            ),
            "add the clusters that are missing there with `tensorhold clusters add … --again`; then, before new processes are \
             started: tensorhold restore-guard --yes",
        ));
    }
    let guarding = restore_guard(settings.etcd.clone(), Arc::new(SystemClock::new()), within);
    let restored = progress.wait("asking etcd", guarding).await.map_err(|error| {
        let failure = Failure::of(
            format!("the index in etcd at {at} has no new epoch, as far as is known"),
            &error,
        );
        match error.kind() {
            ErrorKind::Unavailable => failure.advise("see that etcd answers, and run it again: twice is harmless"),
            _ => failure,
        }
    })?;
    let epoch = restored.epoch;
    let mut text = format!(
        "epoch {} of the index {root} begins; processes that used it before go on by themselves, in new sessions\n",
        shown(&epoch)
    );
    let (checked, is_well) = match restored.checked {
        Ok(report) => (found(&report), report.twice.is_empty() && report.silent.is_empty()),
        Err(error) => {
            let why = shown(error.message());
            let line =
                format!("the clusters were not checked: {why}. Before new stores begin: `tensorhold clusters check`\n");
            (line, false)
        }
    };
    text.push_str(&checked);
    let answer = Answer::new(
        object!("epoch": epoch, "root": settings.etcd.root, "checked": is_well),
        text,
    );
    Ok(if is_well { answer } else { answer.with_code(WRONG) })
}

/// What the map says as etcd has it now.
async fn known_clusters(settings: &Settings, within: Duration, progress: &mut Progress<'_>) -> String {
    let ask = async {
        let reach = Reach::open(settings.clone(), within).await.ok()?;
        let map = read_map(&reach.etcd, reach.left()).await.ok()?.unwrap_or_default();
        let others = map.clusters.keys().map(|name| format!(", {name}"));
        Some(format!("it knows these clusters: home{}", others.collect::<String>()))
    };
    let known = progress.wait("asking etcd", ask).await;
    known.unwrap_or_else(|| "which clusters it knows cannot be read now".to_owned())
}
