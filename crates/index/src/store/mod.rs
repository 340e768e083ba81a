//! What the index needs of a transactional store: transactions on versions, sessions, and watches.
//!
//! This is the narrow waist under the index: [`crate::TxnIndex`] turns intents (reserve, commit, lease…) into the
//! transactions of this trait. etcd is the real implementation; [`memory::MemoryStore`] is the one for tests and
//! simulation.
//!
//! # Contract of [`TxnStore`]
//! - **Versions.** Every transaction that changes something gets a version larger than those of all transactions that
//!   had ended when it began. All keys that it writes carry that version. Transactions that are in flight at the same
//!   time may share a version, if no key is written by two of them. A transaction that changes nothing (no writes, or
//!   only deletes of absent keys) gets the store's version at that moment. Versions never go back, not even over a
//!   restart or a change of leader, and none is zero. A version is given out only once, even by a store that was
//!   restored to an earlier state.
//! - **Reads** are linearizable: they see every write that was acknowledged before the read began. All reads of one
//!   call see one moment.
//! - **Transactions** are atomic: all conditions are checked and all writes are done at one moment, or nothing is.
//!   Transactions that share a version behave as if they had come one after the other. These are errors: a transaction
//!   that writes one key twice, one that exceeds [`TxnStore::limits`], a condition on version zero, and a condition on an
//!   empty range. All of them fail with `Invalid`, and [`check`] is where they are found.
//! - **Ambiguity.** An error with [`tensorhold_core::Retry::Ambiguous`] means that the transaction may have been applied,
//!   may not have been, or may be applied later. Any other error means that it was not applied and never will be.
//! - **Full.** An error of kind `Capacity` that is `Ambiguous` is the answer of a full store: the transaction has been
//!   applied, or never will be. A read that begins after the error shows which. A full store still serves reads.
//! - **Sessions.** Keys that are written with a session vanish when it ends. It ends when it is closed, or when its
//!   keep-alives have not arrived for the time to live. A session's id is never given out again. A transaction whose
//!   conditions hold and that writes a key with an ended session fails with `Fenced`. A holder learns of its session's
//!   death no later than the store acts on it, unless the session was ended from outside; then it learns soon after. A
//!   store may lengthen a time to live that is too short or too fine for it, but never shorten it.
//! - **Watches** deliver every change of a key in their range after a version, in order of versions, at least once.
//!   They end with an error if they cannot: `NotFound` if the changes are no longer kept, `Unavailable` if the
//!   connection is lost for good. A watcher then reads again. Changes of one version are delivered together.
//! - **History.** A store may be restored to an earlier state (from a snapshot) or replaced by another: what it
//!   acknowledged meanwhile is gone. A client that detects this is fenced: its sessions have ended, its watches end
//!   with an error, and every call fails with `Fenced` until the store's operator has confirmed that this is the store
//!   from now on. Then the client continues by itself. [`TxnStore::history`] tells whether it is fenced. A transaction that
//!   was sent before the restore and is applied after it changes nothing.
//! - **Deadlines.** Every call returns within its time. Reconnects and leader changes happen within it. A call whose
//!   time is over before anything was sent fails with `Unavailable` and had no effect.

pub mod check;
pub mod memory;
pub(crate) mod metered;
#[cfg(feature = "testing")]
pub mod testing;

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Error, ErrorKind, Result, Retry};
use tensorhold_custody::{SessionId, Version};

use crate::placement::PlacedStore;

/// A key, its value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// The version at which it was last written.
    pub version: Version,
}

/// Something to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// One key.
    Key(String),
    /// The first `limit` keys of a range, in order. Keep the range narrow: the cost grows with the whole range, not
    /// only with the limit.
    Range {
        /// From the first key, up to but not including the second.
        keys: Range<String>,
        /// The most entries.
        limit: usize,
        /// Whether to leave the values out (they come back empty).
        keys_only: bool,
    },
    /// The `limit` keys of a range that were written longest ago, oldest first; keys of one version come in any order.
    /// The cost grows with the whole range here too.
    Oldest {
        /// As in [`Read::Range`].
        keys: Range<String>,
        /// The most entries.
        limit: usize,
    },
}

/// What must hold for a transaction to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key was last written at this version.
    Unchanged(String, Version),
    /// There is no such key.
    Absent(String),
    /// There is such a key.
    Present(String),
    /// There is no key in the range: from the first, up to but not including the second.
    NoneIn(Range<String>),
}

impl Condition {
    /// How many bytes of a transaction the condition takes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Unchanged(key, _) | Self::Absent(key) | Self::Present(key) => key.len(),
            Self::NoneIn(keys) => keys.start.len() + keys.end.len(),
        }
    }
}

/// One change of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Puts a value.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// The session with which the key vanishes, if any.
        session: Option<SessionId>,
    },
    /// Deletes a key. An absent key is no error.
    Delete(String),
}

impl Write {
    /// A put that outlives every session.
    pub fn put(key: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self::Put {
            key: key.into(),
            value: value.into(),
            session: None,
        }
    }

    /// The key that is changed.
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete(key) => key,
        }
    }

    /// How many bytes of a transaction the write takes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Delete(key) => key.len(),
        }
    }
}

/// Conditions, and the writes to apply if all of them hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold.
    pub conditions: Vec<Condition>,
    /// What is written if they do.
    pub writes: Vec<Write>,
}

/// The result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The store's version at the moment of the read: a watch from here misses nothing.
    pub version: Version,
    /// The entries of each read, in the order of the reads.
    pub entries: Vec<Vec<Entry>>,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnOutcome {
    /// All conditions held; everything was written, at this version.
    Committed(Version),
    /// A condition did not hold; nothing was written.
    Rejected,
}

/// A change that a watch delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The new value; `None` if the key was deleted.
    pub value: Option<Vec<u8>>,
    /// The version of the change.
    pub version: Version,
}

/// A stream of changes. Dropping it ends the watch.
#[async_trait]
pub trait Watch: Send + Debug {
    /// The next changes, at least one. Pends until there are some. Fails if changes were missed or may have been: read
    /// again, then watch from there.
    async fn next(&mut self) -> Result<Vec<Change>>;
}

/// A session that is kept alive in the background. A dropped session ends when its time to live runs out; closing ends
/// it at once.
#[async_trait]
pub trait StoreSession: Send + Sync + Debug {
    /// The session's id.
    fn id(&self) -> SessionId;

    /// Pends until the session has ended or can no longer be kept alive. From then on its holder is fenced.
    async fn ended(&self);

    /// Whether the session is alive, as far as this process knows.
    fn is_alive(&self) -> bool;

    /// Ends the session now: its keys vanish.
    async fn close(&self, within: Duration) -> Result<()>;
}

/// What a client knows about its store's history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The history of the store that the client is in; empty for a store that does not report one.
    pub epoch: String,
    /// How often the client found that the store was restored or replaced.
    pub cuts: u64,
    /// While every call is refused: why, and what to do.
    pub refuses: Option<String>,
}

/// The most that one transaction or read may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Conditions, writes, or reads: each at most this many.
    pub operations: usize,
    /// Bytes of keys and values together.
    pub bytes: usize,
}

/// A transactional store. See the module for the contract.
#[async_trait]
pub trait TxnStore: Send + Sync + Debug {
    /// How much fits into one call.
    fn limits(&self) -> Limits;

    /// What is known about the store's history. A store that cannot be restored reports nothing.
    fn history(&self) -> History {
        History::default()
    }

    /// Reads, all at one moment.
    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot>;

    /// How many keys each range has. Not all at one moment: for people, who ask how much there is. A store that can count
    /// does; the others are read in parts.
    async fn count(&self, ranges: &[Range<String>], within: Duration) -> Result<Vec<u64>> {
        let mut counts = Vec::with_capacity(ranges.len());
        for range in ranges {
            counts.push(count_by_reading(self, range.clone(), within).await?);
        }
        Ok(counts)
    }

    /// Checks and writes, all at one moment.
    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome>;

    /// As [`TxnStore::transact`], and reads at the same moment: after the writes, or, if a condition did not hold, without
    /// them. A store that does not support this reads nothing, which is the default. Writes and reads count together
    /// against [`TxnStore::limits`].
    async fn transact_and_read(
        &self,
        transaction: &Transaction,
        reads: &[Read],
        within: Duration,
    ) -> Result<(TxnOutcome, Option<Snapshot>)> {
        check::transaction_and_reads(transaction, reads, self.limits())?;
        Ok((self.transact(transaction, within).await?, None))
    }

    /// Where the one store is that this is used for, if that was looked up: see [`crate::placement`].
    fn placed(&self) -> Option<&PlacedStore> {
        None
    }

    /// Opens a session that ends if its keep-alives do not arrive for `time_to_live`.
    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>>;

    /// Watches the changes of keys in a range after version `after`.
    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>>;
}

async fn count_by_reading<S: TxnStore + ?Sized>(
    txn_store: &S,
    mut keys: Range<String>,
    within: Duration,
) -> Result<u64> {
    const PAGE: usize = 10_000;
    let mut count = 0;
    loop {
        let page = Read::Range {
            keys: keys.clone(),
            limit: PAGE,
            keys_only: true,
        };
        let snapshot = txn_store.read(&[page], within).await?;
        let found = snapshot.entries.first().map(Vec::as_slice).unwrap_or_default();
        count += found.len() as u64;
        match found.last().filter(|_| found.len() == PAGE) {
            Some(last) => keys.start = format!("{}\0", last.key),
            None => return Ok(count),
        }
    }
}

/// The range of all keys that begin with `prefix`.
pub fn prefix(prefix: impl Into<String>) -> Range<String> {
    let from = prefix.into();
    let mut to = from.clone();
    // Keys are ASCII, so the next prefix ends in the next character; an empty prefix is everything.
    match to.pop() {
        Some(last) => to.push(char::from_u32(u32::from(last) + 1).unwrap_or(char::MAX)),
        None => to.push(char::MAX),
    }
    from..to
}

/// Whether the store has answered that it is full. See the contract of [`TxnStore`].
pub(crate) fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::Capacity && error.retry() == Retry::Ambiguous
}
