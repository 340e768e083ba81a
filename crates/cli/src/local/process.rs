//! One process of the cluster on this machine: started so that it outlives us, waited for, and ended.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tensorhold_core::{Clock as _, Deadline, ErrorKind, SystemClock};
use tensorhold_local::ProcessIdentity;

use crate::failure::Failure;
use crate::http;
use crate::io::Progress;
use crate::local::state::Recorded;

/// How long a process may take to become ready. A loaded machine needs seconds.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a process may take to end when it is asked to; then it is killed.
const END_WITHIN: Duration = Duration::from_secs(5);
const KILLED_WITHIN: Duration = Duration::from_secs(10);
const EVERY: Duration = Duration::from_millis(50);
/// How much of a log is shown after a failure.
const LOG_LINES: usize = 5;

/// How long a command may take, from its beginning on.
#[derive(Debug)]
pub(crate) struct Limit {
    clock: SystemClock,
    until: Option<Deadline>,
}

impl Limit {
    /// As long as it is told to, or as long as it needs.
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        let clock = SystemClock::new();
        let until = timeout.map(|timeout| Deadline::after(&clock, timeout));
        Self { clock, until }
    }

    /// The end of a wait that begins now and usually lasts so long at most.
    fn after(&self, usual: Duration) -> Deadline {
        let usual = Deadline::after(&self.clock, usual);
        self.until.map_or(usual, |until| usual.min(until))
    }
}

/// How a process shows that it is ready.
#[derive(Clone, Debug)]
pub(crate) enum Ready {
    /// It writes a line that begins with this.
    Line(&'static str),
    /// A GET of this address answers with a text that has this part.
    Answer { url: String, part: &'static str },
}

/// A process to start.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) ready: Ready,
}

/// Starts a process in a group of its own, so that a Ctrl-C at our terminal is none for it. Its output goes to its log.
pub(crate) fn spawn(recorded: &Recorded, folder: &Path) -> Result<(Child, ProcessIdentity), Failure> {
    let cannot = |why: String| {
        let to_do = format!("see that {} can be executed", recorded.program.display());
        Failure::new(
            ErrorKind::Internal,
            format!("{} could not be started", recorded.name),
            why,
            to_do,
        )
    };
    let log = File::options()
        .create(true)
        .append(true)
        .open(&recorded.log)
        .map_err(|error| cannot(error.to_string()))?;
    let errors = log.try_clone().map_err(|error| cannot(error.to_string()))?;
    let mut child = Command::new(&recorded.program)
        .args(&recorded.arguments)
        .envs(recorded.variables.iter().map(|(name, value)| (name, value)))
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(|error| cannot(error.to_string()))?;
    match ProcessIdentity::of_child(child.id()) {
        Ok(identity) => Ok((child, identity)),
        Err(error) => {
            // Nobody could find it again.
            drop(child.kill());
            drop(child.wait());
            Err(cannot(format!("{error:#}")))
        }
    }
}

/// Waits until a process is ready, or has ended.
pub(crate) fn wait_ready(
    plan: &Plan,
    recorded: &Recorded,
    log_begins: u64,
    mut child: Option<&mut Child>,
    limit: &Limit,
    progress: &mut Progress<'_>,
) -> Result<(), Failure> {
    let (clock, deadline) = (&limit.clock, limit.after(READY_WITHIN));
    loop {
        // A child that has ended is a zombie until it is looked at; `is_alive` counts it as ended, too.
        let ended = child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))));
        let alive = !ended && recorded.identity.is_alive();
        if alive && plan.ready.holds(&recorded.log, log_begins) && recorded.identity.is_alive() {
            return Ok(());
        }
        let (kind, why) = match (alive, deadline.passed(clock)) {
            (false, _) => (ErrorKind::Internal, "it ended before it was ready"),
            (true, true) => (ErrorKind::Timeout, "it was not ready in time"),
            (true, false) => {
                progress.show(&format!("waiting for {}", plan.name));
                clock.sleep(EVERY);
                continue;
            }
        };
        let tail = tail(&recorded.log, log_begins);
        return Err(Failure::new(
            kind,
            format!("{} did not start", plan.name),
            format!("{why}; its last words: {tail}"),
            to_do(&tail, &recorded.log),
        ));
    }
}

impl Ready {
    fn holds(&self, log: &Path, from: u64) -> bool {
        match self {
            Self::Line(start) => read_from(log, from).lines().any(|line| line.starts_with(start)),
            Self::Answer { url, part } => {
                http::get(url, Duration::from_secs(1)).is_ok_and(|reply| reply.body.contains(part))
            }
        }
    }
}

/// Ends processes, all at once: asks them, and kills those that do not end within the limit. Returns the names of those that
/// ran.
pub(crate) fn end<'a>(
    processes: impl IntoIterator<Item = &'a Recorded>,
    limit: &Limit,
    progress: &mut Progress<'_>,
) -> Result<Vec<String>, Failure> {
    let processes: Vec<&Recorded> = processes.into_iter().collect();
    let failed = |process: &Recorded, why: String| {
        Failure::new(
            ErrorKind::Denied,
            format!("{} (pid {}) cannot be ended", process.name, process.identity.pid),
            why,
            "is it another user's? Use that user's `tensorhold down`",
        )
    };
    let mut ended = Vec::new();
    for process in &processes {
        let asked = process
            .identity
            .terminate()
            .map_err(|error| failed(process, format!("{error:#}")))?;
        if asked {
            ended.push(process.name.clone());
        }
    }
    let clock = &limit.clock;
    let mut wait = |deadline: Deadline| {
        loop {
            let left = processes.iter().find(|process| process.identity.is_alive());
            match left {
                Some(process) if !deadline.passed(clock) => {
                    progress.show(&format!("waiting for {} to end", process.name));
                    clock.sleep(EVERY);
                }
                left => return left.copied(),
            }
        }
    };
    if wait(limit.after(END_WITHIN)).is_none() {
        return Ok(ended);
    }
    for process in &processes {
        process
            .identity
            .kill()
            .map_err(|error| failed(process, format!("{error:#}")))?;
    }
    match wait(Deadline::after(clock, KILLED_WITHIN)) {
        None => Ok(ended),
        Some(process) => Err(failed(process, "it still runs after SIGKILL".to_owned())),
    }
}

/// What to do about a process that did not start.
fn to_do(last_words: &str, log: &Path) -> String {
    // The words of the dynamic linker, whichever program repeats them.
    let install = if last_words.contains("cannot open shared object file") {
        "install that library: Mooncake's wheel needs, by Debian's names, libcurl4, libibverbs1, libnuma1 and librdmacm1; "
    } else {
        ""
    };
    format!("{install}the whole log is {}", log.display())
}

/// The last lines of a log, in one.
fn tail(log: &Path, from: u64) -> String {
    let text = read_from(log, from);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default();
    if last.is_empty() {
        "(none)".to_owned()
    } else {
        last.join(" | ")
    }
}

fn read_from(log: &Path, from: u64) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let from = usize::try_from(from).unwrap_or(usize::MAX).min(bytes.len());
    String::from_utf8_lossy(&bytes[from..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_told_by_its_package() {
        let log = Path::new("/state/master.log");
        let linker = "mooncake_master: error while loading shared libraries: libcurl.so.4: cannot open shared object file: \
                      No such file or directory";
        assert!(to_do(linker, log).contains("libcurl4"));
        assert_eq!(
            to_do("bind: Address already in use", log),
            "the whole log is /state/master.log"
        );
    }
}
