//! Leases: which session may read, until when.

use serde::{Deserialize, Serialize};

use crate::id::{SessionId, Tick, Token, Version, WallTime};
use crate::sweep::Sweep;

/// Permission to read a sample's bytes, and to answer for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The session of the process that holds it.
    pub session: SessionId,
    /// The token that the holder must present to change anything.
    pub token: Token,
    /// The last tick at which it is valid.
    pub until: Tick,
    /// When it was granted.
    #[serde(default, skip_serializing_if = "WallTime::is_unknown")]
    pub since: WallTime,
}

impl Lease {
    /// A lease granted by the write that is being prepared.
    pub fn granted(session: SessionId, until: Tick) -> Self {
        Self {
            session,
            token: Token::THIS_WRITE,
            until,
            since: WallTime::default(),
        }
    }

    pub(crate) fn settle(&mut self, version: Version) {
        self.token.settle(version);
    }

    /// Fills in the time of the write that grants it.
    pub(crate) fn stamp(&mut self, at: WallTime) {
        if self.token == Token::THIS_WRITE {
            self.since = at;
        }
    }

    /// Whether this is the lease of this token. A lease that is not written yet has no token.
    pub fn has(&self, token: Token) -> bool {
        token != Token::THIS_WRITE && self.token == token
    }

    /// Whether no reader can be reading under it any more: its session is gone, or its time and the grace period have
    /// passed.
    ///
    /// A session that is gone may have a reader in it that does not know yet. The reader finds out before it hands out
    /// bytes, because that takes a read of the index, which is fenced by the session. The grace period covers transfers
    /// in flight.
    pub fn is_over(&self, sweep: &Sweep<'_>) -> bool {
        sweep.is_gone(self.session) || sweep.tick > self.until.after(sweep.grace)
    }
}
