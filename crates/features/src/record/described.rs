//! Described references: which incarnation of a sample is meant, and how it was described when it was put, found or
//! taken.
//!
//! A process that has one can begin to move bytes before the index has answered (module `early`). It may travel with a
//! reference to another process, so what it says is never believed: by the time of the get the sample may be gone, the
//! description may be of a later release, or an enemy may have written it.

use std::sync::Arc;

use tensorhold_index::SampleRef;

use crate::record::description::Description;

/// The longest description that travels with a reference. Without it the reference still serves; its get begins later.
const MOST_CARRIED: usize = 4 << 10;

/// A described reference. Getting by it ([`FeatureStore::get_many`](crate::FeatureStore::get_many)) moves bytes and asks
/// the index side by side.
#[derive(Clone, Debug)]
pub struct DescribedRef {
    /// Its incarnation.
    pub reference: SampleRef,
    /// Its description, as far as this process knows; none if it has to ask the index first.
    pub description: Option<Arc<Description>>,
}

impl DescribedRef {
    /// The description, to travel with the reference; none if it is not known, or too long for that.
    pub fn carried(&self) -> Option<Vec<u8>> {
        let bytes = self.description.as_ref()?.to_bytes().ok()?;
        (bytes.len() <= MOST_CARRIED).then_some(bytes)
    }

    /// A reference and what travelled with it. What cannot be read is left out.
    pub fn with_carried(reference: SampleRef, carried: &[u8]) -> Self {
        let read = |bytes: &[u8]| Description::from_bytes(bytes).ok().map(Arc::new);
        let description = (carried.len() <= MOST_CARRIED).then(|| read(carried)).flatten();
        Self { reference, description }
    }
}

impl From<SampleRef> for DescribedRef {
    fn from(reference: SampleRef) -> Self {
        let description = None;
        Self { reference, description }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::description::DescribedTensor;
    use crate::record::encoding::Encoding;
    use tensorhold_core::{DType, Digest, Generation, Nonce, SampleId, TensorName, TensorSpec};

    fn described(digests: u64) -> DescribedRef {
        let name = TensorName::new("a").expect("a name");
        let tensor = DescribedTensor {
            spec: TensorSpec::new(name, DType::Uint8, [digests]).expect("a spec"),
            key: None,
            digests: (0..digests).map(|n| Digest::from_u128(n.into())).collect(),
        };
        DescribedRef {
            reference: SampleRef {
                sample: SampleId::new("x").expect("a name"),
                generation: Generation::new(3).expect("not zero"),
            },
            description: Some(Arc::new(Description::own(
                Nonce::from_u64(1),
                1,
                Encoding::Plain,
                vec![tensor],
            ))),
        }
    }

    #[test]
    fn a_description_travels_with_its_reference_unless_it_is_long() {
        let short = described(10);
        let carried = short.carried().expect("short");
        let read = DescribedRef::with_carried(short.reference.clone(), &carried);
        assert_eq!(read.description, short.description);
        let long = described(100);
        assert_eq!(long.carried(), None);
        let bytes = long.description.expect("there").to_bytes().expect("JSON");
        assert!(bytes.len() > MOST_CARRIED);
        assert_eq!(DescribedRef::with_carried(long.reference, &bytes).description, None);
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        for text in ["", "{}", r#"{"v":3,"nonce":1,"chunk_bytes":1,"tensors":[]}"#] {
            let read = DescribedRef::with_carried(described(1).reference, text.as_bytes());
            assert_eq!(read.description, None, "{text:?}");
        }
    }
}
