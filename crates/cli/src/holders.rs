//! Holders that are missing: what the process that looks at them has written down, beside what the master lists now.
//!
//! Nothing remembers a holder that died but that record, which each store has. A store that no process sweeps has an old one:
//! so a holder that the record lists and the master does not is missing as well, and nobody knows since when.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tensorhold_index::HoldersSeen;

use crate::admin::Cluster;
use crate::output::object;
use crate::text::{ago, count, shown};

/// A holder that the master does not list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) name: String,
    /// Since when, in milliseconds since 1970; none if no process has noticed yet.
    pub(crate) since_ms: Option<u64>,
}

/// The holders that are missing, by name. Without an answer of the master: those that the records call missing.
pub(crate) fn missing<'a>(
    records: impl IntoIterator<Item = &'a HoldersSeen>,
    cluster: Option<&Cluster>,
) -> Vec<Missing> {
    let listed = cluster.map(|cluster| cluster.segments.iter().map(|one| one.segment_name.as_str()));
    let listed: Option<BTreeSet<&str>> = listed.map(Iterator::collect);
    let mut missing: BTreeMap<&str, Option<u64>> = BTreeMap::new();
    for seen in records {
        for holder in &seen.missing {
            let since = missing.entry(&holder.name).or_default();
            *since = Some(since.map_or(holder.since_ms, |before| before.min(holder.since_ms)));
        }
        if listed.is_some() {
            for holder in &seen.listed {
                missing.entry(&holder.name).or_default();
            }
        }
    }
    let is_listed = |name: &str| listed.as_ref().is_some_and(|listed| listed.contains(name));
    let missing = missing.into_iter().filter(|(name, _)| !is_listed(name));
    missing
        .map(|(name, since_ms)| Missing {
            name: name.to_owned(),
            since_ms,
        })
        .collect()
}

impl Missing {
    pub(crate) fn value(&self) -> Value {
        object!("name": self.name, "since_ms": self.since_ms)
    }

    /// What is said of it, without its name.
    pub(crate) fn said(&self, now_ms: u64) -> String {
        match self.since_ms {
            Some(since) => format!("the master does not list it any more; noticed {}", ago(since, now_ms)),
            None => "the master does not list it any more, and no process has noticed yet".to_owned(),
        }
    }

    /// A line for display.
    pub(crate) fn line(&self, now_ms: u64) -> String {
        format!("holder {} is missing: {}\n", shown(&self.name), self.said(now_ms))
    }
}

/// What is said of samples that may be lost; nothing if there are none.
pub(crate) fn suspected(store: &str, seen: &HoldersSeen) -> Option<String> {
    let samples = match (seen.suspected, seen.unsettled) {
        (0, false) => return None,
        (0, true) => "its samples are being looked for".to_owned(),
        (suspected, _) => {
            let miss = count(suspected, "sample misses", "samples miss");
            format!("{miss} an object since a holder has gone: lost after the loss grace, or back")
        }
    };
    Some(format!("store {}: {samples}", shown(store)))
}

#[cfg(test)]
mod tests {
    use tensorhold_index::{HolderSeen, MissingHolder};

    use super::*;
    use crate::admin::Segment;

    #[test]
    fn what_was_written_down_and_what_is_listed_now_are_put_together() {
        let seen = |listed: &[&str], missing: &[(&str, u64)]| HoldersSeen {
            listed: listed
                .iter()
                .map(|name| HolderSeen {
                    name: (*name).to_owned(),
                    memory: "1".to_owned(),
                })
                .collect(),
            missing: missing
                .iter()
                .map(|(name, since_ms)| MissingHolder {
                    name: (*name).to_owned(),
                    since_ms: *since_ms,
                })
                .collect(),
            ..HoldersSeen::default()
        };
        let segment = |name: &str| Segment {
            segment_name: name.to_owned(),
            allocator_capacity_bytes: 1,
            ..Segment::default()
        };
        let cluster = Cluster {
            segments: vec![segment("a"), segment("back")],
            ..Cluster::default()
        };
        let records = [
            seen(&["a", "unseen"], &[("c", 9), ("back", 1)]),
            seen(&["a"], &[("c", 7)]),
        ];
        let told = |missing: Vec<Missing>| {
            missing
                .into_iter()
                .map(|one| (one.name, one.since_ms))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            told(missing(&records, Some(&cluster))),
            [("c".to_owned(), Some(7)), ("unseen".to_owned(), None)]
        );
        let without = told(missing(&records, None));
        assert_eq!(
            without,
            [("back".to_owned(), Some(1)), ("c".to_owned(), Some(7))],
            "the records alone"
        );
    }
}
