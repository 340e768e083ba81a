//! Our reads and transactions in etcd's words, and its answers in ours.

use std::ops::Range;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, ResponseHeader, SortOrder, SortTarget, Txn,
    TxnOp, TxnOpResponse, TxnResponse,
};
use holdfast_core::{Error, ErrorKind, Result};
use holdfast_custody::{SessionId, Version};
use holdfast_index::kv::{Applied, Change, Condition, Entry, Read, Snapshot, Transaction, Write};

use crate::together::Answer;

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
            let message = "there is a key under our root that we cannot have written: who else uses it?";
            let error = Error::new(ErrorKind::Corrupt, "etcd.read", message);
            error.with("key", String::from_utf8_lossy(key).escape_debug())
        };
        if !key.starts_with(self.root.as_bytes()) {
            return Err(foreign(&key));
        }
        key.drain(..self.root.len());
        String::from_utf8(key).map_err(|error| foreign(error.as_bytes()))
    }

    /// A read, as one operation of etcd: its key, and how.
    pub(crate) fn get(&self, read: &Read) -> (Vec<u8>, Option<GetOptions>) {
        match read {
            Read::Key(key) => (self.full(key), None),
            // To etcd, a limit of zero is no limit, and an end that is not after the start may mean something else.
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

    /// A transaction, and what it reads, whether its conditions hold or not.
    pub(crate) fn transaction(&self, transaction: &Transaction, reads: &[Read]) -> Txn {
        let conditions: Vec<_> = transaction
            .conditions
            .iter()
            .map(|condition| self.compare(condition))
            .collect();
        let reads = || {
            reads
                .iter()
                .map(|read| self.get(read))
                .map(|(key, how)| TxnOp::get(key, how))
        };
        let writes = transaction.writes.iter().map(|write| self.operation(write));
        let held: Vec<_> = writes.chain(reads()).collect();
        let transaction = Txn::new().when(conditions).and_then(held);
        match reads().collect::<Vec<_>>() {
            none if none.is_empty() => transaction,
            reads => transaction.or_else(reads),
        }
    }

    /// Several transactions as one: first each with its own conditions, then what all of them read.
    pub(crate) fn together<'a>(&self, all: impl Iterator<Item = (&'a Transaction, &'a [Read])> + Clone) -> Txn {
        let transactions = all
            .clone()
            .map(|(transaction, _)| TxnOp::txn(self.transaction(transaction, &[])));
        let reads = all.flat_map(|(_, reads)| reads).map(|read| self.get(read));
        let reads = reads.map(|(key, how)| TxnOp::get(key, how));
        Txn::new().and_then(transactions.chain(reads).collect::<Vec<_>>())
    }

    /// What became of a transaction that read so much along.
    pub(crate) fn answer(&self, response: TxnResponse, reads: usize) -> Result<Answer> {
        let version = version(response.header())?;
        let applied = if response.succeeded() {
            Applied::Yes(version)
        } else {
            Applied::No
        };
        let snapshot = match reads {
            0 => None,
            reads => Some(self.snapshot(&response, reads)?),
        };
        Ok((applied, snapshot))
    }

    /// What became of transactions that were sent as one, of which each read so much along.
    pub(crate) fn answers(&self, response: TxnResponse, reads: impl Iterator<Item = usize>) -> Result<Vec<Answer>> {
        let version = version(response.header())?;
        let (mut applied, mut read) = (Vec::new(), Vec::new());
        for answer in response.op_responses() {
            match answer {
                TxnOpResponse::Txn(own) if own.succeeded() => applied.push(Applied::Yes(version)),
                TxnOpResponse::Txn(_) => applied.push(Applied::No),
                TxnOpResponse::Get(response) => read.push(self.entries(response)?),
                _ => return Err(strange("another answer to a transaction")),
            }
        }
        let mut read = read.into_iter();
        let answer = |(applied, reads): (Applied, usize)| {
            let entries: Vec<_> = read.by_ref().take(reads).collect();
            (applied, (reads > 0).then_some(Snapshot { version, entries }))
        };
        Ok(applied.into_iter().zip(reads).map(answer).collect())
    }

    /// What the last so many operations of a transaction read.
    pub(crate) fn snapshot(&self, response: &TxnResponse, reads: usize) -> Result<Snapshot> {
        let version = version(response.header())?;
        let answers = response.op_responses();
        let from = answers.len().checked_sub(reads);
        let from = from.ok_or_else(|| strange("another number of answers than of reads"))?;
        let entries = answers.into_iter().skip(from).map(|response| match response {
            TxnOpResponse::Get(response) => self.entries(response),
            _ => Err(strange("another answer to a read")),
        });
        let entries = entries.collect::<Result<Vec<_>>>()?;
        Ok(Snapshot { version, entries })
    }

    fn compare(&self, condition: &Condition) -> Compare {
        match condition {
            Condition::Unchanged(key, Version(version)) => {
                // No revision is that large: the condition does not hold, as it should not.
                let version = i64::try_from(*version).unwrap_or(i64::MAX);
                Compare::mod_revision(self.full(key), CompareOp::Equal, version)
            }
            Condition::Absent(key) => Compare::create_revision(self.full(key), CompareOp::Equal, 0),
            Condition::Present(key) => Compare::create_revision(self.full(key), CompareOp::Greater, 0),
            // Every key of the range must have been created at revision zero, which none was.
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

    pub(crate) fn entries(&self, mut response: GetResponse) -> Result<Vec<Entry>> {
        response.take_kvs().into_iter().map(|kv| self.entry(kv)).collect()
    }

    fn entry(&self, kv: KeyValue) -> Result<Entry> {
        let version = revision(kv.mod_revision())?;
        let (key, value) = kv.into_key_value();
        Ok(Entry {
            key: self.relative(key)?,
            value,
            version,
        })
    }

    pub(crate) fn change(&self, kv: &KeyValue) -> Result<Change> {
        // "A deletion resets the version to zero": that of the key, which counts its writes since it was created.
        let value = (kv.version() > 0).then(|| kv.value().to_vec());
        Ok(Change {
            key: self.relative(kv.key().to_vec())?,
            value,
            version: revision(kv.mod_revision())?,
        })
    }

    pub(crate) fn range(&self, keys: &Range<String>) -> Range<Vec<u8>> {
        self.full(&keys.start)..self.full(&keys.end)
    }
}

/// The lease of a session. Zero is "no lease" to etcd, and must never be what a session's id becomes: an id that cannot
/// be a lease becomes one that is not there.
pub(crate) fn lease(session: SessionId) -> i64 {
    i64::try_from(session.0).ok().filter(|id| *id > 0).unwrap_or(i64::MAX)
}

pub(crate) fn session(lease: i64) -> Result<SessionId> {
    let id = u64::try_from(lease).ok().filter(|id| *id > 0);
    id.map(SessionId)
        .ok_or_else(|| strange("a lease that is not positive").with("lease", lease))
}

pub(crate) fn version(header: Option<&ResponseHeader>) -> Result<Version> {
    revision(header.ok_or_else(|| strange("an answer without a header"))?.revision())
}

fn revision(revision: i64) -> Result<Version> {
    let version = u64::try_from(revision).ok().filter(|version| *version > 0);
    version
        .map(Version)
        .ok_or_else(|| strange("a revision that is not positive").with("revision", revision))
}

/// An answer that etcd's protocol rules out.
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
        for foreign in [b"/a/bc".as_slice(), b"", b"/a/b/\xff"] {
            let error = names.relative(foreign.to_vec()).expect_err("foreign");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }
}
