//! Which objects of other writers a store may own, and which it may remove.
//!
//! A physical key belongs to one live generation of one store:
//!
//! | key | its owner | enforced by |
//! |---|---|---|
//! | `{store}/{sample}/g{generation}-{nonce}/…` | that generation | its form; it is never adopted |
//! | `{store}/~…/g{generation}-{nonce}/…` | the sample that the reservation made ahead has become, as the entry `a/…` of the index says | its record and its description name the reservation |
//! | `kv/…` | the page tier | its form; it is never adopted |
//! | any other that begins with `{store}/` or one of `adopt_prefixes` | the sample that claims it in the index, from its announcement until it is freed | OW2 |
//! | anything else | not this store | it is refused |
//!
//! Invariants:
//! - OW1: a key that is not for adoption is refused wherever it comes from: an announcement, a tensor to adopt, a
//!   description or a plan that was read. So a record, even a forged one, cannot make a sweeper remove objects of
//!   another store.
//! - OW2: at most one of all generations of a store claims a key. The claim is made in the transaction that reserves,
//!   and deleted in the transaction that frees.
//! - OW3: before objects that another writer named are removed, the index is asked for their owners; objects that
//!   another generation claims stay. This covers records without claims: those of an earlier release, and forged ones.
//!
//! Two limits. A record that is forged inside a store can name a reservation made ahead that another sample of that store was
//! written under; whoever can write it can delete that sample's record as well. And claims are per store, because the least-privileged role of a tenant in etcd ends at its own store. Two
//! stores that are given the same prefix can own the same object. By default they are not: no two stores have the same
//! name.

use tensorhold_core::{Error, ErrorKind, KeySpace, ObjectKey, Result};

use crate::runtime::config::FeatureConfig;

/// Refuses a key that has the form of Tensorhold's own keys: no other writer's object can have it.
pub(crate) fn refuse_own_making(operation: &'static str, key: &ObjectKey) -> Result<()> {
    let whose = match KeySpace::of(key) {
        KeySpace::Foreign => return Ok(()),
        KeySpace::Samples => "this object's key is that of a sample of some store, which owns it; it cannot be adopted",
        KeySpace::Pages => "this object's key is that of a KV page, which the page tier owns; it cannot be adopted",
    };
    Err(Error::new(ErrorKind::Denied, operation, whose).with("key", key))
}

impl FeatureConfig {
    /// Refuses a key that this store may not own.
    pub(crate) fn refuse_key(&self, operation: &'static str, key: &ObjectKey) -> Result<()> {
        refuse_own_making(operation, key)?;
        let text = key.as_str();
        let is_own = text
            .strip_prefix(self.store.as_str())
            .is_some_and(|rest| rest.starts_with('/'));
        if is_own || self.adopt_prefixes.iter().any(|prefix| text.starts_with(prefix)) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Denied,
            operation,
            "this store may not own an object with this key: keys begin with the store's name and a slash, or with one of \
             `adopt_prefixes`; add the prefix there if no other store uses it",
        )
        .with("key", key)
        .with("store", &self.store))
    }
}
