//! Which objects a record names, for the people who ask where its bytes are.

use tensorhold_core::{Nonce, ObjectKey, Result, StoreId};
use tensorhold_index::SampleRef;

use crate::record::description::Description;
use crate::record::plan::{Plan, SampleObjects};

/// The keys of every object that a generation of a sample has, or may have been given: by the description of one that
/// was committed, by the plan of one that was not.
///
/// # Errors
/// `Corrupt` if neither can be read, `Unsupported` if a later release wrote it.
pub fn object_keys(
    store: &StoreId,
    sample: &SampleRef,
    nonce: Nonce,
    description: Option<&[u8]>,
    plan: &str,
) -> Result<Vec<ObjectKey>> {
    let place = SampleObjects { store, sample };
    match description {
        Some(description) => Description::from_bytes(description)?.object_keys(place),
        None => Plan::from_text(plan)?.object_keys(place, nonce),
    }
}
