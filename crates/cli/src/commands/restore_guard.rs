//! `restore-guard`: after etcd was restored from a snapshot, or replaced (docs/etcd-restore.md).

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ErrorKind, SystemClock};
use tensorhold_index_etcd::restore_guard;

use crate::failure::Failure;
use crate::io::Progress;
use crate::output::{Answer, object};
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
        return Err(Failure::new(
            ErrorKind::Conflict,
            "nothing was done: the guard begins only with --yes",
            format!(
                "every process that uses the index {root} in etcd at {at} would lose its sessions, leases and reservations, \
                 whether etcd was restored or not"
            ),
            "run it once after a restore, before new processes are started: tensorhold restore-guard --yes",
        ));
    }
    let guarding = restore_guard(settings.etcd.clone(), Arc::new(SystemClock::new()), within);
    let epoch = progress.wait("asking etcd", guarding).await.map_err(|error| {
        let failure = Failure::of(
            format!("the index in etcd at {at} has no new epoch, as far as is known"),
            &error,
        );
        match error.kind() {
            ErrorKind::Unavailable => failure.advise("see that etcd answers, and run it again: twice is harmless"),
            _ => failure,
        }
    })?;
    let text = format!(
        "epoch {} of the index {root} begins; processes that used it before go on by themselves, in new sessions\n",
        shown(&epoch)
    );
    Ok(Answer::new(object!("epoch": epoch, "root": settings.etcd.root), text))
}
