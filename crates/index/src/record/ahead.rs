//! The names of reservations that are made ahead.
//!
//! A producer that makes reservations before it knows for which samples gives each a name of its own. The objects are
//! written under that name. The commit gives the record its sample's name, and notes under `a/` which sample the
//! reservation has become, until the objects are removed: so the owner of an object can be found by its key.
//!
//! ```text
//!            reserve ahead          commit as sample x                    x is freed
//! (nothing) ───────────────▶ p/~… ────────────────────▶ s/x and a/~… ──────────────────▶ (nothing)
//!                              │ not needed: unreserve
//!                              │ (nothing was written)      its session ends: a sweep gives it up, and the reclaimer removes
//!                              ▼                            what its plan names, as of any other reservation
//!                           (nothing)
//! ```
//!
//! # Invariants
//! - RA1: a reservation made ahead becomes at most one sample: the commit deletes it, on condition that it is unchanged.
//! - RA2: as long as a record owns the objects, `p/~…`, `a/~…` or a record of the given-up reservation is there.
//! - RA3: a sample's generations grow. The generation of one that was reserved ahead is the version of its commit; and it
//!   is not committed while another producer has the sample reserved, because that reservation's generation is smaller.

use holdfast_core::{Result, SampleId};
use holdfast_custody::SessionId;

/// What their names begin with.
pub(crate) const MARK: char = '~';

/// The name of a session's reservation with this number.
pub(crate) fn name_ahead(session: SessionId, number: u64) -> Result<SampleId> {
    SampleId::new(format!("{MARK}{:016x}-{number:x}", session.0))
}

/// Whether a reservation of this name was probably made ahead. A sample may be named like that, too.
pub fn is_named_ahead(name: &SampleId) -> bool {
    let number = name.as_str().strip_prefix(MARK).and_then(|rest| rest.split_once('-'));
    number.is_some_and(|(session, _)| session.len() == 16)
}
