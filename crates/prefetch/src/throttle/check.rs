//! The invariants that a state shows by itself.

use std::collections::HashMap;

use super::{State, Throttle, TicketId};

impl Throttle {
    /// What is wrong with this state; `None` if every invariant holds that a state shows by itself.
    pub(crate) fn check(&self) -> Option<String> {
        let (mut triggered, mut flying, mut ended) = (0, 0, 0);
        let mut waits: HashMap<TicketId, usize> = HashMap::new();
        for (key, entry) in &self.entries {
            let known = self.keys.get(&entry.attempt) == Some(key);
            match entry.state {
                State::Triggered { priority, .. } => {
                    triggered += 1;
                    if !known || !self.queue.contains(&(priority, entry.attempt)) {
                        return Some(format!("PF1: {key} is triggered, and no queue will ever begin it"));
                    }
                }
                State::InFlight { .. } => {
                    flying += 1;
                    if !known {
                        return Some(format!("PF1: {key} is in flight, and no result can end it"));
                    }
                }
                State::Ended(_) => {
                    ended += 1;
                    if known || !entry.tickets.is_empty() {
                        return Some(format!("PF1: {key} has ended, and is still waited for"));
                    }
                }
            }
            for (ticket, _) in &entry.tickets {
                *waits.entry(*ticket).or_default() += 1;
            }
        }
        if self.keys.len() != triggered + flying || self.queue.len() != triggered {
            return Some(format!(
                "PF2, PF3: {} attempts and {} in the queue for {triggered} triggered and {flying} in flight",
                self.keys.len(),
                self.queue.len()
            ));
        }
        if triggered > self.limits.queue || ended > self.limits.queue || self.ended.len() > self.limits.queue {
            return Some(format!("PF4: {triggered} triggered, {ended} remembered"));
        }
        for (id, ticket) in &self.tickets {
            let open = ticket.outcomes.iter().filter(|outcome| outcome.is_none()).count();
            let waiting = waits.get(id).copied().unwrap_or(0);
            if open != ticket.left || open != waiting {
                return Some(format!(
                    "PF1: a ticket waits for {open} objects and counts {}, {waiting} of them know it",
                    ticket.left
                ));
            }
        }
        None
    }
}
