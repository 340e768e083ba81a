//! How plans are taken and begun.

use tensorhold_kvcache::plan::invariants;
use tensorhold_kvcache::plan::{Operation, Plan, Ticket, Work};

use crate::cases::{Case, note, note_times};
use crate::world::{InFlight, Live, World};

impl World {
    /// Takes the next plan, the same from every rank, and starts on it.
    pub(crate) fn step(&mut self, ticks: u64) -> Plan {
        self.tick += ticks;
        let tick = self.tick;
        let mut plans: Vec<Plan> = self.planners.iter_mut().map(|planner| planner.step(tick)).collect();
        if let Some(written) = &mut self.written {
            for (written, plan) in written.iter_mut().zip(&plans) {
                written.extend_from_slice(format!("{plan:?}").as_bytes());
            }
        }
        let plan = plans.swap_remove(0);
        assert!(plans.iter().all(|other| *other == plan), "KV21: ranks differ");
        if !self.flights.is_empty() && !plan.operations.is_empty() {
            note(Case::OverlappingPlans);
        }
        for operation in &plan.operations {
            self.start(operation);
        }
        for ticket in &plan.retracted {
            if let Some(live) = self.live.get_mut(&ticket.turn) {
                live.table.clear();
                live.computed = false;
            }
        }
        for grant in &plan.grants {
            let Some(live) = self.live.get_mut(&grant.ticket.turn) else {
                continue;
            };
            live.table.truncate(grant.first as usize);
            live.table.extend(&grant.pages);
            if grant.first == 0 {
                live.cached = grant.cached as usize;
            }
            for memory in &self.memory {
                let device = |page| memory.device.get(&page).copied();
                invariants::grant_is_filled(grant, live.keys.as_slice(), device)
                    .unwrap_or_else(|broken| panic!("{broken}"));
            }
        }
        for (ticket, _) in &plan.ended {
            self.ended(*ticket);
        }
        self.check();
        plan
    }

    fn ended(&mut self, ticket: Ticket) {
        self.live.remove(&ticket.turn);
        self.past.push(ticket);
    }

    fn start(&mut self, operation: &Operation) {
        let meets = self
            .flights
            .values()
            .any(|flight| match (&flight.operation.work, &operation.work) {
                (Work::WriteBack(written), Work::Prefetch(fetched))
                | (Work::Prefetch(fetched), Work::WriteBack(written)) => {
                    fetched.iter().any(|at| written.iter().any(|other| other.key == at.key))
                }
                _ => false,
            });
        note_times(Case::PrefetchMeetsWriteBack, u64::from(meets));
        for memory in &mut self.memory {
            match &operation.work {
                Work::Prefetch(pages) => memory.host.retain(|page, _| pages.iter().all(|at| at.host != *page)),
                Work::LoadBack(pages) => memory
                    .device
                    .retain(|page, _| pages.iter().all(|at| at.device != *page)),
                Work::WriteBack(pages) => memory.host.retain(|page, _| pages.iter().all(|at| at.host != *page)),
                Work::Query(_) | Work::Backup(_) => {}
            }
        }
        let waits = |live: &&Live| self.planner().waits_for(live.ticket) == Some(operation.id);
        let ticket = self.live.values().find(waits).map(|live| live.ticket);
        let flight = InFlight {
            operation: operation.clone(),
            ranks: vec![None; self.memory.len()],
            ticket,
        };
        self.flights.insert(operation.id, flight);
    }
}
