//! What the process that looks after a store has seen of the engine's holders: one record for each store.
//!
//! A holder that died is in no list of the engine any more. So the process whose turn it is remembers here which holders
//! there were. The one that takes over from it sees what has changed in between, and anybody can say which one is missing.
//! Nothing is decided by it but when samples are looked for: a sample is lost only by what the engine says of its objects.

use serde::{Deserialize, Serialize};
use tensorhold_custody::Version;

/// The most holders that a record names, of each kind. The process that writes it knows them all.
const MOST: usize = 500;
/// The most bytes of a holder's name, and of what tells its memory.
const MOST_TEXT: usize = 256;
/// The most bytes of a value that is read.
const MOST_BYTES: usize = 1 << 20;

/// The engine's holders, as they were seen last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HoldersSeen {
    /// When this was written, in milliseconds since 1970 by the clock of the process that looked. It is written when
    /// something has changed.
    pub at_ms: u64,
    /// The holders that the engine listed.
    pub listed: Vec<HolderSeen>,
    /// How often they had registered their memory.
    pub mounts: u64,
    /// The holders that it lists no more.
    pub missing: Vec<MissingHolder>,
    /// The store's samples that missed an object at the last look: they are lost, or come back.
    pub suspected: u64,
    /// Whether samples are still to be looked for because of a change.
    pub unsettled: bool,
    /// The version of the record; zero before the first.
    #[serde(skip)]
    pub version: Version,
}

/// A holder that the engine lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderSeen {
    /// Its name.
    pub name: String,
    /// Tells its memory from other memory under that name.
    pub memory: String,
}

/// A holder that the engine lists no more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingHolder {
    /// Its name.
    pub name: String,
    /// When that was seen, in milliseconds since 1970.
    pub since_ms: u64,
}

impl HoldersSeen {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut said = self.clone();
        said.listed.truncate(MOST);
        said.missing.truncate(MOST);
        // It has no part that JSON could not say.
        serde_json::to_vec(&said).unwrap_or_default()
    }

    /// What can be read of a value: nothing of one that no release writes. It is shown on terminals.
    pub(crate) fn from_bytes(bytes: &[u8], version: Version) -> Self {
        let can_be_shown = |text: &str| text.len() <= MOST_TEXT && !text.chars().any(char::is_control);
        let said = bytes.get(..bytes.len().min(MOST_BYTES));
        let said: Option<Self> = said.and_then(|bytes| serde_json::from_slice(bytes).ok());
        let mut said = said.unwrap_or_default();
        said.listed.retain(|one| can_be_shown(&one.name));
        said.missing.retain(|one| can_be_shown(&one.name));
        said.version = version;
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_it_writes_and_no_nonsense() {
        let holder = |name: &str| HolderSeen {
            name: name.to_owned(),
            memory: "7-8".to_owned(),
        };
        let seen = HoldersSeen {
            at_ms: 5,
            listed: vec![holder("a:1"), holder("b:1")],
            mounts: 3,
            missing: vec![MissingHolder {
                name: "c:1".to_owned(),
                since_ms: 4,
            }],
            suspected: 9,
            unsettled: true,
            version: Version(12),
        };
        assert_eq!(HoldersSeen::from_bytes(&seen.to_bytes(), Version(12)), seen);
        for nonsense in ["", "7", r#"{"listed":7}"#] {
            let read = HoldersSeen::from_bytes(nonsense.as_bytes(), Version(1));
            assert!(read.listed.is_empty() && read.version == Version(1), "{nonsense}");
        }
        let rude = br#"{"missing":[{"name":"\u001b[2J","since_ms":1}],"more":1}"#;
        let read = HoldersSeen::from_bytes(rude, Version(1));
        assert_eq!(read.missing, [], "it would clear the screen");
        let many = HoldersSeen {
            listed: vec![holder("a"); 2 * MOST],
            ..HoldersSeen::default()
        };
        let read = HoldersSeen::from_bytes(&many.to_bytes(), Version(0));
        assert_eq!(read.listed.len(), MOST);
    }
}
