//! The invariants, by name: one predicate each, for the tests, the model and the running program.
//!
//! [`check`] examines a whole planner; tests call it after every event. [`Planner::violations`] makes only the checks
//! whose cost does not depend on the size of the planner, so a server can call it after every step.
//!
//! | invariant | where it is checked |
//! |---|---|
//! | KV6, KV11 | [`super::key`]: keys are only made there; its tests |
//! | KV8, KV12, KV23 | [`contents_are_what_keys_say`], [`l3_has_what_is_noted`]: with an observer of memory and store |
//! | KV16, KV17 | [`crate::tier`]: a page that is not exactly right is a miss; here a miss is a smaller count |
//! | KV18 | here, and [`grant_is_filled`] with an observer of the device |
//! | KV21 | equal plans from equal events: a test over four planners; nothing here has a clock, an address or a seed |
//! | KV22 | the planner's host, which joins the ranks: [`crate::plan::PlanEvent::Completed`] takes one completion from each |
//! | KV25 | nothing in here can block: there is no I/O |
//! | all others | here |

mod audit;
mod flights;

use tensorhold_core::{Invariant, Violation};

use super::event::Grant;
use super::index::node::Layer;
use super::key::PageKey;
use super::operation::{DevicePage, HostPage};
use super::planner::Planner;
use audit::Audit;

macro_rules! invariants {
    ($($name:ident $says:literal;)*) => {
        $(#[doc = $says] pub const $name: Invariant = Invariant::new(stringify!($name), $says);)*
        /// All of them.
        pub const ALL: &[Invariant] = &[$($name),*];
    };
}

invariants! {
    KV1 "every page is free, owned or indexed, exactly one of them, and the counts add up to the total";
    KV2 "no page is freed while an operation in flight names it";
    KV3 "every operation gets exactly one terminal event; others change nothing";
    KV4 "every pin has one holder; when nothing is in flight there is no pin and all pages are free or indexed";
    KV5 "an abort releases nothing before the operation on it is acknowledged";
    KV6 "a key is the hash of the key before it, its tokens and its extras, framed, from the root on";
    KV7 "every indexed node is found by its key";
    KV8 "a page that can be matched holds the content that its key names";
    KV9 "a page and its key in an operation mean the same absolute index, which they carry";
    KV10 "the offset of keys and the offset of places come from one match, which is held";
    KV11 "keys differ across model, weights, dtype, layout, ranks and group";
    KV12 "a page can be matched only after its write was acknowledged";
    KV13 "residency is closed under prefixes";
    KV14 "every key is indexed once: of two pages for it the first is kept";
    KV15 "no more is published than every rank has";
    KV16 "a get counts only if all bytes were read";
    KV17 "a miss degrades to recompute: a request that waits for L3 waits for an operation in flight";
    KV18 "the model never reads a page whose fill failed or is in flight";
    KV19 "a request that waits for L3 stops waiting at a deadline";
    KV20 "no request waits for host pages";
    KV21 "the same events give the same plans";
    KV22 "each rank joins every collective, in submit order";
    KV23 "a failed backup never marks a key as persisted, and releases its pages";
    KV24 "pending work is reported while an operation or a pin is outstanding";
    KV25 "nothing blocks on the scheduling path";
}

/// The result of a predicate: nothing, or what is wrong.
pub type Finding = Result<(), String>;

type Predicate = fn(&Audit<'_>) -> Finding;

/// The predicates over a whole planner.
const CHECKS: &[(Invariant, Predicate)] = &[
    (KV1, audit::pages_are_in_one_place),
    (KV2, flights::pages_under_io_stay),
    (KV3, audit::operations_are_counted),
    (KV4, audit::pins_have_holders),
    (KV5, audit::whoever_waits_waits_for_something),
    (KV7, audit::nodes_are_found),
    (KV9, flights::triples_are_right),
    (KV10, flights::offsets_are_held),
    (KV12, flights::unwritten_pages_are_hidden),
    (KV13, audit::residency_is_closed),
    (KV14, audit::keys_are_there_once),
    (KV15, audit::published_is_agreed),
    (KV18, audit::loading_is_not_granted),
    (KV19, audit::deadlines_are_ahead),
    (KV20, audit::nobody_is_forgotten),
    (KV23, flights::backups_under_way_are_known),
    (KV24, audit::pending_is_reported),
];

/// Checks a whole planner, and stops at the first invariant that is broken.
pub fn check(planner: &Planner) -> Result<(), Violation> {
    let audit = Audit::of(planner);
    CHECKS.iter().try_for_each(|(invariant, holds)| {
        holds(&audit).map_err(|detail| Violation {
            invariant: *invariant,
            detail,
        })
    })
}

/// KV8 and KV12, for every page that can be matched, with an observer that knows the content of memory.
pub fn contents_are_what_keys_say(
    planner: &Planner,
    host: impl Fn(HostPage) -> Option<PageKey>,
    device: impl Fn(DevicePage) -> Option<PageKey>,
) -> Result<(), Violation> {
    for (_, node) in planner.index.each_node() {
        for layer in Layer::ALL {
            for slot in node.slots.iter().take(node.resident(layer) as usize) {
                let page = slot.page(layer);
                let held = match layer {
                    Layer::Host => host(HostPage(page)),
                    Layer::Device => device(DevicePage(page)),
                };
                if held != Some(slot.key) {
                    let detail = format!("{layer:?} page {page} holds {held:?}, but is indexed as {:?}", slot.key);
                    return Err(Violation { invariant: KV8, detail });
                }
            }
        }
    }
    Ok(())
}

/// KV18, for a grant to the request with these keys, with an observer that knows the content of device memory.
pub fn grant_is_filled(
    grant: &Grant,
    keys: &[PageKey],
    device: impl Fn(DevicePage) -> Option<PageKey>,
) -> Result<(), Violation> {
    let cached = grant.pages.iter().zip(keys).take(grant.cached as usize);
    for (index, (page, key)) in cached.enumerate().filter(|_| grant.first == 0) {
        let held = device(*page);
        if held != Some(*key) {
            let detail = format!("page {index} of {:?} is {page:?} and holds {held:?}", grant.ticket);
            return Err(Violation {
                invariant: KV18,
                detail,
            });
        }
    }
    Ok(())
}

/// KV23, for every page that is marked as persisted, with an observer that knows what the store has acknowledged.
pub fn l3_has_what_is_noted(planner: &Planner, acknowledged: impl Fn(&PageKey) -> bool) -> Result<(), Violation> {
    for (_, node) in planner.index.each_node() {
        let resident = node.slots.iter().take(node.resident(Layer::Host) as usize);
        if let Some(slot) = resident
            .filter(|slot| slot.in_l3())
            .find(|slot| !acknowledged(&slot.key))
        {
            let detail = format!("{:?} is marked as persisted, but was never acknowledged", slot.key);
            return Err(Violation {
                invariant: KV23,
                detail,
            });
        }
    }
    Ok(())
}

impl Planner {
    /// Makes the constant-time checks, and returns how often each invariant was ever found broken, with the latest
    /// detail.
    pub fn violations(&self) -> Vec<(u64, Violation)> {
        let counted: [(Invariant, Finding); 5] = [
            (KV1, audit::counts_add_up(self)),
            (KV3, audit::operations_add_up(self)),
            (KV4, audit::idle_is_empty(self)),
            (KV15, audit::published_adds_up(self)),
            (KV24, audit::pending_adds_up(self)),
        ];
        for (invariant, finding) in counted {
            if let Err(detail) = finding {
                // The recorder counts it; the caller gets it with the others below.
                self.recorder.check(&invariant, false, || detail).err();
            }
        }
        self.recorder.violations()
    }
}
