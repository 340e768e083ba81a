//! `cargo xtask topology`: the services of `deploy/compose/compose.yaml` on this machine, without containers, and a story in
//! which three of them die.
//!
//! ```text
//! prepare ─▶ up: etcd ×3 (TLS, roles), Mooncake's etcd ×3, masters ×2, holders ×2, stewards ×2, Prometheus
//!   ─▶ a producer and a consumer of the tenant a begin; the tenant b asks for the store of a, and is refused
//!   ─▶ the etcd node that leads, the master that leads, and the steward in office are killed, one after the other:
//!      each time the example goes on without it, and then it is started again
//!   ─▶ the example ends: every sample was used, every byte compared
//!   ─▶ nothing is left: no record, no object, no process
//! ```
//!
//! An example goes on when the consumer has used more samples since the death than there could have been at that time
//! (`AT_A_TIME` of `examples/pipeline.py`): so samples were put, taken and acknowledged after it.
//!
//! Mooncake answers a put before the master that stands by has heard of it, so samples may be lost with the leading one. Then the
//! producer is told, and makes them again; `lost` counts them.

mod compose;
mod services;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use tensorhold_core::{Clock as _, SystemClock, Timestamp};
use tensorhold_testkit::poll;

use services::Services;

/// The store of the example, and the tenant that it belongs to.
const STORE: &str = "a";
/// More than there are at a time.
const GOES_ON: usize = 40;
const EVERY: Duration = Duration::from_millis(100);
/// How long it may take until the example goes on, or another takes over.
const RECOVERS: Duration = Duration::from_secs(60);
/// How long the example may take from the last death on.
const ENDS: Duration = Duration::from_secs(120);

#[derive(Args)]
pub(crate) struct Topology {
    /// Only the figures, as one line of JSON
    #[arg(long)]
    json: bool,
    /// Use the compiled module that is in python/tensorhold, whatever it was built from
    #[arg(long)]
    no_build: bool,
}

/// What is printed last.
#[derive(Debug, Default, Serialize)]
struct Report {
    up_s: f64,
    example_s: f64,
    /// The tenant b could neither list nor end the store of a, and a could list it.
    tenant_refused: bool,
    etcd_killed_ok: bool,
    master_killed_ok: bool,
    steward_killed_ok: bool,
    /// From a death until the example went on, or until another steward was in office.
    etcd_gap_s: f64,
    master_gap_s: f64,
    steward_gap_s: f64,
    samples: u64,
    /// Samples that were lost with a server and made again.
    lost: u64,
    wrong_bytes: u64,
    /// Samples and objects that are left after the example, and processes after the end.
    left: u64,
}

pub(crate) fn run(options: &Topology) -> Result<()> {
    if !options.no_build {
        crate::features::build_package()?;
    }
    let mut services = Services::prepare(&crate::repository().canonicalize()?)?;
    let mut story = Story {
        clock: SystemClock::new(),
        report: Report::default(),
        quiet: options.json,
    };
    let told = story.tell(&mut services);
    if told.is_err() {
        eprintln!("{}", services.logs());
    }
    story.report.left += u64::try_from(services.end())?;
    println!("{}", serde_json::to_string(&story.report)?);
    told?;
    let report = story.report;
    ensure!(report.tenant_refused, "a tenant reached the store of another");
    ensure!(
        report.wrong_bytes == 0 && report.left == 0,
        "wrong bytes, or something is left"
    );
    Ok(())
}

struct Story {
    clock: SystemClock,
    report: Report,
    quiet: bool,
}

impl Story {
    fn tell(&mut self, services: &mut Services) -> Result<()> {
        let begun = self.clock.now();
        services.up()?;
        self.report.up_s = self.say(begun, "everything is up and healthy");

        let begun = self.clock.now();
        services.start("producer")?;
        services.start("consumer")?;
        self.example_reaches(services, GOES_ON)?;
        self.report.tenant_refused = refuses_others(services)?;
        self.say(begun, "the example runs, and another tenant was refused");

        let node = etcd_leader(services)?;
        self.report.etcd_gap_s = self.survives(services, &node, |_| Ok(true))?;
        self.report.etcd_killed_ok = true;

        let master = leading_master(services).context("no master leads")?;
        let other_leads = |services: &Services| Ok(leading_master(services).is_some_and(|now| now != master));
        self.report.master_gap_s = self.survives(services, &master, other_leads)?;
        self.report.master_killed_ok = true;

        let in_office = || steward_in_office(services).ok().flatten();
        let steward = poll(RECOVERS, EVERY, in_office).context("no steward is in office")?;
        let other_is = |services: &Services| Ok(steward_in_office(services)?.is_some_and(|now| now != steward));
        self.report.steward_gap_s = self.survives(services, &steward, other_is)?;
        self.report.steward_killed_ok = true;

        let produced = last_json(&services.wait_end("producer", ENDS)?)?;
        let consumed = last_json(&services.wait_end("consumer", ENDS)?)?;
        let count = |from: &Value, name: &str| from[name].as_u64().with_context(|| format!("no {name} in {from}"));
        self.report.samples = count(&consumed, "used")?;
        self.report.lost = count(&produced, "lost")?;
        self.report.wrong_bytes = count(&consumed, "wrong")?;
        ensure!(
            count(&produced, "put")? == self.report.samples,
            "not every sample was used"
        );
        self.report.example_s = self.say(begun, "the example has ended: every sample was used");

        let begun = self.clock.now();
        poll(RECOVERS, EVERY, || {
            self.report.left = left(services).ok()?;
            (self.report.left == 0).then_some(())
        });
        self.say(begun, "what is left was looked for");
        Ok(())
    }

    /// Kills a service, waits until the example goes on without it and `taken_over` holds, and starts it again.
    fn survives(
        &self,
        services: &mut Services,
        name: &str,
        taken_over: impl Fn(&Services) -> Result<bool>,
    ) -> Result<f64> {
        let used = used(services)?;
        let begun = self.clock.now();
        services.kill(name)?;
        let all_is_well = || used_since(services, used) >= GOES_ON && taken_over(services).unwrap_or(false);
        poll(RECOVERS, EVERY, || all_is_well().then_some(()))
            .with_context(|| format!("{name} was killed, and the example does not go on within {RECOVERS:?}"))?;
        let gap = self.say(begun, &format!("{name} was killed, and the example went on"));
        let begun = self.clock.now();
        services.restart(name)?;
        self.say(begun, &format!("{name} is back"));
        Ok(gap)
    }

    fn example_reaches(&self, services: &Services, samples: usize) -> Result<()> {
        let reached = || (used_since(services, 0) >= samples).then_some(());
        poll(RECOVERS, EVERY, reached).with_context(|| format!("the example has not used {samples} samples in time"))
    }

    /// Says how long a part took.
    fn say(&self, begun: Timestamp, what: &str) -> f64 {
        let seconds = (self.clock.now().since(begun).as_secs_f64() * 10.0).round() / 10.0;
        if !self.quiet {
            println!("{seconds:6.1} s  {what}");
        }
        seconds
    }
}

/// How many samples the consumer has used.
fn used(services: &Services) -> Result<usize> {
    ensure!(
        services.is_running("consumer"),
        "the consumer has ended: the example was over too soon"
    );
    let output = services.output("consumer")?;
    Ok(output.lines().filter(|line| line.starts_with("used ")).count())
}

fn used_since(services: &Services, before: usize) -> usize {
    used(services).map_or(0, |now| now.saturating_sub(before))
}

/// Whether the tenant b can neither look into the store of a nor end it, while a can look.
fn refuses_others(services: &Services) -> Result<bool> {
    const REFUSED: i32 = 4;
    let list = ["tensorhold", "--store", STORE, "ls"].map(str::to_owned);
    let end = ["tensorhold", "--store", STORE, "end", "--others"].map(str::to_owned);
    let own = services.run("producer", &list)?;
    ensure!(
        own.status.success(),
        "a cannot list its own store: {}",
        String::from_utf8_lossy(&own.stderr)
    );
    let attempts = [services.run_as_written("intruder")?, services.run("intruder", &end)?];
    Ok(attempts.iter().all(|attempt| attempt.status.code() == Some(REFUSED)))
}

/// The node of the index that leads.
fn etcd_leader(services: &Services) -> Result<String> {
    let command = ["etcdctl", "endpoint", "status", "--write-out=json"].map(str::to_owned);
    let output = services.run("roles", &command)?;
    let nodes: Vec<Value> = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("etcdctl: {}", String::from_utf8_lossy(&output.stderr)))?;
    let leads = |node: &&Value| node["Status"]["leader"] == node["Status"]["header"]["member_id"];
    let endpoint = nodes.iter().find(leads).and_then(|node| node["Endpoint"].as_str());
    let address = endpoint.and_then(|url| url.trim_start_matches("https://").split(':').next());
    let name = address.and_then(|address| services.at(address)).map(str::to_owned);
    name.context("no node of etcd says that it leads")
}

/// The master that leads and serves.
fn leading_master(services: &Services) -> Option<String> {
    let leads = |name: &&str| {
        let Ok(address) = services.address(name) else {
            return false;
        };
        let says = |path: &str, part: &str| {
            get(&format!("http://{address}:9003{path}"), &[]).is_ok_and(|answer| answer.contains(part))
        };
        says("/role", "leader") && says("/health", r#""service_ready":true"#)
    };
    ["master-0", "master-1"]
        .iter()
        .find(|name| leads(name))
        .map(|name| (*name).to_owned())
}

/// The steward that is in office for the store, as Prometheus knows it.
fn steward_in_office(services: &Services) -> Result<Option<String>> {
    let url = format!("http://{}:9090/api/v1/query", services.address("prometheus")?);
    let query = format!("tensorhold_steward_on_duty{{store=\"{STORE}\"}} == 1");
    let answer: Value = serde_json::from_str(&get(&url, &[("query", &query)])?)?;
    let instance = answer["data"]["result"][0]["metric"]["instance"].as_str();
    let address = instance.and_then(|instance| instance.split(':').next());
    Ok(address.and_then(|address| services.at(address)).map(str::to_owned))
}

/// Samples in the index, and objects in the engine.
fn left(services: &Services) -> Result<u64> {
    let command = ["tensorhold", "--store", STORE, "status", "--json"].map(str::to_owned);
    let output = services.run("steward-0", &command)?;
    let status: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("tensorhold status: {}", String::from_utf8_lossy(&output.stderr)))?;
    let samples = status["items"][0]["samples"]
        .as_object()
        .context("no samples in the status")?;
    let objects = status["engine"]["objects"]
        .as_u64()
        .context("no objects in the status")?;
    Ok(samples.values().filter_map(Value::as_u64).sum::<u64>() + objects)
}

/// The last line of JSON. The log has what the libraries say in it, too.
fn last_json(output: &str) -> Result<Value> {
    let line = output.lines().rfind(|line| line.starts_with('{'));
    let line = line.context("a part of the example has printed no JSON")?;
    serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))
}

/// The body of an answer, whatever its status: a master that stands by says so with an error.
fn get(url: &str, query: &[(&str, &str)]) -> Result<String> {
    let config = ureq::config::Config::builder()
        .timeout_global(Some(Duration::from_secs(2)))
        .http_status_as_error(false)
        .proxy(None)
        .build();
    let request = ureq::Agent::from(config).get(url).query_pairs(query.iter().copied());
    Ok(request.call()?.body_mut().read_to_string()?)
}
