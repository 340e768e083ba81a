//! The predicates over a planner.

use super::super::index::node::Layer;
use super::super::index::{Match, Pin};
use super::super::key::PageKey;
use super::super::planner::Planner;
use super::super::request::{Phase, Request, Retracting, Submitted, Waits};
use super::Finding;

/// A planner, and the state of each of its pages.
pub(super) struct Audit<'a> {
    pub(super) planner: &'a Planner,
    host: Vec<Place>,
    device: Vec<Place>,
    twice: Option<String>,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Nowhere,
    Free,
    Owned,
    Indexed(PageKey),
}

pub(super) fn ensure(holds: bool, says: impl FnOnce() -> String) -> Finding {
    if holds { Ok(()) } else { Err(says()) }
}

impl<'a> Audit<'a> {
    pub(super) fn of(planner: &'a Planner) -> Self {
        let index = &planner.index;
        let mut audit = Self {
            planner,
            host: vec![Place::Nowhere; index.host.total() as usize],
            device: vec![Place::Nowhere; index.device.total() as usize],
            twice: None,
        };
        for page in index.host.free() {
            audit.put(Layer::Host, page.0, Place::Free);
        }
        for page in index.device.free() {
            audit.put(Layer::Device, page.0, Place::Free);
        }
        for flight in planner.flights.values() {
            for page in flight.holds.pages() {
                audit.put(Layer::Host, page.0, Place::Owned);
            }
        }
        for run in planner.requests.values().filter_map(|request| request.phase.run()) {
            for page in run.own.as_slice().iter().chain(run.spare.as_slice()) {
                audit.put(Layer::Device, page.0, Place::Owned);
            }
        }
        for (_, node) in index.each_node() {
            for layer in Layer::ALL {
                for slot in node.slots.iter().take(node.resident(layer) as usize) {
                    audit.put(layer, slot.page(layer), Place::Indexed(slot.key));
                }
            }
        }
        audit
    }

    pub(super) fn place(&self, layer: Layer, page: u32) -> Place {
        let places = match layer {
            Layer::Host => &self.host,
            Layer::Device => &self.device,
        };
        places.get(page as usize).copied().unwrap_or(Place::Nowhere)
    }

    fn put(&mut self, layer: Layer, page: u32, place: Place) {
        let places = match layer {
            Layer::Host => &mut self.host,
            Layer::Device => &mut self.device,
        };
        match places.get_mut(page as usize) {
            Some(was @ Place::Nowhere) => *was = place,
            was => self.twice = Some(format!("{layer:?} page {page} is {was:?} and {place:?}")),
        }
    }

    fn pins(&self) -> impl Iterator<Item = &Pin> {
        let flights = self.planner.flights.values().flat_map(|flight| flight.holds.pins());
        let requests = self
            .planner
            .requests
            .values()
            .filter_map(|request| match &request.phase {
                Phase::Draining(state) | Phase::Retracting(Retracting::Draining(state)) => Some(&state.held),
                other => other.run().map(|run| &run.held),
            });
        flights.chain(requests)
    }
}

/// KV1.
pub(super) fn pages_are_in_one_place(audit: &Audit<'_>) -> Finding {
    if let Some(twice) = &audit.twice {
        return Err(twice.clone());
    }
    for (layer, places) in [(Layer::Host, &audit.host), (Layer::Device, &audit.device)] {
        let lost = places.iter().position(|place| *place == Place::Nowhere);
        ensure(lost.is_none(), || format!("{layer:?} page {lost:?} is nowhere"))?;
    }
    counts_add_up(audit.planner)
}

/// KV1, by the counts alone.
pub(super) fn counts_add_up(planner: &Planner) -> Finding {
    let index = &planner.index;
    for (layer, sum, lost, total) in [
        (
            Layer::Host,
            planner.host_pages(),
            index.host.lost_count(),
            index.host.total(),
        ),
        (
            Layer::Device,
            planner.device_pages(),
            index.device.lost_count(),
            index.device.total(),
        ),
    ] {
        ensure(sum.0 + sum.1 + sum.2 == total && lost == 0, || {
            format!(
                "{layer:?}: {} free, {} owned, {} indexed of {total}; {lost} lost",
                sum.0, sum.1, sum.2
            )
        })?;
    }
    Ok(())
}

/// KV3.
pub(super) fn operations_are_counted(audit: &Audit<'_>) -> Finding {
    operations_add_up(audit.planner)
}

/// KV3: every operation that was issued is in flight, or was acknowledged once.
pub(super) fn operations_add_up(planner: &Planner) -> Finding {
    let counters = &planner.counters;
    let in_flight = planner.flights.len() as u64;
    ensure(counters.issued == counters.acknowledged + in_flight, || {
        format!(
            "{} issued, {} acknowledged, {in_flight} in flight",
            counters.issued, counters.acknowledged
        )
    })
}

/// KV4.
pub(super) fn pins_have_holders(audit: &Audit<'_>) -> Finding {
    let (held, counted) = (audit.pins().count(), audit.planner.index.pins() as usize);
    ensure(held == counted, || format!("{counted} pins, {held} holders"))?;
    idle_is_empty(audit.planner)
}

/// KV4, when nothing is in flight.
pub(super) fn idle_is_empty(planner: &Planner) -> Finding {
    if !planner.requests.is_empty() || !planner.flights.is_empty() {
        return Ok(());
    }
    let (pins, host, device) = (planner.index.pins(), planner.host_pages().1, planner.device_pages().1);
    ensure(pins == 0 && host == 0 && device == 0, || {
        format!("idle, but {pins} pins, {host} host and {device} device pages are held")
    })
}

/// KV5 and KV17: the operation that a request waits for is in flight, and belongs to that request.
pub(super) fn whoever_waits_waits_for_something(audit: &Audit<'_>) -> Finding {
    for (turn, request) in &audit.planner.requests {
        if let Some(id) = request.phase.operation() {
            let flight = audit.planner.flights.get(&id);
            ensure(flight.is_some_and(|flight| flight.turn == *turn), || {
                format!("{:?} waits for {id}, which is not in flight for it", request.ticket)
            })?;
        }
    }
    Ok(())
}

/// KV7.
pub(super) fn nodes_are_found(audit: &Audit<'_>) -> Finding {
    audit.planner.index.every_node_knows_its_key()?;
    audit.planner.index.children_are_counted()
}

/// KV13.
pub(super) fn residency_is_closed(audit: &Audit<'_>) -> Finding {
    audit.planner.index.residency_is_closed()
}

/// KV14.
pub(super) fn keys_are_there_once(audit: &Audit<'_>) -> Finding {
    audit.planner.index.every_key_is_there_once()
}

/// KV15.
pub(super) fn published_is_agreed(audit: &Audit<'_>) -> Finding {
    published_adds_up(audit.planner)
}

/// KV15: the ranks agreed on every page that was published or found to be a duplicate.
pub(super) fn published_adds_up(planner: &Planner) -> Finding {
    let counters = &planner.counters;
    ensure(counters.published + counters.duplicates <= counters.agreed, || {
        format!(
            "{} published and {} duplicates of {} agreed",
            counters.published, counters.duplicates, counters.agreed
        )
    })
}

/// KV18: a request that waits for a load-back was not granted to run, and shared pages are in device memory.
pub(super) fn loading_is_not_granted(audit: &Audit<'_>) -> Finding {
    for request in audit.planner.requests.values() {
        let loading = matches!(&request.phase, Phase::Prefilling(state) if state.loading.is_some());
        let granted = audit
            .planner
            .next
            .grants
            .iter()
            .any(|grant| grant.ticket == request.ticket);
        ensure(!(loading && granted), || {
            format!("{:?} may run while its pages are being loaded", request.ticket)
        })?;
        let Some(run) = request
            .phase
            .run()
            .filter(|run| run.held.epoch == audit.planner.index.epoch())
        else {
            continue;
        };
        let depth = run.held.depth;
        let Match { device, .. } = audit.planner.index.find(&request.keys.as_slice()[..depth as usize]);
        ensure(device == depth, || {
            format!("{:?} reads {depth} pages, but {device} are there", request.ticket)
        })?;
    }
    Ok(())
}

/// KV19: a request that waits for L3 has a deadline that has not passed, and that is in the planner's list.
pub(super) fn deadlines_are_ahead(audit: &Audit<'_>) -> Finding {
    let planner = audit.planner;
    for request in planner.requests.values() {
        let waits = match &request.phase {
            Phase::Submitted(Submitted {
                waits: Waits::ForL3 { query, until },
            }) => (*until, *query),
            Phase::Prefetching(state) => (state.until, state.operation),
            _ => continue,
        };
        ensure(waits.0 > planner.now && planner.deadlines.contains(&waits), || {
            format!("{:?} waits until {waits:?}, and it is {}", request.ticket, planner.now)
        })?;
    }
    Ok(())
}

/// KV20: a request that waits only for a step is in a queue that the step examines.
pub(super) fn nobody_is_forgotten(audit: &Audit<'_>) -> Finding {
    let planner = audit.planner;
    let listed = |request: &Request| match &request.phase {
        Phase::Submitted(Submitted {
            waits: Waits::Answered { .. },
        }) => planner.answered.contains(&request.ticket.turn),
        Phase::Submitted(Submitted {
            waits: Waits::ForDevice,
        })
        | Phase::PrefetchDone(_) => planner.line.contains(&request.ticket.turn),
        Phase::Draining(_) | Phase::Retracting(Retracting::Draining(_)) => {
            planner.draining.contains(&request.ticket.turn)
        }
        _ => true,
    };
    let forgotten = planner.requests.values().find(|request| !listed(request));
    ensure(forgotten.is_none(), || {
        format!(
            "{:?} is in no queue",
            forgotten.map(|request| (request.ticket, request.phase.state()))
        )
    })
}

/// KV24.
pub(super) fn pending_is_reported(audit: &Audit<'_>) -> Finding {
    pending_adds_up(audit.planner)
}

/// KV24.
pub(super) fn pending_adds_up(planner: &Planner) -> Finding {
    let outstanding = !planner.flights.is_empty() || planner.index.pins() > 0;
    ensure(planner.pending() || !outstanding, || {
        "operations or pins are outstanding".to_owned()
    })
}
