//! The decoders of everything that the index stores, for the fuzzer (feature `fuzzing`, folder `fuzz/`). Not part of
//! the interface.
//!
//! Whatever wrote the bytes: a decoder refuses them, or returns a value that can be encoded and decoded again without a
//! change, and from which every decision can be taken without a panic.
#![allow(
    clippy::expect_used,
    missing_docs,
    reason = "a broken property is a panic: that is how the fuzzer learns of it"
)]

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorhold_core::SampleId;
use tensorhold_custody::{GroupName, Live, Reason, Reserved, Retired, SessionId, Sweep, Tick, Token, Version};

use crate::record::codec::{Settle, decode, decode_versioned, encode, encode_described};
use crate::record::grants::GrantList;
use crate::record::layout::Layout;
use crate::record::types::{Quarantined, SampleRef, Versioned};
use crate::store::Entry;
use crate::txn::quarantine::Info;

fn entry(value: &[u8]) -> Entry {
    Entry {
        key: "store/s/sample".to_owned(),
        value: value.to_vec(),
        version: Version(7),
    }
}

/// Decodes a record, and asserts that it can be encoded and decoded again.
fn read_back<T: Settle + Serialize + PartialEq + Debug>(bytes: &[u8]) -> Option<Versioned<T>> {
    let first: Versioned<T> = decode_versioned(&entry(bytes)).ok()?;
    let written = encode_described(&first.record, &first.description).expect("what was read can be written");
    let again: Versioned<T> = decode_versioned(&entry(&written)).expect("what was written can be read");
    assert_eq!(again, first);
    let rewritten = encode_described(&again.record, &again.description).expect("written again");
    assert_eq!(rewritten, written);
    Some(first)
}

/// Reservations, live and retired samples, with their descriptions.
pub fn record(bytes: &[u8]) {
    let sample = SampleId::new("sample").expect("a name");
    let layout = Layout::new(&"store".parse().expect("a name"));
    let sweeps = [Tick(0), Tick(u64::MAX)].map(|tick| Sweep {
        tick,
        grace: u64::MAX,
        gone: &|session: SessionId| session.0.is_multiple_of(2),
    });
    if let Some(Versioned { record, .. }) = read_back::<Reserved>(bytes) {
        for sweep in &sweeps {
            record.sweep(sweep);
        }
        place_retired(&layout, &sample, record.abort(Reason::Aborted));
    }
    if let Some(Versioned {
        record, description, ..
    }) = read_back::<Live>(bytes)
    {
        let writes = layout.put_live(&sample, None, &record, &description);
        assert!(writes.is_ok(), "{writes:?}");
        for key in layout.ready_entries(&sample, &record, None) {
            assert_eq!(Layout::sample_of(&key).as_ref(), Some(&sample));
        }
        for sweep in &sweeps {
            record.sweep(sweep);
        }
        answer(&record);
        place_retired(&layout, &sample, record.retire(Reason::Lost));
    }
    if let Some(Versioned { record, .. }) = read_back::<Retired>(bytes) {
        for sweep in &sweeps {
            record.sweep(sweep);
        }
        place_retired(&layout, &sample, record.free_failed());
    }
}

/// Every group takes the sample and hands it back, and leases that the record names are answered.
fn answer(record: &Live) {
    const VERSION: Version = Version(9);
    for state in &record.groups {
        if let Ok(mut leased) = record.clone().lease(&state.group, SessionId(1), Tick(u64::MAX)) {
            leased.settle(VERSION);
            assert!(leased.holds(Token(VERSION.0)));
            drop(leased.nack(&state.group, Token(VERSION.0)));
        }
    }
    let tokens: Vec<Token> = record.leases().map(|lease| lease.token).collect();
    for token in tokens {
        drop(record.clone().renew(token, Tick(u64::MAX)));
        drop(record.clone().release(token));
        for state in &record.groups {
            drop(record.clone().ack(&state.group, token));
        }
    }
    drop(record.clone().read(SessionId(1), Tick(0)).reopen());
}

fn place_retired(layout: &Layout, sample: &SampleId, record: Retired) {
    if let Ok(home) = layout.retired_home(sample, &record) {
        let generation = record.generation.expect("it has a home");
        assert_eq!(Layout::parse_retired(&home), Some((sample.clone(), generation)));
    }
}

/// Decodes a value that has no versions in it, and asserts that it can be encoded and decoded again.
pub(crate) fn stable<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(first) = decode::<T>(&entry(bytes)) else { return };
    let written = encode(&first).expect("what was read can be written");
    let again: T = decode(&entry(&written)).expect("what was written can be read");
    assert_eq!(again, first);
}

/// Grant lists, the shared clock, and what is written by and for sessions that wait for quota.
pub fn note(bytes: &[u8]) {
    stable::<GrantList>(bytes);
    stable::<Tick>(bytes);
    crate::quota::fuzz(bytes);
    if let Ok(holdings) = GrantList::read(&entry(bytes)) {
        assert!(holdings.len() <= bytes.len());
    }
}

/// An entry of a list: the first line is its key, the rest its value.
fn listed(bytes: &[u8]) -> Option<Entry> {
    let at = bytes.iter().position(|byte| *byte == b'\n')?;
    Some(Entry {
        key: String::from_utf8(bytes[..at].to_vec()).ok()?,
        ..entry(&bytes[at + 1..])
    })
}

/// Entries of ready lists: a decoded entry lies under the key by which it would be deleted, and names the sample that
/// it says.
pub fn ready(bytes: &[u8]) {
    let Some(entry) = listed(bytes) else { return };
    let layout = Layout::new(&"store".parse().expect("a name"));
    let group = GroupName::new("g").expect("a name");
    if let Ok(found) = crate::ready::parse(&layout, &group, &entry) {
        let SampleRef { sample, generation } = found.sample;
        assert_eq!(layout.ready_entry(&sample, found.order, &group), entry.key);
        if let Some(copied) = found.copied {
            assert_eq!(copied.record.generation, generation);
            assert_eq!(copied.record.order(), found.order);
        }
    }
}

/// Entries about records in quarantine: each is found again under the key that follows from it.
pub fn quarantined(bytes: &[u8]) {
    stable::<Info>(bytes);
    let Some(entry) = listed(bytes) else { return };
    let layout = Layout::new(&"store".parse().expect("a name"));
    if let Some(found) = Quarantined::parse(&layout, &entry) {
        let aside = layout.aside(&found.key, found.version).expect("a key of this store");
        assert_eq!(aside.info, entry.key);
    }
}

/// Keys of lists: a key that follows from a name is parsed back to it, and foreign keys are refused or name what they
/// would be named by.
pub fn key(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let layout = Layout::new(&"store".parse().expect("a name"));
    if let Some((sample, generation)) = Layout::parse_retired(text) {
        let home = layout.to_free(&sample, generation);
        assert_eq!(Layout::parse_retired(&home), Some((sample, generation)));
    }
    if let Some(sample) = Layout::sample_of(text) {
        assert_eq!(Layout::sample_of(&layout.live(&sample)), Some(sample));
    }
    if let Some(session) = Layout::session_of(text) {
        assert_eq!(Layout::session_of(&layout.alive(session)), Some(session));
    }
}
