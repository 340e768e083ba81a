//! One process of a cluster: it can be killed, stopped, resumed and restarted, from any thread.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use parking_lot::Mutex;
use tensorhold_local::ProcessIdentity;

use crate::http;
use crate::ports::{AddressInUse, is_taken};
use crate::process::{self, Process, ProcessSpec};
use crate::sockets::listens;
use crate::wait::{EVERY, poll};

/// How long a process may take to become ready. A loaded machine needs seconds; more than this is a defect.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(60);

/// How a process shows that it is ready.
#[derive(Debug)]
pub(crate) enum Ready {
    /// It writes a line that starts with this.
    Line(&'static str),
    /// It listens on these ports itself, and a GET of this address answers with a text that has one of these parts.
    Answer {
        ports: Vec<u16>,
        url: String,
        any_of: &'static [&'static str],
    },
}

impl Ready {
    fn holds(&self, process: &Process) -> bool {
        match self {
            Self::Line(start) => process.output().lines().any(|line| line.starts_with(start)),
            Self::Answer { ports, url, any_of } => {
                ports.iter().all(|port| listens(process.pid(), *port))
                    && http::get(url).is_ok_and(|body| any_of.iter().any(|part| body.contains(part)))
            }
        }
    }

    /// Whether another program has one of the ports, now that the process is gone. Not every program reports that
    /// itself.
    fn port_is_taken(&self) -> bool {
        matches!(self, Self::Answer { ports, .. } if ports.iter().copied().any(is_taken))
    }
}

/// A process of a cluster. Its data and its ports stay the same when it is restarted.
#[derive(Debug)]
pub struct Node {
    spec: ProcessSpec,
    ready: Ready,
    process: Mutex<std::sync::Arc<Process>>,
}

impl Node {
    /// Starts the process without waiting for it.
    pub(crate) fn launch(spec: ProcessSpec, ready: Ready) -> Result<Self> {
        let process = Mutex::new(Process::spawn(&spec)?.into());
        Ok(Self { spec, ready, process })
    }

    /// The current process, or the last one.
    fn process(&self) -> std::sync::Arc<Process> {
        self.process.lock().clone()
    }

    /// Its name, such as `holder-0`.
    pub fn name(&self) -> &str {
        self.spec.name()
    }

    /// The id of its current process, or of its last one.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// The unique identity of its current process.
    pub fn identity(&self) -> ProcessIdentity {
        self.process().identity().clone()
    }

    /// What its current process, or its last one, has printed. A holder prints the name under which the master knows it.
    pub fn output(&self) -> String {
        self.process().output()
    }

    /// Whether the process exists (it may be stopped).
    pub fn is_running(&self) -> bool {
        self.process().is_running()
    }

    /// Sends SIGKILL; the process is gone when this returns. Succeeds if it is gone already.
    ///
    /// # Errors
    /// When the kernel does not end it in time.
    pub fn kill(&self) -> Result<()> {
        self.process().kill()
    }

    pub(crate) fn send_kill(&self) {
        self.process().send_kill();
    }

    /// Sends SIGSTOP: the process keeps its memory and its sockets, and answers no request.
    ///
    /// # Errors
    /// When it has ended.
    pub fn stop(&self) -> Result<()> {
        self.process().stop()
    }

    /// Sends SIGCONT: the process goes on where it was stopped.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resume(&self) -> Result<()> {
        self.process().resume()
    }

    /// Asks it to end in good order (its standard input closes; only holders react to that) and waits.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn finish(&self, within: Duration) -> Result<()> {
        self.process().finish(within).map(drop)
    }

    /// Kills it if it runs and starts it again, on the same data and the same ports. It is ready when this returns.
    ///
    /// # Errors
    /// When it does not become ready in time; the message shows its log.
    pub fn restart(&self) -> Result<()> {
        self.relaunch()?;
        self.await_ready(true)
    }

    /// As [`Node::restart`], without waiting: for nodes that become ready only together, such as a majority of etcd.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn relaunch(&self) -> Result<()> {
        let mut process = self.process.lock();
        process.kill()?;
        *process = Process::spawn(&self.spec)?.into();
        Ok(())
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// When it ends, or is not ready in time; the message shows its log.
    pub fn wait_ready(&self) -> Result<()> {
        self.await_ready(false)
    }

    /// Waits until it is ready. Its own port may still be busy for a moment after a kill: then it is launched again
    /// until it gets the port.
    fn await_ready(&self, relaunch_if_port_is_busy: bool) -> Result<()> {
        let outcome = poll(READY_WITHIN, EVERY, || {
            let process = self.process();
            match process.exit_status() {
                None => self.ready.holds(&process).then_some(Ok(())),
                Some(_) if relaunch_if_port_is_busy && self.ready.port_is_taken() => self.relaunch().err().map(Err),
                Some(status) => Some(Err(self.died(&process, &status.to_string()))),
            }
        });
        let late = || {
            anyhow!(
                "{} is not ready after {READY_WITHIN:?}{}",
                self.name(),
                self.process().tail()
            )
        };
        outcome.unwrap_or_else(|| Err(late()))
    }

    fn died(&self, process: &Process, status: &str) -> anyhow::Error {
        let message = format!("{} ended before it was ready ({status}){}", self.name(), process.tail());
        if self.ready.port_is_taken() {
            anyhow::Error::new(AddressInUse).context(message)
        } else {
            anyhow!(message)
        }
    }

    /// The end of its log, under a headline. The log holds the output of all its processes, oldest first.
    pub(crate) fn log_tail(&self) -> String {
        let state = if self.is_running() { "running" } else { "ended" };
        let tail = process::tail(self.spec.log(), 0);
        format!(
            "===== {} (pid {}, {state}): {}\n{}\n",
            self.name(),
            self.pid(),
            self.spec.log().display(),
            tail.trim_end()
        )
    }

    /// Lets the process outlive this value.
    pub(crate) fn let_go(self) -> Result<()> {
        let mut process = self.process.into_inner();
        std::sync::Arc::get_mut(&mut process)
            .context("another thread still uses the process")?
            .let_go();
        Ok(())
    }

    /// The file with the output of all its processes, oldest first.
    pub fn log(&self) -> &std::path::Path {
        self.spec.log()
    }
}
