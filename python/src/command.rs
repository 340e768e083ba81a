//! The `tensorhold` command inside this module, so that it has the engine that the package has.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use tensorhold_cli::{Host, Io};
use tensorhold_core::Result;
use tensorhold_engine::Engine;
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};

use crate::errors::OrRaise as _;
use crate::opening::read_json;
use crate::process;

/// Runs the command and returns its exit code. The arguments begin with the program's name; `python` is the interpreter.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>, python: PathBuf) -> u8 {
    py.detach(move || {
        let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
        let (out_is_terminal, err_is_terminal) = (out.is_terminal(), err.is_terminal());
        let mut io = Io {
            out: &mut out,
            err: &mut err,
            out_is_terminal,
            err_is_terminal,
        };
        let host = Host {
            python: Some(python),
            connect: Some(Arc::new(connect)),
            show_events: Some(show_events),
            ..Host::of_this_process()
        };
        tensorhold_cli::run(arguments, &mut io, &host)
    })
}

/// The settings, as JSON, for a caller that has values of its own for those that are `named`. The interpreter's lock is
/// kept, so that no Python thread changes a variable meanwhile.
#[pyfunction]
pub(crate) fn read_settings(py: Python<'_>, named: Vec<String>, up: bool) -> PyResult<String> {
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    let settings = tensorhold_cli::settings_beside(&named, up, &Host::of_this_process()).or_raise(py)?;
    Ok(serde_json::Value::Object(settings.section("")).to_string())
}

/// Events go to Python's `logging`, which shows them.
fn show_events() {
    let shown = Python::attach(|py| py.import("tensorhold._command")?.call_method0("show_events").map(drop));
    if let Err(error) = shown {
        tracing::warn!(%error, "events are not shown");
    }
}

fn connect(settings: &str, within: Duration) -> Result<Arc<dyn Engine>> {
    let config: MooncakeConfig = read_json("command.engine", settings)?;
    config.validate()?;
    process::claim_engine()?;
    let config = MooncakeConfig {
        connect_within: within,
        ..config
    };
    Ok(Arc::new(MooncakeEngine::connect(config)?))
}
