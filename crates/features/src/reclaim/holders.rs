//! Noticing that a holder has gone, and looking at once for the samples that went with it.
//!
//! A holder takes its objects with it. Their readers find out one by one, and a sample that nobody reads is found by the
//! next audit. So the process whose turn it is looks at the engine's list of holders every few seconds, and has the store's
//! samples looked for when the list says that memory is gone. What becomes of a sample is decided where it always is
//! (module `loss`): suspected, then lost or back.
//!
//! ```text
//!             not listed any more
//!  listed ────────────────────────▶ missing ──▶ every live sample is looked for (module `audit::losses`), and once more
//!    ▲                                │  │      a little later: the engine may clear its list of objects after that of
//!    └──── listed under its name ─────┘  │      its holders
//!                              [`NAMED_FOR`] later, or it held nothing: forgotten
//! ```
//! The samples are looked for, too, when a holder lists other memory than before, when one has come back between two looks
//! (the engine counts registrations), and when the engine's directory has begun anew.
//!
//! # Invariants
//! - HO1: one process of a store looks: the steward in office, else the sweeper, else its deputy (module `duty`).
//! - HO2: what it has seen is written to the index whenever it has changed. Its successor compares with that: a holder that
//!   dies while nobody looks is missed at the first look.
//! - HO3: a list that could not be read says nothing. Only a list that was read and lacks a holder makes it missing.
//! - HO4: a change is settled when the samples were looked for after it, all of them, and those that miss an object are
//!   suspected. Until then the record says `unsettled`, and a successor looks for them again.
//!
//! # What if…
//! - *…this process dies or sleeps past its session?* Another one takes over (`duty`), and reads the record. A late write of
//!   the sleeper is refused: it is not the record any more that it has read.
//! - *…the index cannot be written?* The look counts all the same; what was seen is written at a later look.
//! - *…there are more suspects than there is room for?* The rest is counted, and looked for again when there is room.
//! - *…an operator takes a holder away?* One that holds nothing is not missed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, OptionFuture};
use tensorhold_core::{ErrorKind, Result};
use tensorhold_engine::{Holder, Usage};
use tensorhold_index::{HolderSeen, HoldersSeen, MissingHolder, Office};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::Reclaim;
use super::duty::Sweeping;
use super::loss::MOST_SUSPECTS;
use crate::audit::losses::{LossAudit, LossReport};

const OPERATION: &str = "features.holders";
/// The longest time between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// After so many looks the samples are looked for once more.
const ONCE_MORE: u32 = 5;
/// For how long a holder is named that does not come back. It may come back under another name, or not at all.
const NAMED_FOR: Duration = Duration::from_secs(3600);
/// How long looking for the samples of a store may take.
const LONG: Duration = Duration::from_secs(600);

/// What one process knows of the holders.
#[derive(Debug, Default)]
struct Known {
    seen: HoldersSeen,
    /// As it was written last.
    written: Option<HoldersSeen>,
    /// How much each holder held, by its memory.
    held: BTreeMap<String, u64>,
    /// The memory that was listed when the engine's directory began anew: it may say that a dead holder's is empty.
    inherited: BTreeSet<String>,
    /// Beginnings of the engine's directory.
    restarts: Option<u64>,
    /// The samples are to be looked for.
    due: bool,
    /// They are to be looked for once more at this time.
    again: Option<Instant>,
    /// Samples that miss an object and found no room among the suspects.
    no_room: u64,
}

/// Looks at the holders whenever it is this process's turn, until it is told to stop.
pub(crate) async fn watch(reclaim: Arc<Reclaim>, mut stop: watch::Receiver<bool>) {
    if !reclaim.runtime.engine.capabilities().probe {
        return;
    }
    let mut duty = reclaim.duty.subscribe();
    while !*stop.borrow() {
        if is_its_turn(&duty.borrow_and_update()) {
            reclaim.look_at_holders(&mut duty, &mut stop).await;
            reclaim.holders.send_replace(None);
        } else {
            tokio::select! {
                _ = stop.changed() => {}
                // Its sender lives in `reclaim`.
                _ = duty.changed() => {}
            }
        }
    }
}

/// HO1.
fn is_its_turn(known: &Sweeping) -> bool {
    known.on_duty
        && match known.office {
            Some(Office::Deputy) => known.leaders.of(Office::Sweeper).is_none(),
            office => office.is_some(),
        }
}

impl Reclaim {
    /// Looks for as long as it is this process's turn.
    async fn look_at_holders(&self, duty: &mut watch::Receiver<Sweeping>, stop: &mut watch::Receiver<bool>) {
        let config = &self.runtime.config;
        let pause = (config.loss_grace / 10).clamp(Duration::from_millis(10), LONGEST_PAUSE);
        let mut looks = interval_at(Instant::now(), pause);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut known: Option<Known> = None;
        let mut search: Option<BoxFuture<'_, Result<LossReport>>> = None;
        loop {
            tokio::select! {
                _ = stop.changed() => return,
                told = duty.changed() => {
                    if told.is_err() || !is_its_turn(&duty.borrow_and_update()) {
                        return;
                    }
                }
                _ = looks.tick() => {
                    // One look at a time, and none without what was seen before.
                    let Some(known) = self.with_record(&mut known).await else { continue };
                    self.look(known, ONCE_MORE * pause).await;
                    if known.due && search.is_none() && self.losses.suspected() < MOST_SUSPECTS / 2 {
                        known.due = false;
                        search = Some(self.look_for_samples().boxed());
                    }
                    self.tell(known, search.is_some()).await;
                }
                Some(found) = OptionFuture::from(search.as_mut()) => {
                    search = None;
                    if let Some(known) = &mut known {
                        known.found(found);
                        self.tell(known, false).await;
                    }
                }
            }
        }
    }

    /// What is known, beginning with what the process has written down whose turn it was before.
    async fn with_record<'a>(&self, known: &'a mut Option<Known>) -> Option<&'a mut Known> {
        if known.is_none() {
            match self.runtime.index.holders_seen(self.runtime.config.call_within).await {
                Ok(seen) => *known = Some(Known::of_record(seen)),
                Err(error) => {
                    tracing::debug!(%error, "what was seen of the holders before cannot be read; trying again")
                }
            }
        }
        known.as_mut()
    }

    async fn look(&self, known: &mut Known, once_more: Duration) {
        let engine = Arc::clone(&self.runtime.engine);
        let deadline = self.runtime.own_deadline();
        let call = move |within: Duration| {
            // In this order: a holder that comes in between is listed and not counted, and the other way round it would
            // look like one that has come back.
            let usage = engine.usage(within)?;
            Ok((usage, engine.holders(within)?))
        };
        match self.runtime.blocking.run(OPERATION, deadline, call).await {
            Ok((usage, holders)) => {
                if known.saw(&usage, &holders, self.runtime.clock.wall_ms()) {
                    known.again = Some(Instant::now() + once_more);
                }
            }
            Err(error) => tracing::debug!(%error, "the engine does not say which holders it has"),
        }
        if known.again.is_some_and(|at| at <= Instant::now()) {
            (known.due, known.again) = (true, None);
        }
        known.seen.suspected = self.losses.suspected() as u64 + known.no_room;
    }

    async fn look_for_samples(&self) -> Result<LossReport> {
        let audit = LossAudit {
            read_only: false,
            ..LossAudit::default()
        };
        // It ends with this process's turn.
        self.audit_losses(&audit, None, self.runtime.deadline(LONG)).await
    }

    /// Tells this process, and the index, what was seen.
    async fn tell(&self, known: &mut Known, searching: bool) {
        known.seen.unsettled = known.due || known.again.is_some() || searching;
        known.seen.suspected = self.losses.suspected() as u64 + known.no_room;
        self.holders.send_if_modified(|told| {
            let is_new = told.as_ref() != Some(&known.seen);
            *told = Some(known.seen.clone());
            is_new
        });
        if known.written.as_ref() == Some(&known.seen) {
            return;
        }
        let within = self.runtime.config.call_within;
        let session = match self
            .runtime
            .sessions
            .current(OPERATION, self.runtime.own_deadline())
            .await
        {
            Ok(session) => session,
            Err(error) => return tracing::debug!(%error, "what was seen of the holders is written down later"),
        };
        known.seen.at_ms = self.runtime.clock.wall_ms();
        match self.runtime.index.note_holders(&session, &known.seen, within).await {
            Ok(version) => {
                known.seen.version = version;
                known.written = Some(known.seen.clone());
            }
            // A process whose turn it was has written late. What it saw is older; it is replaced at the next look.
            Err(error) if error.kind() == ErrorKind::Conflict => match self.runtime.index.holders_seen(within).await {
                Ok(seen) => known.seen.version = seen.version,
                Err(error) => tracing::debug!(%error, "what another process saw of the holders cannot be read"),
            },
            Err(error) => {
                self.runtime.sessions.refused(&session, &error);
                tracing::debug!(%error, "what was seen of the holders is written down later");
            }
        }
    }
}

impl Known {
    fn of_record(seen: HoldersSeen) -> Self {
        Self {
            due: seen.unsettled || seen.suspected > 0,
            written: Some(seen.clone()),
            seen,
            ..Self::default()
        }
    }

    /// Takes in a look. True if objects may have gone since the last one.
    fn saw(&mut self, usage: &Usage, holders: &[Holder], now_ms: u64) -> bool {
        let is_first = self.seen.listed.is_empty() && self.seen.missing.is_empty() && self.restarts.is_none();
        let before: BTreeSet<&str> = self.seen.listed.iter().map(|one| one.memory.as_str()).collect();
        let now: BTreeSet<&str> = holders.iter().map(|holder| holder.memory.as_str()).collect();
        let names: BTreeSet<&str> = holders.iter().map(|holder| holder.name.as_str()).collect();
        let began_anew = match self.restarts.replace(usage.restarts) {
            Some(known) => known != usage.restarts,
            // Its predecessor saw more registrations than there were with this directory.
            None => usage.mounts < self.seen.mounts,
        };
        let expected = match began_anew || is_first {
            true => usage.mounts,
            false => self.seen.mounts + now.difference(&before).count() as u64,
        };
        let came_back = usage.mounts > expected;
        let mut is_gone = false;
        for holder in &self.seen.listed {
            if now.contains(holder.memory.as_str()) {
                continue;
            }
            is_gone = true;
            // What is on SSD is not known by holder.
            let was_empty = usage.ssd_used == 0 && self.held.get(&holder.memory) == Some(&0);
            if was_empty || names.contains(holder.name.as_str()) {
                tracing::info!(
                    holder = holder.name,
                    was_empty,
                    "a holder has left, or lends other memory now"
                );
                continue;
            }
            tracing::warn!(
                holder = holder.name,
                "the engine does not list this holder any more: its objects are looked for"
            );
            if !self.seen.missing.iter().any(|known| known.name == holder.name) {
                self.seen.missing.push(MissingHolder {
                    name: holder.name.clone(),
                    since_ms: now_ms,
                });
            }
        }
        let named_for = u64::try_from(NAMED_FOR.as_millis()).unwrap_or(u64::MAX);
        self.seen.missing.retain(|missing| {
            !names.contains(missing.name.as_str()) && now_ms.saturating_sub(missing.since_ms) < named_for
        });
        self.seen.mounts = expected.max(usage.mounts);
        if began_anew {
            self.inherited = before.iter().map(|memory| (*memory).to_owned()).collect();
        }
        let held = holders.iter().map(|one| {
            let known = self
                .held
                .get(&one.memory)
                .filter(|_| self.inherited.contains(&one.memory));
            (one.memory.clone(), one.dram_used.max(known.copied().unwrap_or(0)))
        });
        self.held = held.collect();
        let listed = holders.iter().map(|holder| HolderSeen {
            name: holder.name.clone(),
            memory: holder.memory.clone(),
        });
        self.seen.listed = listed.collect();
        let changed = !is_first && (is_gone || came_back || began_anew);
        self.due |= changed;
        changed
    }

    /// Takes in what became of looking for the samples.
    fn found(&mut self, found: Result<LossReport>) {
        match found {
            Ok(report) => {
                self.no_room = report.no_room;
                self.due |= !report.complete;
                if report.missing > 0 {
                    let (missing, samples) = (report.missing, report.samples);
                    tracing::warn!(
                        missing,
                        samples,
                        "samples miss an object since a holder has gone; they are lost, or come back"
                    );
                }
            }
            Err(error) => {
                self.due = true;
                tracing::warn!(%error, "the samples of a holder that has gone could not be looked for; trying again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(name: &str, memory: &str) -> Holder {
        Holder {
            name: name.to_owned(),
            memory: memory.to_owned(),
            dram_used: 1,
            ..Holder::default()
        }
    }

    fn usage(mounts: u64, restarts: u64) -> Usage {
        Usage {
            mounts,
            restarts,
            ..Usage::default()
        }
    }

    fn missing(known: &Known) -> Vec<&str> {
        known.seen.missing.iter().map(|one| one.name.as_str()).collect()
    }

    #[test]
    fn what_is_gone_is_missed_and_what_comes_is_not() {
        let (a, b) = (holder("a", "1"), holder("b", "2"));
        let mut known = Known::default();
        assert!(!known.saw(&usage(2, 0), &[a.clone(), b.clone()], 0), "the first look");
        assert!(
            !known.saw(&usage(2, 0), &[a.clone(), b.clone(), holder("c", "3")], 1),
            "one comes"
        );
        assert!(
            !known.saw(&usage(3, 0), &[a.clone(), b.clone(), holder("c", "3")], 2),
            "and is counted"
        );
        assert!(
            known.saw(&usage(3, 0), &[a.clone(), holder("c", "3")], 3),
            "one is gone"
        );
        assert_eq!((missing(&known), known.seen.missing[0].since_ms), (vec!["b"], 3));
        assert!(!known.saw(&usage(3, 0), &[a.clone(), holder("c", "3")], 4), "still");
        assert!(
            !known.saw(&usage(4, 0), &[a.clone(), holder("b", "4"), holder("c", "3")], 5),
            "back"
        );
        assert_eq!(missing(&known), [""; 0]);
        assert!(known.due, "nobody has looked for the samples yet");
    }

    #[test]
    fn other_memory_a_quick_return_and_a_new_directory_are_changes() {
        let mut known = Known::default();
        known.saw(&usage(1, 0), &[holder("a", "1")], 0);
        assert!(
            known.saw(&usage(2, 0), &[holder("a", "2")], 0),
            "other memory under the same name"
        );
        assert_eq!(missing(&known), [""; 0]);
        assert!(
            known.saw(&usage(3, 0), &[holder("a", "2")], 0),
            "it was gone in between"
        );
        assert!(known.saw(&usage(1, 1), &[holder("a", "2")], 0), "another master");
        assert!(!known.saw(&usage(1, 1), &[holder("a", "2")], 0));
    }

    #[test]
    fn a_holder_that_held_nothing_is_not_missed_and_one_that_stays_away_is_forgotten() {
        let empty = Holder {
            dram_used: 0,
            ..holder("empty", "2")
        };
        let mut known = Known::default();
        known.saw(&usage(2, 0), &[holder("a", "1"), empty.clone()], 0);
        assert!(
            known.saw(&usage(2, 0), &[holder("a", "1")], 0),
            "the samples are looked for all the same"
        );
        assert_eq!(missing(&known), [""; 0]);
        assert!(known.saw(&usage(2, 0), &[], 7));
        assert_eq!(missing(&known), ["a"]);
        known.saw(&usage(2, 0), &[], 3_600_006);
        assert_eq!(missing(&known), ["a"]);
        known.saw(&usage(2, 0), &[], 3_600_007);
        assert_eq!(missing(&known), [""; 0]);
    }

    #[test]
    fn a_successor_compares_with_what_was_written_down() {
        let mut first = Known::default();
        first.saw(&usage(2, 0), &[holder("a", "1"), holder("b", "2")], 0);
        let mut next = Known::of_record(first.seen.clone());
        assert!(!next.due);
        assert!(
            next.saw(&usage(2, 5), &[holder("a", "1")], 9),
            "one died while nobody looked"
        );
        let mut another = Known::of_record(first.seen.clone());
        assert!(
            another.saw(&usage(1, 5), &[holder("a", "1"), holder("b", "2")], 9),
            "another master"
        );
        assert_eq!(missing(&next), ["b"]);
        next.seen.unsettled = true;
        assert!(
            Known::of_record(next.seen.clone()).due,
            "nobody has looked for its samples"
        );
    }
}
