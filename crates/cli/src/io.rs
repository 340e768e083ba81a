//! What a command reads and writes besides servers: its output, its environment, and signs of life on a terminal.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock as _, Result, SystemClock, Timestamp};
use tensorhold_engine::Engine;

/// Where a command writes, and what these places are.
pub struct Io<'a> {
    /// Results.
    pub out: &'a mut (dyn Write + Send),
    /// Errors, notes and progress.
    pub err: &'a mut (dyn Write + Send),
    /// Whether a person sees `out` as it is written.
    pub out_is_terminal: bool,
    /// Whether a person sees `err` as it is written.
    pub err_is_terminal: bool,
}

impl fmt::Debug for Io<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io")
            .field("out_is_terminal", &self.out_is_terminal)
            .field("err_is_terminal", &self.err_is_terminal)
            .finish_non_exhaustive()
    }
}

/// Makes an engine from its settings (those of `MooncakeConfig`, as JSON), within a time.
pub type ConnectEngine = dyn Fn(&str, Duration) -> Result<Arc<dyn Engine>> + Send + Sync;

/// What a command knows of the process that it runs in.
#[derive(Clone)]
pub struct Host {
    /// The environment's variables.
    pub variables: BTreeMap<String, String>,
    /// The Python interpreter in whose environment Mooncake is, if it is known.
    pub python: Option<PathBuf>,
    /// How commands that free objects get an engine; none if this program has none.
    pub connect: Option<Arc<ConnectEngine>>,
    /// Shows the library's events on standard error from now on: for a command that runs on; none if they are shown
    /// already.
    pub show_events: Option<fn()>,
    /// The time, in milliseconds since 1970: for ages, which people compare with their own clocks.
    pub now_ms: fn() -> u64,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The variables may hold secrets.
        f.debug_struct("Host")
            .field("python", &self.python)
            .field("has_engine", &self.connect.is_some())
            .finish_non_exhaustive()
    }
}

impl Host {
    /// This process. Variables that are not text are left out.
    pub fn of_this_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self {
            variables: std::env::vars_os().filter_map(text).collect(),
            python: None,
            connect: None,
            show_events: None,
            now_ms: wall_clock_ms,
        }
    }

    /// A variable that is set and not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }
}

/// The wall clock, in milliseconds since 1970.
pub fn wall_clock_ms() -> u64 {
    SystemClock::new().wall_ms()
}

/// How long nothing is said: most commands end before.
const SILENT: Duration = Duration::from_secs(1);
const REDRAW: Duration = Duration::from_millis(250);

/// A line on a terminal that says what is waited for. Without a terminal nothing is written.
pub(crate) struct Progress<'a> {
    err: &'a mut (dyn Write + Send),
    terminal: bool,
    clock: SystemClock,
    begun: Timestamp,
    drawn: bool,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(err: &'a mut (dyn Write + Send), terminal: bool) -> Self {
        let clock = SystemClock::new();
        Self {
            begun: clock.now(),
            err,
            terminal,
            clock,
            drawn: false,
        }
    }

    /// Draws the line anew, once the command has taken long enough for it.
    pub(crate) fn show(&mut self, what: &str) {
        let since = self.clock.now().since(self.begun);
        if self.terminal && since >= SILENT {
            // Nobody is harmed by a lost sign of life.
            drop(write!(self.err, "\r\u{1b}[2K{what} ({} s)", since.as_secs()));
            drop(self.err.flush());
            self.drawn = true;
        }
    }

    /// A line that stays: something that is worth knowing, terminal or not.
    pub(crate) fn note(&mut self, line: &str) {
        self.clear();
        drop(writeln!(self.err, "{line}"));
    }

    /// A step that is done; only on a terminal.
    pub(crate) fn step(&mut self, line: &str) {
        if self.terminal {
            self.note(line);
        }
    }

    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            drop(write!(self.err, "\r\u{1b}[2K"));
            drop(self.err.flush());
        }
    }

    /// Waits, and says for what if it takes long.
    pub(crate) async fn wait<T>(&mut self, what: &str, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            match tokio::time::timeout(REDRAW, &mut work).await {
                Ok(done) => {
                    self.clear();
                    return done;
                }
                Err(_) => self.show(what),
            }
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}
