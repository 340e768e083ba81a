//! Which objects a sample consists of: their keys, and the plan that outlives its writer.
//!
//! A tensor is one object, or several if it is longer than the chunk size:
//!
//! ```text
//! {store}/{sample}/g{generation}-{nonce}/{tensor}          the tensor, or
//! {store}/{sample}/g{generation}-{nonce}/{tensor}/{n}      its n-th chunk, n from 0
//! ```
//! Escaped names hold no slash, so no tensor's key is the key of another tensor's chunk.
//!
//! A reservation that is made ahead (module `ops::ahead`) knows neither the sample nor its tensors. Its plan names a
//! number of objects, and the sample's objects get as many of them as they are, in order:
//!
//! ```text
//! {store}/{reservation}/g{generation}-{nonce}/o/{n}        the sample's n-th object, n from 0
//! ```
//!
//! The [`Plan`] is written into the reservation *before* the first byte moves. The sweeper that finds the reservation
//! of a dead writer rebuilds from it every key that may have been written, and removes those objects. A plan in the
//! index may have been written by another program, so it is read within limits ([`crate::record::limits`]).

use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ErrorKind, Nonce, ObjectKey, Result, SampleKey, StoreId, TensorName};
use tensorhold_index::SampleRef;

use crate::record::limits::{MOST_BYTES, MOST_OBJECTS, objects};
use crate::record::ownership::refuse_own_making;

const OPERATION: &str = "features.plan";

fn unreadable(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, OPERATION, why)
}

/// The version of the plan's format that is written here.
const VERSION: u32 = 1;

/// The most objects of a sample that is written under a reservation made ahead.
pub(crate) const OBJECTS_AHEAD: u64 = 16;

/// The part of their keys that stands in the place of a tensor's name.
const TENSOR_AHEAD: &str = "o";

/// The objects that a reservation is about to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    v: u32,
    /// Tensors with keys of Tensorhold's own form, and into how many chunks each is cut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tensors: Vec<(TensorName, u64)>,
    /// Whole keys, of a writer that chose them itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<ObjectKey>,
}

/// The owner of objects: the incarnation of a sample in a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleObjects<'a> {
    pub(crate) store: &'a StoreId,
    pub(crate) sample: &'a SampleRef,
}

impl SampleObjects<'_> {
    /// The keys of a tensor's objects, in order.
    pub(crate) fn keys(&self, nonce: Nonce, tensor: &TensorName, chunks: u64) -> Result<Vec<ObjectKey>> {
        if chunks > MOST_OBJECTS {
            return Err(
                unreadable("a record claims more objects for a tensor than a sample may have").with("tensor", tensor),
            );
        }
        match chunks {
            1 => Ok(vec![self.key(nonce, tensor)]),
            _ => self.numbered(nonce, tensor, 0..chunks),
        }
    }

    fn key(&self, nonce: Nonce, tensor: &TensorName) -> ObjectKey {
        let key = SampleKey {
            store: self.store.clone(),
            sample: self.sample.sample.clone(),
            generation: self.sample.generation,
            nonce,
            tensor: tensor.clone(),
        };
        key.to_object_key()
    }

    fn numbered(&self, nonce: Nonce, tensor: &TensorName, numbers: Range<u64>) -> Result<Vec<ObjectKey>> {
        let key = self.key(nonce, tensor);
        numbers.map(|n| ObjectKey::new(format!("{key}/{n}"))).collect()
    }

    /// The keys of some of the objects that a reservation made ahead may write.
    pub(crate) fn keys_ahead(&self, nonce: Nonce, objects: Range<u64>) -> Result<Vec<ObjectKey>> {
        if objects.end > OBJECTS_AHEAD {
            return Err(unreadable(
                "a record claims more objects than its reservation may write",
            ));
        }
        self.numbered(nonce, &TensorName::new(TENSOR_AHEAD)?, objects)
    }
}

impl Plan {
    /// The plan to write these tensors, each in so many chunks.
    pub(crate) fn of_tensors(tensors: Vec<(TensorName, u64)>) -> Self {
        Self {
            v: VERSION,
            tensors,
            keys: Vec::new(),
        }
    }

    /// The plan of a reservation that is made ahead.
    pub(crate) fn ahead() -> Result<Self> {
        Ok(Self::of_tensors(vec![(TensorName::new(TENSOR_AHEAD)?, OBJECTS_AHEAD)]))
    }

    /// The plan of a sample whose objects another program writes.
    pub(crate) fn of_keys(keys: Vec<ObjectKey>) -> Self {
        Self {
            v: VERSION,
            tensors: Vec::new(),
            keys,
        }
    }

    pub(crate) fn to_text(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|error| Error::internal("features.plan", "a plan cannot be written as JSON").caused_by(error))
    }

    /// Reads a plan, within the limits of a sample.
    ///
    /// # Errors
    /// `Unsupported` for a plan of a later release, `Corrupt` for text that is not a plan.
    pub(crate) fn from_text(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            v: u32,
        }
        if text.len() > MOST_BYTES {
            return Err(unreadable("a plan is longer than any release writes").with("bytes", text.len()));
        }
        let head: Head = serde_json::from_str(text)
            .map_err(|error| unreadable("the plan of a reservation is not JSON with a version").caused_by(error))?;
        if head.v > VERSION {
            return Err(Error::new(
                ErrorKind::Unsupported,
                OPERATION,
                "this reservation was made by a later release; upgrade the processes that sweep this store",
            )
            .with("version", head.v));
        }
        let plan: Self = serde_json::from_str(text)
            .map_err(|error| unreadable("the plan of a reservation cannot be read").caused_by(error))?;
        let chunks = plan.tensors.iter().map(|(_, chunks)| *chunks);
        if objects(chunks.chain([plan.keys.len() as u64])).is_none() {
            return Err(unreadable("a plan names more objects than a sample may have"));
        }
        plan.keys
            .iter()
            .try_for_each(|key| refuse_own_making("features.plan", key))?;
        Ok(plan)
    }

    /// Every key that may have been written.
    pub(crate) fn object_keys(&self, place: SampleObjects<'_>, nonce: Nonce) -> Result<Vec<ObjectKey>> {
        let mut keys = self.keys.clone();
        for (tensor, chunks) in &self.tensors {
            keys.extend(place.keys(nonce, tensor, *chunks)?);
        }
        Ok(keys)
    }
}

/// Refuses a list of tensors that is empty or contains a name twice.
pub(crate) fn check_names<'a>(operation: &'static str, names: impl IntoIterator<Item = &'a TensorName>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::invalid(operation, "a tensor is named twice; name each once").with("tensor", name));
        }
    }
    if seen.is_empty() {
        return Err(Error::invalid(operation, "there is no tensor; name at least one"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorhold_core::{Generation, SampleId};

    fn name(text: &str) -> TensorName {
        TensorName::new(text).expect("a name")
    }

    #[test]
    fn keys_follow_from_the_plan_alone() {
        let store = StoreId::new("eagle").expect("a name");
        let sample = SampleRef {
            sample: SampleId::new("run/3").expect("a name"),
            generation: Generation::new(12).expect("not zero"),
        };
        let place = SampleObjects {
            store: &store,
            sample: &sample,
        };
        let plan = Plan::of_tensors(vec![(name("small"), 1), (name("large"), 3), (name("empty"), 0)]);
        let text = plan.to_text().expect("JSON");
        assert_eq!(text, r#"{"v":1,"tensors":[["small",1],["large",3],["empty",0]]}"#);
        let keys = Plan::from_text(&text)
            .and_then(|plan| plan.object_keys(place, Nonce::from_u64(0xbeef)))
            .expect("keys");
        let texts: Vec<_> = keys.iter().map(ObjectKey::as_str).collect();
        assert_eq!(
            texts,
            [
                "eagle/run%2F3/g12-000000000000beef/small",
                "eagle/run%2F3/g12-000000000000beef/large/0",
                "eagle/run%2F3/g12-000000000000beef/large/1",
                "eagle/run%2F3/g12-000000000000beef/large/2",
            ]
        );
    }

    #[test]
    fn a_sample_put_under_a_reservation_made_ahead_has_keys_of_its_plan() {
        let store = StoreId::new("eagle").expect("a name");
        let sample = SampleRef {
            sample: SampleId::new("~1-2").expect("a name"),
            generation: Generation::new(12).expect("not zero"),
        };
        let place = SampleObjects {
            store: &store,
            sample: &sample,
        };
        let nonce = Nonce::from_u64(7);
        let planned = Plan::ahead()
            .and_then(|plan| plan.object_keys(place, nonce))
            .expect("keys");
        assert_eq!(planned.len() as u64, OBJECTS_AHEAD);
        assert_eq!(place.keys_ahead(nonce, 0..OBJECTS_AHEAD).expect("keys"), planned);
        assert_eq!(place.keys_ahead(nonce, 3..5).expect("keys"), planned[3..5]);
        // A record of another release may claim anything.
        for (from, to) in [(5, 5), (5, 3), (20, 4)] {
            assert_eq!(place.keys_ahead(nonce, from..to).expect("keys"), []);
        }
        for (from, to) in [(15, OBJECTS_AHEAD + 1), (u64::MAX - 1, u64::MAX)] {
            let more = place.keys_ahead(nonce, from..to);
            assert_eq!(more.expect_err("more than planned").kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn keys_of_others_are_kept_as_they_are() {
        let key = ObjectKey::new("serving/engine:1").expect("a key");
        let plan = Plan::of_keys(vec![key]);
        let text = plan.to_text().expect("JSON");
        assert_eq!(text, r#"{"v":1,"keys":["serving/engine:1"]}"#);
        assert_eq!(Plan::from_text(&text).expect("reads back"), plan);
        let theirs = r#"{"v":1,"keys":["other/x/g1-0000000000000001/t"]}"#;
        assert_eq!(Plan::from_text(theirs).expect_err("refused").kind(), ErrorKind::Denied);
    }

    #[test]
    fn a_plan_that_cannot_be_read_is_never_taken_for_an_empty_one() {
        for text in ["", "{}", "[]", "free me"] {
            assert!(Plan::from_text(text).is_err(), "{text:?}");
        }
        for later in [r#"{"v":2}"#, r#"{"v":2,"tensors":{"new":"form"}}"#] {
            let error = Plan::from_text(later).expect_err("from the future");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn a_plan_that_claims_more_objects_than_a_sample_may_have_is_none() {
        let at_most = format!(r#"{{"v":1,"tensors":[["a",{}],["b",1]]}}"#, MOST_OBJECTS - 1);
        assert!(Plan::from_text(&at_most).is_ok());
        let long = format!(r#"{{"v":1,"keys":["{}"]}}"#, "x".repeat(MOST_BYTES));
        for text in [
            at_most.replace("\"b\",1", "\"b\",2"),
            r#"{"v":1,"tensors":[["a",18446744073709551615],["b",18446744073709551615]]}"#.to_owned(),
            r#"{"v":1,"tensors":[["a",1000000000]]}"#.to_owned(),
            long,
        ] {
            let error = Plan::from_text(&text).expect_err("too much");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    }

    #[test]
    fn names_stand_once() {
        assert!(check_names("t", [&name("a"), &name("b")]).is_ok());
        assert!(check_names("t", [&name("a"), &name("a")]).is_err());
        assert!(check_names("t", []).is_err());
    }
}
