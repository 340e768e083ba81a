//! Ports for the cluster on this machine.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use tensorhold_core::{ErrorKind, SystemClock, poll_until};

use super::state::Recorded;
use crate::failure::Failure;

/// Below the kernel's own ports, and apart from those that the transfer engine picks for itself (15,000 and up).
const PORTS: std::ops::Range<u16> = 10_000..15_000;
/// How long the ports of a process that has ended may stay taken.
const PORTS_WITHIN: Duration = Duration::from_secs(5);

/// Ports that were free when they were chosen.
#[derive(Debug, Default)]
pub(super) struct Ports(Vec<u16>);

impl Ports {
    pub(super) fn take(&mut self) -> Result<u16, Failure> {
        let count = u64::from(PORTS.end - PORTS.start);
        let start = RandomState::new().hash_one(0_u8) % count;
        let numbers = (0..count).filter_map(|step| Some(PORTS.start + u16::try_from((start + step) % count).ok()?));
        for number in numbers {
            if !self.0.contains(&number) && is_free(number) {
                self.0.push(number);
                return Ok(number);
            }
        }
        Err(Failure::new(
            ErrorKind::Capacity,
            "there is no free port",
            format!("all from {} to {} are taken", PORTS.start, PORTS.end - 1),
            "end what listens there",
        ))
    }

    /// Whether another program has one of them, now that ours have ended.
    pub(super) fn one_is_taken(&self) -> bool {
        self.0.iter().any(|port| !is_free(*port))
    }
}

/// Some servers listen on every address whatever they are told, so a port is free only if it is free on all of them.
fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

/// The threads of a process that was killed may hold its ports for a moment longer than it is seen. If they stay taken,
/// the start says so.
pub(super) fn wait_until_free(recorded: &Recorded) {
    let ports: Vec<u16> = recorded
        .arguments
        .iter()
        .filter_map(|argument| port_of(argument))
        .collect();
    let free = || ports.iter().all(|port| is_free(*port)).then_some(());
    let _waited = poll_until(&SystemClock::new(), PORTS_WITHIN, Duration::from_millis(20), free);
}

/// The port that an argument names: `--rpc_port=10001`, `--listen-client-urls=http://127.0.0.1:10002`.
fn port_of(argument: &str) -> Option<u16> {
    let (name, value) = argument.split_once('=')?;
    let text = match name.ends_with("_port") {
        true => value,
        false => value.strip_prefix("http://127.0.0.1:")?,
    };
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found_in_arguments() {
        assert_eq!(port_of("--rpc_port=10001"), Some(10_001));
        assert_eq!(port_of("--listen-peer-urls=http://127.0.0.1:10002"), Some(10_002));
        for other in [
            "--name=tensorhold",
            "-u",
            "--data-dir=/a:1",
            "--initial-cluster=a=http://127.0.0.1:1",
        ] {
            assert_eq!(port_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_port_is_given_once_and_only_if_it_is_free() {
        let mut ports = Ports::default();
        let port = ports.take().expect("a port");
        assert!(ports.take().expect("another") != port && !ports.one_is_taken());
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("it was free");
        assert!(ports.one_is_taken());
    }
}
