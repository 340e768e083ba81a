//! What moving a store between two etcds needs: [`EtcdStore`] as a [`MovableStore`].

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::LeaseGrantOptions;
use tensorhold_core::{ErrorKind, Result};
use tensorhold_custody::SessionId;
use tensorhold_index::store::{Entry, MovableStore, Read, StoreSession};

use crate::convert;
use crate::dial::Link;
use crate::history::Plain;
use crate::session::{EtcdSession, keep_alive, whole_seconds};
use crate::store::EtcdStore;

#[async_trait]
impl MovableStore for EtcdStore {
    async fn with_sessions(
        &self,
        keys: Range<String>,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<(Entry, Option<SessionId>)>> {
        let read = Read::Range {
            keys,
            limit,
            keys_only: false,
        };
        let (key, options) = self.names().get(&read);
        let request = |mut link: Link, _| {
            let (key, options) = (key.clone(), options.clone());
            async move { link.kv.get(key, options).await }
        };
        let call = self.call("kv.with_sessions", within);
        let (response, since) = self.pool().call(call, request).await?;
        self.names().with_sessions(response, &since.epoch)
    }

    async fn time_to_live(&self, session: SessionId, within: Duration) -> Result<Option<Duration>> {
        let lease = convert::lease(session);
        let request = |mut link: Link, _| async move { link.lease.time_to_live(lease, None).await.map(Plain) };
        let call = self.call("kv.time_to_live", within);
        let (Plain(answer), _) = self.pool().call(call, request).await?;
        // etcd says -1 of a lease that it does not have.
        let is_there = answer.ttl() > 0;
        let seconds = u64::try_from(answer.granted_ttl()).ok();
        Ok(seconds.filter(|_| is_there).map(Duration::from_secs))
    }

    async fn import_session(&self, session: SessionId, time_to_live: Duration, within: Duration) -> Result<()> {
        const OPERATION: &str = "kv.import_session";
        let lease = convert::lease(session);
        let renew = || keep_alive(self.pool(), lease, self.call(OPERATION, within));
        match renew().await {
            Err(error) if error.kind() == ErrorKind::Fenced => {}
            renewed => return renewed.map(|_| ()),
        }
        let options = LeaseGrantOptions::new().with_id(lease);
        let request = |mut link: Link, _| {
            let options = options.clone();
            async move { link.lease.grant(whole_seconds(time_to_live), Some(options)).await }
        };
        let granted = self.pool().call(self.call(OPERATION, within), request).await;
        match granted {
            Ok(_) => Ok(()),
            // Its first answer may have been lost: then the lease is there, and a second grant is refused.
            Err(error) => renew().await.map(|_| ()).map_err(|_gone| error),
        }
    }

    async fn resume_session(
        &self,
        session: SessionId,
        time_to_live: Duration,
        within: Duration,
    ) -> Result<Box<dyn StoreSession>> {
        let call = self.call("kv.resume_session", within);
        let (pool, lease) = (Arc::clone(self.pool()), convert::lease(session));
        Ok(Box::new(EtcdSession::resume(pool, lease, time_to_live, call).await?))
    }
}
