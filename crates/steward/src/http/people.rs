//! The sessions that records name, and what their processes say of themselves.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use tensorhold_core::Result;
use tensorhold_custody::SessionId;
use tensorhold_features::{FeatureStore, Identity};

/// The sessions that are alive.
#[derive(Default)]
pub(super) struct People(HashMap<SessionId, Option<Identity>>);

impl People {
    pub(super) async fn read(store: &FeatureStore, within: Duration) -> Result<Self> {
        let alive = store.sessions(within).await?;
        Ok(Self(
            alive
                .into_iter()
                .map(|session| (session.id, session.identity))
                .collect(),
        ))
    }

    pub(super) fn person(&self, session: SessionId) -> Person {
        let who = self.0.get(&session).cloned().flatten();
        Person {
            session: id(session),
            alive: self.0.contains_key(&session),
            program: who.as_ref().map(|who| who.program.clone()),
            host: who.as_ref().map(|who| who.host.clone()),
            pid: who.as_ref().map(|who| who.pid),
            role: who.map(|who| who.role),
        }
    }
}

pub(super) fn id(session: SessionId) -> String {
    format!("{:016x}", session.0)
}

/// A session, and what its process says of itself if it is alive.
#[derive(Serialize)]
pub(super) struct Person {
    session: String,
    alive: bool,
    program: Option<String>,
    host: Option<String>,
    pid: Option<u32>,
    role: Option<String>,
}
