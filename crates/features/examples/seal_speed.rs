//! How fast sealing and opening are on this machine, beside a plain copy of the same bytes.
//!
//! ```text
//! cargo run --release -p tensorhold-features --example seal_speed [MiB, 128 unless told]
//! ```
//! Medians of 15 rounds with the fastest and the slowest; the ways take turns, so that a busy moment hits all of them.

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::hint::black_box;

use tensorhold_core::{Clock, Error, Generation, Nonce, Result, SystemClock, SystemRng, TensorName};
use tensorhold_features::seal::{
    DEFAULT_CHUNK_BYTES, Incarnation, Keyring, OpenJob, SealJob, StoreKey, TensorOpener, TensorSealer,
};

const ROUNDS: usize = 15;
/// Of no store.
const SPEED_KEY: [u8; 32] = *b"only to measure the speed of it.";

/// The memory that all ways share, touched before anything is measured.
struct Buffers {
    plain: Vec<u8>,
    sealed: Vec<u8>,
    opened: Vec<u8>,
}

/// One way to move a tensor's bytes.
type Way = fn(&TensorSealer, &TensorOpener, &mut Buffers) -> Result<()>;

const WAYS: [(&str, Way); 6] = [
    ("copy", |_, _, b| {
        b.opened.copy_from_slice(black_box(&b.plain));
        Ok(())
    }),
    ("seal, one thread", |sealer, _, b| sealer.seal(&b.plain, &mut b.sealed)),
    ("open, one thread", |_, opener, b| opener.open(&b.sealed, &mut b.opened)),
    ("open in place, one thread", |_, opener, b| {
        let (bytes, tags) = b.sealed.split_at_mut(b.plain.len());
        opener.open_run_in_place(opener.layout().whole(), bytes, tags)
    }),
    ("seal, two threads", |sealer, _, b| {
        let jobs = sealer.jobs(sealer.layout().whole(), &b.plain, &mut b.sealed)?;
        on_two_threads(jobs, SealJob::run)
    }),
    ("open, two threads", |_, opener, b| {
        let jobs = opener.jobs(opener.layout().whole(), &b.sealed, &mut b.opened)?;
        on_two_threads(jobs, OpenJob::run)
    }),
];

fn on_two_threads<J: Send>(mut jobs: Vec<J>, run: fn(J) -> Result<()>) -> Result<()> {
    let rest = jobs.split_off(jobs.len() / 2);
    std::thread::scope(|scope| {
        let other = scope.spawn(move || rest.into_iter().try_for_each(run));
        jobs.into_iter().try_for_each(run)?;
        other
            .join()
            .map_err(|_| Error::internal("seal.speed", "a thread panicked"))?
    })
}

fn main() -> Result<()> {
    let mib: usize = match std::env::args().nth(1) {
        Some(text) => text
            .parse()
            .map_err(|_| Error::invalid("seal.speed", "give the size in MiB as a number"))?,
        None => 128,
    };
    let clock = SystemClock::new();
    let keyring = Keyring::of(StoreKey::from_bytes("speed".parse()?, &SPEED_KEY)?);
    let tensor: TensorName = "tensor".parse()?;
    let plain: Vec<u8> = (0..=250).cycle().take(mib << 20).collect();
    let mut seconds = vec![Vec::new(); WAYS.len()];
    let mut buffers = None;
    for round in 0..=ROUNDS {
        // Each round is a put of its own: nothing can be sealed twice.
        let at = Incarnation {
            store: "speed".parse()?,
            sample: "sample".parse()?,
            generation: Generation::new(round as u64 + 1)
                .ok_or_else(|| Error::internal("seal.speed", "generations start at 1"))?,
            nonce: Nonce::draw(&SystemRng),
        };
        for (way, (_, run)) in WAYS.iter().enumerate() {
            let mut sample = keyring.sealer(at.clone(), DEFAULT_CHUNK_BYTES, &SystemRng)?;
            let sealer = sample.tensor(&tensor, plain.len() as u64)?;
            let opener = keyring
                .opener(sample.header(), at.clone())?
                .tensor(&tensor, plain.len() as u64)?;
            let sealed_len = usize::try_from(sealer.layout().sealed_len()).unwrap_or(usize::MAX);
            let buffers = buffers.get_or_insert_with(|| Buffers {
                plain: plain.clone(),
                sealed: vec![1; sealed_len],
                opened: vec![1; plain.len()],
            });
            let name = WAYS[way].0;
            if name.starts_with("open") {
                sealer.seal(&buffers.plain, &mut buffers.sealed)?;
            }
            let before = clock.now();
            run(&sealer, &opener, buffers)?;
            let took = clock.now().since(before).as_secs_f64();
            if name.starts_with("open, ") && buffers.opened != buffers.plain {
                return Err(Error::internal("seal.speed", "what was opened is not what was sealed"));
            }
            // The first round warms up.
            if round > 0 {
                seconds[way].push(took);
            }
        }
    }
    println!(
        "{mib} MiB in chunks of {} KiB, GB/s: median (slowest to fastest)",
        DEFAULT_CHUNK_BYTES >> 10
    );
    for ((name, _), mut times) in WAYS.into_iter().zip(seconds) {
        times.sort_by(f64::total_cmp);
        let rate = |index: usize| times.get(index).map_or(0.0, |time| plain.len() as f64 / time / 1e9);
        println!(
            "{name:28} {:6.2} ({:.2} to {:.2})",
            rate(ROUNDS / 2),
            rate(ROUNDS - 1),
            rate(0)
        );
    }
    Ok(())
}
