//! Translates reads and transactions to etcd's API, and etcd's answers back.

use std::ops::Range;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, ResponseHeader, SortOrder, SortTarget, Txn,
    TxnOp, TxnOpResponse, TxnResponse,
};
use tensorhold_core::{Error, ErrorKind, Result};
use tensorhold_custody::{SessionId, Version};
use tensorhold_index::store::{Change, Condition, Entry, Read, Snapshot, Transaction, TxnOutcome, Write};

use crate::epoch::{self, Epoch};
use crate::group_commit::Answer;

/// Where our keys lie in etcd.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// `/{root}/`
    root: String,
}

impl Names {
    pub(crate) fn new(root: &str) -> Self {
        Self {
            root: format!("/{root}/"),
        }
    }

    pub(crate) fn full(&self, key: &str) -> Vec<u8> {
        [self.root.as_bytes(), key.as_bytes()].concat()
    }

    fn relative(&self, mut key: Vec<u8>) -> Result<String> {
        let foreign = |key: &[u8]| {
            let message = "Tensorhold cannot have written this key under its root; does another program use the root?";
            let error = Error::new(ErrorKind::Corrupt, "etcd.read", message);
            error.with("key", String::from_utf8_lossy(key).escape_debug())
        };
        if !key.starts_with(self.root.as_bytes()) {
            return Err(foreign(&key));
        }
        key.drain(..self.root.len());
        // Bytes that are not UTF-8 are not a key of ours. A list that contains such a key is still read.
        Ok(String::from_utf8(key).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// A read as one operation of etcd: its key and its options.
    pub(crate) fn get(&self, read: &Read) -> (Vec<u8>, Option<GetOptions>) {
        match read {
            Read::Key(key) => (self.full(key), None),
            // To etcd a limit of zero means no limit, and an end that is not after the start may have a special
            // meaning.
            Read::Range { keys, limit, .. } | Read::Oldest { keys, limit } if *limit == 0 || keys.start >= keys.end => {
                (self.full(&keys.start), Some(GetOptions::new().with_count_only()))
            }
            Read::Range { keys, limit, keys_only } => {
                let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
                let mut options = GetOptions::new().with_range(self.full(&keys.end)).with_limit(limit);
                if *keys_only {
                    options = options.with_keys_only();
                }
                (self.full(&keys.start), Some(options))
            }
            Read::Oldest { keys, limit } => {
                let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
                let options = GetOptions::new()
                    .with_range(self.full(&keys.end))
                    .with_sort(SortTarget::Mod, SortOrder::Ascend)
                    .with_limit(limit);
                (self.full(&keys.start), Some(options))
            }
        }
    }

    /// A count of the keys in a range, as one operation of etcd.
    pub(crate) fn count(&self, keys: &Range<String>) -> (Vec<u8>, GetOptions) {
        let options = GetOptions::new().with_range(self.full(&keys.end)).with_count_only();
        (self.full(&keys.start), options)
    }

    /// Counts of the keys that are not ours: those before and those after ours, as two operations of etcd.
    pub(crate) fn count_others(&self) -> [TxnOp; 2] {
        let count = GetOptions::new().with_count_only();
        // The root ends with a slash, and the next byte is a zero.
        let after = format!("{}0", self.root.strip_suffix('/').unwrap_or(&self.root));
        [
            TxnOp::get([0_u8], Some(count.clone().with_range(self.full("")))),
            TxnOp::get(after, Some(count.with_from_key())),
        ]
    }

    /// A transaction in an epoch, with its reads, which run whether its conditions hold or not. If the conditions do
    /// not hold, the transaction also reads the epoch, last, so that the caller learns whether the epoch is the reason.
    pub(crate) fn transaction(&self, transaction: &Transaction, reads: &[Read], epoch: &Epoch) -> Txn {
        let conditions = self.conditions(transaction, epoch).chain(self.same_epoch(epoch));
        let reads = || {
            reads
                .iter()
                .map(|read| self.get(read))
                .map(|(key, how)| TxnOp::get(key, how))
        };
        let held = self.writes(transaction).chain(reads());
        let not_held = reads().chain(self.read_epoch(epoch));
        Txn::new()
            .when(conditions.collect::<Vec<_>>())
            .and_then(held.collect::<Vec<_>>())
            .or_else(not_held.collect::<Vec<_>>())
    }

    /// Several transactions of an epoch as one request (group commit): first each transaction with its own conditions,
    /// then the reads of all of them. If etcd is in another epoch, the request reads only that epoch.
    pub(crate) fn together<'a>(
        &self,
        all: impl Iterator<Item = (&'a Transaction, &'a [Read])> + Clone,
        epoch: &Epoch,
    ) -> Txn {
        let transactions = all.clone().map(|(transaction, _)| {
            let conditions: Vec<_> = self.conditions(transaction, epoch).collect();
            let writes: Vec<_> = self.writes(transaction).collect();
            TxnOp::txn(Txn::new().when(conditions).and_then(writes))
        });
        let reads = all.flat_map(|(_, reads)| reads).map(|read| self.get(read));
        let reads = reads.map(|(key, how)| TxnOp::get(key, how));
        Txn::new()
            .when(self.same_epoch(epoch).into_iter().collect::<Vec<_>>())
            .and_then(transactions.chain(reads).collect::<Vec<_>>())
            .or_else(self.read_epoch(epoch).into_iter().collect::<Vec<_>>())
    }

    /// The condition that the index is in this epoch, compared byte for byte.
    fn same_epoch(&self, epoch: &Epoch) -> Option<Compare> {
        let text = epoch.text()?;
        Some(Compare::value(self.full(epoch::KEY), CompareOp::Equal, text))
    }

    fn read_epoch(&self, epoch: &Epoch) -> Option<TxnOp> {
        epoch.text().map(|_| TxnOp::get(self.full(epoch::KEY), None))
    }

    fn conditions<'a>(&'a self, transaction: &'a Transaction, epoch: &'a Epoch) -> impl Iterator<Item = Compare> + 'a {
        let conditions = transaction.conditions.iter();
        conditions.map(move |condition| self.compare(condition, epoch))
    }

    fn writes<'a>(&'a self, transaction: &'a Transaction) -> impl Iterator<Item = TxnOp> + 'a {
        transaction.writes.iter().map(|write| self.operation(write))
    }

    /// The epoch that a transaction read when its conditions did not hold.
    pub(crate) fn epoch_read(response: &TxnResponse) -> Result<Option<Vec<u8>>> {
        match response.op_responses().pop() {
            Some(TxnOpResponse::Get(read)) => Ok(read.kvs().first().map(|kv| kv.value().to_vec())),
            _ => Err(strange("an answer of the wrong kind to a read of the epoch")),
        }
    }

    /// The outcome of a transaction that carried `reads` reads.
    pub(crate) fn answer(&self, response: TxnResponse, reads: usize, epoch: &Epoch) -> Result<Answer> {
        let version = version(response.header(), epoch)?;
        let applied = if response.succeeded() {
            TxnOutcome::Committed(version)
        } else {
            TxnOutcome::Rejected
        };
        let snapshot = match reads {
            0 => None,
            reads => {
                let after = usize::from(!response.succeeded() && epoch.text().is_some());
                Some(self.snapshot(&response, reads, after, epoch)?)
            }
        };
        Ok((applied, snapshot))
    }

    /// The outcomes of transactions that were sent as one request. `reads` gives the number of reads of each.
    pub(crate) fn answers(
        &self,
        response: TxnResponse,
        reads: impl Iterator<Item = usize>,
        epoch: &Epoch,
    ) -> Result<Vec<Answer>> {
        let version = version(response.header(), epoch)?;
        let (mut applied, mut read) = (Vec::new(), Vec::new());
        for answer in response.op_responses() {
            match answer {
                TxnOpResponse::Txn(own) if own.succeeded() => applied.push(TxnOutcome::Committed(version)),
                TxnOpResponse::Txn(_) => applied.push(TxnOutcome::Rejected),
                TxnOpResponse::Get(response) => read.push(self.entries(response, epoch)?),
                _ => return Err(strange("an answer of the wrong kind to a transaction")),
            }
        }
        let mut read = read.into_iter();
        let answer = |(applied, reads): (TxnOutcome, usize)| {
            let entries: Vec<_> = read.by_ref().take(reads).collect();
            (applied, (reads > 0).then_some(Snapshot { version, entries }))
        };
        Ok(applied.into_iter().zip(reads).map(answer).collect())
    }

    /// The results of `reads` reads in a transaction's response, with `after` further operations behind them.
    pub(crate) fn snapshot(
        &self,
        response: &TxnResponse,
        reads: usize,
        after: usize,
        epoch: &Epoch,
    ) -> Result<Snapshot> {
        let version = version(response.header(), epoch)?;
        let answers = response.op_responses();
        let from = answers.len().checked_sub(reads + after);
        let from = from.ok_or_else(|| strange("fewer answers than reads were sent"))?;
        let entries = answers
            .into_iter()
            .skip(from)
            .take(reads)
            .map(|response| match response {
                TxnOpResponse::Get(response) => self.entries(response, epoch),
                _ => Err(strange("an answer of the wrong kind to a read")),
            });
        let entries = entries.collect::<Result<Vec<_>>>()?;
        Ok(Snapshot { version, entries })
    }

    fn compare(&self, condition: &Condition, epoch: &Epoch) -> Compare {
        match condition {
            Condition::Unchanged(key, version) => {
                // A version of a history that is gone has no revision. Then a revision larger than any real one is
                // used, so that the condition fails, as it should.
                let revision = epoch
                    .revision(*version)
                    .and_then(|revision| i64::try_from(revision).ok());
                Compare::mod_revision(self.full(key), CompareOp::Equal, revision.unwrap_or(i64::MAX))
            }
            Condition::Absent(key) => Compare::create_revision(self.full(key), CompareOp::Equal, 0),
            Condition::Present(key) => Compare::create_revision(self.full(key), CompareOp::Greater, 0),
            // Requires that every key of the range was created at revision zero. No existing key was, so it holds only
            // for an empty range.
            Condition::NoneIn(keys) => {
                Compare::create_revision(self.full(&keys.start), CompareOp::Equal, 0).with_range(self.full(&keys.end))
            }
        }
    }

    fn operation(&self, write: &Write) -> TxnOp {
        match write {
            Write::Put { key, value, session } => {
                let options = session.map(|session| PutOptions::new().with_lease(lease(session)));
                TxnOp::put(self.full(key), value.as_slice(), options)
            }
            Write::Delete(key) => TxnOp::delete(self.full(key), None),
        }
    }

    pub(crate) fn entries(&self, mut response: GetResponse, epoch: &Epoch) -> Result<Vec<Entry>> {
        let entries = response.take_kvs().into_iter();
        entries.map(|kv| self.entry(kv, epoch)).collect()
    }

    fn entry(&self, kv: KeyValue, epoch: &Epoch) -> Result<Entry> {
        let version = revision(kv.mod_revision(), epoch)?;
        let (key, value) = kv.into_key_value();
        Ok(Entry {
            key: self.relative(key)?,
            value,
            version,
        })
    }

    pub(crate) fn change(&self, kv: &KeyValue, epoch: &Epoch) -> Result<Change> {
        // "A deletion resets the version to zero": this is the version of the key, which counts its writes since it was
        // created.
        let value = (kv.version() > 0).then(|| kv.value().to_vec());
        Ok(Change {
            key: self.relative(kv.key().to_vec())?,
            value,
            version: revision(kv.mod_revision(), epoch)?,
        })
    }

    pub(crate) fn range(&self, keys: &Range<String>) -> Range<Vec<u8>> {
        self.full(&keys.start)..self.full(&keys.end)
    }
}

/// The etcd lease of a session. To etcd, zero means "no lease", so a session's id must never map to zero: an id that
/// cannot be a lease maps to a lease that does not exist.
pub(crate) fn lease(session: SessionId) -> i64 {
    i64::try_from(session.0).ok().filter(|id| *id > 0).unwrap_or(i64::MAX)
}

pub(crate) fn session(lease: i64) -> Result<SessionId> {
    let id = u64::try_from(lease).ok().filter(|id| *id > 0);
    id.map(SessionId)
        .ok_or_else(|| strange("a lease that is not positive").with("lease", lease))
}

pub(crate) fn version(header: Option<&ResponseHeader>, epoch: &Epoch) -> Result<Version> {
    let header = header.ok_or_else(|| strange("an answer without a header"))?;
    revision(header.revision(), epoch)
}

fn revision(revision: i64, epoch: &Epoch) -> Result<Version> {
    let positive = u64::try_from(revision).ok().filter(|revision| *revision > 0);
    positive
        .map(|revision| epoch.version(revision))
        .ok_or_else(|| strange("a revision that is not positive").with("revision", revision))
}

/// The error for an answer that etcd's protocol rules out.
pub(crate) fn strange(what: &str) -> Error {
    Error::internal("etcd.answer", format!("etcd gave {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_session_becomes_the_lease_that_is_none() {
        assert_eq!(lease(SessionId(7)), 7);
        assert_eq!(lease(SessionId(0)), i64::MAX);
        assert_eq!(lease(SessionId(u64::MAX)), i64::MAX);
        session(0).expect_err("no lease");
        session(-1).expect_err("no lease");
    }

    #[test]
    fn keys_go_below_the_root_and_come_back() {
        let names = Names::new("a/b");
        assert_eq!(names.full("c"), b"/a/b/c");
        assert_eq!(names.relative(b"/a/b/c".to_vec()).expect("ours"), "c");
        assert_eq!(names.relative(b"/a/b/".to_vec()).expect("ours"), "");
        assert_eq!(names.relative(b"/a/b/c\xff".to_vec()).expect("shown"), "c\u{fffd}");
        for foreign in [b"/a/bc".as_slice(), b""] {
            let error = names.relative(foreign.to_vec()).expect_err("foreign");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }
}
