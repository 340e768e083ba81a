//! The page store against bare engine calls for the same pages, on one real master and holder, in alternation.
//!
//! `bare` is what SGLang's own Mooncake back end does for a pool that keeps keys and values apart: one batched call,
//! two objects a page, no checksum. `whole` is the least that any store could do: one object a page in one piece, no
//! checksum. The page store has one object a page (keys, values and a footer) and checks every byte. The side that goes
//! first alternates. A ratio is the median time of `bare` over that of the other, so 1.0 is as fast and more is faster.
//!
//! `kv_bench [--rounds N] [--try]`: with `--try`, other settings of the store too.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tensorhold_core::{Clock, ObjectKey, SystemClock};
use tensorhold_engine::{Engine, EngineExt, GetOutcome, Pin, PutOptions, PutOutcome, Region, Transfer};
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use tensorhold_kvcache::tier::{CallOptions, Page, PageStore, StoreConfig};
use tensorhold_testkit::{Cluster, Endpoints};

const WITHIN: Duration = Duration::from_secs(30);
const PAGES: usize = 64;
const MIB: usize = 1 << 20;

fn connect(endpoints: &Endpoints) -> Result<Arc<dyn Engine>> {
    let mut environment: BTreeMap<_, _> = endpoints.client_env.iter().cloned().collect();
    environment.insert("MC_LOG_LEVEL".to_owned(), "ERROR".to_owned());
    let config = MooncakeConfig {
        master: endpoints.master.clone(),
        metadata: endpoints.metadata.clone(),
        admin: endpoints.admin.clone(),
        environment,
        ..MooncakeConfig::default()
    };
    Ok(Arc::new(MooncakeEngine::connect(config)?))
}

/// Writes every page of the holder's segment once: the first write costs twice as much.
fn touch(engine: &dyn Engine) -> Result<()> {
    let block = engine.allocate(32 * MIB, WITHIN)?;
    let mut keys = Vec::new();
    loop {
        let key = ObjectKey::new(format!("touch/{}", keys.len()))?;
        match engine.put_one(&key, &block.whole(), &PutOptions::default(), WITHIN)? {
            PutOutcome::Stored => keys.push(key),
            PutOutcome::Full => break,
            PutOutcome::Failed(error) => return Err(error.into()),
        }
    }
    engine.remove(&keys, WITHIN)?;
    Ok(())
}

enum Side {
    /// This many objects a page, in one piece each.
    Bare {
        objects: usize,
    },
    Store(Box<PageStore>),
}

struct Bench {
    engine: Arc<dyn Engine>,
    clock: SystemClock,
    source: Region,
    target: Region,
}

impl Bench {
    fn objects(&self, from: &Region, name: &str, objects: usize, bytes: usize) -> Result<Vec<Transfer>> {
        let each = bytes / objects;
        let object = |n: usize| {
            let key = ObjectKey::new(format!("{name}/{n}"))?;
            Ok(Transfer::new(key, from.span(n * each..(n + 1) * each)?))
        };
        (0..PAGES * objects).map(object).collect()
    }

    /// Keys of all pages first, then their values: two parts a page.
    fn pages(&self, from: &Region, name: &str, bytes: usize) -> Result<Vec<Page>> {
        let half = bytes / 2;
        let page = |n: usize| {
            let key = ObjectKey::new(format!("{name}/{n}"))?;
            let (keys, values) = (n * half, (PAGES + n) * half);
            Ok(Page::new(
                key,
                vec![from.span(keys..keys + half)?, from.span(values..values + half)?],
            ))
        };
        (0..PAGES).map(page).collect()
    }

    /// Seconds of a put and of a get.
    fn round(&self, side: &Side, name: &str, bytes: usize) -> Result<[f64; 2]> {
        let options = PutOptions {
            pin: Pin::Evictable,
            ..PutOptions::default()
        };
        let timed = |work: &mut dyn FnMut() -> Result<bool>| -> Result<f64> {
            let begin = self.clock.now();
            let good = work()?;
            let seconds = self.clock.now().since(begin).as_secs_f64();
            ensure!(good, "{name}: not every page went through");
            Ok(seconds)
        };
        let (put, get, keys): (f64, f64, Vec<ObjectKey>) = match side {
            Side::Bare { objects } => {
                let out = self.objects(&self.source, name, *objects, bytes)?;
                let back = self.objects(&self.target, name, *objects, bytes)?;
                let put = timed(&mut || {
                    let outcomes = self.engine.put(&out, &options, WITHIN)?;
                    Ok(outcomes.iter().all(|outcome| matches!(outcome, PutOutcome::Stored)))
                })?;
                let get = timed(&mut || {
                    let outcomes = self.engine.get(&back, WITHIN)?;
                    Ok(outcomes.iter().all(|outcome| matches!(outcome, GetOutcome::Loaded)))
                })?;
                (put, get, out.into_iter().map(|transfer| transfer.key).collect())
            }
            Side::Store(store) => {
                let out = self.pages(&self.source, name, bytes)?;
                let back = self.pages(&self.target, name, bytes)?;
                let options = CallOptions::within(WITHIN);
                let put = timed(&mut || Ok(store.put(&out, &options).prefix() == PAGES))?;
                let get = timed(&mut || Ok(store.get(&back, &options).prefix() == PAGES))?;
                (put, get, out.into_iter().map(|page| page.key).collect())
            }
        };
        self.engine.remove(&keys, WITHIN)?;
        Ok([put, get])
    }
}

/// The median, and the time that one round in ten beats: the best that a machine with other work gives.
fn quantiles(times: &mut [f64]) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [2, 10].map(|part| times.get(times.len() / part).copied().unwrap_or(f64::NAN))
}

fn sides(engine: &Arc<dyn Engine>, more: bool) -> Result<Vec<(String, Side)>> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let store = |config: StoreConfig| -> Result<Side> {
        let store = PageStore::new(Arc::clone(engine), config, Arc::clone(&clock), WITHIN)?;
        Ok(Side::Store(Box::new(store)))
    };
    let mut sides = vec![
        ("bare".to_owned(), Side::Bare { objects: 2 }),
        ("whole".to_owned(), Side::Bare { objects: 1 }),
        ("store".to_owned(), store(StoreConfig::default())?),
    ];
    let staged = StoreConfig {
        staging_frames: 2,
        ..StoreConfig::default()
    };
    sides.push(("store, staged".to_owned(), store(staged)?));
    let tries = [
        (0, 64, 64, 1, 1),
        (0, 64, 16, 2, 1),
        (4, 64, 64, 1, 1),
        (8, 64, 16, 2, 1),
        (4, 64, 32, 2, 1),
    ];
    for (staging_frames, call_pages, mib, lanes, streams) in tries.into_iter().filter(|_| more) {
        let config = StoreConfig {
            call_pages,
            lanes,
            streams,
            call_bytes: mib << 20,
            staging_frames,
            ..StoreConfig::default()
        };
        let name = format!("{staging_frames} frames, {call_pages} pages, {mib} MiB, {lanes} lanes, {streams} streams");
        sides.push((name, store(config)?));
    }
    Ok(sides)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let more = args.iter().any(|arg| arg == "--try");
    let rounds = args.iter().position(|arg| arg == "--rounds").map_or(Ok(31), |at| {
        args.get(at + 1).context("how many rounds?")?.parse().context("rounds")
    })?;
    let cluster = Cluster::builder().segment_mib(768).p2p_metadata(true).start()?;
    let engine = connect(&cluster.endpoints())?;
    let (source, target) = (
        engine.allocate(PAGES * MIB, WITHIN)?,
        engine.allocate(PAGES * MIB, WITHIN)?,
    );
    source.whole().write(0, &vec![7; PAGES * MIB])?;
    target.whole().write(0, &vec![1; PAGES * MIB])?;
    touch(&*engine)?;
    let bench = Bench {
        engine: Arc::clone(&engine),
        clock: SystemClock::new(),
        source,
        target,
    };
    let sides = sides(&engine, more)?;
    for bytes in [256 << 10, MIB] {
        const WARM_UP: usize = 2;
        let mut times = vec![[Vec::new(), Vec::new()]; sides.len()];
        for round in 0..rounds + WARM_UP {
            for turn in 0..sides.len() {
                // Each side comes first, second, … equally often.
                let which = (turn + round) % sides.len();
                let [put, get] = bench.round(&sides[which].1, &format!("{which}/{bytes}/{round}"), bytes)?;
                if round >= WARM_UP {
                    times[which][0].push(put);
                    times[which][1].push(get);
                }
            }
        }
        let figures: Vec<[[f64; 2]; 2]> = times
            .iter_mut()
            .map(|side| side.each_mut().map(|t| quantiles(t)))
            .collect();
        for ((name, _), figure) in sides.iter().zip(&figures) {
            print!("{:>5} KiB  {name:<48}", bytes >> 10);
            for (step, [median, best]) in figure.iter().enumerate() {
                let ratio = |q: usize| figures[0][step][q] / figure[step][q];
                print!(
                    "  {} {:7.2} ms (best {:6.2}) {:5.2} GB/s ratio {:4.2} (best {:4.2})",
                    ["put", "get"][step],
                    median * 1e3,
                    best * 1e3,
                    (PAGES * bytes) as f64 / 1e9 / median,
                    ratio(0),
                    ratio(1)
                );
            }
            println!();
        }
    }
    Ok(())
}
