//! Tells whether a process id still belongs to the same process.
//!
//! The kernel reuses process ids. A pid together with the moment at which its process started (in clock ticks since
//! boot, field 22 of `/proc/PID/stat`) and the boot that it started in identifies one process uniquely.

use std::fs;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// One process, identified uniquely: never mistaken for a later one with the same pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The process id.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Which boot.
    pub boot: String,
}

impl ProcessIdentity {
    /// The identity of the process that has this pid now; `None` when there is none, or only its zombie.
    pub fn of(pid: u32) -> Option<Self> {
        Stat::read(pid)
            .filter(|stat| stat.state != 'Z')
            .map(|stat| Self::new(pid, &stat))
    }

    /// The identity of a child that was not reaped yet, even if it has ended.
    ///
    /// # Errors
    /// When `/proc` does not tell.
    pub fn of_child(pid: u32) -> Result<Self> {
        let stat = Stat::read(pid).with_context(|| format!("/proc/{pid}/stat cannot be read: is /proc mounted?"))?;
        Ok(Self::new(pid, &stat))
    }

    fn new(pid: u32, stat: &Stat) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            pid,
            start_ticks: stat.start_ticks,
            boot: boot.trim().to_owned(),
        }
    }

    /// Whether this same process still runs. A zombie does not run.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// Sends SIGKILL if this same process still runs. Returns whether it did.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn kill(&self) -> Result<bool> {
        self.send(Signal::KILL)
    }

    /// Asks it to end (SIGTERM) if this same process still runs. Returns whether it did.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn terminate(&self) -> Result<bool> {
        self.send(Signal::TERM)
    }

    /// The descriptor names the process that has the pid now, whatever becomes of the pid afterwards: so a process that
    /// is found to be this one between opening and sending is the one that gets the signal.
    fn send(&self, signal: Signal) -> Result<bool> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return Ok(false);
        };
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error).with_context(|| format!("cannot reach process {}", self.pid)),
        };
        if !self.is_alive() {
            return Ok(false);
        }
        match pidfd_send_signal(process, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false), // it ended by itself in between
            Err(error) => Err(error).with_context(|| format!("cannot send signal {signal:?} to process {}", self.pid)),
        }
    }
}

/// Sends a signal to the process that has this id.
///
/// # Errors
/// When there is none, or the kernel refuses it.
pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    let target = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("{pid} is not a valid process id"))?;
    kill_process(target, signal).with_context(|| format!("cannot send signal {signal:?} to process {pid}"))
}

/// Whether SIGSTOP has taken effect; `None` when the process is gone.
pub fn is_stopped(pid: u32) -> Option<bool> {
    Stat::read(pid).map(|stat| stat.state == 'T')
}

struct Stat {
    state: char,
    start_ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The second field is the program's name in brackets and may itself hold spaces and brackets: count from its end.
    fn parse(line: &str) -> Option<Self> {
        let (_, after_name) = line.rsplit_once(')')?;
        let mut fields = after_name.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?; // field 3
        let start_ticks = fields.nth(18)?.parse().ok()?; // field 22
        Some(Self { state, start_ticks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_brackets_does_not_shift_the_fields() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4 10 0 0 0 1 2 0 0 20 0 1 0 4242 100 5 18446744073709551615";
        let stat = Stat::parse(line).expect("a whole line");
        assert_eq!((stat.state, stat.start_ticks), ('S', 4242));
    }

    #[test]
    fn another_start_time_is_another_process() {
        let me = ProcessIdentity::of(std::process::id()).expect("we run");
        assert!(me.is_alive());
        let other = ProcessIdentity {
            start_ticks: me.start_ticks + 1,
            ..me
        };
        assert!(!other.is_alive());
        assert!(
            !other.kill().expect("nothing to do"),
            "a process that is not the one recorded is left alone"
        );
    }
}
