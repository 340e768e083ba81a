//! What moves have left on clusters where the store is not: what it had there before it left, and the copies of movers
//! that died. It is deleted after a move, and at the target of one before it.

use tensorhold_core::{Error, ErrorKind, Result};
use tensorhold_custody::Version;

use super::{CALL, MoveStep, Mover, OPERATION, list};
use crate::placement::locate::ask;
use crate::placement::map::ClusterName;
use crate::placement::{Away, Clusters, Here, Why, encoded};
use crate::record::layout::{Layout, after};
use crate::record::schema;
use crate::store::{Condition, MovableStore, Read, Transaction, TxnOutcome, Write};

/// Versions at the target begin this far above the source's: more than any cluster gives out during a move.
const AHEAD: u64 = 1 << 32;

impl Mover<'_> {
    /// Prepares the target: what an earlier move has left there goes, and it says how versions are read there.
    pub(super) async fn clear_target(&self, source: Version) -> Result<()> {
        let said = ask(&*self.target, self.layout, CALL).await?;
        let unchanged = match said.away(self.layout, &said.stay()) {
            Some((away, _)) if away.why == Why::Freezing => {
                let message = "the target is moving another store of this name";
                return Err(Error::new(ErrorKind::Conflict, OPERATION, message).with("cluster", self.to));
            }
            Some((_, version)) => Condition::Unchanged(self.layout.away(&said.stay().0), version),
            None => Condition::NoneIn(self.layout.all()),
        };
        let own = self.target.read(&[Read::Key(self.layout.here())], CALL).await?.version;
        let boundary = self.source.versions.outer(source).0.saturating_add(AHEAD);
        let here = Here {
            by: self.by.clone(),
            offset: (boundary + 1).saturating_sub(own.0),
            boundary,
        };
        let away = Away {
            by: self.by.clone(),
            why: Why::Arriving,
            to: self.source.cluster.clone(),
        };
        let here = encoded(OPERATION, &here)?;
        let transaction = Transaction {
            conditions: vec![unchanged],
            writes: vec![
                Write::put(self.layout.away(&self.by.0), encoded(OPERATION, &away)?),
                Write::put(self.layout.here(), here.clone()),
                // A release that knows nothing of moves must not read what is copied here.
                Write::put(schema::KEY, schema::WITH_CLUSTERS.to_string()),
            ],
        };
        match self.target.transact(&transaction, CALL).await? {
            TxnOutcome::Committed(version) => {
                *self.here.lock() = Some((here, version));
                let still = Condition::Unchanged(self.layout.here(), version);
                delete_keys(&*self.target, self.layout, &still, &mut |_| {}).await?;
                Ok(())
            }
            TxnOutcome::Rejected => {
                let message = "the target has a store of this name already, which is not this one";
                Err(Error::new(ErrorKind::Conflict, OPERATION, message).with("cluster", self.to))
            }
        }
    }

    /// Deletes what movers that died have copied to other clusters. No other one is at work: this one has the lock.
    pub(super) async fn clear_others(&self) -> Result<()> {
        for cluster in self.clusters.names(CALL).await? {
            if cluster != self.source.cluster && cluster != *self.to {
                let other = self.clusters.connect(&cluster, CALL).await?;
                delete_left(&*other, self.layout, Why::Arriving, 0, &mut |_| {}).await?;
            }
        }
        Ok(())
    }
}

/// Lets the home say where the store is, so that nobody has to go from cluster to cluster.
pub(super) async fn point_home(clusters: &dyn Clusters, layout: &Layout, to: &ClusterName) -> Result<()> {
    let home = clusters.connect(&ClusterName::home(), CALL).await?;
    let target = clusters.connect(to, CALL).await?;
    let there = ask(&*target, layout, CALL).await?;
    let said = ask(&*home, layout, CALL).await?;
    let (Some(here), Some((away, version))) = (there.here, said.away(layout, &said.stay())) else {
        return Ok(());
    };
    if away.why != Why::Moved || away.by == here.by {
        return Ok(());
    }
    let key = layout.away(&said.stay().0);
    let pointer = Away {
        by: here.by,
        why: Why::Moved,
        to: to.clone(),
    };
    let transaction = Transaction {
        conditions: vec![Condition::Unchanged(key.clone(), version)],
        writes: vec![Write::put(key, encoded(OPERATION, &pointer)?)],
    };
    // Rejected: another move was faster, and has said where it is.
    home.transact(&transaction, CALL).await?;
    Ok(())
}

/// Deletes what a store has on a cluster where it is not, for this reason, but for the keys that say where it is.
pub(super) async fn delete_left(
    cluster: &dyn MovableStore,
    layout: &Layout,
    why: Why,
    before: u64,
    told: &mut (dyn FnMut(MoveStep) + Send),
) -> Result<u64> {
    let said = ask(cluster, layout, CALL).await?;
    match said.away(layout, &said.stay()) {
        Some((away, _)) if away.why == why => {
            // A move to this cluster begins another stay: then nothing may be deleted here any more.
            let still = said.is_last_stay(layout);
            delete_keys(cluster, layout, &still, &mut |deleted| {
                told(MoveStep::Deleted(before + deleted));
            })
            .await
        }
        _ => Ok(0),
    }
}

/// Deletes all keys of a store on a cluster, but for those that say where it is, as long as a condition holds.
async fn delete_keys(
    cluster: &dyn MovableStore,
    layout: &Layout,
    still: &Condition,
    told: &mut (dyn FnMut(u64) + Send),
) -> Result<u64> {
    let (all, place) = (layout.all(), layout.of_place());
    let mut deleted = 0;
    for mut keys in [all.start..place.start, place.end..all.end] {
        loop {
            let listed = list(cluster, keys.clone()).await?;
            let Some(last) = listed.last() else { break };
            keys.start = after(last);
            for part in listed.chunks(cluster.limits().operations) {
                let transaction = Transaction {
                    conditions: vec![still.clone()],
                    writes: part.iter().cloned().map(Write::Delete).collect(),
                };
                if cluster.transact(&transaction, CALL).await? == TxnOutcome::Rejected {
                    let message = "what an earlier move has left is being changed by another one: run it again";
                    return Err(Error::new(ErrorKind::Conflict, OPERATION, message));
                }
                deleted += part.len() as u64;
                told(deleted);
            }
        }
    }
    Ok(deleted)
}
