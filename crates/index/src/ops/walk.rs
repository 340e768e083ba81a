//! Walking along the grant lists of all sessions, to find those that are due.
//!
//! Grant lists are one range of keys (`h/`), ordered by session and then by tick. The walk reads their keys in pages, not
//! the range of each session, so its cost depends on the number of keys and hardly on the number of sessions. A page that
//! ends among the grant lists of a living session that are not due yet is followed by one that begins at the next
//! session: what lies between is due even later.
//!
//! ```text
//!   h/ │ A: dead    │ B: alive                │ C: alive, many │ D │ …
//!      │ due due due│ due │ not due … not due │ due │ not due …┊    │
//!      └───────────────── page ──────────────────────────▶┘┊    └─ the next page begins here
//! ```
//!
//! One walk reads at most [`PAGES`] pages and says where the next one is to go on. With as many grant lists as that, what
//! is due is found some sweeps later, and each sweep costs no more than this one.
//!
//! A session that is neither known to be dead nor listed as alive (it was opened after the list was read, or it was
//! cleared before a grant to it arrived) is treated as alive: its grant lists are due by their time.

use std::collections::BTreeSet;

use tensorhold_core::{Deadline, Result};
use tensorhold_custody::{SessionId, Tick};

use crate::index::TxnIndex;
use crate::record::layout::{Layout, after};

/// Keys in one page: about 200 KB.
pub(crate) const PAGE: usize = 2000;
/// Pages in one walk.
pub(crate) const PAGES: usize = 16;

/// What one walk has found.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    /// The keys of due grant lists, in order.
    pub(crate) due: Vec<String>,
    /// Ended sessions that have no grant list.
    pub(crate) cleared: Vec<SessionId>,
    /// Where the next walk goes on; none if this one has reached the end.
    pub(crate) next: Option<String>,
}

/// Which grant lists are due.
struct DueBy<'a> {
    layout: &'a Layout,
    dead: &'a BTreeSet<SessionId>,
    /// Those of living sessions that end before this tick.
    before: Tick,
    /// The session of the key before, and the first of its keys that is not due.
    last: Option<(SessionId, String)>,
}

impl DueBy<'_> {
    fn is_due(&mut self, session: SessionId, key: &str) -> bool {
        match &self.last {
            Some((last, not_due)) if *last == session => key < not_due.as_str(),
            _ => {
                let before = Some(self.before).filter(|_| !self.dead.contains(&session));
                let not_due = self.layout.held(session, before).end;
                let is_due = key < not_due.as_str();
                self.last = Some((session, not_due));
                is_due
            }
        }
    }
}

impl TxnIndex {
    /// Walks on from a place, or from the start, until so many due grant lists are found.
    pub(crate) async fn walk(
        &self,
        dead: &BTreeSet<SessionId>,
        tick: Tick,
        from: Option<&str>,
        wanted: usize,
        deadline: Deadline,
    ) -> Result<Walked> {
        let layout = self.core.layout();
        let mut by = DueBy {
            layout,
            dead,
            before: Tick(tick.0.saturating_sub(self.core.grace_ticks())),
            last: None,
        };
        let mut range = layout.all_held();
        let end = range.end.clone();
        if let Some(from) = from.filter(|from| **from > *range.start) {
            from.clone_into(&mut range.start);
        }
        let start = range.start.clone();
        let mut due = Vec::new();
        // Dead sessions that have a grant list.
        let mut holding = BTreeSet::new();
        let mut at = start.clone();
        let mut pages = 0;
        while at < end && pages < PAGES && due.len() < wanted {
            range.start.clone_from(&at);
            let page = self.core.read_keys([range.clone()], PAGE, deadline).await?;
            let page = page.into_iter().next().unwrap_or_default();
            pages += 1;
            let is_last = page.len() < PAGE;
            let (mut full, mut skip) = (false, None);
            for key in page {
                at = after(&key);
                let session = layout.holder_of(&key);
                skip = None;
                let Some(session) = session else { continue };
                let is_dead = dead.contains(&session);
                if is_dead {
                    holding.insert(session);
                }
                if by.is_due(session, &key) {
                    due.push(key);
                    full = due.len() == wanted;
                    if full {
                        break;
                    }
                } else if !is_dead {
                    skip = Some(session);
                }
            }
            if full {
                break;
            }
            if is_last {
                at.clone_from(&end);
            } else if let Some(session) = skip {
                at = layout.held(session, None).end;
            }
        }
        // Of the sessions whose range was walked along as a whole. A page border within such a range is at a key of it.
        let passed = |session: &&SessionId| {
            let range = layout.held(**session, None);
            range.start >= start && range.end <= at && !holding.contains(*session)
        };
        Ok(Walked {
            due,
            cleared: dead.iter().filter(passed).copied().collect(),
            next: (at < end).then_some(at),
        })
    }
}
