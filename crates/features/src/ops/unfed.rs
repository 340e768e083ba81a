//! Groups whose takes get nothing: perhaps nobody puts samples for a group of that name.
//!
//! An empty take is no error, because a consumer often starts before the first producer. But a group whose name is
//! misspelled gets nothing for ever, and its consumer waits without a word.
//!
//! ```text
//!          a take waits for FIRST_LOOK                  every live sample looked at is for other groups
//! unknown ────────────────────────────▶ looked at ──────────────────────────────────────────────────▶ settled: said once
//!    │ a sample was taken                 │  ▲ no sample is live, or one is for the group: a longer pause
//!    ▼                                    └──┘
//! settled
//! ```
//! A look reads one page of records. It runs beside the take's wait and delays nothing; if it fails, the next one says.
//! What it says is what it saw: of a store with very many samples it sees a part.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Result, Timestamp};
use tensorhold_custody::GroupName;
use tensorhold_index::{Record, RecordQuery, Stage};

use crate::store::Inner;

/// How long the takes of a group get nothing before the first look.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// The longest pause between looks. It doubles with each.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// How many live samples are looked at.
const LOOKED_AT: usize = 256;
/// The most groups that are remembered. It bounds memory; no process takes for so many.
const MOST_GROUPS: usize = 256;
/// The most groups that are named in the log.
const MOST_NAMED: usize = 16;

/// What is known of the groups that this process takes for.
#[derive(Debug, Default)]
pub(crate) struct UnfedGroups(Mutex<HashMap<GroupName, Known>>);

#[derive(Clone, Copy, Debug)]
enum Known {
    /// It got a sample, or its name was said to be in doubt.
    Settled,
    /// The next look is due then, and the one after it so much later.
    Unfed(Timestamp, Duration),
}

impl UnfedGroups {
    /// A take of this group got samples.
    pub(crate) fn is_fed(&self, group: &GroupName) {
        let mut groups = self.0.lock();
        if !matches!(groups.get(group), Some(Known::Settled)) {
            note(&mut groups, group, Known::Settled);
        }
    }

    /// When to look next; none if there is no need.
    fn due(&self, group: &GroupName, now: Timestamp) -> Option<Timestamp> {
        let mut groups = self.0.lock();
        match groups.get(group) {
            Some(Known::Settled) => None,
            Some(Known::Unfed(due, _)) => Some(*due),
            None => {
                let due = now.after(FIRST_LOOK);
                note(&mut groups, group, Known::Unfed(due, 2 * FIRST_LOOK)).then_some(due)
            }
        }
    }

    /// Takes the look that is due. False if another take has it.
    fn begin(&self, group: &GroupName, now: Timestamp) -> bool {
        let mut groups = self.0.lock();
        match groups.get(group) {
            Some(Known::Unfed(due, pause)) if *due <= now => {
                let next = Known::Unfed(now.after(*pause), (2 * *pause).min(LONGEST_PAUSE));
                note(&mut groups, group, next)
            }
            _ => false,
        }
    }
}

/// Remembers something of a group, if there is room. Returns whether there is.
fn note(groups: &mut HashMap<GroupName, Known>, group: &GroupName, known: Known) -> bool {
    let has_room = groups.len() < MOST_GROUPS || groups.contains_key(group);
    if has_room {
        groups.insert(group.clone(), known);
    }
    has_room
}

impl Inner {
    /// Looks at live samples while a take of this group waits. Never ends; dropping it is harmless.
    pub(crate) async fn look_while_unfed(&self, group: &GroupName) -> Infallible {
        while let Some(due) = self.unfed.due(group, self.runtime.clock.now()) {
            tokio::time::sleep(due.since(self.runtime.clock.now())).await;
            if !self.unfed.begin(group, self.runtime.clock.now()) {
                continue;
            }
            match self.groups_of_others(group).await {
                Ok(Some((looked_at, groups))) => {
                    self.unfed.is_fed(group);
                    tracing::warn!(
                        store = %self.runtime.config.store,
                        %group,
                        groups,
                        looked_at,
                        "this group gets nothing, and the live samples are for other groups: check its name"
                    );
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, %group, "whom the live samples are for is looked at later"),
            }
        }
        std::future::pending().await
    }

    /// How many live samples were looked at, and which groups they are for; none if there are none, or one is for this group.
    async fn groups_of_others(&self, group: &GroupName) -> Result<Option<(usize, String)>> {
        let (live, within) = (RecordQuery::of(Stage::Live), self.runtime.config.call_within);
        let page = self.runtime.index.records(&live, None, LOOKED_AT, within).await?;
        let mut named = BTreeSet::new();
        let mut looked_at = 0;
        for found in &page.records {
            if let Record::Live(live) = &found.record {
                looked_at += 1;
                named.extend(live.groups.iter().map(|state| &state.group));
            }
        }
        // Records of a later release are not looked into.
        if looked_at == 0 || page.later > 0 || named.contains(group) {
            return Ok(None);
        }
        let names: Vec<&str> = named.iter().take(MOST_NAMED).map(|group| group.as_str()).collect();
        let none = "(none: they were put with no group)".to_owned();
        Ok(Some((
            looked_at,
            if names.is_empty() { none } else { names.join(", ") },
        )))
    }
}
