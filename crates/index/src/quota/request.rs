//! What a reservation waits for, as it is written into the shared queue, and the answer.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use tensorhold_core::{Nonce, ObjectKey, Result, SampleId};
use tensorhold_custody::{Reserved, SessionId, Tick, Version, WallTime};

use crate::record::codec::{decode, unreadable};
use crate::record::layout::Layout;
use crate::record::types::{MOST_CLAIMS, Reserve};
use crate::store::Entry;

/// How many operations of a transaction a request takes at most, so that there is room to serve it: a sample with all
/// the claims that it may have.
pub(crate) const MOST_OPERATIONS: usize = MOST_CLAIMS + 1;

/// How many bytes a request has at most, as it is written, for the same reason.
pub(crate) const MOST_TEXT: usize = 512 * 1024;

/// How many bytes a text has as it is written.
pub(crate) fn written_len(text: &str) -> usize {
    let len = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(len).sum()
}

/// Samples that are reserved together or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WaitRequest {
    pub(super) samples: Vec<WaitItem>,
}

/// One of these samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WaitItem {
    pub(super) sample: SampleId,
    nonce: Nonce,
    bytes: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    plan: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) claims: Vec<ObjectKey>,
    /// When it was asked for: the reservation's time, also if another process makes it for the waiter.
    #[serde(default, skip_serializing_if = "WallTime::is_unknown")]
    at: WallTime,
}

impl WaitRequest {
    pub(super) fn of<'a>(items: impl IntoIterator<Item = &'a Reserve>, at: WallTime) -> Self {
        let samples = items.into_iter().map(|item| WaitItem {
            sample: item.sample.clone(),
            nonce: item.nonce,
            bytes: item.bytes,
            plan: item.plan.clone(),
            claims: item.claims.clone(),
            at,
        });
        Self {
            samples: samples.collect(),
        }
    }

    /// Every key that must be absent for it to be served.
    pub(super) fn in_its_way(&self, layout: &Layout) -> Vec<String> {
        self.samples.iter().flat_map(|item| item.in_its_way(layout)).collect()
    }

    /// The samples that one of these keys is in the way of.
    pub(super) fn blocked(&self, layout: &Layout, there: impl Fn(&str) -> bool) -> Vec<SampleId> {
        let is_blocked = |item: &&WaitItem| item.in_its_way(layout).any(|key| there(&key));
        self.samples
            .iter()
            .filter(is_blocked)
            .map(|item| item.sample.clone())
            .collect()
    }

    fn operations(&self) -> usize {
        self.samples.iter().map(|item| 1 + item.claims.len()).sum()
    }

    /// Whether a process of ours can have written it.
    fn is_lawful(&self) -> bool {
        let samples: HashSet<&SampleId> = self.samples.iter().map(|item| &item.sample).collect();
        let claims = || self.samples.iter().flat_map(|item| &item.claims);
        let distinct: HashSet<&ObjectKey> = claims().collect();
        !self.samples.is_empty()
            && self.operations() <= MOST_OPERATIONS
            && samples.len() == self.samples.len()
            && distinct.len() == claims().count()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.samples
            .iter()
            .fold(0, |bytes, item| bytes.saturating_add(item.bytes))
    }
}

impl WaitItem {
    /// The reservation that serves it.
    pub(super) fn reserved(&self, by: SessionId, until: Tick) -> Reserved {
        Reserved::new(by, self.nonce, self.bytes, until)
            .stamped(self.at)
            .with_paid(self.bytes)
            .with_plan(&self.plan)
            .with_claims(&self.claims)
    }

    /// Whether this is the reservation that serves it: the same in all but its time, which an earlier release does not
    /// write.
    pub(super) fn is_served_by(&self, reserved: &Reserved, by: SessionId) -> bool {
        let wanted = self.reserved(by, reserved.until).stamped(reserved.reserved_at);
        wanted == *reserved
    }

    pub(super) fn in_its_way<'a>(&'a self, layout: &'a Layout) -> impl Iterator<Item = String> + 'a {
        layout.in_its_way(&self.sample, &self.claims)
    }
}

/// A process in the shared queue, as it was read.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) session: SessionId,
    pub(super) key: String,
    /// Its place: the version at which this was written.
    pub(super) since: Version,
    pub(super) want: WaitRequest,
}

impl Queued {
    /// # Errors
    /// `Corrupt` also for a request that no process of ours writes: it could never be served, and would be in the way.
    pub(super) fn read(layout: &Layout, entry: &Entry) -> Result<Self> {
        let no_name = || unreadable(&entry.key, "this is no key of a session that waits");
        let session = Layout::session_of(&entry.key).filter(|session| layout.wait_request(*session) == entry.key);
        let session = session.ok_or_else(no_name)?;
        let want: WaitRequest = decode(entry)?;
        if entry.value.len() > MOST_TEXT || !want.is_lawful() {
            return Err(unreadable(&entry.key, "no process writes such a request"));
        }
        Ok(Self {
            session,
            key: entry.key.clone(),
            since: entry.version,
            want,
        })
    }
}

/// How a wait in the shared queue ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WaitResult {
    /// The wait: its place in the queue.
    pub(super) since: Version,
    pub(super) ending: Ending,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ending {
    /// All samples are reserved. The generation is the version at which this was written.
    Reserved {
        until: Tick,
        /// The key of the grant list that says so.
        note: String,
    },
    /// Nothing is reserved: other producers write these.
    Taken { samples: Vec<SampleId> },
}
