//! A reservation that somebody of the same process makes for one who waits in the house, as that one sees it.

use holdfast_core::{Deadline, Digest, Error, Generation, Result, Retry};
use holdfast_custody::{Reserved, Tick, Version};

use tokio_util::sync::CancellationToken;

use super::Quota;
use super::balance::bytes_in;
use super::local_queue::{Handed, InLine};
use super::shared_queue::spent;
use super::wait_request::WaitRequest;
use super::{A_LITTLE_MORE, RESERVE};
use crate::record::codec::{decode, encode};
use crate::record::grants::{GrantLine, OpenGrantList};
use crate::record::refusal::generation_of;
use crate::record::types::Reserve;
use crate::store::Read;
use crate::txn::record_cache::CachedRecord;
use crate::txn::session::Session;

/// How a stay in the house ended.
pub(crate) enum LocalOutcome {
    Reserved(Generation),
    /// It did not stay, or not to the end; it counts as one in the line, unless it has enough.
    Not(Option<InLine>),
    /// It may have been reserved, or will be.
    Unclear(InLine),
}

fn unclear(error: Error) -> Error {
    error.with_retry(Retry::Ambiguous)
}

impl Quota {
    /// Waits in the house, if what is freed there is likely to come soon.
    pub(crate) async fn wait_locally(
        &self,
        session: &Session,
        items: &[Reserve],
        cancelled: &CancellationToken,
        deadline: Deadline,
    ) -> Result<LocalOutcome> {
        let want = WaitRequest::of(items);
        if bytes_in(session.balance.remembered().as_ref())? >= want.bytes() {
            return Ok(LocalOutcome::Not(None));
        }
        let stay = match self.local_queue().enter(session.id(), &want, self.core.clock()) {
            Ok(stay) => stay,
            Err(in_line) => return Ok(LocalOutcome::Not(Some(in_line))),
        };
        let within = deadline.remaining(self.core.clock());
        let handed = tokio::select! {
            handed = stay.handed(within, cancelled, self.core.clock()) => handed,
            () = session.ended() => return Err(session.fenced(RESERVE)),
        };
        match handed {
            Handed::Reserved { version, until, note } => {
                let generation = self.was_reserved(session, &want, version, until, Some(note))?;
                Ok(LocalOutcome::Reserved(generation))
            }
            Handed::ToTheLine(in_line) => Ok(LocalOutcome::Not(Some(in_line))),
            Handed::Unclear(in_line) => Ok(LocalOutcome::Unclear(in_line)),
            Handed::TooLate => Err(spent(&want)),
        }
    }

    /// Whoever was to serve one in the house may have done so after all: what is in the way then is the own reservation.
    pub(crate) async fn or_served_meanwhile(
        &self,
        session: &Session,
        items: &[Reserve],
        reserved: Vec<Result<Generation>>,
    ) -> Vec<Result<Generation>> {
        if reserved.iter().any(Result::is_ok) {
            return reserved;
        }
        match self
            .own_reservation(session, &WaitRequest::of(items), self.core.deadline(A_LITTLE_MORE))
            .await
        {
            Ok(Some(generation)) => items.iter().map(|_| Ok(generation)).collect(),
            // It may yet be.
            Ok(None) => reserved.into_iter().map(|result| result.map_err(unclear)).collect(),
            Err(error) => items.iter().map(|_| Err(unclear(error.clone()))).collect(),
        }
    }

    /// The generation of these very reservations, if they are there.
    async fn own_reservation(
        &self,
        session: &Session,
        want: &WaitRequest,
        deadline: Deadline,
    ) -> Result<Option<Generation>> {
        let keys = want.samples.iter().map(|wish| self.core.layout().pending(&wish.sample));
        let reads: Vec<Read> = keys.map(Read::Key).collect();
        let snapshot = self
            .core
            .txn_store()
            .read(&reads, deadline.remaining(self.core.clock()))
            .await?;
        let mut found: Option<(Version, Tick)> = None;
        for (wish, entries) in want.samples.iter().zip(&snapshot.entries) {
            let Some(entry) = entries.first() else { return Ok(None) };
            let until = decode::<Reserved>(entry)?.until;
            let is_own = encode(&wish.reserved(session.id(), until))? == entry.value;
            if !is_own || found.is_some_and(|found| found != (entry.version, until)) {
                return Ok(None);
            }
            found = Some((entry.version, until));
        }
        match found {
            Some((version, until)) => self.was_reserved(session, want, version, until, None).map(Some),
            None => Ok(None),
        }
    }

    /// Somebody else has made these reservations for a session: it remembers them as if it had done so itself.
    pub(super) fn was_reserved(
        &self,
        session: &Session,
        want: &WaitRequest,
        version: Version,
        until: Tick,
        grant: Option<String>,
    ) -> Result<Generation> {
        let generation = generation_of(version)?;
        let grant = grant.map(|key| OpenGrantList::new(key, want.samples.len()));
        for (line, wish) in want.samples.iter().enumerate() {
            let record = CachedRecord {
                value: encode(&wish.reserved(session.id(), until))?,
                version,
                grant: grant.clone().map(|grant| GrantLine { grant, line }),
            };
            let key = self.core.layout().pending(&wish.sample);
            session.remember(Digest::of(key.as_bytes()), record);
        }
        Ok(generation)
    }
}
