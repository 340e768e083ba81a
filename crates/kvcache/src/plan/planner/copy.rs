//! A second planner in the same state, for a model checker that explores both branches from it.
#![cfg(feature = "testing")]

use super::{Flight, Holds, Planner};
use crate::plan::index::RadixIndex;
use crate::plan::index::node::Layer;
use crate::plan::pool::OwnedPages;
use crate::plan::request::{
    Aborting, Decoding, Draining, Phase, PrefetchDone, Prefetching, PrefillDone, Prefilling, Request, Retracted,
    Retracting, Run, Submitted, WritingBack,
};
use crate::plan::{DevicePage, HostPage};

impl Planner {
    /// Another planner in the same state. The record of broken invariants stays with this one.
    pub fn copy(&self) -> Self {
        let index = self.index.copy();
        let to = Copier(&index);
        let flights = self
            .flights
            .iter()
            .map(|(id, flight)| (*id, to.flight(flight)))
            .collect();
        let requests = self
            .requests
            .iter()
            .map(|(turn, request)| (*turn, to.request(request)))
            .collect();
        Self {
            config: self.config.clone(),
            index,
            requests,
            by_id: self.by_id.clone(),
            flights,
            deadlines: self.deadlines.clone(),
            asking: self.asking.clone(),
            answered: self.answered.clone(),
            draining: self.draining.clone(),
            line: self.line.clone(),
            next: self.next.clone(),
            counters: self.counters.clone(),
            recorder: tensorhold_core::Recorder::default(),
            ..*self
        }
    }

    /// All state that decides its behaviour, as text: two planners with the same picture behave alike. Counters are
    /// left out.
    pub fn picture(&self) -> String {
        let index = &self.index;
        let mut text = format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {} {} ",
            self.requests,
            self.flights,
            self.deadlines,
            self.asking,
            self.answered,
            self.draining,
            self.line,
            self.next,
            self.now,
            self.rechecked == Some(self.now)
        );
        text += &format!("{:?} {:?} {} ", index.host.free(), index.device.free(), index.epoch());
        for (id, node) in index.each_node() {
            text += &format!("{id} {node:?} ");
        }
        for layer in Layer::ALL {
            text += &format!("{:?} ", index.evictable(layer).collect::<Vec<_>>());
        }
        text
    }
}

/// Copies values that belong to the pools of another index.
struct Copier<'a>(&'a RadixIndex);

impl Copier<'_> {
    fn host(&self, pages: &OwnedPages<HostPage>) -> OwnedPages<HostPage> {
        pages.copy_for(&self.0.host)
    }

    fn device(&self, pages: &OwnedPages<DevicePage>) -> OwnedPages<DevicePage> {
        pages.copy_for(&self.0.device)
    }

    fn flight(&self, flight: &Flight) -> Flight {
        let holds = match &flight.holds {
            Holds::Nothing => Holds::Nothing,
            Holds::Prefetch { anchor, pages } => Holds::Prefetch {
                anchor: anchor.copy(),
                pages: self.host(pages),
            },
            Holds::LoadBack { source } => Holds::LoadBack { source: source.copy() },
            Holds::WriteBack { source, anchor, pages } => Holds::WriteBack {
                source: source.copy(),
                anchor: anchor.copy(),
                pages: self.host(pages),
            },
            Holds::Backup { source } => Holds::Backup {
                source: source.as_ref().map(|source| source.copy()),
            },
        };
        Flight {
            turn: flight.turn,
            work: flight.work.clone(),
            holds,
        }
    }

    fn run(&self, run: &Run) -> Run {
        Run {
            held: run.held.copy(),
            own: self.device(&run.own),
            spare: self.device(&run.spare),
            ..*run
        }
    }

    fn request(&self, request: &Request) -> Request {
        let run = |run: &Run| self.run(run);
        let draining = |state: &Draining| Draining {
            held: state.held.copy(),
        };
        let writing = |state: &WritingBack| WritingBack { ..*state };
        let phase = match &request.phase {
            Phase::Submitted(state) => Phase::Submitted(Submitted { ..*state }),
            Phase::Prefetching(state) => Phase::Prefetching(Prefetching { ..*state }),
            Phase::PrefetchDone(_) => Phase::PrefetchDone(PrefetchDone),
            Phase::Prefilling(state) => Phase::Prefilling(Prefilling {
                run: run(&state.run),
                loading: state.loading,
            }),
            Phase::PrefillDone(state) => Phase::PrefillDone(PrefillDone { run: run(&state.run) }),
            Phase::Decoding(state) => Phase::Decoding(Decoding { run: run(&state.run) }),
            Phase::Draining(state) => Phase::Draining(draining(state)),
            Phase::WritingBack(state) => Phase::WritingBack(writing(state)),
            Phase::Retracting(Retracting::Loading {
                run: loading,
                operation,
            }) => Phase::Retracting(Retracting::Loading {
                run: run(loading),
                operation: *operation,
            }),
            Phase::Retracting(Retracting::Draining(state)) => Phase::Retracting(Retracting::Draining(draining(state))),
            Phase::Retracting(Retracting::WritingBack(state)) => {
                Phase::Retracting(Retracting::WritingBack(writing(state)))
            }
            Phase::Retracted(_) => Phase::Retracted(Retracted),
            Phase::Aborting(state) => Phase::Aborting(Aborting {
                operation: state.operation,
                run: state.run.as_ref().map(run),
            }),
            Phase::Finished => Phase::Finished,
        };
        Request {
            ticket: request.ticket,
            keys: request.keys.clone(),
            phase,
        }
    }
}
