//! Who holds a session, for the people who operate a store. None of it is trusted: any process that may write to the index
//! may say what it likes. Two things are decided by it: nobody waits for a process that says that it is a steward, and a
//! steward follows the settings that sessions say, within bounds ([`crate::ops::follow`]).
//!
//! It is the value of the session's liveness key, as JSON. A session of an earlier release has an empty value, and one whose
//! value cannot be read counts as one that said nothing: a session is alive because its key is there, whatever it says.

use serde::{Deserialize, Serialize};
use tensorhold_custody::SessionId;

/// The most bytes of each text. What is longer is cut off when it is written, and not read.
const MOST_TEXT: usize = 256;
/// The most bytes of a value that is read.
const MOST_BYTES: usize = 4096;

/// What a process says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// The name of its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// What is running.
    pub program: String,
    /// The release of Tensorhold.
    pub version: String,
    /// What it is in the run: producer, trainer, a rank's name. Free text.
    pub role: String,
    /// Whether it only looks after the store, and neither puts nor takes samples.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub steward: bool,
    /// Its settings that hold for the whole store while it sweeps. A steward and an earlier release say none.
    #[serde(skip_serializing_if = "SaidSettings::is_nothing")]
    pub settings: SaidSettings,
    /// When the session was opened, in milliseconds since 1970, by the clock of its host.
    pub started_ms: u64,
}

impl Identity {
    /// This process, from what the system knows of it.
    pub fn of_this_process(role: &str) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let program = std::env::current_exe().ok().and_then(|path| {
            let name = path.file_name()?;
            Some(name.to_string_lossy().into_owned())
        });
        Self {
            host: host.trim().to_owned(),
            pid: std::process::id(),
            program: program.unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: role.to_owned(),
            steward: false,
            settings: SaidSettings::default(),
            started_ms: 0,
        }
    }

    /// The same, for a session that is opened at this time of day.
    pub(crate) fn opened_at(&self, started_ms: u64) -> Self {
        Self {
            started_ms,
            ..self.clone()
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let said = Self {
            host: shown(&self.host),
            program: shown(&self.program),
            version: shown(&self.version),
            role: shown(&self.role),
            ..self.clone()
        };
        // It has no part that JSON could not say; without it, the session is one that said nothing.
        serde_json::to_vec(&said).unwrap_or_default()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let said: Self = serde_json::from_slice(bytes.get(..bytes.len().min(MOST_BYTES))?).ok()?;
        // It is shown on terminals.
        let can_be_shown = |text: &String| text.len() <= MOST_TEXT && !text.chars().any(char::is_control);
        let texts = [&said.host, &said.program, &said.version, &said.role];
        let all = texts.into_iter().all(can_be_shown);
        all.then_some(said)
    }
}

/// The settings of a process that hold for the whole store while it sweeps, as far as it says them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SaidSettings {
    /// The length of one tick of the shared clock, in milliseconds.
    pub tick_ms: Option<u64>,
    /// How many ticks after its end a lease still counts.
    pub grace_ticks: Option<u64>,
    /// The most dead letters whose objects are kept.
    pub dead_most: Option<u64>,
}

impl SaidSettings {
    /// The longest tick that is believed.
    pub(crate) const MOST_TICK_MS: u64 = 60_000;
    /// The longest grace that is believed, in ticks.
    pub(crate) const MOST_GRACE: u64 = 600;
    /// The most dead letters that are believed: a sweep lists them.
    pub(crate) const MOST_DEAD: u64 = 100_000;

    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The same, each cut to its bounds.
    pub(crate) fn within_bounds(self) -> Self {
        Self {
            tick_ms: self.tick_ms.map(|tick| tick.clamp(1, Self::MOST_TICK_MS)),
            grace_ticks: self.grace_ticks.map(|grace| grace.min(Self::MOST_GRACE)),
            dead_most: self.dead_most.map(|most| most.min(Self::MOST_DEAD)),
        }
    }

    /// Of each setting the larger one that is said.
    pub(crate) fn larger(self, other: Self) -> Self {
        Self {
            tick_ms: self.tick_ms.max(other.tick_ms),
            grace_ticks: self.grace_ticks.max(other.grace_ticks),
            dead_most: self.dead_most.max(other.dead_most),
        }
    }
}

/// The part of a text that is written: not too long, and without control characters.
fn shown(text: &str) -> String {
    let mut text: String = text.chars().filter(|one| !one.is_control()).collect();
    let mut end = MOST_TEXT.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// A session that is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSession {
    /// Its id.
    pub id: SessionId,
    /// What its process says of itself; none if it says nothing that this release can read.
    pub identity: Option<Identity>,
}

impl LiveSession {
    /// Whether its process says that it only looks after the store.
    pub fn is_steward(&self) -> bool {
        self.identity.as_ref().is_some_and(|said| said.steward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_said_is_read(host in any::<String>(), role in ".{0,400}", pid: u32, started_ms: u64) {
            let said = Identity { host, pid, role, started_ms, ..Identity::of_this_process("") };
            let read = Identity::from_bytes(&said.to_bytes()).expect("what this release has written");
            prop_assert_eq!((read.pid, read.started_ms), (pid, started_ms));
            prop_assert_eq!(&read.host, &shown(&said.host));
            prop_assert!(read.host.len() <= MOST_TEXT && read.role.len() <= MOST_TEXT);
            prop_assert!(said.role.len() > MOST_TEXT || said.role.chars().any(char::is_control) || read.role == said.role);
        }

        #[test]
        fn nonsense_says_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assume!(serde_json::from_slice::<Identity>(&bytes).is_err());
            prop_assert_eq!(Identity::from_bytes(&bytes), None);
        }
    }

    #[test]
    fn a_later_release_may_say_more_and_an_enemy_is_not_believed_at_length() {
        let more = br#"{"host":"h","pid":7,"gpu":"none","role":"trainer"}"#;
        let read = Identity::from_bytes(more).expect("a later release's");
        assert_eq!((read.host.as_str(), read.pid, read.role.as_str()), ("h", 7, "trainer"));
        assert!(read.settings.is_nothing(), "an earlier release says no settings");
        assert_eq!(Identity::from_bytes(b""), None);
        let long = format!(r#"{{"host":"{}"}}"#, "x".repeat(MOST_TEXT + 1));
        assert_eq!(Identity::from_bytes(long.as_bytes()), None);
        assert_eq!(
            Identity::from_bytes(br#"{"host":"\u001b[2J"}"#),
            None,
            "it would clear the screen"
        );
    }
}
