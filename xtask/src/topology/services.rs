//! The services of the compose file, as processes that end with this one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use tensorhold_testkit::{Process, ProcessIdentity, ProcessSpec, poll};

use super::compose::{Compose, Condition, Place, Translated};

/// How long a service may take until it is healthy.
const HEALTHY: Duration = Duration::from_secs(60);
/// How long a command beside the services may take.
const COMMAND: &str = "60";
const EVERY: Duration = Duration::from_millis(200);
/// The services that need a program that is not here.
const LEFT_OUT: [&str; 1] = ["grafana"];
/// How much of a log is shown after a failure.
const TAIL_LINES: usize = 25;

/// The services. Dropping it ends all of them, then removes their files.
pub(super) struct Services {
    running: BTreeMap<String, Process>,
    started: Vec<ProcessIdentity>,
    compose: Compose,
    translated: BTreeMap<String, Translated>,
    place: Place,
    path: String,
    python_path: PathBuf,
    _scratch: TempDir,
}

impl Services {
    /// Reads the file, makes certificates and folders as an operator does, and starts nothing yet.
    pub(super) fn prepare(repository: &Path) -> Result<Self> {
        let folder = repository.join("deploy/compose");
        let venv = repository.join(".venv/bin");
        let mut compose = Compose::read(&folder.join("compose.yaml"), &venv.join("python"))?;
        for name in LEFT_OUT {
            compose.services.remove(name);
        }
        let scratch = tempfile::Builder::new().prefix("tensorhold-topology-").tempdir()?;
        let place = Place {
            compose: folder,
            scratch: scratch.path().to_owned(),
            addresses: addresses(compose.services.keys()),
        };
        let prepared = Command::new(place.compose.join("prepare"))
            .env("FOLDER", scratch.path())
            .env("NAMES", names(&place.addresses))
            .output()
            .context("deploy/compose/prepare could not be started")?;
        let errors = String::from_utf8_lossy(&prepared.stderr);
        ensure!(prepared.status.success(), "deploy/compose/prepare failed: {errors}");

        let services = compose.services.iter();
        let translated = services
            .map(|(name, service)| Ok((name.clone(), place.translate(name, service)?)))
            .collect::<Result<_>>()?;

        let bin = scratch.path().join("bin");
        std::fs::create_dir(&bin)?;
        let python = venv.join("python");
        for (name, arguments) in [("python", ""), ("tensorhold", "-m tensorhold ")] {
            let script = format!("#!/bin/sh\nexec '{}' {arguments}\"$@\"\n", python.display());
            std::fs::write(bin.join(name), script)?;
            std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o700))?;
        }
        let programs = [
            bin,
            repository.join(".etcd/bin"),
            repository.join(".prometheus/bin"),
            venv,
        ];
        let programs = programs.map(|folder| folder.display().to_string()).join(":");
        let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
        Ok(Self {
            running: BTreeMap::new(),
            started: Vec::new(),
            compose,
            translated,
            place,
            path,
            python_path: repository.join("python"),
            _scratch: scratch,
        })
    }

    /// Starts everything that belongs to no profile, each service when those that it depends on are as it wants them.
    pub(super) fn up(&mut self) -> Result<()> {
        let services = self.compose.services.iter();
        let mut waiting: BTreeSet<String> = services
            .filter(|(_, service)| service.profiles.is_empty())
            .map(|(name, _)| name.clone())
            .collect();
        let mut done = BTreeSet::new();
        while !waiting.is_empty() {
            let next: Vec<String> = waiting
                .iter()
                .filter(|name| {
                    self.compose.services[*name]
                        .depends_on
                        .keys()
                        .all(|on| done.contains(on))
                })
                .cloned()
                .collect();
            ensure!(!next.is_empty(), "these services wait for each other: {waiting:?}");
            for name in &next {
                self.start(name)?;
            }
            for name in next {
                match self.wanted_of(&name) {
                    Condition::ServiceHealthy => self.wait_healthy(&name)?,
                    Condition::ServiceCompletedSuccessfully => self.wait_end(&name, HEALTHY).map(drop)?,
                }
                waiting.remove(&name);
                done.insert(name);
            }
        }
        Ok(())
    }

    /// How the services that depend on this one want it to be.
    fn wanted_of(&self, name: &str) -> Condition {
        let mut wanted = self
            .compose
            .services
            .values()
            .filter_map(|service| service.depends_on.get(name));
        wanted
            .next()
            .map_or(Condition::ServiceHealthy, |dependency| dependency.condition)
    }

    /// Starts a service; or starts it again, as a container runtime does.
    pub(super) fn start(&mut self, name: &str) -> Result<()> {
        let translated = self.translated(name)?;
        let (program, arguments) = translated.command.split_first().context("a service has a command")?;
        let log = self.place.scratch.join(format!("{name}.log"));
        let mut spec = ProcessSpec::new(name, program, log).args(arguments);
        for (key, value) in self.environment(translated) {
            spec = spec.env(key, value);
        }
        let process = Process::spawn(&spec)?;
        self.started.push(process.identity().clone());
        self.running.insert(name.to_owned(), process);
        Ok(())
    }

    pub(super) fn wait_healthy(&self, name: &str) -> Result<()> {
        let process = self.process(name)?;
        let check = &self.translated(name)?.healthcheck;
        ensure!(!check.is_empty(), "{name} has no health check");
        let healthy = poll(HEALTHY, EVERY, || match self.run(name, check) {
            _ if !process.is_running() => Some(false),
            Ok(output) => output.status.success().then_some(true),
            Err(_) => None,
        });
        match healthy {
            Some(true) => Ok(()),
            Some(false) => bail!("{name} ended before it was healthy"),
            None => bail!("{name} is not healthy after {HEALTHY:?}"),
        }
    }

    /// Waits until a service has ended well, and returns what it printed.
    pub(super) fn wait_end(&self, name: &str, within: Duration) -> Result<String> {
        let process = self.process(name)?;
        let status = process.wait(within)?;
        ensure!(status.success(), "{name} ended with {status}");
        Ok(process.output())
    }

    /// Runs a command in the place of a service, with its environment and its files.
    pub(super) fn run(&self, name: &str, command: &[String]) -> Result<Output> {
        let translated = self.translated(name)?;
        Command::new("timeout")
            .arg(COMMAND)
            .args(command)
            .envs(self.environment(translated))
            .output()
            .context("timeout (coreutils) could not be started")
    }

    /// Runs the command that the file has for a service.
    pub(super) fn run_as_written(&self, name: &str) -> Result<Output> {
        self.run(name, &self.translated(name)?.command)
    }

    /// SIGKILL.
    pub(super) fn kill(&self, name: &str) -> Result<()> {
        self.process(name)?.kill()
    }

    /// Starts a killed service again, and waits until it is healthy.
    pub(super) fn restart(&mut self, name: &str) -> Result<()> {
        self.start(name)?;
        self.wait_healthy(name)
    }

    pub(super) fn output(&self, name: &str) -> Result<String> {
        Ok(self.process(name)?.output())
    }

    pub(super) fn is_running(&self, name: &str) -> bool {
        self.running.get(name).is_some_and(Process::is_running)
    }

    pub(super) fn address(&self, name: &str) -> Result<Ipv4Addr> {
        let address = self.place.addresses.get(name).copied();
        address.with_context(|| format!("there is no service {name}"))
    }

    /// The service with this address.
    pub(super) fn at(&self, address: &str) -> Option<&str> {
        let mut all = self.place.addresses.iter();
        all.find(|(_, its)| its.to_string() == address)
            .map(|(name, _)| name.as_str())
    }

    /// The last lines of every log.
    pub(super) fn logs(&self) -> String {
        let tail = |(name, process): (&String, &Process)| {
            let output = process.output();
            let lines: Vec<&str> = output.lines().collect();
            let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
            format!("===== {name}\n{}\n", last.join("\n"))
        };
        self.running.iter().map(tail).collect()
    }

    /// Ends all services. Returns how many of their processes still exist.
    pub(super) fn end(self) -> usize {
        let started = self.started.clone();
        drop(self);
        started.iter().filter(|process| process.is_alive()).count()
    }

    fn process(&self, name: &str) -> Result<&Process> {
        self.running
            .get(name)
            .with_context(|| format!("{name} was not started"))
    }

    fn translated(&self, name: &str) -> Result<&Translated> {
        self.translated
            .get(name)
            .with_context(|| format!("there is no service {name}"))
    }

    fn environment(&self, translated: &Translated) -> BTreeMap<String, String> {
        let mut all = translated.environment.clone();
        all.insert("PATH".to_owned(), self.path.clone());
        all.insert("PYTHONPATH".to_owned(), self.python_path.display().to_string());
        // Everything is on this machine.
        all.extend(["no_proxy", "NO_PROXY"].map(|name| (name.to_owned(), "*".to_owned())));
        all
    }
}

/// An address for each service. The middle is that of this process, so two topologies do not meet.
fn addresses<'a>(services: impl Iterator<Item = &'a String>) -> BTreeMap<String, Ipv4Addr> {
    let [.., high, low] = std::process::id().to_be_bytes();
    // 127.0.x.x is left to others, and so are the first and the last of each net.
    let net = |last| Ipv4Addr::new(127, high % 250 + 1, low, last);
    services.cloned().zip((10..250).map(net)).collect()
}

/// The addresses, for the certificates of the servers. Connections on loopback come from 127.0.0.1.
fn names(addresses: &BTreeMap<String, Ipv4Addr>) -> String {
    let all = addresses.values().map(|address| format!("IP:{address}"));
    all.chain(["IP:127.0.0.1".to_owned()]).collect::<Vec<_>>().join(",")
}
