//! Compacts etcd: an etcd that nobody compacts keeps every revision until its quota is used up.
//!
//! ```text
//!   look ──▶ its revision is noted ── an interval ──▶ look: what was before the noted one is forgotten ──▶ …
//! ```
//! So etcd keeps the history of about one to two intervals; its own mode `periodic` does the same. Tensorhold
//! needs a minute of it: see the module `compaction` of [`tensorhold_index_etcd`].
//!
//! # Which etcd
//! Whoever else uses an etcd may need its history. So with `auto` it is compacted only if two looks in a row found no key
//! outside of the root of the index. That nobody else uses it is not known if the steward's user may not read all keys.
//!
//! # What if…
//! - *…there are several stewards, or etcd compacts by itself?* Each compacts to what it saw an interval ago, so an interval
//!   is kept whoever does it; a revision that is forgotten already counts as done. So no office is needed, and etcd is
//!   compacted also while no store can be opened.
//! - *…etcd does not answer?* The next interval is the next try, and more is kept until then.
//! - *…etcd was restored or replaced?* Another cluster, or a revision that went back: what was noted is of no use.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ErrorKind, Result};
use tensorhold_index_etcd::{Compacted, Head, compact, has_other_keys, head};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::options::{Compact, EtcdOptions};
use crate::report::{CompactionReport, now_ms};
use crate::state::State;

/// How long one request may take.
const WITHIN: Duration = Duration::from_secs(10);

const SHARED: &str = "etcd has keys outside of this index's root, and whoever wrote them may need its history: let etcd compact \
                      by itself (--auto-compaction-mode), or set `steward.etcd.compact` to `on`";
const NOT_KNOWN: &str = "this steward's user may not read all keys, so it is not known whether others use this etcd: let etcd \
                         compact by itself (--auto-compaction-mode), or set `steward.etcd.compact` to `on`";

/// Compacts etcd at each interval until it is told to stop.
pub(crate) async fn compact_in_time(state: Arc<State>, options: EtcdOptions, stop: CancellationToken) {
    let mut looks = interval_at(Instant::now(), options.compact_every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut noted = Noted::default();
    loop {
        let looked = tokio::select! {
            () = stop.cancelled() => return,
            looked = async {
                looks.tick().await;
                look(&options, &mut noted).await
            } => looked,
        };
        state.note_compaction(|report| report.add(&looked, now_ms()));
    }
}

/// What a look did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// The revision was noted. There was none before.
    Noted,
    /// What was before this revision is forgotten.
    Compacted(u64),
    /// etcd is not compacted, for this reason.
    LeftAlone(&'static str),
}

async fn look(options: &EtcdOptions, noted: &mut Noted) -> Result<Looked> {
    let etcd = &options.reach;
    if options.compact == Compact::Auto {
        let why_not = match has_other_keys(etcd, WITHIN).await {
            Ok(false) => None,
            Ok(true) => Some(SHARED),
            Err(error) if error.kind() == ErrorKind::Denied => Some(NOT_KNOWN),
            Err(error) => return Err(error),
        };
        if let Some(why_not) = why_not {
            *noted = Noted::default();
            return Ok(Looked::LeftAlone(why_not));
        }
    }
    let now = head(etcd, WITHIN).await?;
    let Some(revision) = noted.next(now) else {
        return Ok(Looked::Noted);
    };
    match compact(etcd, revision, WITHIN).await? {
        Compacted::Now => tracing::info!(revision, "compacted etcd: nobody reads what was before"),
        Compacted::Already => tracing::debug!(revision, "etcd was compacted by another one, or by itself"),
    }
    Ok(Looked::Compacted(revision))
}

/// Where etcd's history stood at the last look.
#[derive(Debug, Default)]
struct Noted(Option<Head>);

impl Noted {
    /// Notes where it stands now. Returns where it stood before, if it is the same history.
    fn next(&mut self, now: Head) -> Option<u64> {
        let before = self.0.replace(now)?;
        let is_same = before.cluster == now.cluster && before.revision <= now.revision;
        is_same.then_some(before.revision)
    }
}

impl CompactionReport {
    /// Takes in what a look did. A new reason why etcd is not compacted is logged.
    fn add(&mut self, looked: &Result<Looked>, now_ms: u64) {
        let why_not = match looked {
            Ok(Looked::Noted) => None,
            Ok(Looked::Compacted(revision)) => {
                self.done += 1;
                self.revision = Some(*revision);
                self.last_ms = Some(now_ms);
                None
            }
            Ok(Looked::LeftAlone(why_not)) => Some((*why_not).to_owned()),
            Err(error) => {
                self.failed += 1;
                Some(error.to_string())
            }
        };
        if let Some(why) = &why_not
            && self.why_not.as_ref() != Some(why)
        {
            tracing::warn!(%why, "etcd is not compacted");
        }
        self.why_not = why_not;
    }
}

#[cfg(test)]
mod tests {
    use tensorhold_core::Error;

    use super::*;

    #[test]
    fn an_interval_of_history_is_kept() {
        let at = |cluster, revision| Head { cluster, revision };
        let mut noted = Noted::default();
        assert_eq!(noted.next(at(1, 10)), None, "nothing was seen an interval ago");
        assert_eq!(noted.next(at(1, 25)), Some(10));
        assert_eq!(noted.next(at(1, 25)), Some(25), "nothing was written since");
        assert_eq!(noted.next(at(1, 20)), None, "it was restored");
        assert_eq!(noted.next(at(2, 30)), None, "it was replaced");
        assert_eq!(noted.next(at(2, 40)), Some(30));
    }

    #[test]
    fn the_report_says_what_was_done_last_and_why_nothing_is() {
        let mut report = CompactionReport::default();
        report.add(&Ok(Looked::Noted), 1);
        assert_eq!(report, CompactionReport::default());
        report.add(&Ok(Looked::Compacted(7)), 2);
        report.add(&Err(Error::unavailable("test", "no answer")), 3);
        let told = (report.done, report.failed, report.revision, report.last_ms);
        assert_eq!(told, (1, 1, Some(7), Some(2)));
        assert!(report.why_not.as_ref().is_some_and(|why| why.contains("no answer")));
        report.add(&Ok(Looked::LeftAlone(SHARED)), 4);
        assert_eq!((report.failed, report.why_not.as_deref()), (1, Some(SHARED)));
        report.add(&Ok(Looked::Compacted(9)), 5);
        assert_eq!((report.revision, report.why_not), (Some(9), None));
    }
}
