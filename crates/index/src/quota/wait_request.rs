//! What one who waits for credits writes, and what it is told.

use holdfast_core::{Nonce, ObjectKey, Result, SampleId};
use holdfast_custody::{Reserved, SessionId, Tick, Version};
use serde::{Deserialize, Serialize};

use crate::record::codec::{decode, unreadable};
use crate::record::layout::Layout;
use crate::record::types::Reserve;
use crate::store::Entry;

/// What a session waits for: all of it at once. Its place in line is the version at which this was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WaitRequest {
    pub(super) samples: Vec<WaitItem>,
}

/// One sample of a want.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WaitItem {
    pub(super) sample: SampleId,
    nonce: Nonce,
    bytes: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    plan: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) claims: Vec<ObjectKey>,
}

impl WaitRequest {
    pub(super) fn of<'a>(items: impl IntoIterator<Item = &'a Reserve>) -> Self {
        let samples = items.into_iter().map(|item| WaitItem {
            sample: item.sample.clone(),
            nonce: item.nonce,
            bytes: item.bytes,
            plan: item.plan.clone(),
            claims: item.claims.clone(),
        });
        Self {
            samples: samples.collect(),
        }
    }

    /// Everything that must be absent for it to be served.
    pub(super) fn in_its_way(&self, layout: &Layout) -> Vec<String> {
        let keys = self.samples.iter().flat_map(|wish| wish.in_its_way(layout));
        keys.collect()
    }

    /// How many bytes it takes to serve it.
    pub(super) fn bytes(&self) -> u64 {
        self.samples
            .iter()
            .fold(0, |bytes, wish| bytes.saturating_add(wish.bytes))
    }
}

impl WaitItem {
    /// The reservation that serves it, whoever makes it: who waited can tell it by itself, to the letter.
    pub(super) fn reserved(&self, by: SessionId, until: Tick) -> Reserved {
        Reserved::new(by, self.nonce, self.bytes, until)
            .with_paid(self.bytes)
            .with_plan(&self.plan)
            .with_claims(&self.claims)
    }

    /// Everything that must be absent for it to be reserved.
    pub(super) fn in_its_way<'a>(&'a self, layout: &'a Layout) -> impl Iterator<Item = String> + 'a {
        layout.in_its_way(&self.sample, &self.claims)
    }
}

/// One who waits, as was read.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) session: SessionId,
    pub(super) key: String,
    /// Since when.
    pub(super) since: Version,
    pub(super) want: WaitRequest,
}

impl Waiter {
    pub(super) fn read(entry: &Entry) -> Result<Self> {
        let no_name = || unreadable(&entry.key, "this is no key of a session that waits");
        Ok(Self {
            session: Layout::session_of(&entry.key).ok_or_else(no_name)?,
            key: entry.key.clone(),
            since: entry.version,
            want: decode(entry)?,
        })
    }
}

/// How a wait ended, as is written for the one who waited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WaitResult {
    /// The wait: when it began.
    pub(super) since: Version,
    pub(super) ending: Ending,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ending {
    /// All samples are reserved. The generation is the version at which this was written.
    Reserved {
        until: Tick,
        /// The key of the note that says so.
        note: String,
    },
    /// Nothing is reserved: these are being written by others.
    Taken { samples: Vec<SampleId> },
}
