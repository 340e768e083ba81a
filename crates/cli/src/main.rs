//! The `holdfast` command as a program of its own. What it does is in the library.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use holdfast_cli::{Host, Io};

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
    engine(&mut host);
    ExitCode::from(holdfast_cli::run(std::env::args_os(), &mut io, &host))
}

#[cfg(feature = "embed")]
fn engine(host: &mut Host) {
    host.connect = Some(std::sync::Arc::new(holdfast_cli::embedded::connect));
}

#[cfg(not(feature = "embed"))]
fn engine(_: &mut Host) {}
