//! Reservations that are made ahead: their names, and how the samples that they become stand in ready lists.
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

use serde::{Deserialize, Serialize};
use tensorhold_core::{Generation, Result, SampleId};
use tensorhold_custody::{Live, SessionId};

use crate::record::codec::encode;
use crate::store::Entry;

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

/// The value of a ready entry without a copy of the record. The position in the list is the generation, unless the sample
/// was reserved ahead.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadyValue {
    /// The sample's generation; none if it is the version of this entry.
    generation: Option<Generation>,
}

impl ReadyValue {
    /// The longest one. Every copy of a record is longer.
    const MOST: usize = r#"{"generation":18446744073709551615}"#.len();

    /// What is written for a record.
    pub(crate) fn of(record: &Live) -> Result<Vec<u8>> {
        if record.reserved_as.is_none() {
            return Ok(Vec::new());
        }
        let generation = Some(record.generation).filter(|generation| *generation != record.order());
        encode(&Self { generation })
    }

    /// The generation of a sample whose ready entry has no copy of its record; none if it has one.
    pub(crate) fn generation(entry: &Entry, order: Generation) -> Option<Generation> {
        if entry.value.is_empty() {
            return Some(order);
        }
        if entry.value.len() > Self::MOST {
            return None;
        }
        let value: Self = serde_json::from_slice(&entry.value).ok()?;
        value.generation.or_else(|| Generation::new(entry.version.0))
    }
}
