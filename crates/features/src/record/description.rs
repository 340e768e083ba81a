//! The description of a committed sample: its tensors, the objects they are in, and the checksums of those.
//!
//! It lies in the index beside the sample's record and is handed to every reader unchanged. It is JSON, so that a
//! person can read it, with a version. A reader ignores fields that it does not know, and refuses a version or an
//! encoding that it does not know. So a field that may be ignored is simply added; any other change raises the version.
//!
//! A description in the index may have been written by another program, or by a later release. A description with a
//! higher version, an unknown encoding or an unknown element type is of a *later* release (`Unsupported`): it is left
//! to processes that know it. One that makes no sense, or exceeds the limits of a sample (module `limits`), is
//! *unreadable* (`Corrupt`), and its sample goes into quarantine.

use serde::{Deserialize, Serialize};
use tensorhold_core::{DType, Digest, Error, ErrorKind, Nonce, ObjectKey, Result, TensorName, TensorSpec};
use tensorhold_custody::ReservedAs;
use tensorhold_index::SampleRef;

use crate::record::encoding::Encoding;
use crate::record::limits::{MOST_BYTES, MOST_TENSORS, check_length, objects};
use crate::record::ownership::refuse_own_making;
use crate::record::plan::SampleObjects;
use crate::seal::{Record, RecordTag};

/// The version of a sample that was reserved under its own name.
const VERSION: u32 = 1;
/// The version of a sample that was reserved ahead: a reader that does not know `reserved_as` would look for its objects
/// under other keys. The latest that this release reads.
const VERSION_AHEAD: u32 = 2;

/// A committed sample's description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    v: u32,
    /// Random part of the sample's own keys; none if another writer chose the keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) nonce: Option<Nonce>,
    /// The reservation whose name its objects' keys have, if it was made ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reserved_as: Option<ReservedAs>,
    /// How many bytes of a tensor are in one object; the last has the rest.
    pub(crate) chunk_bytes: u64,
    /// How bytes are laid out in the objects.
    #[serde(default)]
    pub(crate) encoding: Encoding,
    /// The seal's tag over this description; none if the sample is not sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) record_tag: Option<RecordTag>,
    /// Its tensors.
    pub(crate) tensors: Vec<DescribedTensor>,
}

/// One tensor of a [`Description`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescribedTensor {
    /// Its name, element type and shape.
    pub spec: TensorSpec,
    /// The key of its only object, if another writer chose it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<ObjectKey>,
    /// A checksum for each of its objects, in order; none if they were put without checksums.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
}

impl DescribedTensor {
    /// Into how many objects it is cut.
    pub(crate) fn chunks(&self, chunk_bytes: u64) -> u64 {
        if self.key.is_some() {
            return 1;
        }
        chunks_of(self.spec.bytes(), chunk_bytes)
    }
}

/// How many objects a tensor of `bytes` is cut into.
pub(crate) fn chunks_of(bytes: u64, chunk_bytes: u64) -> u64 {
    bytes.div_ceil(chunk_bytes.max(1))
}

const OPERATION: &str = "features.description";

fn unreadable(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, OPERATION, why)
}

/// Whether an error of reading a description says that no release can use it: it makes no sense, or names objects that
/// no sample may own.
pub(crate) fn is_unreadable(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Denied)
}

fn of_a_later_release() -> Error {
    let message = "this sample was put by a later release; upgrade this reader";
    Error::new(ErrorKind::Unsupported, OPERATION, message)
}

/// Whether an unreadable description has an encoding or an element type that a later release may know.
fn names_what_is_unknown(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Loose {
        #[serde(default)]
        encoding: Option<serde_json::Value>,
        tensors: Vec<LooseTensor>,
    }
    #[derive(Deserialize)]
    struct LooseTensor {
        spec: LooseSpec,
    }
    #[derive(Deserialize)]
    struct LooseSpec {
        dtype: String,
    }
    let Ok(loose) = serde_json::from_slice::<Loose>(bytes) else {
        return false;
    };
    let encoding = match loose.encoding {
        Some(serde_json::Value::String(name)) => Some(name),
        Some(serde_json::Value::Object(parts)) if parts.len() == 1 => parts.keys().next().cloned(),
        _ => None,
    };
    let unknown = |dtype: &str| dtype.parse::<DType>().is_err();
    encoding.is_some_and(|name| !["plain", "sealed"].contains(&name.as_str()))
        || loose.tensors.iter().any(|tensor| unknown(&tensor.spec.dtype))
}

impl Description {
    /// The description of a sample whose keys Tensorhold chose.
    pub(crate) fn own(nonce: Nonce, chunk_bytes: u64, encoding: Encoding, tensors: Vec<DescribedTensor>) -> Self {
        Self {
            v: VERSION,
            nonce: Some(nonce),
            reserved_as: None,
            chunk_bytes,
            encoding,
            record_tag: None,
            tensors,
        }
    }

    /// The same, of a sample that was reserved ahead.
    #[must_use]
    pub(crate) fn reserved_as(mut self, reserved_as: ReservedAs) -> Self {
        self.v = VERSION_AHEAD;
        self.reserved_as = Some(reserved_as);
        self
    }

    /// The part of a description that the seal's tag covers, for objects of so many bytes.
    pub(crate) fn record_of<'a>(object_bytes: u64, tensors: impl Iterator<Item = &'a TensorSpec>) -> Record<'a> {
        Record {
            version: VERSION,
            object_bytes,
            tensors: tensors.collect(),
        }
    }

    /// The part of this description that the seal's tag covers.
    pub(crate) fn record(&self) -> Record<'_> {
        let specs = self.tensors.iter().map(|tensor| &tensor.spec);
        Record {
            version: self.v,
            ..Self::record_of(self.chunk_bytes, specs)
        }
    }

    /// The description of a sample whose keys another writer chose: one object per tensor.
    pub(crate) fn adopted(tensors: Vec<DescribedTensor>) -> Self {
        Self {
            v: VERSION,
            nonce: None,
            reserved_as: None,
            chunk_bytes: u64::MAX,
            encoding: Encoding::Plain,
            record_tag: None,
            tensors,
        }
    }

    /// The bytes that are written into the index.
    ///
    /// # Errors
    /// `Invalid` if it is longer than the index accepts.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let bytes = serde_json::to_vec(self)
            .map_err(|error| Error::internal(OPERATION, "a description cannot be written as JSON").caused_by(error))?;
        check_length(OPERATION, bytes.len())?;
        Ok(bytes)
    }

    /// Reads a description and checks that it makes sense.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            v: u32,
        }
        if bytes.len() > MOST_BYTES {
            return Err(unreadable("a description is longer than any release writes").with("bytes", bytes.len()));
        }
        let head: Head = serde_json::from_slice(bytes)
            .map_err(|error| unreadable("the description of a sample is not JSON with a version").caused_by(error))?;
        if head.v > VERSION_AHEAD {
            return Err(of_a_later_release().with("version", head.v));
        }
        let description: Self = serde_json::from_slice(bytes).map_err(|error| {
            if names_what_is_unknown(bytes) {
                of_a_later_release().caused_by(error)
            } else {
                unreadable("the description of a sample cannot be read").caused_by(error)
            }
        })?;
        description.check()?;
        Ok(description)
    }

    fn check(&self) -> Result<()> {
        if self.chunk_bytes == 0 {
            return Err(unreadable("a description has a chunk size of zero"));
        }
        let chunks = self.tensors.iter().map(|tensor| tensor.chunks(self.chunk_bytes));
        if self.tensors.len() > MOST_TENSORS || objects(chunks).is_none() {
            return Err(unreadable(
                "a description has more tensors or objects than a sample may have",
            ));
        }
        let sealed = self.encoding.seal();
        let foreign = |tensor: &DescribedTensor| tensor.key.is_some();
        if self.reserved_as.is_some() && (sealed.is_some() || self.tensors.iter().any(foreign)) {
            return Err(unreadable(
                "a sample that was reserved ahead is sealed, or has an object that another writer named",
            ));
        }
        if let Some(header) = sealed
            && (self.nonce.is_none() || !self.chunk_bytes.is_multiple_of(u64::from(header.chunk_bytes().max(1))))
        {
            return Err(unreadable(
                "a sealed sample has no nonce, or objects that are not whole chunks",
            ));
        }
        for tensor in &self.tensors {
            // A checksum would reveal whether two tensors are equal, and a key that another writer chose is not bound
            // to the seal.
            if sealed.is_some() && (tensor.key.is_some() || !tensor.digests.is_empty()) {
                return Err(
                    unreadable("a sealed sample has a checksum, or an object that was not sealed")
                        .with("tensor", &tensor.spec),
                );
            }
            if let Some(key) = &tensor.key {
                refuse_own_making("features.description", key)?;
            }
            // Its bytes would be cut off after the first chunk: there is one object, and one key.
            if tensor.key.is_some() && tensor.spec.bytes() > self.chunk_bytes {
                return Err(
                    unreadable("a tensor with a key of its own is longer than an object of this sample")
                        .with("tensor", &tensor.spec)
                        .with("chunk_bytes", self.chunk_bytes),
                );
            }
            let chunks = tensor.chunks(self.chunk_bytes);
            let digests = tensor.digests.len() as u64;
            if digests != 0 && digests != chunks {
                return Err(
                    unreadable("the number of checksums in a description differs from the number of objects")
                        .with("tensor", &tensor.spec)
                        .with("checksums", digests)
                        .with("objects", chunks),
                );
            }
            if tensor.key.is_none() && self.nonce.is_none() {
                return Err(
                    unreadable("a description does not say which objects a tensor is in").with("tensor", &tensor.spec)
                );
            }
        }
        Ok(())
    }

    /// Its tensors, in the order in which they were put.
    pub fn tensors(&self) -> &[DescribedTensor] {
        &self.tensors
    }

    /// One of its tensors.
    pub fn tensor(&self, name: &TensorName) -> Option<&DescribedTensor> {
        self.tensors.iter().find(|tensor| tensor.spec.name() == name)
    }

    /// The bytes of all its tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors
            .iter()
            .fold(0, |sum, tensor| sum.saturating_add(tensor.spec.bytes()))
    }

    /// The most bytes of a tensor in one object.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// How its bytes are laid out in its objects.
    pub fn encoding(&self) -> &Encoding {
        &self.encoding
    }

    /// The keys of the objects that hold one tensor's bytes, in order.
    pub(crate) fn keys_of(&self, tensor: &DescribedTensor, place: SampleObjects<'_>) -> Result<Vec<ObjectKey>> {
        let chunks = tensor.chunks(self.chunk_bytes);
        if let (Some(reserved_as), Some(nonce)) = (&self.reserved_as, self.nonce) {
            let before = self
                .tensors
                .iter()
                .take_while(|other| other.spec.name() != tensor.spec.name());
            let first = before.map(|other| other.chunks(self.chunk_bytes)).sum::<u64>();
            let reservation = SampleRef::from(reserved_as);
            let place = SampleObjects {
                sample: &reservation,
                ..place
            };
            return place.keys_ahead(nonce, first..first.saturating_add(chunks));
        }
        match (&tensor.key, self.nonce) {
            (Some(_), _) if tensor.spec.bytes() == 0 => Ok(Vec::new()),
            (Some(key), _) => Ok(vec![key.clone()]),
            (None, Some(nonce)) => place.keys(nonce, tensor.spec.name(), chunks),
            (None, None) => Err(unreadable("a description does not say which objects a tensor is in")),
        }
    }

    /// Every object of the sample.
    pub(crate) fn object_keys(&self, place: SampleObjects<'_>) -> Result<Vec<ObjectKey>> {
        let mut keys = Vec::new();
        for tensor in &self.tensors {
            match &tensor.key {
                // Also for a tensor without bytes: the writer that chose the key may have written an object all the
                // same.
                Some(key) => keys.push(key.clone()),
                None => keys.extend(self.keys_of(tensor, place)?),
            }
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorhold_core::{Generation, SampleId, StoreId};
    fn tensor(name: &str, bytes: u64, digests: usize) -> DescribedTensor {
        let name = TensorName::new(name).expect("a name");
        DescribedTensor {
            spec: TensorSpec::new(name, DType::Uint8, [bytes]).expect("a spec"),
            key: None,
            digests: vec![Digest::from_u128(7); digests],
        }
    }

    fn sample(tensors: Vec<DescribedTensor>) -> Description {
        Description::own(Nonce::from_u64(1), 100, Encoding::Plain, tensors)
    }

    #[test]
    fn the_form_is_fixed() {
        let text = String::from_utf8(sample(vec![tensor("a", 2, 1)]).to_bytes().expect("JSON")).expect("text");
        assert_eq!(
            text,
            r#"{"v":1,"nonce":1,"chunk_bytes":100,"encoding":"plain","tensors":[{"spec":{"name":"a","dtype":"uint8","shape":[2]},"digests":["xxh3-128:00000000000000000000000000000007"]}]}"#
        );
    }

    #[test]
    fn it_reads_back_and_ignores_what_it_does_not_know() {
        let description = sample(vec![tensor("a", 250, 3), tensor("b", 0, 0), tensor("c", 5, 0)]);
        let bytes = description.to_bytes().expect("JSON");
        assert_eq!(Description::from_bytes(&bytes).expect("reads back"), description);
        let more = String::from_utf8(bytes)
            .expect("text")
            .replacen('{', r#"{"new":[1],"#, 1);
        assert_eq!(
            Description::from_bytes(more.as_bytes()).expect("reads back"),
            description
        );
        assert_eq!(description.bytes(), 255);
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        let kind = |text: &str| Description::from_bytes(text.as_bytes()).expect_err(text).kind();
        for later in [
            r#"{"v":3,"anything":1}"#,
            r#"{"v":1,"nonce":1,"chunk_bytes":1,"encoding":"later","tensors":[]}"#,
            r#"{"v":1,"nonce":1,"chunk_bytes":1,"encoding":{"later":{"by":"zstd"}},"tensors":[]}"#,
            r#"{"v":1,"nonce":1,"chunk_bytes":9,"tensors":[{"spec":{"name":"a","dtype":"float3","shape":[2]}}]}"#,
        ] {
            assert_eq!(kind(later), ErrorKind::Unsupported, "{later}");
        }
        let foreign = r#"{"spec":{"name":"a","dtype":"uint8","shape":[10]},"key":"theirs"}"#;
        for text in [
            "",
            "{}",
            r#"{"v":1,"nonce":1,"chunk_bytes":0,"tensors":[]}"#,
            r#"{"v":1,"nonce":1,"chunk_bytes":1,"encoding":7,"tensors":[]}"#,
            r#"{"v":1,"nonce":1,"chunk_bytes":1,"tensors":[{"spec":{"name":"a","dtype":"uint8","shape":[1000000000]}}]}"#,
            r#"{"v":1,"nonce":1,"chunk_bytes":1,"tensors":[{"spec":{"name":"a","dtype":"uint8","shape":[18446744073709551615,9]}}]}"#,
            &format!(r#"{{"v":1,"chunk_bytes":9,"tensors":[{foreign}]}}"#),
            r#"{"v":1,"chunk_bytes":9,"tensors":[{"spec":{"name":"a","dtype":"uint8","shape":[2]}}]}"#,
        ] {
            assert_eq!(kind(text), ErrorKind::Corrupt, "{text}");
        }
        let bytes = sample(vec![tensor("a", 250, 2)]).to_bytes().expect("JSON");
        assert!(
            Description::from_bytes(&bytes).is_err(),
            "two checksums for three objects"
        );
    }

    #[test]
    fn an_object_of_another_store_or_of_the_page_tier_is_no_tensor() {
        for key in ["other/x/g3-0000000000000001/a", "kv/00ff/t0p0c0"] {
            let text = format!(
                r#"{{"v":1,"chunk_bytes":9,"tensors":[{{"spec":{{"name":"a","dtype":"uint8","shape":[2]}},"key":"{key}"}}]}}"#
            );
            let error = Description::from_bytes(text.as_bytes()).expect_err(key);
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        }
    }

    #[test]
    fn objects_of_a_sample_that_was_reserved_ahead_are_numbered_across_its_tensors() {
        let reserved_as = ReservedAs {
            name: SampleId::new("~1-2").expect("a name"),
            generation: Generation::new(9).expect("not zero"),
        };
        let of = |tensors| sample(tensors).reserved_as(reserved_as.clone());
        let description = of(vec![tensor("a", 250, 0), tensor("b", 0, 0), tensor("c", 5, 0)]);
        let bytes = description.to_bytes().expect("JSON");
        let description = Description::from_bytes(&bytes).expect("reads back");
        let (store, reference) = (
            StoreId::new("s").expect("a name"),
            SampleRef {
                sample: SampleId::new("x").expect("a name"),
                generation: Generation::new(30).expect("not zero"),
            },
        );
        let place = SampleObjects {
            store: &store,
            sample: &reference,
        };
        let keys = description.object_keys(place).expect("keys");
        let texts: Vec<_> = keys.iter().map(ObjectKey::as_str).collect();
        let numbered = (0..4).map(|n| format!("s/~1-2/g9-0000000000000001/o/{n}"));
        assert_eq!(texts, numbered.collect::<Vec<_>>());
        let last = description.keys_of(&description.tensors[2], place).expect("a key");
        assert_eq!(last, keys[3..]);
        // More than its reservation may have written.
        let error = of(vec![tensor("a", 1601, 0)])
            .object_keys(place)
            .expect_err("17 objects");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let mut foreign = of(vec![tensor("a", 1, 0)]);
        foreign.tensors[0].key = Some(ObjectKey::new("theirs").expect("a key"));
        assert!(Description::from_bytes(&foreign.to_bytes().expect("JSON")).is_err());
        let earlier = String::from_utf8(bytes).expect("text").replace("\"v\":2", "\"v\":3");
        let later = Description::from_bytes(earlier.as_bytes()).expect_err("of a later release");
        assert_eq!(later.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn every_object_is_found() {
        let mut description = sample(vec![tensor("a", 250, 0), tensor("b", 0, 0)]);
        let mut foreign = tensor("c", 0, 0);
        foreign.key = Some(ObjectKey::new("theirs").expect("a key"));
        description.tensors.push(foreign);
        let (store, reference) = (
            StoreId::new("s").expect("a name"),
            SampleRef {
                sample: SampleId::new("x").expect("a name"),
                generation: Generation::new(3).expect("not zero"),
            },
        );
        let place = SampleObjects {
            store: &store,
            sample: &reference,
        };
        let keys = description.object_keys(place).expect("keys");
        let texts: Vec<_> = keys.iter().map(ObjectKey::as_str).collect();
        let own = "s/x/g3-0000000000000001/a";
        assert_eq!(
            texts,
            [&format!("{own}/0"), &format!("{own}/1"), &format!("{own}/2"), "theirs"]
        );
    }
}
