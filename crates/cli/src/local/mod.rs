//! `tensorhold up` and `tensorhold down`: an etcd, a master and a holder on this machine, for development.
//!
//! ```text
//!            nothing recorded                    all processes run
//!   up ──▶ start etcd, master, holder ──▶ ready ◀──────────────── up: "is up already"
//!                                           │ one process dies
//!                                           ▼
//!                                        broken ──── up: starts it again, with the same ports and data
//!   down: ends the recorded processes, removes data and record
//! ```
//!
//! - Everything listens on loopback only, except for the holder's two transfer ports: Mooncake's library opens them on
//!   every address, whatever it is told. `up` says so.
//! - A process is known by its pid, its start time and the boot: a later process with the same pid is left alone.
//! - When the master has died, what the cluster held is gone (that is how the engine is); the holder is started again
//!   with it, so that it registers at once. When etcd has died, the index is as it was: its data is in the folder.
//! - An `up` that fails ends what it has started. With `--timeout` it fails when that is over; a `down` kills then what has not
//!   ended by itself.
//! - The ports are chosen and tried before the programs get them. Another program may take one in between: then the
//!   start fails, and other ports are tried, three times at most.

pub(crate) mod install;
mod ports;
mod process;
pub(crate) mod state;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tensorhold_core::ErrorKind;

use self::install::{Environment, Etcd};
use self::ports::Ports;
use self::process::{Limit, Plan, Ready};
use self::state::{Endpoints, Recorded, State};
use crate::args::{Up, Where};
use crate::failure::Failure;
use crate::io::{Host, Progress};
use crate::output::{Answer, Output, draw, object, table};
use crate::text::bytes;

const HOLDER: &str = include_str!("holder.py");
const READY_LINE: &str = "tensorhold holder ready";
const P2P: &str = "P2PHANDSHAKE";
const TRIES: usize = 3;
/// In the order in which they need each other.
const NAMES: [&str; 3] = ["etcd", "master", "holder"];

/// Starts what does not run.
pub(crate) fn up(
    options: &Up,
    place: &Where,
    host: &Host,
    output: Output,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let folder = state::folder(place.dir.as_deref(), host)?;
    let _only_one = state::lock(&folder)?;
    let limit = Limit::new(place.timeout);
    let (state, happened) = match State::load(&folder)? {
        Some(state) if state.ready => repair(state, &limit, progress)?,
        unfinished => {
            if let Some(state) = unfinished {
                progress.note("an earlier `tensorhold up` did not finish: ending what it left");
                process::end(&state.processes, &limit, progress)?;
                state.remove()?;
            }
            (start(&folder, options, host, &limit, progress)?, "started")
        }
    };
    Ok(Answer::new(
        up_json(&state, happened),
        up_text(&state, happened, output),
    ))
}

/// What is installed.
struct Programs {
    python: PathBuf,
    master: PathBuf,
    etcd: Etcd,
}

/// Starts a whole cluster. What was started is ended again if it fails.
fn start(
    folder: &Path,
    options: &Up,
    host: &Host,
    limit: &Limit,
    progress: &mut Progress<'_>,
) -> Result<State, Failure> {
    let environment = Environment::find(options.python.as_deref(), host)?;
    let programs = Programs {
        master: environment.master()?,
        etcd: environment.etcd(host)?,
        python: environment.python,
    };
    if let Some(warning) = programs.etcd.warning() {
        progress.note(&warning);
    }
    let mut tried = 0;
    loop {
        tried += 1;
        let mut ports = Ports::default();
        let mut state = State::new(folder, Endpoints::default());
        let begun = begin(&mut state, &programs, options, &mut ports, limit, progress);
        let Err(failure) = begun else { return Ok(state) };
        process::end(&state.processes, &Limit::new(None), progress)?;
        if tried < TRIES && ports.one_is_taken() {
            progress.note("another program took a port in the meantime: trying others");
            continue;
        }
        // The logs stay, for the reason is in them; the next `up` or `down` removes them.
        return Err(failure);
    }
}

fn begin(
    state: &mut State,
    programs: &Programs,
    options: &Up,
    ports: &mut Ports,
    limit: &Limit,
    progress: &mut Progress<'_>,
) -> Result<(), Failure> {
    let run = state.run_folder();
    if run.exists() {
        if !state.is_recorded() {
            return Err(Failure::new(
                ErrorKind::Conflict,
                format!("{} is there, and no cluster is recorded", run.display()),
                "it may be another program's, and `up` would remove it",
                "name another folder with --dir, or remove this one",
            ));
        }
        fs::remove_dir_all(&run).map_err(|error| cannot_prepare(&run, &error))?;
    }
    // Recorded before it is made, so that an `up` that dies in between can be made up for.
    state.save()?;
    state::make_folder(&run)?;
    let [client, peer, rpc, admin] = [ports.take()?, ports.take()?, ports.take()?, ports.take()?];
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    state.endpoints = Endpoints {
        etcd: url(client),
        master: format!("127.0.0.1:{rpc}"),
        admin: url(admin),
        metadata: P2P.to_owned(),
    };
    state.save()?;

    let arguments = vec![
        "--name=tensorhold".to_owned(),
        format!("--data-dir={}", run.join("etcd-data").display()),
        format!("--listen-client-urls={}", url(client)),
        format!("--advertise-client-urls={}", url(client)),
        format!("--listen-peer-urls={}", url(peer)),
        format!("--initial-advertise-peer-urls={}", url(peer)),
        format!("--initial-cluster=tensorhold={}", url(peer)),
        "--auto-compaction-mode=revision".to_owned(),
        "--auto-compaction-retention=1000".to_owned(),
        format!("--quota-backend-bytes={}", 2_u64 << 30),
    ];
    let etcd = executable(&programs.etcd.program, &run)?;
    launch(state, "etcd", &etcd, arguments, limit, progress)?;

    let arguments = vec![
        "--rpc_address=127.0.0.1".to_owned(),
        format!("--rpc_port={rpc}"),
        "--metrics_host=127.0.0.1".to_owned(),
        format!("--metrics_port={admin}"),
        "--logtostderr".to_owned(),
    ];
    let master = executable(&programs.master, &run)?;
    launch(state, "master", &master, arguments, limit, progress)?;

    let script = run.join("holder.py");
    fs::write(&script, HOLDER).map_err(|error| cannot_prepare(&script, &error))?;
    let settings = object!("master": state.endpoints.master, "metadata": P2P, "segment_bytes": options.memory, "ready_line": READY_LINE,);
    let arguments = vec!["-u".to_owned(), script.display().to_string(), settings.to_string()];
    launch(state, "holder", &programs.python, arguments, limit, progress)?;
    state.ready = true;
    state.save()
}

/// Starts a process, records it, and waits until it is ready.
fn launch(
    state: &mut State,
    name: &'static str,
    program: &Path,
    arguments: Vec<String>,
    limit: &Limit,
    progress: &mut Progress<'_>,
) -> Result<(), Failure> {
    let variables = [("MC_TCP_BIND_ADDRESS", "127.0.0.1"), ("no_proxy", "127.0.0.1")];
    let recorded = Recorded {
        name: name.to_owned(),
        identity: tensorhold_local::ProcessIdentity {
            pid: 0,
            start_ticks: 0,
            boot: String::new(),
        },
        program: program.to_owned(),
        arguments,
        variables: variables
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        log: state.run_folder().join(format!("{name}.log")),
    };
    relaunch(state, name, recorded, limit, progress)
}

fn relaunch(
    state: &mut State,
    name: &'static str,
    mut recorded: Recorded,
    limit: &Limit,
    progress: &mut Progress<'_>,
) -> Result<(), Failure> {
    let log_begins = fs::metadata(&recorded.log).map_or(0, |data| data.len());
    let (mut child, identity) = process::spawn(&recorded, &state.run_folder())?;
    recorded.identity = identity;
    let recorded_now = state.record(recorded.clone());
    if recorded_now.is_err() {
        // Nobody would find it again.
        drop(child.kill());
        drop(child.wait());
        recorded_now?;
    }
    let plan = plan(name, &state.endpoints);
    process::wait_ready(&plan, &recorded, log_begins, Some(&mut child), limit, progress)?;
    progress.step(&format!("{name} is ready (pid {})", recorded.identity.pid));
    Ok(())
}

fn plan(name: &'static str, endpoints: &Endpoints) -> Plan {
    let ready = match name {
        "etcd" => Ready::Answer {
            url: format!("{}/health", endpoints.etcd),
            part: r#""health":"true""#,
        },
        "master" => Ready::Answer {
            url: format!("{}/health", endpoints.admin),
            part: r#""service_ready":true"#,
        },
        _ => Ready::Line(READY_LINE),
    };
    Plan { name, ready }
}

/// Starts again what has ended of a cluster that was up.
fn repair(mut state: State, limit: &Limit, progress: &mut Progress<'_>) -> Result<(State, &'static str), Failure> {
    let runs = |state: &State, name: &str| state.process(name).is_some_and(|process| process.identity.is_alive());
    let mut dead: BTreeSet<&'static str> = NAMES.into_iter().filter(|name| !runs(&state, name)).collect();
    if dead.is_empty() {
        return Ok((state, "already_up"));
    }
    let names: Vec<&str> = NAMES.into_iter().filter(|name| dead.contains(name)).collect();
    progress.note(&format!("{} had ended: starting again", names.join(" and ")));
    if dead.contains("master") {
        progress.note("what the master knew is gone with it: samples from before are lost");
        if let Some(holder) = state.process("holder").filter(|holder| holder.identity.is_alive()) {
            process::end([holder], limit, progress)?;
            dead.insert("holder");
        }
    } else if dead.contains("holder") {
        progress.note("what the holder held is gone with it: samples from before are lost");
    }
    for name in NAMES.into_iter().filter(|name| dead.contains(name)) {
        let recorded = state.process(name).cloned().ok_or_else(|| {
            Failure::new(
                ErrorKind::Corrupt,
                format!("the record of `tensorhold up` names no {name}"),
                "it is not complete",
                "`tensorhold down`, then `tensorhold up`",
            )
        })?;
        ports::wait_until_free(&recorded);
        relaunch(&mut state, name, recorded, limit, progress).map_err(|failure| {
            failure.advise("`tensorhold down`, then `tensorhold up`, begins anew; the logs are in its folder")
        })?;
    }
    Ok((state, "repaired"))
}

/// Ends what is recorded.
pub(crate) fn down(place: &Where, host: &Host, progress: &mut Progress<'_>) -> Result<Answer, Failure> {
    let folder = state::folder(place.dir.as_deref(), host)?;
    if !folder.exists() {
        return Ok(nothing_is_up(&folder));
    }
    let _only_one = state::lock(&folder)?;
    let Some(state) = State::load(&folder)? else {
        return Ok(nothing_is_up(&folder));
    };
    let limit = Limit::new(place.timeout);
    let ended = process::end(state.processes.iter().rev(), &limit, progress)?;
    state.remove()?;
    let text = match ended.as_slice() {
        [] => "nothing ran any more; the record and the data are removed\n".to_owned(),
        names => format!("ended {}; the data is removed\n", names.join(", ")),
    };
    Ok(Answer::new(
        object!("state": "down", "ended": ended, "dir": folder),
        text,
    ))
}

fn nothing_is_up(folder: &Path) -> Answer {
    let text = format!("nothing is up in {}\n", folder.display());
    Answer::new(
        object!("state": "down", "ended": Vec::<String>::new(), "dir": folder),
        text,
    )
}

/// The variables by which programs find the cluster, for a shell.
pub(crate) fn env(place: &Where, host: &Host) -> Result<Answer, Failure> {
    let folder = state::folder(place.dir.as_deref(), host)?;
    let state = State::load(&folder)?.filter(|state| state.ready).ok_or_else(|| {
        let what = format!("nothing is up in {}", folder.display());
        Failure::not_found(
            what,
            "there is no record of `tensorhold up`",
            "start it: `tensorhold up`",
        )
    })?;
    let variables = variables(&state);
    let text: String = variables
        .iter()
        .map(|(name, value)| format!("export {name}={}\n", quoted(value)))
        .collect();
    let value: serde_json::Map<String, Value> = variables
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Value::String(value)))
        .collect();
    Ok(Answer::new(Value::Object(value), text))
}

/// A text as one word of a shell, which reads it as it is.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The same, for people to read: quoted only if it must be.
fn argument(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._+-".contains(&byte);
    if text.bytes().all(is_plain) {
        return text.to_owned();
    }
    quoted(text)
}

fn variables(state: &State) -> Vec<(&'static str, String)> {
    vec![
        ("TENSORHOLD_ETCD", state.endpoints.etcd.clone()),
        ("TENSORHOLD_MASTER", state.endpoints.master.clone()),
        ("TENSORHOLD_ADMIN", state.endpoints.admin.clone()),
        ("TENSORHOLD_METADATA", state.endpoints.metadata.clone()),
        ("MC_TCP_BIND_ADDRESS", "127.0.0.1".to_owned()),
    ]
}

fn up_json(state: &State, happened: &str) -> Value {
    let processes: Vec<Value> = state
        .processes
        .iter()
        .map(|process| {
            object!("name": process.name, "pid": process.identity.pid, "running": process.identity.is_alive(), "log": process.log)
        })
        .collect();
    object!("state": happened, "dir": state.folder(), "endpoints": state.endpoints, "processes": processes)
}

fn up_text(state: &State, happened: &str, output: Output) -> String {
    let first = match happened {
        "already_up" => "It is up already.",
        "repaired" => "It is up again.",
        _ => "It is up, on this machine only and for development only.",
    };
    let mut rows = table(output, &["process", "pid", "at", "log"]);
    for name in NAMES {
        if let Some(process) = state.process(name) {
            let at = match name {
                "etcd" => state.endpoints.etcd.clone(),
                "master" => format!("{}, {}", state.endpoints.master, state.endpoints.admin),
                _ => memory_of(process),
            };
            rows.add_row([
                name.to_owned(),
                process.identity.pid.to_string(),
                at,
                process.log.display().to_string(),
            ]);
        }
    }
    let dir = match std::env::var_os("HOME").map(PathBuf::from) {
        Some(home) if state.folder() == home.join(".local/state/tensorhold") => String::new(),
        _ => format!(" --dir {}", argument(&state.folder().display().to_string())),
    };
    format!(
        "{first}\nMooncake opens the holder's transfer ports on every address of this machine: use it on networks that you \
         trust.\n\n{}\nPrograms find it by variables:    eval \"$(tensorhold env{dir})\"\nThis command finds it by \
         itself:  tensorhold status{dir}\nIts end, with all data:           tensorhold down{dir}\n",
        draw(&rows)
    )
}

fn memory_of(holder: &Recorded) -> String {
    let settings = holder
        .arguments
        .last()
        .and_then(|text| serde_json::from_str::<Value>(text).ok());
    let lent = settings.and_then(|settings| settings["segment_bytes"].as_u64());
    lent.map(|lent| format!("lends {}", bytes(lent))).unwrap_or_default()
}

/// A program that may be executed: some wheels are unpacked without that permission, and a copy gets it.
fn executable(program: &Path, run: &Path) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    if install::is_executable(program) {
        return Ok(program.to_owned());
    }
    let copy = run.join(program.file_name().unwrap_or_default());
    fs::copy(program, &copy).map_err(|error| cannot_prepare(&copy, &error))?;
    let allowed = fs::Permissions::from_mode(0o700);
    fs::set_permissions(&copy, allowed).map_err(|error| cannot_prepare(&copy, &error))?;
    Ok(copy)
}

fn cannot_prepare(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(
        ErrorKind::Denied,
        format!("cannot prepare {}", path.display()),
        error.to_string(),
        "check the folder's permissions and its room, or name another with --dir",
    )
}
