//! What a session knows of its share of the quota. State only: [`crate::quota`] moves it.

use std::time::Duration;

use holdfast_core::{Clock, Timestamp};
use holdfast_custody::Version;
use parking_lot::Mutex;

use crate::store::{Entry, Snapshot, Watch};

/// What a session knows of its purse. It is a guess that saves a look: others may have taken what lay idle in it, so every
/// change requires that the purse is as it is remembered here.
#[derive(Debug, Default)]
pub(crate) struct Balance(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    at: Version,
    entry: Option<Entry>,
}

impl Balance {
    pub(crate) fn remembered(&self) -> Option<Entry> {
        self.0.lock().entry.clone()
    }

    /// The purse was like this at a version. What is known of a later one stays.
    pub(crate) fn saw(&self, at: Version, entry: Option<Entry>) {
        let mut seen = self.0.lock();
        if seen.at <= at {
            *seen = Seen { at, entry };
        }
    }

    /// The purse was written.
    pub(crate) fn wrote(&self, key: &str, bytes: u64, version: Version) {
        let entry = (bytes > 0).then(|| Entry {
            key: key.to_owned(),
            value: bytes.to_string().into_bytes(),
            version,
        });
        self.saw(version, entry);
    }
}

/// A session's place among those who wait. Whoever has it is the one of its process whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct QueuePosition {
    /// Whether the last reservation had to wait: then the next one will have to, most likely.
    pub(crate) contended: bool,
    /// Tells what is said to this session; opened when it first waits.
    pub(crate) watch: Option<Box<dyn Watch>>,
}

/// What was read along, and when.
#[derive(Debug, Default)]
pub(crate) struct ReadAlong(pub(crate) Mutex<Option<(Timestamp, Snapshot)>>);

impl ReadAlong {
    /// What was read just now. Later than that, others have served those in line, and a look is cheaper than a try that
    /// fails.
    pub(crate) fn take(&self, clock: &dyn Clock) -> Option<Snapshot> {
        const GOOD_FOR: Duration = Duration::from_millis(5);
        let (at, snapshot) = self.0.lock().take()?;
        (clock.now().since(at) <= GOOD_FOR).then_some(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_does_not_go_back() {
        let purse = Balance::default();
        purse.wrote("p", 7, Version(5));
        purse.saw(Version(4), None);
        assert_eq!(purse.remembered().map(|entry| entry.version), Some(Version(5)));
        purse.wrote("p", 0, Version(6));
        assert_eq!(purse.remembered(), None);
    }
}
