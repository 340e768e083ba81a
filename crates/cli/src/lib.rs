//! The `tensorhold` command, as a library: the Rust binary and the console script of the Python package both call
//! [`run`].
//!
//! ```text
//! arguments ─▶ settings ─▶ command ─▶ Answer { value for programs, text for people, exit code }
//!                                 └─▶ Failure { what, why, what to do, exit code }
//! ```
//!
//! # What must hold
//! - Results go to standard output, everything else to standard error. With `--json` both are JSON.
//! - Nothing that comes from the index, from a server or from a log reaches a terminal unescaped (module `text`).
//! - Every command has a deadline (`--timeout`), and every wait longer than a second shows what is waited for, on a
//!   terminal.
//! - Commands that only look open neither a session nor an engine. A record that cannot be decoded goes into
//!   quarantine when it is met, also by a command that looks.
//! - Exit codes are those of the module [`failure`].
//!
//! | module | its job |
//! |---|---|
//! | `args`, `settings` | the command line; which store, and where it is |
//! | `page` | the reference of the command line, for the book |
//! | `commands` | one module for each command that asks the index or the engine |
//! | `doctor` | probes, side by side, each with a deadline |
//! | `local` | `up` and `down`: a cluster on this machine |
//! | `reach`, `admin`, `http` | the index over etcd, the master's admin port |
//! | `output`, `text`, [`failure`] | tables and JSON; bytes, ages and safe texts; errors and exit codes |

mod admin;
mod args;
mod commands;
mod doctor;
#[cfg(feature = "embed")]
pub mod embedded;
pub mod failure;
mod holders;
mod http;
mod io;
mod local;
mod output;
mod page;
mod reach;
mod settings;
mod text;

use std::ffi::OsString;
use std::io::{ErrorKind, Write};

use clap::{ColorChoice, CommandFactory as _, FromArgMatches as _};

pub use crate::io::{ConnectEngine, Host, Io, wall_clock_ms};
pub use crate::page::page;
pub use crate::settings::settings_beside;

use crate::args::{Cli, Command};
use crate::failure::{DEFECT, DONE, Failure, USAGE};
use crate::io::Progress;
use crate::output::{Answer, Output};

/// Runs the command. The arguments begin with the program's name. Returns the exit code.
pub fn run(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>, io: &mut Io<'_>, host: &Host) -> u8 {
    let plain = host.variable("NO_COLOR").is_some();
    let output = Output {
        width: None,
        colour: io.out_is_terminal && !plain,
        terminal: io.out_is_terminal,
    };
    let choice = if output.colour {
        ColorChoice::Always
    } else {
        ColorChoice::Never
    };
    let parsed = Cli::command().color(choice).try_get_matches_from(arguments);
    let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            let text = error.render();
            let text = if output.colour {
                text.ansi().to_string()
            } else {
                text.to_string()
            };
            return match error.use_stderr() {
                true => told(io.err.write_all(text.as_bytes()), USAGE),
                false => told(io.out.write_all(text.as_bytes()), DONE),
            };
        }
    };
    let json = cli.place.json;
    let answered = {
        let mut progress = Progress::new(io.err, io.err_is_terminal);
        dispatch(cli, host, output, io.out, &mut progress)
    };
    match answered {
        Ok(Answer { value, text, code }) => {
            let text = if json {
                format!("{}\n", text::json(&value))
            } else {
                text
            };
            told(io.out.write_all(text.as_bytes()).and_then(|()| io.out.flush()), code)
        }
        Err(failure) => {
            let text = match json {
                true => format!("{}\n", text::json(&failure.json())),
                false => failure.text(io.err_is_terminal && !plain),
            };
            told(io.err.write_all(text.as_bytes()), failure.code)
        }
    }
}

/// A reader that has left (`tensorhold ls | head`) is no failure.
fn told(written: std::io::Result<()>, code: u8) -> u8 {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => DEFECT,
        _ => code,
    }
}

fn dispatch(
    cli: Cli,
    host: &Host,
    output: Output,
    out: &mut (dyn Write + Send),
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let place = &cli.place;
    match cli.command {
        Command::Up(options) => local::up(&options, place, host, output, progress),
        Command::Down => local::down(place, host, progress),
        Command::Env => local::env(place, host),
        Command::Settings => commands::settings::run(place, host, output),
        Command::Completions { shell } => Ok(commands::help::completions(shell)),
        Command::Man { folder } => commands::help::manual(&folder),
        Command::Token(wanted) => commands::steward::token(wanted, place, host),
        command => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .thread_name("tensorhold")
                .enable_all()
                .build()
                .map_err(|error| {
                    let what = "the command's threads did not start";
                    Failure::new(
                        tensorhold_core::ErrorKind::Internal,
                        what,
                        error.to_string(),
                        "is the machine out of threads?",
                    )
                })?;
            let answer = runtime.block_on(commands::run(command, place, host, output, out, progress));
            // A probe that outlived its deadline must not keep the command.
            runtime.shutdown_background();
            answer
        }
    }
}
