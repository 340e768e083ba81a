//! How a child is bound to the life of our process, or freed from it.
//!
//! `Drop` is not enough: a test process that is SIGKILLed or aborts drops nothing. So a bound child asks the kernel to
//! kill it when its parent dies (`prctl(PR_SET_PDEATHSIG)`, through the program `setpriv`, so without unsafe code
//! here). Two traps come with that, and both are closed:
//!
//! * The kernel means the *thread* that forked, not the process: a child forked by a test's thread would die when that
//!   thread ends. Therefore one thread, which lives as long as the process, forks on behalf of all threads.
//! * The parent may die after the fork and before the request. Therefore a line of shell compares the parent's pid
//!   afterwards, and gives up if it changed.
//!
//! Each of these programs replaces itself by the next one (exec), so the child keeps its pid.

use std::ffi::OsString;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Context, Result};

/// How long a child may live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// It dies with the process that started it, however that process ends.
    Bound,
    /// It lives on, in its own session.
    Detached,
}

const EXEC_UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$1" ] || exit 1; shift; exec "$@""#;

/// The command line that runs `program` with the given lifetime.
pub(crate) fn command(program: OsString, args: Vec<OsString>, lifetime: Lifetime) -> Command {
    let mut command = match lifetime {
        Lifetime::Bound => {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--", "sh", "-c", EXEC_UNLESS_ORPHANED, "sh"]);
            command.arg(std::process::id().to_string());
            command
        }
        Lifetime::Detached => {
            let mut command = Command::new("setsid");
            command.arg("--");
            command
        }
    };
    command.arg(program).args(args);
    command
}

/// Starts a command from the thread that lives as long as the process.
pub(crate) fn spawn(command: Command) -> Result<Child> {
    let (answer, child) = channel();
    let name = command.get_program().to_string_lossy().into_owned();
    SPAWNER
        .send(Job { command, answer })
        .ok()
        .context("the spawner thread has ended")?;
    child
        .recv()
        .context("the spawner thread has ended")?
        .with_context(|| format!("cannot start `{name}` (of the Debian package util-linux): run .ci/setup"))
}

struct Job {
    command: Command,
    answer: Sender<std::io::Result<Child>>,
}

static SPAWNER: LazyLock<Sender<Job>> = LazyLock::new(|| {
    let (jobs, inbox) = channel();
    // If the thread does not start, the inbox is dropped with it and each spawn reports that.
    let _detached = thread::Builder::new()
        .name("tensorhold-spawner".into())
        .spawn(move || serve(&inbox));
    jobs
});

fn serve(inbox: &Receiver<Job>) {
    for mut job in inbox {
        let outcome = job.command.spawn();
        if let Err(unclaimed) = job.answer.send(outcome)
            && let Ok(mut child) = unclaimed.0
        {
            // No caller waits for this child any more: it must not keep running.
            child.kill().ok();
            child.wait().ok();
        }
    }
}
