//! What a worker did, in a file: eight bytes for each event, so that a million samples cost little.
//!
//! An event is written as soon as it is known. What the kernel has taken stays when the worker is killed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;

/// What happened to a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Its put is about to be called.
    Begun,
    /// It is committed.
    Put,
    /// A consumer of the group has it.
    Leased { group: u8 },
    /// The group has acknowledged it.
    Acked { group: u8 },
    /// Its record is gone.
    Freed,
}

const BYTES: usize = 8;
const NUMBER: u64 = (1 << 48) - 1;

fn encode(event: Event, number: u64) -> [u8; BYTES] {
    let (kind, group) = match event {
        Event::Begun => (1, 0),
        Event::Put => (2, 0),
        Event::Leased { group } => (3, group),
        Event::Acked { group } => (4, group),
        Event::Freed => (5, 0),
    };
    (kind << 56 | u64::from(group) << 48 | number & NUMBER).to_le_bytes()
}

fn decode(bytes: [u8; BYTES]) -> Result<(Event, u64)> {
    let [.., group, kind] = bytes;
    let event = match kind {
        1 => Event::Begun,
        2 => Event::Put,
        3 => Event::Leased { group },
        4 => Event::Acked { group },
        5 => Event::Freed,
        _ => bail!("a journal has an event of the kind {kind}"),
    };
    Ok((event, u64::from_le_bytes(bytes) & NUMBER))
}

/// The journal that a worker writes.
pub(crate) struct Journal(Mutex<File>);

impl Journal {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self(Mutex::new(file)))
    }

    pub(crate) fn note(&self, event: Event, numbers: &[u64]) -> Result<()> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| encode(event, *number)).collect();
        self.0.lock().write_all(&bytes).context("cannot write the journal")
    }
}

/// A worker's journal, as the conductor reads it.
pub(crate) struct Reader {
    path: PathBuf,
    position: u64,
}

impl Reader {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, position: 0 }
    }

    /// The events since the last call. An event that is written half is left for the next one.
    pub(crate) fn news(&mut self) -> Result<Vec<(Event, u64)>> {
        let mut bytes = Vec::new();
        let read = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.position))?;
            file.read_to_end(&mut bytes)
        });
        match read {
            // The worker has not begun.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.with_context(|| format!("cannot read {}", self.path.display()))?,
        };
        let (whole, _) = bytes.as_chunks::<BYTES>();
        self.position += (whole.len() * BYTES) as u64;
        whole.iter().map(|one| decode(*one)).collect()
    }

    /// All events from the beginning.
    pub(crate) fn all(&self) -> Result<Vec<(Event, u64)>> {
        Self::new(self.path.clone()).news()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_as_it_was_written() {
        for event in [
            Event::Begun,
            Event::Put,
            Event::Leased { group: 7 },
            Event::Acked { group: 255 },
            Event::Freed,
        ] {
            assert_eq!(
                decode(encode(event, 123_456_789)).expect("it is well-formed"),
                (event, 123_456_789)
            );
        }
        assert!(decode([0; BYTES]).is_err());
    }
}
