//! The planner under load: how long a match takes in an index of 1 M and of 10 M pages, what a page costs in memory, and
//! how long a step takes with 10,000 requests in flight. The last line is one JSON object.
//!
//! - `hash_us`: the keys of a prompt of 128 K tokens (2,048 pages of 64 tokens); `hash_sha2_us`: by the `sha2` crate.
//! - `match_us_*`: the median match of such a prompt, with cold caches, as a new prompt finds them: without and with the
//!   hash. `match_warm_us_*`: with warm caches. `match_pin_us_*`: submit and admission, which match, pin and allocate.
//! - `bytes_per_page_*`: all that the planner has allocated, the pools' free lists included, over the pages indexed.
//! - `plan_step_ms`: all events of a round and the step after it.
//!
//! `cargo run --release -p tensorhold-kvcache --example plan_bench [-- pages]`
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

mod steps;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use sha2::Digest as _;
use tensorhold_core::{Clock, Rng, SeededRng, SystemClock};
use tensorhold_kvcache::plan::{
    Completion, Namespace, PageKeys, Plan, PlanEvent, Planner, PlannerConfig, Rank, RequestId, Work,
};

pub(crate) const PAGE: u32 = 64;
const PROMPT_PAGES: u32 = 2_048;

/// Counts the bytes that are allocated.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

#[allow(unsafe_code, reason = "an allocator can only be counted from inside")]
// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

pub(crate) fn namespace() -> Namespace {
    Namespace {
        model: "bench".to_owned(),
        weights: "1".to_owned(),
        dtype: "bf16".to_owned(),
        layout: "mha".to_owned(),
        group: "full".to_owned(),
        page_tokens: PAGE,
        tp: Rank::ONLY,
        pp: Rank::ONLY,
        cp: Rank::ONLY,
    }
}

pub(crate) fn planner(host: u32, device: u32) -> Result<Planner> {
    let mut config = PlannerConfig::new(namespace().root(), PAGE, host, device);
    config.query_ticks = 1_000_000;
    config.prefetch_ticks = 1_000_000;
    Ok(Planner::new(config)?)
}

pub(crate) fn us(clock: &SystemClock, work: impl FnOnce()) -> f64 {
    let start = clock.now();
    work();
    clock.now().since(start).as_secs_f64() * 1e6
}

pub(crate) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Tells the planner that every operation of a plan was done (queries: nothing there).
fn acknowledge(planner: &mut Planner, plan: &Plan) -> Result<()> {
    for operation in &plan.operations {
        let query = matches!(operation.work, Work::Query(_));
        let completed = if query { 0 } else { operation.work.pages() };
        let done = Completion {
            operation: operation.id,
            completed,
            failure: None,
        };
        planner.on_event(PlanEvent::Completed(vec![done]))?;
    }
    Ok(())
}

/// Runs a prompt through the planner, so that all its pages end up in host memory.
fn serve(planner: &mut Planner, id: u64, keys: &PageKeys) -> Result<()> {
    let ticket = planner.submit(RequestId(id), keys.clone())?;
    for tick in 0..16 {
        let plan = planner.step(tick);
        acknowledge(planner, &plan)?;
        if plan.grants.iter().any(|grant| grant.ticket == ticket) {
            planner.on_event(PlanEvent::PrefillDone(ticket))?;
            planner.on_event(PlanEvent::Finish(ticket))?;
        }
        if planner.state(ticket).is_none() && !planner.pending() {
            return Ok(());
        }
    }
    anyhow::bail!("a request is stuck in {:?}", planner.state(ticket))
}

pub(crate) fn tokens(rng: &SeededRng, pages: u32) -> Vec<u32> {
    (0..pages * PAGE)
        .map(|_| u32::try_from(rng.next_u64() >> 40).unwrap_or(0))
        .collect()
}

/// The realistic mix: tenants with a system prompt, documents, and conversations of many lengths below them. Every
/// sixteenth prompt has 128 K tokens; those are handed back.
fn fill(planner: &mut Planner, pages: u32, rng: &SeededRng) -> Result<Vec<PageKeys>> {
    let mut documents = Vec::new();
    for _ in 0..32 {
        let mut tenant = namespace().keys();
        tenant.extend(&tokens(rng, 128));
        for _ in 0..8 {
            let mut document = tenant.clone();
            document.extend(&tokens(rng, 384));
            documents.push(document);
        }
    }
    let mut prompts = Vec::new();
    let mut id = 0;
    while planner.host_pages().2 + PROMPT_PAGES < pages {
        let at = usize::try_from(rng.below(documents.len() as u64))?;
        let mut keys = documents.get(at).context("no document")?.clone();
        let long = id % 16 == 0;
        let suffix = if long {
            PROMPT_PAGES - keys.pages()
        } else {
            16 + u32::try_from(rng.below(256))?
        };
        keys.extend(&tokens(rng, suffix));
        serve(planner, id, &keys)?;
        if long {
            prompts.push(keys);
        }
        id += 1;
    }
    Ok(prompts)
}

struct Matches {
    find: f64,
    warm: f64,
    pin: f64,
    bytes_per_page: f64,
}

fn matches(clock: &SystemClock, pages: u32) -> Result<Matches> {
    let rng = SeededRng::new(7);
    let before = ALLOCATED.load(Ordering::Relaxed);
    let mut planner = planner(pages, 2 * PROMPT_PAGES + 2)?;
    let prompts = fill(&mut planner, pages, &rng)?;
    let kept: usize = prompts.iter().map(|keys| 32 * keys.as_slice().len()).sum();
    let bytes = ALLOCATED.load(Ordering::Relaxed) - before - kept;
    let indexed = planner.host_pages().2;
    let sample: Vec<&PageKeys> = prompts.iter().rev().step_by(prompts.len().div_ceil(400)).collect();
    let (mut find, mut warm) = (Vec::new(), Vec::new());
    let mut other = vec![1u8; 128 << 20];
    for keys in &sample {
        // Pushes the index out of the caches.
        other
            .iter_mut()
            .step_by(64)
            .for_each(|byte| *byte = byte.wrapping_add(1));
        let mut found = 0;
        find.push(us(clock, || found = planner.find(keys).host));
        ensure!(
            found == PROMPT_PAGES,
            "a prompt of {PROMPT_PAGES} pages is there with {found}"
        );
        warm.push(us(clock, || found = planner.find(keys).host));
    }
    drop(other);
    let mut pin = Vec::new();
    for (id, keys) in sample.iter().enumerate() {
        let keys = (*keys).clone();
        let id = RequestId(u64::MAX - id as u64);
        let mut ticket = None;
        pin.push(us(clock, || {
            ticket = planner.submit(id, keys).ok();
            planner.step(0);
        }));
        planner.on_event(PlanEvent::Abort(ticket.context("refused")?))?;
        let plan = planner.step(0);
        acknowledge(&mut planner, &plan)?;
        // The load-back was handed out with the first step; end it, so that the next one has room.
        let waiting = ticket.and_then(|ticket| planner.waits_for(ticket));
        if let Some(operation) = waiting {
            let done = Completion {
                operation,
                completed: 0,
                failure: None,
            };
            planner.on_event(PlanEvent::Completed(vec![done]))?;
        }
        planner.step(0);
    }
    println!(
        "{indexed} pages in {} nodes: {} prompts of 128 K tokens sampled, {bytes} bytes",
        planner.nodes(),
        sample.len()
    );
    Ok(Matches {
        find: median(find),
        warm: median(warm),
        pin: median(pin),
        bytes_per_page: bytes as f64 / f64::from(indexed),
    })
}

/// One page per node, twice over: a million prompts of one page, and a path of 2,048 nodes, each of which branches.
fn worst(clock: &SystemClock, pages: u32) -> Result<(f64, f64)> {
    let rng = SeededRng::new(8);
    let before = ALLOCATED.load(Ordering::Relaxed);
    let mut planner = planner(pages, 2 * PROMPT_PAGES + 2)?;
    let mut id = 0;
    let mut path = namespace().keys();
    for _ in 0..PROMPT_PAGES {
        let mut branch = path.clone();
        path.extend(&tokens(&rng, 1));
        branch.extend(&tokens(&rng, 1));
        serve(&mut planner, id, &branch)?;
        id += 1;
        serve(&mut planner, id, &path)?;
        id += 1;
    }
    while planner.host_pages().2 + 1 < pages {
        let mut keys = namespace().keys();
        keys.extend(&tokens(&rng, 1));
        serve(&mut planner, id, &keys)?;
        id += 1;
    }
    let bytes = ALLOCATED.load(Ordering::Relaxed) - before;
    let found = planner.find(&path).host;
    ensure!(found == PROMPT_PAGES, "the path is there with {found} pages");
    let times = (0..100)
        .map(|_| {
            us(clock, || {
                std::hint::black_box(planner.find(&path));
            })
        })
        .collect();
    Ok((median(times), bytes as f64 / f64::from(planner.host_pages().2)))
}

fn main() -> Result<()> {
    let clock = SystemClock::new();
    let most: u32 = std::env::args().nth(1).map_or(Ok(10_000_000), |text| text.parse())?;
    let rng = SeededRng::new(1);
    let prompt = tokens(&rng, PROMPT_PAGES);
    let hash = median(
        (0..50)
            .map(|_| {
                us(&clock, || {
                    let mut keys = namespace().keys();
                    keys.extend(&prompt);
                    std::hint::black_box(keys);
                })
            })
            .collect(),
    );
    let sha2 = median(
        (0..50)
            .map(|_| {
                us(&clock, || {
                    std::hint::black_box(sha2_chain(&prompt));
                })
            })
            .collect(),
    );
    let (step, only_step, slowest) = steps::steps(&clock)?;
    println!("a round {step:.3} ms, of it the step {only_step:.3} ms; the slowest round {slowest:.3} ms");
    let (worst_match, worst_bytes) = worst(&clock, most / 10)?;
    let one = matches(&clock, most / 10)?;
    let ten = matches(&clock, most)?;
    println!(
        "{{\"hash_us\":{hash:.1},\"hash_sha2_us\":{sha2:.1},\"match_us_1m\":{:.2},\"match_us_10m\":{:.2},\
         \"match_growth\":{:.2},\"match_and_hash_us_1m\":{:.1},\"match_and_hash_us_10m\":{:.1},\
         \"match_warm_us_1m\":{:.2},\"match_warm_us_10m\":{:.2},\
         \"match_pin_us_1m\":{:.1},\"match_pin_us_10m\":{:.1},\"match_us_worst\":{worst_match:.1},\
         \"bytes_per_page_1m\":{:.1},\"bytes_per_page_10m\":{:.1},\"bytes_per_page_worst\":{worst_bytes:.1},\
         \"plan_step_ms\":{step:.3},\"plan_step_only_ms\":{only_step:.3},\"plan_step_slowest_ms\":{slowest:.3}}}",
        one.find,
        ten.find,
        ten.find / one.find,
        one.find + hash,
        ten.find + hash,
        one.warm,
        ten.warm,
        one.pin,
        ten.pin,
        one.bytes_per_page,
        ten.bytes_per_page,
    );
    Ok(())
}

/// The same chain with the other library.
fn sha2_chain(tokens: &[u32]) -> [u8; 32] {
    let mut frame = [0; 4 + 32 + 4 + 4 * PAGE as usize + 4];
    frame[..4].copy_from_slice(b"thk1");
    frame[36..40].copy_from_slice(&PAGE.to_le_bytes());
    let mut previous = [0; 32];
    for page in tokens.chunks(PAGE as usize) {
        frame[4..36].copy_from_slice(&previous);
        for (place, token) in frame[40..].chunks_exact_mut(4).zip(page) {
            place.copy_from_slice(&token.to_le_bytes());
        }
        previous = sha2::Sha256::digest(frame).into();
    }
    previous
}
