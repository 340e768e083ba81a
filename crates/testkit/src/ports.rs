//! Ports that no other process takes while we hold them.
//!
//! Asking the kernel for a free port and then telling a child to use it is a race, and nextest runs many test processes
//! side by side. So a port is ours while we hold an exclusive lock on a file named after it, in a folder that all our
//! processes share; the kernel drops the lock when we end, however we end. A trial bind then rules out ports of
//! programs that do not use the locks.
//!
//! The range lies below the kernel's ephemeral ports and above those that Mooncake's transfer engine picks for itself.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port of ours, until dropped.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// Takes a free port.
    pub(crate) fn reserve() -> Result<Self> {
        Self::reserve_in(&std::env::temp_dir().join("tensorhold-ports"))
    }

    fn reserve_in(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let start = RandomState::new().hash_one(0_u8) % u64::from(COUNT);
        for step in 0..u64::from(COUNT) {
            let offset = u16::try_from((start + step) % u64::from(COUNT))?;
            if let Some(port) = Self::try_reserve(folder, FIRST + offset)? {
                return Ok(port);
            }
        }
        bail!(
            "all ports from {FIRST} to {} are taken: end what listens there",
            FIRST + (COUNT - 1)
        )
    }

    fn try_reserve(folder: &Path, number: u16) -> Result<Option<Self>> {
        let path: PathBuf = folder.join(number.to_string());
        let opened = File::options().create(true).append(true).open(&path);
        let lock = opened.with_context(|| format!("cannot open {}: is it another user's?", path.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error).context(format!("cannot lock {}", path.display())),
        }
        Ok((!is_taken(number)).then_some(Self { number, _lock: lock }))
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// The error of a process whose port was taken by a program that does not use our locks: start again with other ports.
#[derive(Debug)]
pub(crate) struct AddressInUse;

impl std::fmt::Display for AddressInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another program took the port in the meantime")
    }
}

impl std::error::Error for AddressInUse {}

/// Whether any program listens on a port. Some servers listen on every address whatever they are told, so a port is
/// free only if it is free on all of them.
pub(crate) fn is_taken(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_err()
}

/// Runs a start, and runs it again with other ports, a bounded number of times, when a port turned out to be taken.
pub(crate) fn with_other_ports_if_taken<T>(mut start: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..3 {
        match start() {
            Err(error) if error.downcast_ref::<AddressInUse>().is_some() => {}
            outcome => return outcome,
        }
    }
    start()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_port_is_not_given_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = Port::reserve_in(folder.path()).expect("a port");
        assert!(
            Port::try_reserve(folder.path(), first.number())
                .expect("no error")
                .is_none()
        );
        let number = first.number();
        drop(first);
        assert!(
            Port::try_reserve(folder.path(), number).expect("no error").is_some(),
            "free again after the drop"
        );
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_passed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let number = Port::reserve_in(folder.path()).expect("a port").number();
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).expect("it was free");
        assert!(Port::try_reserve(folder.path(), number).expect("no error").is_none());
    }

    #[test]
    fn only_a_taken_port_is_a_reason_to_try_again() {
        let mut tries = 0;
        let taken: Result<()> = with_other_ports_if_taken(|| {
            tries += 1;
            Err(AddressInUse).context("etcd-0 did not start")
        });
        assert!(taken.is_err());
        assert_eq!(tries, 4);
        let mut tries = 0;
        let broken: Result<()> = with_other_ports_if_taken(|| {
            tries += 1;
            bail!("no such program")
        });
        assert!(broken.is_err());
        assert_eq!(tries, 1);
    }
}
