//! Samples whose objects are to be removed: listing them, and recording that they are gone or could not be removed. Of a
//! dead letter the record stays ([`crate::ops::letters`]).

use tensorhold_core::{Deadline, Error, Result};
use tensorhold_custody::Retired;

use crate::index::TxnIndex;
use crate::record::codec::{decode_versioned, unreadable};
use crate::record::layout::{Layout, after};
use crate::record::types::{FreeList, FreeTask, ListPlace, SampleRef, Stage, Versioned};
use crate::store::{Condition, Entry, Write};
use crate::txn::batch::{Intent, Loaded};
use crate::txn::decision::Decision;
use crate::txn::pages::MOST_BYTES;
use crate::txn::record_cache::CachedRecord;
use crate::txn::session::Session;

impl TxnIndex {
    /// The objects of retired samples are gone: so are their records, unless they are dead letters. Freed twice is freed
    /// once.
    pub(crate) async fn do_freed(
        &self,
        session: &Session,
        items: &[SampleRef],
        deadline: Deadline,
    ) -> Vec<Result<bool>> {
        const OPERATION: &str = "index.freed";
        let keys = |item: &SampleRef| vec![self.core.layout().free_key(item)];
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let key = self.core.layout().free_key(item);
            match loaded.entry(&key) {
                None if loaded.guess => Err(Error::internal(OPERATION, "this record is not remembered")),
                None => Ok(Decision::nothing(false)),
                Some(entry) => {
                    let conditions = vec![Condition::Unchanged(key.clone(), entry.version)];
                    let Versioned {
                        record, description, ..
                    } = decode_versioned::<Retired>(entry)?;
                    // Its claims were written with its reservation, and no other sample's are in their place since.
                    let claims = record.claims.iter();
                    let mut writes: Vec<Write> =
                        claims.map(|key| Write::Delete(self.core.layout().claim(key))).collect();
                    writes.extend(self.core.layout().forget_owner(&record));
                    match record.clone().after_free(self.core.stamp(session.id())) {
                        Some(letter) => {
                            let layout = self.core.layout();
                            writes.extend(layout.put_retired(&item.sample, Some(&record), &letter, &description)?);
                        }
                        None => writes.push(Write::Delete(key)),
                    }
                    Ok(Decision::new(conditions, writes, true))
                }
            }
        };
        let refund = self.quota.refund(session);
        let intent = Intent::new(OPERATION, &keys, &decide).moving(&refund);
        let remembered = items.iter().filter_map(|item| {
            let key = self.core.layout().free_key(item);
            let CachedRecord { value, version, .. } = session.recall(&key)?;
            Some(Entry { key, value, version })
        });
        let mut seen = Loaded::with_entries(remembered);
        if !seen.is_empty() {
            match refund.look(deadline).await {
                Ok(look) => seen.quota = look,
                Err(error) => return items.iter().map(|_| Err(error.clone())).collect(),
            }
        }
        // Without anything remembered, the first attempt would be refused.
        let seen = (!seen.is_empty()).then_some(seen);
        let results = self.core.batch(session, items, intent, seen, deadline).await;
        refund.finish(deadline).await;
        results
    }

    pub(crate) async fn do_to_free(
        &self,
        from: Option<&ListPlace>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<FreeList> {
        let mut range = self.core.layout().all_of(Stage::ToFree);
        if let Some(ListPlace(last)) = from {
            range.start = after(last);
        }
        let mut keys = self.core.read_keys([range], limit, deadline).await?;
        let keys = keys.pop().unwrap_or_default();
        let (entries, looked_at) = self.core.read_run(&keys, MOST_BYTES, deadline).await?;
        let is_all = looked_at == keys.len() && keys.len() < limit;
        let last = looked_at.checked_sub(1).map(|last| ListPlace(keys[last].clone()));
        let sorted = self.core.sort_out(entries, free_task, deadline).await?;
        Ok(FreeList {
            tasks: sorted.good,
            next: last.filter(|_| !is_all),
            quarantined: sorted.quarantined,
            later: sorted.later,
        })
    }

    /// Records that removing the objects failed. They stay in the list and are tried again.
    pub(crate) async fn do_free_failed(
        &self,
        session: &Session,
        items: &[SampleRef],
        deadline: Deadline,
    ) -> Vec<Result<()>> {
        let keys = |item: &SampleRef| vec![self.core.layout().free_key(item)];
        let decide =
            |item: &SampleRef, loaded: &Loaded| match loaded.record::<Retired>(&self.core.layout().free_key(item))? {
                None => Ok(Decision::nothing(())),
                Some(retired) => {
                    self.core
                        .replace_retired(&item.sample, &retired, &retired.record.clone().free_failed(), ())
                }
            };
        let intent = Intent::new("index.free_failed", &keys, &decide);
        self.core.batch(session, items, intent, None, deadline).await
    }
}

fn free_task(entry: &Entry) -> Result<FreeTask> {
    let no_name = || unreadable(&entry.key, "this key does not name a sample that is to be freed");
    let (sample, generation) = Layout::parse_retired(&entry.key).ok_or_else(no_name)?;
    let record: Versioned<Retired> = decode_versioned(entry)?;
    // The key says which generation this is. A record that names another generation would free the bytes and the quota
    // of that one.
    if record.record.generation != Some(generation) || !record.record.may_be_freed() {
        return Err(unreadable(
            &entry.key,
            "this record is not the one that belongs under its key",
        ));
    }
    Ok(FreeTask {
        sample: SampleRef { sample, generation },
        description: record.description.as_deref().map(<[u8]>::to_vec),
        record,
    })
}
