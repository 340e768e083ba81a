//! Transitions of requests, and the start and end of operations.

use std::collections::btree_map::Entry;

use tensorhold_core::{Error, ErrorKind, Result};

use super::flight::{Flight, Holds};
use super::{After, Planner};
use crate::plan::event::Applied;
use crate::plan::flaw::Flaw;
use crate::plan::key::PageKeys;
use crate::plan::operation::{Completion, Operation, OperationId, Work};
use crate::plan::request::{Request, Ticket};

impl Planner {
    /// Runs a transition on a request, and stores or ends the request accordingly. On an error the request is
    /// unchanged.
    pub(super) fn with(
        &mut self,
        ticket: Ticket,
        transition: impl FnOnce(&mut Self, &mut Request) -> Result<After>,
    ) -> Result<Applied> {
        let mut request = match self.requests.entry(ticket.turn) {
            Entry::Occupied(entry) if entry.get().ticket == ticket => entry.remove(),
            _ => {
                let why = "there is no such request; it has ended, or its id is used by another one";
                return Err(Error::new(ErrorKind::Conflict, "kv.event", why)
                    .with("request", ticket.request.0)
                    .with("turn", ticket.turn));
            }
        };
        match transition(self, &mut request) {
            Ok(After::Ends(ending)) => {
                self.by_id.remove(&ticket.request);
                self.withdraw_grants(ticket);
                self.next.ended.push((ticket, ending));
                Ok(Applied::Done)
            }
            stays => {
                self.requests.insert(ticket.turn, request);
                stays.map(|_| Applied::Done)
            }
        }
    }

    /// Withdraws the grants of a request that were not handed out yet.
    pub(super) fn withdraw_grants(&mut self, ticket: Ticket) {
        self.next.grants.retain(|grant| grant.ticket != ticket);
    }

    /// Issues an operation.
    pub(super) fn issue(&mut self, turn: u64, work: Work, holds: Holds) -> OperationId {
        self.next_operation += 1;
        self.counters.issued += 1;
        let id = OperationId(self.next_operation);
        let operation = Operation { id, work: work.clone() };
        self.flights.insert(id, Flight { turn, work, holds });
        self.next.operations.push(operation);
        id
    }

    /// An operation has ended on all ranks.
    pub(super) fn completed(&mut self, ranks: &[Completion]) -> Result<Applied> {
        let agreed = Completion::agree(ranks).filter(|_| ranks.len() == self.config.ranks as usize);
        let Some(mut agreed) = agreed else {
            let why = "a completion must come from every rank, for the same operation";
            return Err(Error::invalid("kv.event", why).with("ranks", ranks.len()));
        };
        if self.has(Flaw::LargestOverRanks) {
            agreed.completed = ranks.iter().map(|rank| rank.completed).max().unwrap_or(0);
        }
        let Some(flight) = self.flights.remove(&agreed.operation) else {
            self.counters.ignored += 1;
            return Ok(Applied::Ignored);
        };
        self.counters.acknowledged += 1;
        let (id, completed) = (agreed.operation, agreed.completed.min(flight.work.pages()));
        match flight.holds {
            Holds::Nothing => self.queried(id, flight.turn, &flight.work, completed),
            Holds::Prefetch { anchor, pages } => {
                self.prefetched(id, flight.turn, &flight.work, completed, anchor, pages);
            }
            Holds::LoadBack { source } => self.loaded(id, flight.turn, &flight.work, completed, source),
            Holds::WriteBack { source, anchor, pages } => {
                self.written_back(id, flight.turn, &flight.work, completed, (source, anchor), pages);
            }
            Holds::Backup { source } => self.backed_up(&flight.work, completed, source),
        }
        Ok(Applied::Done)
    }

    /// How many device pages a request needs to run: its prompt, and room for one more token.
    pub(super) fn pages_to_run(&self, keys: &PageKeys) -> u32 {
        let pages = keys.tokens() / u64::from(self.config.page_tokens) + 1;
        u32::try_from(pages).unwrap_or(u32::MAX)
    }

    /// How many pages of a prompt are worth finding: the model must compute at least the last token.
    pub(super) fn usable(&self, keys: &PageKeys) -> usize {
        let pages = keys.tokens().saturating_sub(1) / u64::from(self.config.page_tokens);
        usize::try_from(pages).unwrap_or(usize::MAX).min(keys.as_slice().len())
    }
}

pub(super) fn unlawful(event: &'static str, request: &Request) -> Error {
    Error::new(
        ErrorKind::Conflict,
        "kv.event",
        "this event does not fit the state of its request",
    )
    .with("event", event)
    .with("request", request.ticket.request.0)
    .with("state", format!("{:?}", request.phase.state()))
}
