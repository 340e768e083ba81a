//! One state for all histories that differ only in their numbers.
//!
//! The custody code compares versions, tokens and generations, and never calculates with them. So a world in which they
//! are renumbered, in the same order and without gaps, behaves exactly as before. All of them are revisions of one
//! index and are renumbered together. A number that no process remembers cannot be presented.

use std::collections::BTreeMap;

use tensorhold_core::Generation;
use tensorhold_custody::{Progress, Token};

use super::index::{Op, Request};
use super::process::{Hold, Phase};
use super::sweeper::{Key, Sweeper};
use super::{Object, World};

type Visit<'a> = &'a mut dyn FnMut(&mut u64);

fn generation(generation: &mut Generation, visit: Visit<'_>) {
    let mut number = generation.get();
    visit(&mut number);
    if let Some(new) = Generation::new(number) {
        *generation = new;
    }
}

fn token(token: &mut Token, visit: Visit<'_>) {
    visit(&mut token.0);
}

fn request(request: &mut Request, visit: Visit<'_>) {
    visit(&mut request.version);
    match &mut request.op {
        Op::Commit {
            generation: g,
            replaces,
        } => {
            generation(g, visit);
            visit(replaces);
        }
        Op::Put { generation: g } | Op::Abort { generation: g } => generation(g, visit),
        Op::Renew { token: t, .. }
        | Op::Ack { token: t }
        | Op::Nack { token: t }
        | Op::Untake { token: t }
        | Op::Release { token: t } => token(t, visit),
        Op::LetGo {
            generation: g,
            token: t,
        } => {
            generation(g, visit);
            token(t, visit);
        }
        Op::Reserve { .. } | Op::Lease { .. } | Op::Read { .. } | Op::ReportLost | Op::Retire | Op::Reopen => {}
    }
}

fn rebuilt<V>(map: &mut BTreeMap<Object, V>, visit: Visit<'_>) {
    let old = std::mem::take(map);
    map.extend(old.into_iter().map(|(mut object, value)| {
        generation(&mut object.generation, visit);
        (object, value)
    }));
}

fn sweeper(sweeper: &mut Sweeper, visit: Visit<'_>) {
    match sweeper {
        Sweeper::Idle => {}
        Sweeper::Looked { key, version, .. } => {
            if let Key::Retired(object) | Key::Freeable(object) = key {
                generation(&mut object.generation, visit);
            }
            visit(version);
        }
        Sweeper::Freeing(free) | Sweeper::Removed { free, .. } => {
            generation(&mut free.object.generation, visit);
            visit(&mut free.version);
        }
    }
}

impl World {
    fn each_number(&mut self, visit: Visit<'_>) {
        for kept in self.index.pending.iter_mut().flatten() {
            visit(&mut kept.version);
            kept.record.generation.iter_mut().for_each(|g| generation(g, visit));
        }
        for kept in self.index.live.iter_mut().flatten() {
            visit(&mut kept.version);
            generation(&mut kept.record.generation, visit);
            for state in &mut kept.record.groups {
                if let Progress::Leased(lease) = &mut state.progress {
                    token(&mut lease.token, visit);
                }
            }
            kept.record
                .readers
                .iter_mut()
                .for_each(|lease| token(&mut lease.token, visit));
        }
        for kept in self.index.retired.values_mut() {
            visit(&mut kept.version);
            kept.record.generation.iter_mut().for_each(|g| generation(g, visit));
            kept.record
                .readers
                .iter_mut()
                .for_each(|lease| token(&mut lease.token, visit));
        }
        rebuilt(&mut self.index.retired, visit);
        for objects in [&mut self.engine, &mut self.ghost.lost] {
            let old = std::mem::take(objects);
            objects.extend(old.into_iter().map(|mut object| {
                generation(&mut object.generation, visit);
                object
            }));
        }
        for process in &mut self.processes {
            if let Some(Hold { object, token: t, .. }) = &mut process.hold {
                generation(&mut object.generation, visit);
                token(t, visit);
            }
            if let Phase::Asked(asked) | Phase::Unsure(asked) = &mut process.phase {
                request(asked, visit);
            }
        }
        self.late.iter_mut().for_each(|late| request(late, visit));
        self.sweepers.iter_mut().for_each(|one| sweeper(one, visit));
        rebuilt(&mut self.ghost.committed, visit);
        self.ghost
            .latest
            .iter_mut()
            .flatten()
            .for_each(|g| generation(g, visit));
    }

    /// Renumbers.
    pub(crate) fn renumber(&mut self) {
        let mut numbers = Vec::with_capacity(32);
        self.each_number(&mut |number| numbers.push(*number));
        numbers.push(0);
        numbers.sort_unstable();
        numbers.dedup();
        self.each_number(&mut |number| {
            // Zero is in the list, at place zero, so it stays what it is.
            *number = numbers.binary_search(number).map_or(0, |place| place as u64);
        });
        self.index.revision = numbers.len() as u64 - 1;
    }
}
