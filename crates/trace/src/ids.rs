//! Ids that every process derives alike.

use tensorhold_core::Digest;

use crate::Incarnation;

/// The id of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

impl TraceId {
    /// The trace of an incarnation: the checksum of its parts. Names hold no slash at their ends, so that two incarnations
    /// never give the same text.
    pub fn of(of: &Incarnation<'_>) -> Self {
        let nonce = of.nonce.map(|nonce| nonce.to_string()).unwrap_or_default();
        let text = format!("{}/{}/g{}-{nonce}", of.store, of.sample, of.generation);
        // An id of zero is none.
        Self(Digest::of(text.as_bytes()).as_u128().max(1))
    }

    /// The id of the trace's first span.
    pub(crate) fn root(self) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "half of the bits are an id")]
        let half = self.0 as u64;
        half.max(1)
    }
}

impl std::fmt::Display for TraceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
