//! The engine benchmark: the wheel's calls from a Python process, and the same work through the [`Engine`] trait from
//! this one, on one real cluster, in alternation. `cargo xtask bench engine` runs it.
//!
//! Only one side works at a time, and the side that goes first alternates, so other load on the machine hits both
//! alike. The pool is written once before anything is timed: the first write to a segment's pages costs twice as much.
//! A ratio is the median time of the bare calls over the median time of the trait, so 1.0 is as fast and more is
//! faster. `--quick` runs a third of the rounds.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tensorhold_core::{Clock, ObjectKey, SystemClock};
use tensorhold_engine::{Engine, EngineExt, GetOutcome, PutOptions, PutOutcome, Region, RemoveOutcome, Transfer};
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use tensorhold_testkit::{Cluster, Endpoints, quantile};

const WITHIN: Duration = Duration::from_secs(30);
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

struct Case {
    name: &'static str,
    rounds: usize,
    sizes: Vec<usize>,
}

/// The five tensors of an EAGLE-3 sample of 4096 and of 128 tokens, and a batch of KV pages.
fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "128m",
            rounds: 41,
            sizes: vec![96 * MIB, 32 * MIB, 32 * KIB, 32 * KIB, 32 * KIB],
        },
        Case {
            name: "4m",
            rounds: 201,
            sizes: vec![3 * MIB, MIB, KIB, KIB, KIB],
        },
        Case {
            name: "64x256k",
            rounds: 121,
            sizes: vec![256 * KIB; 64],
        },
    ]
}

/// The two sides take the same steps.
trait Side {
    fn run(&mut self, step: &'static str, case: usize, turn: usize) -> Result<f64>;
}

struct Bare {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    names: Vec<&'static str>,
}

impl Bare {
    fn start(endpoints: &Endpoints, cases: &[Case]) -> Result<Self> {
        let venv = std::env::var("TENSORHOLD_VENV")
            .context("TENSORHOLD_VENV is not set; start this by `cargo xtask bench`")?;
        let sizes: BTreeMap<_, _> = cases.iter().map(|case| (case.name, &case.sizes)).collect();
        let mut child = Command::new(format!("{venv}/bin/python"))
            .args([
                "-c",
                include_str!("bare_engine.py"),
                &serde_json::to_string(endpoints)?,
                &serde_json::to_string(&sizes)?,
            ])
            .env("MC_LOG_LEVEL", "ERROR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the Python of the virtual environment does not start; run .ci/setup")?;
        let input = child.stdin.take().context("no pipe")?;
        let output = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut bare = Self {
            child,
            input,
            output,
            names: cases.iter().map(|case| case.name).collect(),
        };
        ensure!(bare.line()? == "ready", "the bare side did not get ready");
        Ok(bare)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(
            self.output.read_line(&mut line)? > 0,
            "the bare side has ended; its standard error tells why"
        );
        Ok(line.trim().to_owned())
    }
}

impl Side for Bare {
    fn run(&mut self, step: &'static str, case: usize, turn: usize) -> Result<f64> {
        writeln!(self.input, "{step} {} {turn}", self.names[case])?;
        self.input.flush()?;
        self.line()?.parse().context("not a number of seconds")
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        if self.child.kill().and_then(|()| self.child.wait()).is_err() {
            eprintln!("the bare side could not be ended");
        }
    }
}

struct Ours {
    engine: MooncakeEngine,
    clock: SystemClock,
    cases: Vec<(&'static str, Vec<usize>, Region, Region)>,
}

impl Ours {
    fn connect(endpoints: &Endpoints, cases: &[Case]) -> Result<Self> {
        let mut environment: BTreeMap<_, _> = endpoints.client_env.iter().cloned().collect();
        environment.insert("MC_LOG_LEVEL".to_owned(), "ERROR".to_owned());
        let engine = MooncakeEngine::connect(MooncakeConfig {
            master: endpoints.master.clone(),
            metadata: endpoints.metadata.clone(),
            admin: endpoints.admin.clone(),
            environment,
            ..MooncakeConfig::default()
        })?;
        let mut regions = Vec::new();
        for case in cases {
            let total = case.sizes.iter().sum();
            let (source, target) = (engine.allocate(total, WITHIN)?, engine.allocate(total, WITHIN)?);
            source.whole().write(0, &vec![7; total])?;
            target.whole().write(0, &vec![1; total])?;
            regions.push((case.name, case.sizes.clone(), source, target));
        }
        Ok(Self {
            engine,
            clock: SystemClock::new(),
            cases: regions,
        })
    }

    /// Writes every page of the pool once, then empties it.
    fn touch_pool(&self) -> Result<()> {
        const BLOCK: usize = 32 * MIB;
        let block = self.engine.allocate(BLOCK, WITHIN)?;
        let mut keys = Vec::new();
        loop {
            let key = ObjectKey::new(format!("touch/{}", keys.len()))?;
            match self
                .engine
                .put_one(&key, &block.whole(), &PutOptions::default(), WITHIN)?
            {
                PutOutcome::Stored => keys.push(key),
                PutOutcome::Full => break,
                PutOutcome::Failed(error) => return Err(error.into()),
            }
        }
        self.engine.remove(&keys, WITHIN)?;
        Ok(())
    }
}

impl Side for Ours {
    fn run(&mut self, step: &'static str, case: usize, turn: usize) -> Result<f64> {
        let (name, sizes, source, target) = &self.cases[case];
        let keys = (0..sizes.len())
            .map(|i| ObjectKey::new(format!("ours/{name}/{turn}/{i}")))
            .collect::<Result<Vec<_>, _>>()?;
        let region = if step == "put" { source } else { target };
        let mut at = 0;
        let mut batch = Vec::new();
        for (key, size) in keys.iter().zip(sizes) {
            batch.push(Transfer::new(key.clone(), region.span(at..at + size)?));
            at += size;
        }
        let begin = self.clock.now();
        let ok = match step {
            "put" => {
                let outcomes = self.engine.put(&batch, &PutOptions::default(), WITHIN)?;
                outcomes.iter().all(|outcome| matches!(outcome, PutOutcome::Stored))
            }
            "get" => {
                let outcomes = self.engine.get(&batch, WITHIN)?;
                outcomes.iter().all(|outcome| matches!(outcome, GetOutcome::Loaded))
            }
            _ => {
                let outcomes = self.engine.remove(&keys, WITHIN)?;
                outcomes.iter().all(|outcome| matches!(outcome, RemoveOutcome::Removed))
            }
        };
        let seconds = self.clock.now().since(begin).as_secs_f64();
        if !ok {
            bail!("{step} of {name} in round {turn} did not succeed for every object");
        }
        Ok(seconds)
    }
}

fn main() -> Result<()> {
    let [json, quick] = ["--json", "--quick"].map(|flag| std::env::args().any(|arg| arg == flag));
    let mut cases = cases();
    if quick {
        for case in &mut cases {
            case.rounds /= 3;
        }
    }
    // A lease as long as the run would change nothing: objects are removed by force.
    let cluster = Cluster::builder().segment_mib(768).p2p_metadata(true).start()?;
    let endpoints = cluster.endpoints();
    let mut ours = Ours::connect(&endpoints, &cases)?;
    let mut bare = Bare::start(&endpoints, &cases)?;
    eprintln!("touching the pool …");
    ours.touch_pool()?;

    let mut report = serde_json::Map::new();
    for (index, case) in cases.iter().enumerate() {
        const STEPS: [&str; 3] = ["put", "get", "remove"];
        const WARM_UP: usize = 3;
        let mut times = [const { [const { Vec::new() }; 3] }; 2];
        for turn in 0..case.rounds + WARM_UP {
            for side in [turn % 2, 1 - turn % 2] {
                for (step, name) in STEPS.iter().enumerate() {
                    let seconds = if side == 0 {
                        ours.run(name, index, turn)?
                    } else {
                        bare.run(name, index, turn)?
                    };
                    if turn >= WARM_UP {
                        times[side][step].push(seconds * 1e3);
                    }
                }
            }
            if turn % 10 == 0 {
                eprintln!("{}: round {turn} of {}", case.name, case.rounds + WARM_UP);
            }
        }
        let [ours, bare] = &mut times;
        for (step, name) in STEPS.iter().enumerate() {
            let figures = |side: &mut [Vec<f64>; 3]| [0.25, 0.5, 0.75].map(|q| quantile(&mut side[step], q));
            let (us, them) = (figures(ours), figures(bare));
            let ratio = them[1] / us[1];
            if !json {
                println!(
                    "{:>8} {name:<6}  ours {:8.3} ms [{:.3}–{:.3}]   bare {:8.3} ms [{:.3}–{:.3}]   ratio {ratio:.3}",
                    case.name, us[1], us[0], us[2], them[1], them[0], them[2]
                );
            }
            let rounded = |x: f64| (x * 1e4).round() / 1e4;
            report.insert(format!("{name}_ratio_{}", case.name), rounded(ratio).into());
            for (who, [low, median, high]) in [("ours", us), ("bare", them)] {
                let spread = [low, median, high].map(rounded).to_vec();
                report.insert(format!("{name}_ms_{}_{who}", case.name), spread.into());
            }
        }
        report.insert(format!("rounds_{}", case.name), case.rounds.into());
    }
    println!("{}", serde_json::Value::Object(report));
    Ok(())
}
