//! The `tensorhold` command as a program of its own. What it does is in the library.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use tensorhold_cli::{Host, Io};
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::prelude::*;

fn main() -> ExitCode {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let (out_is_terminal, err_is_terminal) = (out.is_terminal(), err.is_terminal());
    let mut io = Io {
        out: &mut out,
        err: &mut err,
        out_is_terminal,
        err_is_terminal,
    };
    let mut host = Host::of_this_process();
    host.show_events = Some(show_events);
    engine(&mut host);
    ExitCode::from(tensorhold_cli::run(std::env::args_os(), &mut io, &host))
}

/// Those of Tensorhold alone: a library below may log headers, and with them passwords.
fn show_events() {
    let ours = FilterFn::new(|event| event.target().starts_with("tensorhold"));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    tracing_subscriber::registry()
        .with(lines.with_filter(LevelFilter::INFO).with_filter(ours))
        .init();
}

#[cfg(feature = "embed")]
fn engine(host: &mut Host) {
    host.connect = Some(std::sync::Arc::new(tensorhold_cli::embedded::connect));
}

#[cfg(not(feature = "embed"))]
fn engine(_: &mut Host) {}
