//! The line: drawing credits, and waiting for them without polling.

use std::time::Duration;

use holdfast_core::{Deadline, Error, ErrorKind, Result};
use holdfast_custody::{Version, Want};

use super::books::decode_account;
use crate::index::KvIndex;
use crate::kv::{Applied, Condition, Entry, Read, Write};
use crate::layout::{decode, encode};
use crate::session::Session;

/// How many at the head of the line have a chance to be served by one who frees.
const HEAD_OF_THE_LINE: usize = 16;

impl KvIndex {
    /// The first who wait.
    pub(super) fn longest_waiting(&self) -> Read {
        Read::Range {
            keys: self.layout().all_wants(),
            limit: HEAD_OF_THE_LINE,
            keys_only: false,
        }
    }

    /// One of the head of the line, drawn by lot, and the first.
    pub(super) fn draw_lots(&self, line: Vec<Entry>) -> Vec<(usize, Entry)> {
        let places = line.len() as u64;
        let first_is_drawn = self.rng().below(4) == 0;
        let drawn = if first_is_drawn { 0 } else { self.rng().below(places) };
        let drawn = usize::try_from(drawn).unwrap_or(0);
        let mut served: Vec<_> = line
            .into_iter()
            .enumerate()
            .filter(|(place, _)| *place == drawn || *place == 0)
            .collect();
        // The one drawn comes first; the first in line gets what that one does not need.
        served.reverse();
        served
    }

    /// Sees to it that the session can spend `bytes`; waits in line for them if need be.
    pub(super) async fn ensure_credits(&self, session: &Session, bytes: u64, deadline: Deadline) -> Result<()> {
        let known = session.account.lock().clone();
        if decode_account(known.as_ref())?.available() >= bytes {
            return Ok(());
        }
        let mut waiting: Option<(String, Version)> = None;
        while !deadline.passed(self.clock()) {
            if self.draw(session, bytes, waiting.is_some(), deadline).await? {
                return Ok(());
            }
            match &waiting {
                None => waiting = Some(self.begin_to_wait(session, bytes, deadline).await?),
                Some((key, since)) => {
                    self.wait_for_key(session, key, *since, deadline).await?;
                    if !deadline.passed(self.clock()) && self.look_at_own(session, deadline).await? >= bytes {
                        return Ok(());
                    }
                }
            }
        }
        self.stop_waiting(session, bytes, waiting).await
    }

    /// Serves those in line, longest first, for as long as what is free or idle does; and this session, if nobody is
    /// before it. True if this session has `bytes` now.
    async fn draw(&self, session: &Session, bytes: u64, in_line: bool, deadline: Deadline) -> Result<bool> {
        const ALL: usize = 100_000;
        loop {
            let reads = [
                Read::Key(self.layout().credits_free()),
                Read::Range {
                    keys: self.layout().all_accounts(),
                    limit: ALL,
                    keys_only: false,
                },
                self.longest_waiting(),
            ];
            let snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
            let [free, accounts, wants]: [Vec<Entry>; 3] = snapshot
                .entries
                .try_into()
                .map_err(|_| Error::internal("index.credits", "the store answered another number of reads"))?;
            let own_key = self.layout().account(session.id());
            let own = accounts.iter().find(|entry| entry.key == own_key).cloned();
            let available = decode_account(own.as_ref())?.available();
            *session.account.lock() = own;
            if available >= bytes {
                return Ok(true);
            }
            let (entry, want) = match wants.first() {
                Some(entry) => (Some(entry), decode::<Want>(entry)?),
                None if in_line => return Ok(false),
                None => {
                    let session = session.id();
                    (None, Want { session, bytes })
                }
            };
            let Some(free) = free.first() else {
                return Err(Error::internal("index.credits", "the store's budget is gone"));
            };
            let Some(moved) = self.gather(free, &accounts, want, entry)? else {
                return Ok(false);
            };
            // Whether it worked, or somebody else was faster: look again.
            self.sender()
                .transact("index.credits", session, moved.conditions, moved.writes, deadline)
                .await?;
        }
    }

    /// What the session has available now.
    async fn look_at_own(&self, session: &Session, deadline: Deadline) -> Result<u64> {
        let read = [Read::Key(self.layout().account(session.id()))];
        let snapshot = self.kv().read(&read, deadline.remaining(self.clock())).await?;
        let own = snapshot.entries.into_iter().flatten().next();
        let available = decode_account(own.as_ref())?.available();
        *session.account.lock() = own;
        Ok(available)
    }

    /// After credits became free without a sample being freed: those in line are served, as far as it goes.
    pub(super) async fn serve_line(&self, session: &Session, deadline: Deadline) -> Result<()> {
        self.draw(session, u64::MAX, true, deadline).await.map(drop)
    }

    async fn begin_to_wait(&self, session: &Session, bytes: u64, deadline: Deadline) -> Result<(String, Version)> {
        let since = self.layout().waiting_since();
        let snapshot = self
            .kv()
            .read(&[Read::Key(since.clone())], deadline.remaining(self.clock()))
            .await?;
        let key = self.layout().want(snapshot.version, session.id());
        let want = Want {
            session: session.id(),
            bytes,
        };
        let writes = vec![
            Write::Put {
                key: key.clone(),
                value: encode(&want)?,
                session: Some(session.id()),
            },
            Write::put(since, Vec::new()),
        ];
        let applied = self
            .sender()
            .transact("index.credits", session, Vec::new(), writes, deadline)
            .await?;
        match applied {
            Applied::Yes(version) => Ok((key, version)),
            Applied::No => Err(session.fenced("index.credits")),
        }
    }

    /// Waits until a key changes or vanishes.
    async fn wait_for_key(&self, session: &Session, key: &str, since: Version, deadline: Deadline) -> Result<()> {
        let left = deadline.remaining(self.clock());
        if left.is_zero() {
            return Ok(());
        }
        let only = key.to_owned()..format!("{key}\u{0}");
        let mut watch = self.kv().watch(only, since, left).await?;
        tokio::select! {
            // Told, out of time, or no longer able to tell: in every case the next look shows.
            _told = tokio::time::timeout(left.max(Duration::from_millis(1)), watch.next()) => Ok(()),
            () = session.ended() => Err(session.fenced("index.credits")),
        }
    }

    /// Leaves the line, unless the wait has just been rewarded. Whoever is next may be content with less.
    async fn stop_waiting(&self, session: &Session, bytes: u64, waiting: Option<(String, Version)>) -> Result<()> {
        const A_LITTLE_MORE: Duration = Duration::from_secs(1);
        let deadline = self.deadline(A_LITTLE_MORE);
        if let Some((key, _)) = waiting {
            let conditions = vec![Condition::Present(key.clone())];
            self.sender()
                .transact("index.credits", session, conditions, vec![Write::Delete(key)], deadline)
                .await?;
            if self.draw(session, bytes, true, deadline).await? {
                return Ok(());
            }
        }
        let message = "the store's budget is spent, and none came back in time";
        Err(Error::new(ErrorKind::Capacity, "index.reserve", message).with("wanted", bytes))
    }
}
