//! The predicates over operations in flight.

use super::super::index::node::Layer;
use super::super::key::PageKey;
use super::super::operation::Work;
use super::super::planner::Holds;
use super::Finding;
use super::audit::{Audit, Place, ensure};

/// KV2: a page that is read is still in the index under its key, a page that is filled is still owned, and no pinned
/// page can be evicted.
pub(super) fn pages_under_io_stay(audit: &Audit<'_>) -> Finding {
    for (id, flight) in &audit.planner.flights {
        let read = |layer, page, key: &PageKey| {
            let place = audit.place(layer, page);
            ensure(place == Place::Indexed(*key), || {
                format!("{id} reads {layer:?} page {page} as {key:?}, but it is {place:?}")
            })
        };
        let filled = |layer, page| {
            let place = audit.place(layer, page);
            ensure(place == Place::Owned, || {
                format!("{id} fills {layer:?} page {page}, but it is {place:?}")
            })
        };
        match &flight.work {
            Work::Query(_) => {}
            Work::Prefetch(pages) => pages.iter().try_for_each(|at| filled(Layer::Host, at.host.0))?,
            Work::Backup(pages) => pages.iter().try_for_each(|at| read(Layer::Host, at.host.0, &at.key))?,
            Work::LoadBack(pages) => {
                for at in pages {
                    read(Layer::Host, at.host.0, &at.key)?;
                    filled(Layer::Device, at.device.0)?;
                }
            }
            Work::WriteBack(pages) => {
                for at in pages {
                    read(Layer::Device, at.device.0, &at.key)?;
                    filled(Layer::Host, at.host.0)?;
                }
            }
        }
    }
    audit.planner.index.pins_and_lists_agree()
}

/// KV9: indices rise, and the key at an index is the key that the request has there.
pub(super) fn triples_are_right(audit: &Audit<'_>) -> Finding {
    for (id, flight) in &audit.planner.flights {
        let triples: Vec<(u32, PageKey)> = match &flight.work {
            Work::Query(keys) => keys.iter().map(|at| (at.index, at.key)).collect(),
            Work::Prefetch(pages) | Work::Backup(pages) => pages.iter().map(|at| (at.index, at.key)).collect(),
            Work::LoadBack(pages) | Work::WriteBack(pages) => pages.iter().map(|at| (at.index, at.key)).collect(),
        };
        let gaps = matches!(flight.work, Work::Backup(_));
        let rises = triples
            .windows(2)
            .all(|two| two[0].0 + 1 == two[1].0 || (gaps && two[0].0 < two[1].0));
        ensure(rises && !triples.is_empty(), || {
            format!("{id} names its pages out of order")
        })?;
        let Some(request) = audit.planner.requests.get(&flight.turn) else {
            continue;
        };
        let chain = request.keys.as_slice();
        let wrong = triples
            .iter()
            .find(|(index, key)| chain.get(*index as usize) != Some(key));
        ensure(wrong.is_none(), || {
            format!("{id} names {wrong:?}, which is not the key of that page")
        })?;
    }
    Ok(())
}

/// KV10: pages that will be published below a pin start where the pin ends.
pub(super) fn offsets_are_held(audit: &Audit<'_>) -> Finding {
    for (id, flight) in &audit.planner.flights {
        let (anchor, first) = match (&flight.holds, &flight.work) {
            (Holds::Prefetch { anchor, .. }, Work::Prefetch(pages)) => (anchor, pages.first().map(|at| at.index)),
            (Holds::WriteBack { anchor, .. }, Work::WriteBack(pages)) => (anchor, pages.first().map(|at| at.index)),
            _ => continue,
        };
        ensure(first == Some(anchor.depth), || {
            format!("{id} starts at {first:?}, but is to be published from {}", anchor.depth)
        })?;
    }
    Ok(())
}

/// KV12: a page that is being filled cannot be found.
pub(super) fn unwritten_pages_are_hidden(audit: &Audit<'_>) -> Finding {
    for (id, flight) in &audit.planner.flights {
        for page in flight.holds.pages() {
            let place = audit.place(Layer::Host, page.0);
            ensure(!matches!(place, Place::Indexed(_)), || {
                format!("{page:?} is filled by {id}, and is {place:?}")
            })?;
        }
    }
    Ok(())
}

/// KV23: a page is marked as on its way to L3 exactly while a backup in flight carries it.
pub(super) fn backups_under_way_are_known(audit: &Audit<'_>) -> Finding {
    let named = |page: u32| {
        audit
            .planner
            .flights
            .values()
            .any(|flight| matches!(&flight.work, Work::Backup(pages) if pages.iter().any(|at| at.host.0 == page)))
    };
    for (id, node) in audit.planner.index.each_node() {
        for slot in node.slots.iter().take(node.resident(Layer::Host) as usize) {
            let page = slot.page(Layer::Host);
            ensure(!slot.on_its_way() || named(page), || {
                format!("host page {page} of node {id} is marked as on its way, but no backup carries it")
            })?;
        }
    }
    Ok(())
}
