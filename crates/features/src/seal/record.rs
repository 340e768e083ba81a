//! The tag over a sample's description: its tensors' specs, and how the tensors lie in objects.
//!
//! The chunks of a tensor prove which tensor they belong to, and how many bytes it has. Only the description says what
//! the bytes mean (the element type, the shape), which tensors there are, and that a tensor has no bytes at all. It
//! lies in the index, and the tag proves that it is the producer's. The documentation of the parent module has the
//! format.

use aws_lc_rs::hmac;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ErrorKind, Result, TensorSpec};

use super::cipher::{Encoder, Incarnation, derive};
use super::header::{Hex, Scheme, SealHeader};
use super::key::{Secret, StoreKey};

/// The content of a description, as far as it is not in the [`SealHeader`] and the [`Incarnation`].
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// The version of the description's own format.
    pub version: u32,
    /// How many bytes of a tensor are in one object.
    pub object_bytes: u64,
    /// Its tensors, in their order.
    pub tensors: Vec<&'a TensorSpec>,
}

/// The tag over a description. Public; as JSON, 64 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecordTag(Hex<32>);

fn encode(header: &SealHeader, incarnation: &Incarnation, record: &Record<'_>) -> Encoder {
    let mut encoder = Encoder::new(&Scheme::V2.label("record"))
        .sample(header.key_id(), incarnation)
        .text(Scheme::V2.name())
        .fixed(&header.check())
        .fixed(header.salt())
        .number(u64::from(header.chunk_bytes()))
        .number(u64::from(record.version))
        .number(record.object_bytes)
        .number(record.tensors.len() as u64);
    for tensor in &record.tensors {
        encoder = encoder
            .text(tensor.name().as_str())
            .text(tensor.dtype().into())
            .number(tensor.shape().len() as u64);
        for length in tensor.shape() {
            encoder = encoder.number(*length);
        }
    }
    encoder
}

fn key_for(key: &StoreKey, header: &SealHeader, incarnation: &Incarnation) -> Result<hmac::Key> {
    let mut secret = Secret::default();
    let info = Encoder::new(&Scheme::V2.label("record key")).sample(key.id(), incarnation);
    derive(key, header.salt(), &info, secret.as_mut_slice())?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, secret.as_slice()))
}

pub(super) fn tag(
    key: &StoreKey,
    header: &SealHeader,
    incarnation: &Incarnation,
    record: &Record<'_>,
) -> Result<RecordTag> {
    let made = hmac::sign(
        &key_for(key, header, incarnation)?,
        &encode(header, incarnation, record).0,
    );
    match made.as_ref().first_chunk() {
        Some(tag) if made.as_ref().len() == tag.len() => Ok(RecordTag(Hex(*tag))),
        _ => Err(about(
            incarnation,
            Error::internal("seal.record", "a tag has another length than HMAC-SHA256 gives"),
        )),
    }
}

pub(super) fn check(
    key: &StoreKey,
    header: &SealHeader,
    incarnation: &Incarnation,
    record: &Record<'_>,
    tag: Option<&RecordTag>,
) -> Result<()> {
    let hmac_key = key_for(key, header, incarnation)?;
    let message = encode(header, incarnation, record).0;
    match tag {
        Some(RecordTag(Hex(tag))) if hmac::verify(&hmac_key, &message, tag).is_ok() => Ok(()),
        _ => {
            let error = Error::new(
                ErrorKind::Corrupt,
                "seal.record",
                "the sample's description is not what was sealed: it was changed, or comes from another sample; \
                 put the sample again, and find out which other program can write to the index",
            );
            Err(about(incarnation, error).with("key_id", key.id()))
        }
    }
}

/// The error for a sample of the first scheme, whose seal cannot prove that the description is unchanged.
pub(super) fn untold(incarnation: &Incarnation) -> Error {
    about(
        incarnation,
        Error::new(
            ErrorKind::Unsupported,
            "seal.record",
            "this sample was sealed by an earlier release, and its seal does not cover its description (element types, \
             shapes, which tensors there are); put it again, or open the store with accept_seal_v1 until no such \
             samples are left",
        ),
    )
}

fn about(incarnation: &Incarnation, error: Error) -> Error {
    error
        .with("store", &incarnation.store)
        .with("sample", &incarnation.sample)
        .with("generation", incarnation.generation)
}
