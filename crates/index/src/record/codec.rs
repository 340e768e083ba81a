//! How a record is encoded and decoded: JSON, and behind it the producer's description of the sample, unchanged.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ErrorKind, Result};
use tensorhold_custody::{Live, Reserved, Retired, Version};

use crate::record::types::Versioned;
use crate::store::Entry;

/// The producer's description of a sample: opaque to the index. None if it has not committed.
pub(crate) type Description = Option<Arc<[u8]>>;

/// The byte between a record and the description behind it. JSON has no such byte.
const BEHIND: u8 = 0;

/// Capacity hint: hardly any record without its description is longer.
const USUAL_RECORD: usize = 384;

/// Encodes a record with its description behind it.
pub(crate) fn encode_described(record: &impl Serialize, description: &Description) -> Result<Vec<u8>> {
    let described = description.as_ref().map_or(0, |description| 1 + description.len());
    let mut value = Vec::with_capacity(USUAL_RECORD + described);
    encode_into(&mut value, record)?;
    if let Some(description) = description {
        value.push(BEHIND);
        value.extend_from_slice(description);
    }
    Ok(value)
}

/// A record's own bytes, and the description behind them.
fn cut(value: &[u8]) -> (&[u8], Option<&[u8]>) {
    match value.iter().position(|byte| *byte == BEHIND) {
        Some(at) => (&value[..at], Some(&value[at + 1..])),
        None => (value, None),
    }
}

/// A record's value without the description.
pub(crate) fn without_description(value: &[u8]) -> &[u8] {
    cut(value).0
}

pub(crate) fn encode(record: &impl Serialize) -> Result<Vec<u8>> {
    let mut value = Vec::with_capacity(USUAL_RECORD);
    encode_into(&mut value, record)?;
    Ok(value)
}

fn encode_into(value: &mut Vec<u8>, record: &impl Serialize) -> Result<()> {
    serde_json::to_writer(value, record)
        .map_err(|error| Error::internal("index.encode", "a record cannot be written as JSON").caused_by(error))
}

/// The latest record form that this release decodes. A record states its form as `"v"`; without it, the form is the
/// first. A field that an older release may ignore, and lose when it writes the record back, is added without a new form. A
/// change that it must not touch raises the form: this number, and the record is then written with `"v"`.
///
/// | form | what is new |
/// |---|---|
/// | 2 | live and retired samples that were reserved ahead say as what (`reserved_as`) |
pub(crate) const RECORD_VERSION: u64 = 2;

/// The longest record that is decoded, whatever the store can hold. etcd accepts 1.5 MiB per request unless configured
/// otherwise, and the plan of the largest sample is far below that.
pub(crate) const MOST_RECORD: usize = 2 << 20;

const DECODE: &str = "index.decode";

/// The error for a value that cannot be a record. Such a value is quarantined ([`crate::txn::quarantine`]).
pub(crate) fn unreadable(key: &str, why: &str) -> Error {
    unreadable_because(key, why, None)
}

fn unreadable_because(key: &str, why: &str, source: Option<serde_json::Error>) -> Error {
    let key = key.to_owned();
    Error::new(ErrorKind::Corrupt, DECODE, why)
        .with("key", &key)
        .caused_by(NoRecord { key, source })
}

/// The cause of an error that says that a value cannot be a record.
#[derive(Debug)]
struct NoRecord {
    key: String,
    source: Option<serde_json::Error>,
}

impl fmt::Display for NoRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no record", self.key)
    }
}

impl StdError for NoRecord {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// The key of the record that cannot be decoded, if that is what this error says.
pub(crate) fn unreadable_key(error: &Error) -> Option<&str> {
    let cause = error
        .cause::<NoRecord>()
        .filter(|_| error.kind() == ErrorKind::Corrupt)?;
    Some(&cause.key)
}

/// Decodes a record. Fields that a later release added are ignored, so that releases can work side by side.
///
/// # Errors
/// `Corrupt` if it is not a record, `Unsupported` if it states a later form: see [`crate::txn::quarantine`].
pub(crate) fn decode<T: DeserializeOwned>(entry: &Entry) -> Result<T> {
    decode_record(&entry.key, cut(&entry.value).0)
}

fn decode_record<T: DeserializeOwned>(key: &str, record: &[u8]) -> Result<T> {
    if record.len() > MOST_RECORD {
        return Err(unreadable(key, "this value is longer than any record may be"));
    }
    let read = serde_json::from_slice(record);
    if read.is_ok() && !says_its_form(record) {
        return read.map_err(|error| unreadable_because(key, "this value is not a record", Some(error)));
    }
    if let Some(form) = form_of(record).filter(|form| *form > RECORD_VERSION) {
        let message = "this record was written by a later release; upgrade this process";
        let error = Error::new(ErrorKind::Unsupported, DECODE, message);
        return Err(error.with("key", key).with("form", form));
    }
    read.map_err(|error| {
        unreadable_because(
            key,
            "this value is not a record: did another program write it?",
            Some(error),
        )
    })
}

/// Whether the record may state its form. A quote inside a string is escaped, so a match is a field name, perhaps of a
/// nested object.
fn says_its_form(record: &[u8]) -> bool {
    record.windows(4).any(|window| window == br#""v":"#)
}

/// The form that a record states.
fn form_of(record: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Head {
        v: Option<u64>,
    }
    let head: Head = serde_json::from_slice(record).ok()?;
    head.v
}

/// A record with versions that were not known when it was written.
pub(crate) trait Settle: DeserializeOwned {
    /// Fills in the version of the write that it was part of.
    fn settle(&mut self, version: Version);
}

macro_rules! settle {
    ($($record:ty),*) => {$(
        impl Settle for $record {
            fn settle(&mut self, version: Version) {
                <$record>::settle(self, version);
            }
        }
    )*};
}

settle!(Reserved, Live, Retired);

/// Decodes a record with its description, and fills in the versions that were not known when it was written.
pub(crate) fn decode_versioned<T: Settle>(entry: &Entry) -> Result<Versioned<T>> {
    let (record, description) = cut(&entry.value);
    let mut record: T = decode_record(&entry.key, record)?;
    record.settle(entry.version);
    Ok(Versioned {
        record,
        version: entry.version,
        description: description.map(Arc::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorhold_custody::Reason;

    const RETIRED: &str = r#""generation":3,"nonce":5,"producer":1,"bytes":1,"readers":[],"failed_frees":0"#;

    fn read(record: &str) -> Result<Versioned<Retired>> {
        decode_versioned(&Entry {
            key: "s/f/a/3".to_owned(),
            value: record.as_bytes().to_vec(),
            version: Version(9),
        })
    }

    #[test]
    fn what_a_later_release_adds_is_passed_over() {
        let reason = |text: &str| read(text).map(|read| read.record.reason);
        let known = format!(r#"{{{RETIRED},"reason":"Aborted","new":{{"v":7}},"v":1}}"#);
        assert_eq!(reason(&known).expect("a record"), Reason::Aborted);
        for unknown in [r#""SomethingNew""#, r#"{"SomethingNew":{"since":7}}"#] {
            let text = format!(r#"{{{RETIRED},"reason":{unknown}}}"#);
            assert_eq!(reason(&text).expect("a record"), Reason::Other, "{text}");
        }
    }

    /// As the first release wrote them. Never edit one: a record that is stored must be read for ever. Add another.
    #[test]
    fn records_of_the_first_release_are_read() {
        let entry = |value: &str| Entry {
            key: "s/l/a".to_owned(),
            value: value.as_bytes().to_vec(),
            version: Version(9),
        };
        let live = r#"{"generation":3,"nonce":5,"producer":1,"bytes":7,"groups":[{"group":"g","attempts":1,"progress":{"Leased":{"session":2,"token":9,"until":40}}}],"readers":[],"retain":false,"max_attempts":3}"#;
        let read: Versioned<Live> = decode_versioned(&entry(live)).expect("a record");
        assert_eq!(
            (read.record.bytes, read.record.paid, read.record.max_attempts),
            (7, 0, 3)
        );
        let reserved = r#"{"generation":null,"nonce":5,"session":1,"bytes":7,"until":30}"#;
        let read: Reserved = decode(&entry(reserved)).expect("a record");
        assert_eq!((read.bytes, read.paid), (7, 0));
        let retired = format!(r#"{{{RETIRED},"reason":"DeadLetter"}}"#);
        let read: Versioned<Retired> = decode_versioned(&entry(&retired)).expect("a record");
        assert_eq!((read.record.reason, read.record.paid), (Reason::DeadLetter, 0));
    }

    /// The records of the first release, with the fields that it knew.
    mod first_release {
        use super::*;

        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only that they can be read")]
        pub(super) struct Lease {
            session: u64,
            token: u64,
            until: u64,
        }

        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only that they can be read")]
        pub(super) enum Progress {
            Waiting,
            Leased(Lease),
            Acked,
            Dead,
        }

        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only that they can be read")]
        pub(super) struct GroupState {
            group: String,
            attempts: u32,
            progress: Progress,
        }

        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only that they can be read")]
        pub(super) struct Live {
            generation: u64,
            nonce: serde_json::Value,
            producer: u64,
            bytes: u64,
            groups: Vec<GroupState>,
            readers: Vec<Lease>,
            retain: bool,
            max_attempts: u32,
        }

        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only that they can be read")]
        pub(super) struct Retired {
            generation: Option<u64>,
            nonce: serde_json::Value,
            producer: u64,
            bytes: u64,
            readers: Vec<Lease>,
            reason: String,
            failed_frees: u32,
        }
    }

    #[test]
    fn the_first_release_reads_the_records_of_this_one() {
        use tensorhold_core::Nonce;
        use tensorhold_custody::{GroupName, Publication, SessionId, Stamp, Tick, Token, WallTime};
        let stamp = Stamp {
            at: WallTime(1_700_000_000_000),
            by: SessionId(1),
        };
        let group = GroupName::new("g").expect("a name");
        let mut reserved = Reserved::new(SessionId(1), Nonce::from_u64(5), 7, Tick(3)).stamped(stamp.at);
        reserved.settle(Version(3));
        let generation = reserved.generation.expect("settled");
        let publication = Publication {
            groups: vec![group.clone()],
            retain: false,
            max_attempts: 1,
        };
        let mut live = reserved
            .commit(SessionId(1), generation, &publication)
            .expect("committed");
        live.stamp(None, stamp);
        let mut leased = live.lease(&group, SessionId(2), Tick(9)).expect("leased");
        leased.stamp(None, stamp);
        let value = encode(&leased).expect("a record");
        assert!(String::from_utf8_lossy(&value).contains("\"since\""), "it has times");
        serde_json::from_slice::<first_release::Live>(&value).expect("read by the first release");
        leased.settle(Version(4));
        let tensorhold_custody::Acknowledged::Retired(retired) = leased.clone().nack(&group, Token(4)).expect("held")
        else {
            panic!("one attempt was all");
        };
        let letter = retired.stamped_after(&leased, stamp).kept_until(Tick(20));
        for record in [letter.clone(), letter.after_free(stamp).expect("a dead letter")] {
            let value = encode(&record).expect("a record");
            serde_json::from_slice::<first_release::Retired>(&value).expect("read by the first release");
        }
    }

    /// An earlier release must not touch it: it would look for its objects, and for its ready entries, in other places.
    #[test]
    fn a_sample_that_was_reserved_ahead_says_so_and_gets_the_generation_of_its_commit() {
        let name = tensorhold_core::SampleId::new("~00-0").expect("a name");
        let generation = tensorhold_core::Generation::new(3).expect("not zero");
        let session = tensorhold_custody::SessionId(1);
        let mut reserved = Reserved::new(
            session,
            tensorhold_core::Nonce::from_u64(5),
            0,
            tensorhold_custody::Tick(9),
        );
        reserved.settle(Version(3));
        let publication = tensorhold_custody::Publication {
            groups: Vec::new(),
            retain: false,
            max_attempts: 1,
        };
        let reserved_as = tensorhold_custody::ReservedAs { name, generation };
        let live = reserved.commit_as(session, reserved_as, &publication, 7).expect("ours");
        let live_at = |value: Vec<u8>, version| {
            let key = "s/s/a".to_owned();
            let version = Version(version);
            decode_versioned::<Live>(&Entry { key, value, version })
                .expect("a record")
                .record
        };
        let written = encode(&live).expect("a record");
        assert_eq!(form_of(&written), Some(2));
        let committed = live_at(written, 8);
        assert_eq!(
            (committed.generation.get(), committed.order().get(), committed.bytes),
            (8, 3, 7)
        );
        let written = encode(&committed).expect("a record");
        assert_eq!(
            live_at(written, 20).generation.get(),
            8,
            "it stays when the record is written again"
        );
        let retired = encode(&committed.retire(Reason::Aborted)).expect("a record");
        assert_eq!(form_of(&retired), Some(2));
    }

    #[test]
    fn what_is_of_a_later_form_is_not_taken_for_garbage() {
        for text in [
            format!(r#"{{{RETIRED},"reason":"Aborted","v":3}}"#),
            r#"{"v":3,"all":"new"}"#.to_owned(),
        ] {
            let error = read(&text).expect_err("of a later release");
            assert_eq!(
                (error.kind(), unreadable_key(&error)),
                (ErrorKind::Unsupported, None),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_record_says_which_it_is() {
        let plan = r#"{\"v\":3}"#;
        let planned = read(&format!(r#"{{{RETIRED},"reason":"Aborted","plan":"{plan}"}}"#));
        assert!(planned.is_ok(), "the plan's version is not the record's: {planned:?}");
        let long = format!(
            r#"{{{RETIRED},"reason":"Aborted","plan":"{}"}}"#,
            "x".repeat(MOST_RECORD)
        );
        for text in [
            "",
            "7",
            "[]",
            "{",
            r#"{"generation":0}"#,
            r#"{"v":1}"#,
            r#"{"v":"2"}"#,
            &long,
        ] {
            let error = read(text).expect_err("no record");
            assert_eq!(unreadable_key(&error), Some("s/f/a/3"), "{error}");
        }
    }
}
