//! A child process that cannot outlive us, with its output in a log file.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::process::Signal;
use tensorhold_local::{ProcessIdentity, is_stopped};

use crate::spawner::{self, Lifetime};
use crate::wait::{EVERY, poll};

/// How much of a log is shown after a failure.
const TAIL_BYTES: u64 = 6 * 1024;
/// How long the kernel may take to carry out SIGKILL, SIGSTOP or SIGCONT on a loaded machine.
const SIGNAL_WITHIN: Duration = Duration::from_secs(20);

/// A process to start: a name for people, a program, its arguments and its environment.
#[derive(Debug, Clone)]
pub struct ProcessSpec {
    name: String,
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    log: PathBuf,
    lifetime: Lifetime,
}

impl ProcessSpec {
    /// A process called `name` in messages, which writes its standard output and error to the file `log`.
    pub fn new(name: impl Into<String>, program: impl Into<OsString>, log: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            log: log.into(),
            lifetime: Lifetime::Bound,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets one variable of the environment; the rest is inherited.
    #[must_use]
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    pub(crate) fn lifetime(mut self, lifetime: Lifetime) -> Self {
        self.lifetime = lifetime;
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn log(&self) -> &Path {
        &self.log
    }
}

/// A running child. Its standard input is a pipe that stays open until [`Process::finish`].
///
/// Dropping it kills and reaps the child. If our process ends without dropping it, the kernel kills the child.
#[derive(Debug)]
pub struct Process {
    name: String,
    identity: ProcessIdentity,
    child: Mutex<Child>,
    log: PathBuf,
    log_start: u64,
    let_go: bool,
}

impl Process {
    /// Starts the process. It runs when this returns, but may not be ready yet.
    ///
    /// # Errors
    /// When the log cannot be opened or the program cannot be started.
    pub fn spawn(spec: &ProcessSpec) -> Result<Self> {
        let opened = File::options().create(true).append(true).open(&spec.log);
        let log = opened.with_context(|| format!("cannot open the log {}", spec.log.display()))?;
        let log_start = log.metadata()?.len();
        let mut command = spawner::command(spec.program.clone(), spec.args.clone(), spec.lifetime);
        command.envs(spec.env.iter().map(|(key, value)| (key, value)));
        command.stdin(if spec.lifetime == Lifetime::Bound {
            Stdio::piped()
        } else {
            Stdio::null()
        });
        command.stdout(log.try_clone()?).stderr(log);
        let child = spawner::spawn(command).with_context(|| format!("cannot start {}", spec.name))?;
        let identity = ProcessIdentity::of_child(child.id())?;
        let child = Mutex::new(child);
        Ok(Self {
            name: spec.name.clone(),
            identity,
            child,
            log: spec.log.clone(),
            log_start,
            let_go: false,
        })
    }

    /// The name given in the spec.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id, also after its end.
    pub fn pid(&self) -> u32 {
        self.identity.pid
    }

    /// Its unique identity.
    pub fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    /// Whether it has not ended yet. A stopped process has not ended.
    pub fn is_running(&self) -> bool {
        self.exit_status().is_none()
    }

    /// How it ended, if it did.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.child.lock().try_wait().ok().flatten()
    }

    /// Sends SIGKILL; the process is gone when this returns. Succeeds if it had ended before.
    ///
    /// # Errors
    /// When the kernel does not end it in time.
    pub fn kill(&self) -> Result<()> {
        self.send_kill();
        self.wait(SIGNAL_WITHIN).map(drop)
    }

    /// Sends SIGKILL without waiting, so that several processes can die side by side.
    pub(crate) fn send_kill(&self) {
        // An error here means that it has been reaped already, as intended.
        self.child.lock().kill().ok();
    }

    /// Sends SIGSTOP: the process keeps its memory and its sockets and does nothing. It has stopped when this returns.
    ///
    /// # Errors
    /// When it has ended.
    pub fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP, true)
    }

    /// Sends SIGCONT: the process goes on where it was stopped.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT, false)
    }

    fn signal(&self, signal: Signal, stopped: bool) -> Result<()> {
        {
            let mut child = self.child.lock(); // while locked it cannot be reaped, so the pid stays its own
            if let Some(status) = child.try_wait()? {
                bail!(
                    "{} cannot be signalled, it has ended ({status}){}",
                    self.name,
                    self.tail()
                );
            }
            tensorhold_local::signal(self.pid(), signal)?;
        }
        poll(SIGNAL_WITHIN, EVERY, || {
            is_stopped(self.pid()).is_none_or(|now| now == stopped).then_some(())
        })
        .with_context(|| format!("{signal:?} had no effect on {} within {SIGNAL_WITHIN:?}", self.name))
    }

    /// Writes a line to its standard input. It must be short and read soon: a full pipe would block this call.
    ///
    /// # Errors
    /// When the process has ended, or was told to finish.
    pub fn tell(&self, line: &str) -> Result<()> {
        let mut child = self.child.lock();
        let stdin = child.stdin.as_mut();
        let stdin = stdin.with_context(|| format!("the standard input of {} is closed", self.name))?;
        stdin
            .write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("{} does not listen{}", self.name, self.tail()))
    }

    /// Closes its standard input and waits for it to end by itself.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn finish(&self, within: Duration) -> Result<ExitStatus> {
        drop(self.child.lock().stdin.take());
        self.wait(within)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn wait(&self, within: Duration) -> Result<ExitStatus> {
        poll(within, EVERY / 4, || self.exit_status())
            .with_context(|| format!("{} still runs after {within:?}{}", self.name, self.tail()))
    }

    /// Its output since it was started (not that of an earlier process in the same file).
    pub fn output(&self) -> String {
        read_from(&self.log, self.log_start)
    }

    /// The end of its log, to be appended to a message.
    pub(crate) fn tail(&self) -> String {
        tail_for_error(&self.log, self.log_start)
    }

    /// Lets the process outlive this value.
    pub(crate) fn let_go(&mut self) {
        self.let_go = true;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.let_go {
            // Nothing can be done about a process that the kernel does not end.
            self.kill().ok();
        }
    }
}

/// The end of a log, as text.
pub(crate) fn tail(log: &Path, not_before: u64) -> String {
    let length = fs::metadata(log).map_or(0, |data| data.len());
    read_from(log, length.saturating_sub(TAIL_BYTES).max(not_before))
}

fn tail_for_error(log: &Path, not_before: u64) -> String {
    format!("\n--- end of {}\n{}", log.display(), tail(log, not_before).trim_end())
}

fn read_from(path: &Path, position: u64) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(position))?;
        file.read_to_end(&mut bytes)
    });
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("(the log cannot be read: {error})"),
    }
}
