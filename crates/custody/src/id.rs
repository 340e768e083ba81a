//! Identifiers and times: sessions, groups, versions, tokens, ticks.

use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tensorhold_core::{Error, Result};

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

numbers! {
    /// One process's membership of a store, from its opening to its end. Never used again after that.
    SessionId;
    /// The index's revision at which a record was last written. Only grows, over the whole index.
    Version;
    /// The fencing token of a lease: the [`Version`] at which it was granted. Zero stands for "the write that this
    /// record is part of", until the index has filled in that version; see [`Token::THIS_WRITE`].
    Token;
    /// A point on the clock that all users of the index share. See the crate documentation for how it moves.
    Tick;
    /// A time of day, in milliseconds since 1970, by the clock of the host that wrote it. For people: nothing is decided by
    /// it. Zero means that it is not known, as in records of the first release.
    WallTime;
}

impl Token {
    /// In a record that is about to be written: the version of that very write. No version is zero.
    pub const THIS_WRITE: Self = Self(0);

    /// Fills in the version of the write that the token was part of.
    pub(crate) fn settle(&mut self, version: Version) {
        if *self == Self::THIS_WRITE {
            *self = Self(version.0);
        }
    }
}

impl WallTime {
    /// Whether it is not known.
    pub fn is_unknown(&self) -> bool {
        self.0 == 0
    }
}

/// When something was done, and by which session. For people: nothing is decided by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// When.
    pub at: WallTime,
    /// By whom.
    pub by: SessionId,
}

impl Tick {
    /// This many ticks later.
    pub fn after(self, ticks: u64) -> Self {
        Self(self.0.saturating_add(ticks))
    }
}

/// A group of consumers that together use each sample once, for example the trainers of one job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupName(std::sync::Arc<str>);

// Written by hand to avoid a `String` in between: every record names its groups.
impl Serialize for GroupName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for GroupName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;

        impl Visitor<'_> for Name {
            type Value = GroupName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a group's name")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<GroupName, E> {
                GroupName::new(text).map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Name)
    }
}

impl GroupName {
    /// Validates a name: letters, digits, `.`, `_` and `-`, at most 64 of them, because it becomes part of keys.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if text.is_empty() || text.len() > 64 || !text.chars().all(plain) {
            return Err(Error::invalid(
                "custody.group",
                "a group's name has 1 to 64 letters, digits, dots, dashes or underscores",
            )
            .with("group", text.escape_debug()));
        }
        Ok(Self(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
