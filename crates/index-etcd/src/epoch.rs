//! Epochs: which history of etcd a version belongs to.
//!
//! etcd's revisions are our versions, and fencing rests on versions: tokens, generations, conditions. But an etcd that
//! was restored from a snapshot gives out the same revisions again for other content; so does another etcd in its
//! place. So the index's root has a key ([`KEY`]) that names the current epoch. The restore guard
//! ([`crate::restore_guard`]) begins a new epoch, in which versions begin far above all that were given out before:
//!
//! ```text
//!   revision   1 … 50 │ 51 … 80   (a snapshot at 50, restored when etcd was at 80: what was 51 … 80 is gone)
//!                     │ 51 guard │ 52 …
//!   version    1 … 50 │          │ base + 51, base + 52, …
//! ```
//!
//! - *Records that were there before* keep their version: each epoch's base counts from the revision of the guard's own
//!   write.
//! - *Records that are gone* are never matched again: no revision has their version any more, so a condition on one
//!   fails, and a fencing token or generation from then matches nothing.
//! - *A process that has not noticed* changes nothing: every transaction compares the exact bytes under [`KEY`], which
//!   have a random part. That costs one comparison and no round trip. Two epochs are never mistaken for each other,
//!   whatever is restored.
//!
//! The base follows from the guard's wall clock, at 2³² versions per second: more than etcd gives out in any second,
//! even with a `--bump-revision` of a billion. The clock needs to be right only to within the time between two
//! restores.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use etcd_client::KeyValue;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ErrorKind, Result, Rng};
use tensorhold_custody::Version;

/// The key that holds the epoch, relative to the index's root.
pub(crate) const KEY: &str = tensorhold_index::placement::EPOCH_KEY;

/// The start of the epoch count, in seconds of Unix time (2020). It keeps numbers small and versions positive for etcd.
const FIRST_SECOND: u64 = 1_577_836_800;

/// How many bits of a version count within one second.
const WITHIN_A_SECOND: u32 = 32;

/// The stored form of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    /// Zero for an index that was never restored; otherwise the second at which the guard began the epoch.
    number: u64,
    /// Random; no two epochs share it.
    nonce: String,
    /// The first revision and number of each earlier epoch. The first epoch begins with the first revision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    before: Vec<(u64, u64)>,
}

/// One epoch of an index, with all epochs before it.
#[derive(Clone, Debug)]
pub(crate) struct Epoch(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The value under the key; `None` before it was read.
    text: Option<Vec<u8>>,
    number: u64,
    /// First revision and base of each epoch, this one's last.
    spans: Vec<(u64, u64)>,
}

impl Epoch {
    /// The epoch of a client that has not read the key yet.
    pub(crate) fn unknown() -> Self {
        Self(Arc::new(Inner {
            text: None,
            number: 0,
            spans: vec![(0, 0)],
        }))
    }

    /// Parses the key's value. An epoch begins with the revision of its own write.
    pub(crate) fn read(entry: &KeyValue) -> Result<Self> {
        let strange = || {
            let message = "the value under the epoch key is not an epoch: does another program use the root?";
            let value = String::from_utf8_lossy(entry.value());
            Error::new(ErrorKind::Corrupt, "index.open", message).with("epoch", value.escape_debug())
        };
        let written: Written = serde_json::from_slice(entry.value()).map_err(|_| strange())?;
        let begins = u64::try_from(entry.mod_revision()).map_err(|_| strange())?;
        let mut spans = vec![(0, 0)];
        if written.number > 0 {
            let before = written.before.iter().copied();
            let all = before.chain([(begins, written.number)]);
            spans.extend(all.map(|(from, number)| (from, base(number))));
        }
        let too_large = written.number >= 1 << (63 - WITHIN_A_SECOND);
        if too_large || spans.windows(2).any(|two| two[0].0 >= two[1].0 || two[0].1 >= two[1].1) {
            return Err(strange());
        }
        Ok(Self(Arc::new(Inner {
            text: Some(entry.value().to_vec()),
            number: written.number,
            spans,
        })))
    }

    /// The value that the first process to open an index writes.
    pub(crate) fn first(rng: &dyn Rng) -> Result<Vec<u8>> {
        encode(&Written {
            number: 0,
            nonce: nonce(rng),
            before: Vec::new(),
        })
    }

    /// The value that the restore guard writes over the last epoch (`None` if there is no key).
    pub(crate) fn next(last: Option<&KeyValue>, rng: &dyn Rng) -> Result<Vec<u8>> {
        let mut before = Vec::new();
        let mut number = this_second().max(1);
        if let Some(last) = last {
            Self::read(last)?;
            let written: Written = serde_json::from_slice(last.value()).map_err(|error| {
                Error::internal("index.restore_guard", "the stored epoch cannot be parsed").caused_by(error)
            })?;
            before = written.before;
            if written.number > 0 {
                before.push((u64::try_from(last.mod_revision()).unwrap_or(0), written.number));
            }
            number = number.max(written.number + 1);
        }
        encode(&Written {
            number,
            nonce: nonce(rng),
            before,
        })
    }

    /// The bytes that every transaction compares.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        self.0.text.as_deref()
    }

    /// Whether `value` is this epoch.
    pub(crate) fn is(&self, value: Option<&[u8]>) -> bool {
        self.text().is_none() || self.text() == value
    }

    /// Whether this epoch was begun after the other one.
    pub(crate) fn is_after(&self, other: &Self) -> bool {
        self.0.number > other.0.number
    }

    /// The version of a record written at a revision.
    pub(crate) fn version(&self, revision: u64) -> Version {
        let began = self.0.spans.iter().rfind(|(from, _)| *from <= revision);
        Version(revision.saturating_add(began.map_or(0, |(_, base)| *base)))
    }

    /// The revision of a version. `None` for a record that was written in a history that is gone.
    pub(crate) fn revision(&self, version: Version) -> Option<u64> {
        let spans = &self.0.spans;
        let at = spans.iter().rposition(|(from, base)| from + base <= version.0)?;
        let revision = version.0 - spans[at].1;
        let ended = spans.get(at + 1).is_some_and(|(next, _)| *next <= revision);
        (!ended).then_some(revision)
    }

    /// The name of the epoch, for people.
    pub(crate) fn name(&self) -> String {
        let text = self.text().map(String::from_utf8_lossy).unwrap_or_default();
        let nonce = serde_json::from_str::<Written>(&text).map(|written| written.nonce);
        format!("{}-{}", self.0.number, nonce.unwrap_or_default())
    }
}

/// The only use of the wall clock: epochs must be told apart over years, whatever was restored in between.
#[expect(
    clippy::disallowed_methods,
    reason = "it goes into one record, and nothing waits for it"
)]
fn this_second() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.as_ref().map_or(0, Duration::as_secs).saturating_sub(FIRST_SECOND)
}

fn base(number: u64) -> u64 {
    number << WITHIN_A_SECOND
}

fn nonce(rng: &dyn Rng) -> String {
    format!("{:016x}", rng.next_u64())
}

fn encode(written: &Written) -> Result<Vec<u8>> {
    serde_json::to_vec(written)
        .map_err(|error| Error::internal("index.epoch", "an epoch cannot be encoded").caused_by(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(number: u64, before: &[(u64, u64)], begins: u64) -> Epoch {
        let mut spans = vec![(0, 0)];
        spans.extend(before.iter().map(|(from, number)| (*from, base(*number))));
        spans.push((begins, base(number)));
        Epoch(Arc::new(Inner {
            text: Some(vec![]),
            number,
            spans,
        }))
    }

    #[test]
    fn what_was_there_keeps_its_version_and_what_is_gone_has_none() {
        let unknown = Epoch::unknown();
        assert_eq!(
            (unknown.version(80), unknown.revision(Version(80))),
            (Version(80), Some(80))
        );

        let first = epoch(7, &[], 51);
        assert_eq!(
            (first.version(50), first.revision(Version(50))),
            (Version(50), Some(50))
        );
        let new = first.version(51);
        assert_eq!((new, first.revision(new)), (Version(base(7) + 51), Some(51)));
        for gone in 51..1000 {
            assert_eq!(first.revision(Version(gone)), None, "{gone} is gone");
        }
        // Put back once more, to a snapshot of the first epoch at 60.
        let second = epoch(9, &[(51, 7)], 61);
        assert_eq!(second.revision(new), Some(51), "it was there");
        let gone = first.version(75);
        assert_eq!(second.revision(gone), None, "it is not there any more");
        assert!(second.version(61) > gone);
        for revision in 1..100 {
            assert_eq!(second.revision(second.version(revision)), Some(revision));
        }
        assert!(second.is_after(&first) && !first.is_after(&second) && !first.is_after(&first));
    }
}
