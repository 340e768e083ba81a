//! Who is behind a session: the sessions that are alive, by their ids.

use std::collections::HashMap;

use serde_json::Value;
use tensorhold_custody::SessionId;
use tensorhold_index::{Identity, Index as _, TxnIndex};

use crate::failure::Failure;
use crate::output::object;
use crate::reach::Reach;
use crate::text::shown;

/// The sessions that are alive.
#[derive(Debug, Default)]
pub(crate) struct People(HashMap<SessionId, Option<Identity>>);

impl People {
    pub(crate) async fn read(reach: &Reach, index: &TxnIndex) -> Result<Self, Failure> {
        let sessions = index
            .sessions(reach.left())
            .await
            .map_err(|error| reach.failure(&error))?;
        Ok(Self(
            sessions
                .into_iter()
                .map(|session| (session.id, session.identity))
                .collect(),
        ))
    }

    pub(crate) fn is_alive(&self, session: SessionId) -> bool {
        self.0.contains_key(&session)
    }

    /// A session for people: who it says it is, or that it has ended.
    pub(crate) fn text(&self, session: SessionId) -> String {
        let id = id(session);
        match self.0.get(&session) {
            Some(Some(who)) => {
                let role = if who.role.is_empty() {
                    String::new()
                } else {
                    format!(", {}", shown(&who.role))
                };
                format!(
                    "{} (pid {} on {}{role}; session {id})",
                    shown(&who.program),
                    who.pid,
                    shown(&who.host)
                )
            }
            Some(None) => format!("session {id}"),
            None => format!("session {id}, which has ended"),
        }
    }

    /// A session for programs.
    pub(crate) fn value(&self, session: SessionId) -> Value {
        let who = self.0.get(&session).and_then(Option::as_ref);
        object!("session": id(session),
            "alive": self.is_alive(session),
            "program": who.map(|who| &who.program),
            "host": who.map(|who| &who.host),
            "pid": who.map(|who| who.pid),
            "role": who.map(|who| &who.role),)
    }
}

/// A session's id, as it is shown and given back.
pub(crate) fn id(session: SessionId) -> String {
    format!("{:x}", session.0)
}

/// A session's id that a person has written.
pub(crate) fn parse_id(text: &str) -> Result<SessionId, Failure> {
    u64::from_str_radix(text.trim(), 16).map(SessionId).map_err(|_| {
        Failure::usage(
            format!("{:?} is no session", shown(text)),
            "a session is a hexadecimal number",
            "`tensorhold sessions` shows them",
        )
    })
}
