//! Offices: tasks of a store that one session at a time is to do, so that not all of them do it.
//!
//! | office | who takes it | what it is for |
//! |---|---|---|
//! | steward | services that look after the store | sweeping, while one is there |
//! | sweeper | any process that uses the store | sweeping, while there is no steward |
//! | deputy | another one of those | the same, so that the death of the sweeper delays nothing |
//!
//! The holder of an office is the session that its key names. The key is written with that session, so it vanishes when
//! the session ends, whatever has become of its process. Nothing depends on there being only one holder: sweeps may run at
//! once. An office only saves work.

use serde::{Deserialize, Serialize};
use tensorhold_custody::{SessionId, Version};

use crate::record::identity::Identity;
use crate::store::Entry;

/// The most bytes of a value that is read.
const MOST_BYTES: usize = 4096;

/// A task of a store that one session at a time is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Office {
    /// A service that looks after the store.
    Steward,
    /// The process that sweeps while there is no steward.
    Sweeper,
    /// Another one that does.
    Deputy,
}

impl Office {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Steward, Self::Sweeper, Self::Deputy];

    /// Its name, as in its key.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steward => "steward",
            Self::Sweeper => "sweeper",
            Self::Deputy => "deputy",
        }
    }
}

/// Who holds an office.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Its session.
    pub session: SessionId,
    /// What its process says of itself, with the time at which it took the office.
    #[serde(default)]
    pub identity: Identity,
}

impl Leader {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let identity = serde_json::from_slice(&self.identity.to_bytes()).unwrap_or_default();
        let said = Self {
            identity,
            session: self.session,
        };
        // It has no part that JSON could not say.
        serde_json::to_vec(&said).unwrap_or_default()
    }

    /// None for a value that no release writes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let said: Self = serde_json::from_slice(bytes.get(..bytes.len().min(MOST_BYTES))?).ok()?;
        // Read as sessions' own words are: it is shown on terminals.
        let identity = Identity::from_bytes(&serde_json::to_vec(&said.identity).ok()?).unwrap_or_default();
        Some(Self { identity, ..said })
    }
}

/// Who holds the offices of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaders {
    steward: Option<Leader>,
    sweeper: Option<Leader>,
    deputy: Option<Leader>,
    /// The version of the store at which they were read.
    pub(crate) version: Version,
}

impl Leaders {
    /// Who holds an office, if anybody does.
    pub fn of(&self, office: Office) -> Option<&Leader> {
        match office {
            Office::Steward => self.steward.as_ref(),
            Office::Sweeper => self.sweeper.as_ref(),
            Office::Deputy => self.deputy.as_ref(),
        }
    }

    /// Whether this session holds an office.
    pub fn is_held_by(&self, office: Office, session: SessionId) -> bool {
        self.of(office).is_some_and(|leader| leader.session == session)
    }

    pub(crate) fn set(&mut self, office: Office, leader: Option<Leader>) {
        match office {
            Office::Steward => self.steward = leader,
            Office::Sweeper => self.sweeper = leader,
            Office::Deputy => self.deputy = leader,
        }
    }

    /// Those that were read of [`Office::ALL`] at a version.
    pub(crate) fn read(entries: &[Vec<Entry>], version: Version) -> Self {
        let mut leaders = Self {
            version,
            ..Self::default()
        };
        for (office, entries) in Office::ALL.into_iter().zip(entries) {
            let leader = entries.first().and_then(|entry| Leader::from_bytes(&entry.value));
            leaders.set(office, leader);
        }
        leaders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nonsense_is_not() {
        let leader = Leader {
            session: SessionId(7),
            identity: Identity::of_this_process("steward"),
        };
        assert_eq!(Leader::from_bytes(&leader.to_bytes()), Some(leader.clone()));
        let more = br#"{"session":7,"rank":3,"identity":{"host":"h","gpu":1}}"#;
        let read = Leader::from_bytes(more).expect("a later release's");
        assert_eq!((read.session, read.identity.host.as_str()), (SessionId(7), "h"));
        for nonsense in ["", "7", "{}", r#"{"session":"x"}"#] {
            assert_eq!(Leader::from_bytes(nonsense.as_bytes()), None, "{nonsense}");
        }
        let rude = br#"{"session":7,"identity":{"host":"\u001b[2J"}}"#;
        let read = Leader::from_bytes(rude).expect("a session");
        assert_eq!(read.identity, Identity::default(), "it would clear the screen");
    }
}
