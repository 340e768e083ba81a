//! `drain`: makes it safe to stop a holder.
//!
//! ```text
//!  a look ──▶ room elsewhere? ──▶ closed: the master gives the holder nothing new
//!                  │ no                    │
//!                  ▼                       ▼
//!               refused             look ◀────────────────────────┐
//!                                    │ something of samples there │
//!                                    ├──▶ moved to other holders ─┤
//!                                    ├──▶ cannot be moved: wait ──┘
//!                                    └──▶ nothing, twice, and still closed ──▶ safe to stop
//! ```
//! Objects move under their keys (truths of the engine's crate, module `drain`): no record changes, readers read on, and a
//! remove that meets a move is tried again by the store that wants it.
//!
//! # What must hold
//! - "Safe to stop" is said after two looks at all samples of all stores, both begun while the holder was closed, that
//!   found no copy of theirs there, and none that is still being written. The master is asked after them whether the
//!   holder is still closed, and whether it is still the same memory.
//! - Only the master's answer about an object counts, never that a move was asked for.
//!
//! # What if
//! - *this process dies*: the holder stays closed, and moves that were asked for happen. Another drain goes on.
//! - *the master begins anew, or another one leads*: the holder is open again, as the status says; it is closed again, and
//!   the looks count anew.
//! - *the holder dies, or comes back with other memory*: what lay there is gone; the drain says so after [`STALL`] and ends.
//! - *the holder to which objects go dies*: they are lost, as everything there. Objects in motion stay where they were.
//! - *the other holders fill up meanwhile*: it waits for samples to end, and ends if nothing moves for [`STALL`].
//! - *an object is not pinned* (`residency="spill"`): it is moved like the others, but a copy on the holder's SSD cannot
//!   be: the drain waits until its sample ends.

mod look;
mod mover;

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ErrorKind, Timestamp};
use tensorhold_engine::Engine;

use self::look::{Seen, look, pause};
use self::mover::{Mover, Step, others};
use super::Context;
use super::holders::{self, ASK};
use super::reclaim::engine_for;
use crate::admin::{self, Closed, Segment};
use crate::args;
use crate::failure::{Failure, UNREACHABLE, WRONG};
use crate::io::Progress;
use crate::output::{Answer, object};
use crate::reach::Reach;
use crate::text::{age, bytes, count, shown};

/// When nothing moves for so long, the drain ends; also the longest outage of a server that it waits through.
const STALL: Duration = Duration::from_secs(60);
/// How often it looks at what moves.
const EVERY: Duration = Duration::from_millis(500);
/// How long an undo waits for the master's job to be between two objects.
const UNDO: Duration = Duration::from_secs(30);

pub(crate) async fn run(
    reach: &Reach,
    wanted: args::Drain,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let holder = holders::find(reach, &wanted.holder, progress).await?;
    if let Some(job) = &wanted.undo {
        return undo(reach, &holder.segment_name, job, progress).await;
    }
    let seen = look(reach, &holder.segment_name, context.now_ms, progress).await?;
    let segments = progress.wait("asking the master", holders::segments(reach)).await?;
    room(&holder, &seen, &segments)?;
    let what = format!("holder {} cannot be drained from here", shown(&holder.segment_name));
    let engine = engine_for(&reach.renewed(reach.left().min(ASK)), &what, context, progress).await?;
    let mut drain = Drain {
        reach,
        begun: reach.clock.now(),
        answered: reach.clock.now(),
        rest: pause(Duration::ZERO),
        holder,
        done: Step::default(),
        seen,
        refused: None,
    };
    let safe = drain.until_safe(&engine, context, progress).await;
    // The engine waits for its calls when it is dropped.
    drop(tokio::task::spawn_blocking(move || drop(engine)).await);
    Ok(drain.answer(safe?))
}

/// Whether the other holders can take what lies here alone. Memory that KV pages have there counts as room: the engine
/// evicts them.
fn room(holder: &Segment, seen: &Seen, segments: &[Segment]) -> Result<(), Failure> {
    let (most, many) = others(segments, &holder.segment_name).fold((0_u64, 0_u64), |(most, many), one| {
        (most.saturating_add(one.allocator_capacity_bytes), many + 1)
    });
    let (room, wanted) = (most.saturating_sub(seen.elsewhere), seen.to_move());
    if wanted <= room {
        return Ok(());
    }
    Err(Failure::new(
        ErrorKind::Capacity,
        format!(
            "holder {} cannot be drained: the others have no room",
            shown(&holder.segment_name)
        ),
        format!(
            "{} of samples lie on it alone, and {}: {} are missing",
            bytes(wanted),
            match many {
                0 => "no other holder is given new objects".to_owned(),
                1 => format!("the other one may have {} of samples more", bytes(room)),
                _ => format!("the {many} others may have {} of samples more", bytes(room)),
            },
            bytes(wanted - room)
        ),
        "start another holder, or wait until samples are used up (`tensorhold ls --holder` shows them)",
    ))
}

/// A holder that is being drained.
struct Drain<'a> {
    reach: &'a Reach,
    begun: Timestamp,
    /// When servers last answered.
    answered: Timestamp,
    /// How long to rest before the next look.
    rest: Duration,
    holder: Segment,
    done: Step,
    /// What the last look found.
    seen: Seen,
    /// Why a request to move an object was refused last.
    refused: Option<String>,
}

impl Drain<'_> {
    fn name(&self) -> String {
        shown(&self.holder.segment_name)
    }

    /// Drains it. False if the time is over before it is safe to stop.
    async fn until_safe(
        &mut self,
        engine: &Arc<dyn Engine>,
        context: &Context<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<bool, Failure> {
        // Looks in a row that found nothing, each begun while the holder was closed.
        let mut clean = 0;
        while !self.reach.left().is_zero() {
            match self.turn(engine, context, progress, &mut clean).await {
                Ok(true) => return Ok(true),
                Ok(false) => self.answered = self.reach.clock.now(),
                Err(failure) if failure.code == UNREACHABLE && self.since(self.answered) < STALL => {
                    clean = 0;
                    progress.show(&failure.what);
                }
                Err(failure) => return Err(failure),
            }
            if clean == 0 {
                let rest = self.rest.min(self.reach.left());
                progress.wait(&self.waiting(), tokio::time::sleep(rest)).await;
            }
        }
        Ok(false)
    }

    fn since(&self, then: Timestamp) -> Duration {
        self.reach.clock.now().since(then)
    }

    /// One look, and moving what it found. True if the holder is safe to stop.
    async fn turn(
        &mut self,
        engine: &Arc<dyn Engine>,
        context: &Context<'_>,
        progress: &mut Progress<'_>,
        clean: &mut u32,
    ) -> Result<bool, Failure> {
        if !self.was_closed(progress).await? {
            *clean = 0;
        }
        if *clean >= 2 {
            return Ok(true);
        }
        let (begun, now_ms) = (self.reach.clock.now(), (context.host.now_ms)());
        self.seen = look(self.reach, &self.holder.segment_name, now_ms, progress).await?;
        self.rest = pause(self.since(begun));
        *clean = if self.seen.is_clean() { *clean + 1 } else { 0 };
        self.move_them(engine, progress).await?;
        Ok(false)
    }

    /// Moves what the last look found. An error if nothing moves any more.
    async fn move_them(&mut self, engine: &Arc<dyn Engine>, progress: &mut Progress<'_>) -> Result<(), Failure> {
        let name = self.holder.segment_name.clone();
        let mut mover = Mover::new(
            self.reach,
            Arc::clone(engine),
            &name,
            std::mem::take(&mut self.seen.objects),
        );
        let all_moved = self.move_all(&mut mover, progress).await;
        self.refused = mover.refused.take();
        self.seen.objects = mover.remaining();
        match all_moved? {
            true => Ok(()),
            false => Err(self.stalled()),
        }
    }

    /// False if nothing moves any more.
    async fn move_all(&mut self, mover: &mut Mover<'_>, progress: &mut Progress<'_>) -> Result<bool, Failure> {
        let reach = self.reach;
        let mut moved = reach.clock.now();
        while mover.left() > 0 && !reach.left().is_zero() {
            let step = self.step(mover).await?;
            self.answered = reach.clock.now();
            if step.moved + step.gone > 0 {
                moved = self.answered;
            } else if self.since(moved) > STALL {
                return Ok(false);
            }
            self.done.moved += step.moved;
            self.done.bytes += step.bytes;
            self.done.gone += step.gone;
            if mover.left() > 0 {
                let left = count(number(mover.left()), "object is", "objects are");
                let what = format!("draining {}: {} moved, {left} left", self.name(), self.done.moved);
                progress.wait(&what, tokio::time::sleep(EVERY.min(reach.left()))).await;
            }
        }
        Ok(true)
    }

    async fn step(&self, mover: &mut Mover<'_>) -> Result<Step, Failure> {
        let segments = self.look_at_it().await?;
        mover.step(&segments).await
    }

    /// All holders; this one must be among them, with the memory that it had.
    async fn look_at_it(&self) -> Result<Vec<Segment>, Failure> {
        let all = holders::segments(self.reach).await?;
        if all.iter().any(|one| one.segment_id == self.holder.segment_id) {
            return Ok(all);
        }
        // A master that has just begun to lead knows a holder again when that has registered.
        Err(Failure::new(
            ErrorKind::Unavailable,
            format!("holder {} left before it was drained", self.name()),
            "it has ended, or the master has given it up: what lay on it alone is gone",
            "`tensorhold audit` finds the samples that are lost",
        ))
    }

    /// Has the master give the holder nothing new; whether that was so before.
    async fn was_closed(&self, progress: &mut Progress<'_>) -> Result<bool, Failure> {
        let is_closed = |all: &[Segment]| {
            let it = all.iter().find(|one| one.segment_id == self.holder.segment_id);
            it.is_some_and(|one| one.status != "OK")
        };
        if is_closed(&self.look_at_it().await?) {
            return Ok(true);
        }
        let (admin, name) = (self.reach.settings.admin.clone(), self.holder.segment_name.clone());
        let within = self.reach.left().min(ASK);
        let closing = tokio::task::spawn_blocking(move || admin::close(&admin, &name, within));
        let closed = closing.await.unwrap_or_else(|failure| Err(failure.to_string()));
        if let Closed::By(job) = closed.map_err(|why| holders::no_master(self.reach, why))? {
            progress.note(&format!(
                "holder {name} is given nothing new from now on; to undo that: tensorhold drain {name} --undo {}",
                shown(&job),
                name = self.name()
            ));
        }
        match is_closed(&self.look_at_it().await?) {
            true => Ok(false),
            false => Err(Failure::new(
                ErrorKind::Unavailable,
                format!("holder {} is not closed to new objects", self.name()),
                "the master took the request, and still gives it new objects",
                "run it again",
            )),
        }
    }

    fn waiting(&self) -> String {
        format!("draining {}: waiting for {}", self.name(), self.left())
    }

    /// What is left, in words.
    fn left(&self) -> String {
        let seen = &self.seen;
        let parts = [
            (number(seen.objects.len()), "in its DRAM"),
            (seen.on_ssd, "on its SSD"),
            (seen.unfinished, "being written"),
            (seen.unknown, "of which it is not known where they are"),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(objects, what)| format!("{} {what}", count(objects, "object", "objects")))
            .collect();
        match parts.is_empty() {
            true => "another look".to_owned(),
            false => parts.join(", "),
        }
    }

    fn stalled(&self) -> Failure {
        Failure::new(
            ErrorKind::Capacity,
            format!("holder {} is not drained: it has stopped moving objects", self.name()),
            match &self.refused {
                Some(why) => format!("nothing has moved for {}; left: {}; {why}", age(STALL), self.left()),
                None => format!("nothing has moved for {}; left: {}", age(STALL), self.left()),
            },
            "do the other holders have room (`tensorhold status`)? It is still given nothing new; run the same again to go on",
        )
    }

    fn answer(&self, safe: bool) -> Answer {
        let took = self.reach.clock.now().since(self.begun);
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let mut lines = vec![match safe {
            true => format!("holder {} is drained: safe to stop", self.name()),
            false => format!("holder {} is not drained yet: do not stop it", self.name()),
        }];
        lines.push(format!(
            "moved {} ({}) in {}; {} were removed meanwhile",
            count(self.done.moved, "object", "objects"),
            bytes(self.done.bytes),
            age(took),
            self.done.gone
        ));
        if safe {
            lines.push(
                "what else it has, KV pages and objects of other programs, goes with it: pages are computed again"
                    .to_owned(),
            );
        } else {
            lines.push(format!("left: {}; some of their samples:", self.left()));
            lines.extend(self.seen.examples.iter().map(|one| format!("  {one}")));
            lines.push("it is given nothing new; run the same again to go on, with a longer --timeout".to_owned());
        }
        let value = object!("holder": self.holder.segment_name, "safe": safe, "moved": self.done.moved,
            "moved_bytes": self.done.bytes, "removed": self.done.gone, "took_ms": took_ms,
            "left": object!("dram": self.seen.objects.len(), "ssd": self.seen.on_ssd, "unfinished": self.seen.unfinished,
                "unknown": self.seen.unknown, "examples": self.seen.examples),);
        let answer = Answer::new(value, lines.join("\n") + "\n");
        if safe { answer } else { answer.with_code(WRONG) }
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

async fn undo(reach: &Reach, holder: &str, job: &str, progress: &mut Progress<'_>) -> Result<Answer, Failure> {
    let until = reach.renewed(reach.left().min(UNDO));
    loop {
        let (admin, id, within) = (reach.settings.admin.clone(), job.to_owned(), until.left());
        let asking = tokio::task::spawn_blocking(move || admin::reopen(&admin, &id, within));
        let asked = progress.wait("asking the master", asking).await;
        let reopened = asked.unwrap_or_else(|failure| Err(failure.to_string()));
        let reopened = reopened.map_err(|why| holders::no_master(reach, why))?;
        let now = holders::find(reach, holder, progress).await?;
        if now.status == "OK" {
            let text = format!("holder {} is given new objects again\n", shown(holder));
            return Ok(Answer::new(object!("holder": holder, "open": true), text));
        }
        if reopened || now.status == "DRAINED" || until.left().is_zero() {
            let why = match now.status.as_str() {
                "DRAINED" => "nothing is left on it, so the master's job is over",
                _ => "the master's job has been busy all the time, or another one has closed the holder",
            };
            return Err(Failure::new(
                ErrorKind::Conflict,
                format!("holder {} is still given nothing new", shown(holder)),
                why,
                "a holder is given new objects again when it has been restarted; one that is empty loses nothing by that",
            ));
        }
        tokio::time::sleep(EVERY).await;
    }
}
