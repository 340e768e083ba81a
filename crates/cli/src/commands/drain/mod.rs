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
//!                                    └──▶ nothing, twice, and closed all the time ──▶ safe to stop
//! ```
//! Objects move under their keys (truths of the engine's crate, module `drain`): no record changes, readers read on, and a
//! remove that meets a move is tried again by the store that wants it.
//!
//! # What must hold
//! - DR1: "safe to stop" is said after two looks in a row at all samples of all stores, both begun while the holder was
//!   closed, that found no copy of theirs there, and none that is still being written: a put that began before the holder
//!   was closed is seen by one of them, on the holder or unfinished.
//! - DR2: before the first of them, between them, and after the second the same master leads, lists the same memory of the
//!   holder, and has it closed. A master that begins anew has every holder open. So under one address "closed" three times
//!   means closed all the time, but for another drain of the same holder that closes it in between.
//! - DR3: only the leading master's answer about an object counts, never that a move was asked for. All answers of a
//!   question come from one master, and so do the names of the holders in them.
//!
//! # What if
//! - *this process dies*: the holder stays closed, and moves that were asked for happen. Another drain goes on.
//! - *the master begins anew, or another one leads*: it has the holder open, and knows of no move. It is closed again, the
//!   looks count anew, and what still lies there is asked for again. What had moved by the word of the dead master alone
//!   lies where it was, by the word of the new one.
//! - *the leading master dies within a moment of "safe to stop"*: it answers before a move is in the log that its
//!   successor reads, and cannot be asked whether it is. So there is a rest of a second before and after the second look,
//!   in which the log is written many times. If it cannot be written, the sample is lost, and reported as such.
//! - *the master reopens the holder* (it gives up a drain when it cannot move what is not pinned): seen as above, and closed
//!   again.
//! - *a sample was given up, and its object not yet removed* (`to_free`): it may be on the holder still, and goes with it.
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
    let (_, segments) = progress.wait("asking the master", holders::segments(reach)).await?;
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
        closed_by: None,
    };
    let safe = drain.until_safe(&engine, context, progress).await;
    let answer = safe.map(|safe| drain.answer(safe));
    // The engine waits for its calls when it is dropped: for ten seconds, if there are several masters.
    drop(tokio::task::spawn_blocking(move || drop(engine)).await);
    answer
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
    /// The address of the master that last said that the holder is closed.
    closed_by: Option<String>,
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
            // Also between two looks that found nothing: what the leading master answers before it is in the log that its
            // successor reads is in it by then.
            let rest = self.rest.min(self.reach.left());
            progress.wait(&self.waiting(), tokio::time::sleep(rest)).await;
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
        let (master, segments) = self.look_at_it().await?;
        mover.step(master, &segments).await
    }

    /// The leading master and all holders; this one must be among them, with the memory that it had.
    async fn look_at_it(&self) -> Result<(String, Vec<Segment>), Failure> {
        let (master, all) = holders::segments(self.reach).await?;
        if all.iter().any(|one| one.segment_id == self.holder.segment_id) {
            return Ok((master, all));
        }
        // A master that has just begun to lead knows a holder again when that has registered.
        Err(Failure::new(
            ErrorKind::Unavailable,
            format!("holder {} left before it was drained", self.name()),
            "it has ended, or the master has given it up: what lay on it alone is gone",
            "`tensorhold audit` finds the samples that are lost",
        ))
    }

    /// The address of the leading master if it gives the holder nothing new.
    async fn closed_now(&self) -> Result<Option<String>, Failure> {
        let (master, all) = self.look_at_it().await?;
        let it = all.iter().find(|one| one.segment_id == self.holder.segment_id);
        Ok(it.is_some_and(|one| one.status != "OK").then_some(master))
    }

    /// Has the leading master give the holder nothing new; whether the same master did that when it was asked last.
    async fn was_closed(&mut self, progress: &mut Progress<'_>) -> Result<bool, Failure> {
        if let Some(master) = self.closed_now().await? {
            let before = self.closed_by.replace(master);
            return Ok(before == self.closed_by);
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
        self.closed_by = self.closed_now().await?;
        match self.closed_by {
            Some(_) => Ok(false),
            None => Err(Failure::new(
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
