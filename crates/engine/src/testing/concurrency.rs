//! Many threads on one engine value, or on one each.

use super::context::{CALL, Client, Context, MIB};
use super::{Failure, Setup};
use crate::{EngineExt, GetOutcome, Pin};
use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};

cases! { "concurrency"
    sixteen_threads_on_one_engine (Setup::default) "Calls may come from many threads at once.";
    batches_from_many_threads (Setup::default) "Calls may come from many threads at once.";
    many_readers_of_one_object (Setup::default) "Calls may come from many threads at once.";
    one_client_per_thread (Setup::default) "Calls may come from many threads at once, and from many clients.";
    puts_and_removes_of_one_key (Setup::default) "`Loaded` means that the object has exactly as many bytes as its buffers, even if another client removes it.";
    memory_comes_and_goes_beside_transfers (Setup::default) "Calls may come from many threads at once.";
    refused_calls_beside_good_ones (Setup::default) "A call never panics because another failed.";
    a_herd_of_writers_and_one_full_pool (|| Setup { segment_mib: 32, ..Setup::default() }) "A call never panics because another failed.";
}

/// Runs `work` on `threads` threads, each with its number, and waits for all of them. Calls are bounded, so this wait
/// is.
fn in_parallel(threads: usize, work: impl Fn(usize) -> CaseResult + Sync) -> CaseResult {
    std::thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> = (0..threads).map(|i| scope.spawn(move || work(i))).collect();
        let outcomes: Vec<_> = handles
            .into_iter()
            .enumerate()
            .map(|(i, handle)| {
                handle
                    .join()
                    .unwrap_or_else(|_| Err(Failure::new(format!("thread {i} panicked"))))
            })
            .collect();
        outcomes.into_iter().collect()
    })
}

/// The whole life of an object.
fn round_trip(client: &Client, label: &str, len: usize, seed: u64) -> CaseResult {
    let key = client.key(label)?;
    client.store(&key, len, seed)?;
    client.expect_bytes(&key, len, seed)?;
    client.remove(&key)?;
    client.expect_miss(&key)
}

fn sixteen_threads_on_one_engine(ctx: &Context) -> CaseResult {
    let client: &Client = ctx;
    in_parallel(16, |thread| {
        for round in 0..10 {
            let seed = (100 * thread + round) as u64;
            round_trip(client, &format!("object-{thread}-{round}"), 40_000 + 13 * thread, seed)?;
        }
        Ok(())
    })
}

fn batches_from_many_threads(ctx: &Context) -> CaseResult {
    let client: &Client = ctx;
    in_parallel(8, |thread| {
        for round in 0..4 {
            let keys = client.keys(&format!("object-{thread}-{round}"), 64)?;
            let seed = (100 * thread + round) as u64;
            client.store_rows(&keys, 500, seed)?;
            let into = client.empty(64 * 500)?;
            for outcome in client.engine().get(&client.rows(&keys, &into, 500)?, CALL)? {
                ensure_matches!(outcome, GetOutcome::Loaded, "each row should have been loaded");
            }
            super::check::same_bytes(
                "all rows",
                &into.whole().to_vec(),
                &super::check::pattern(64 * 500, seed),
            )?;
            client.engine().remove(&keys, CALL)?;
        }
        Ok(())
    })
}

fn many_readers_of_one_object(ctx: &Context) -> CaseResult {
    let client: &Client = ctx;
    let key = ctx.key("object")?;
    ctx.store(&key, MIB + 7, 1)?;
    in_parallel(8, |_| {
        for _ in 0..8 {
            client.expect_bytes(&key, MIB + 7, 1)?;
        }
        Ok(())
    })
}

fn one_client_per_thread(ctx: &Context) -> CaseResult {
    let clients = (0..4).map(|_| ctx.connect()).collect::<CaseResult<Vec<_>>>()?;
    let shared = ctx.key("shared")?;
    ctx.store(&shared, 70_000, 7)?;
    in_parallel(clients.len(), |thread| {
        for round in 0..8 {
            round_trip(
                &clients[thread],
                &format!("object-{thread}-{round}"),
                40_000,
                thread as u64,
            )?;
            clients[thread].expect_bytes(&shared, 70_000, 7)?;
        }
        Ok(())
    })
}

fn puts_and_removes_of_one_key(ctx: &Context) -> CaseResult {
    const LEN: usize = 6000;
    const ROUNDS: usize = 60;
    let client: &Client = ctx;
    let key = ctx.key("object")?;
    // "The bytes may be torn and the outcome still Loaded", and a put or remove that meets another may fail. What must
    // never happen is a panic, or an object of a length that no client put.
    in_parallel(6, |thread| {
        for _ in 0..ROUNDS {
            match thread {
                0 | 1 => {
                    client.put(&key, LEN, 1, Pin::Hard)?;
                }
                2 | 3 => {
                    client.engine().remove_one(&key, CALL)?;
                }
                4 => ensure_matches!(
                    client.get(&key, LEN)?.0,
                    GetOutcome::Loaded | GetOutcome::Miss | GetOutcome::Unfinished | GetOutcome::Failed(_),
                    "every put is of {LEN} bytes"
                ),
                _ => ensure_matches!(
                    client.get(&key, LEN + 1)?.0,
                    GetOutcome::Miss
                        | GetOutcome::Unfinished
                        | GetOutcome::Failed(_)
                        | GetOutcome::WrongLength { stored: 6000 },
                    "every put is of {LEN} bytes, and {LEN} + 1 were asked for"
                ),
            }
        }
        Ok(())
    })?;
    // Once all threads have ended, a remove works as usual, and other keys were never affected.
    client.engine().remove_one(&key, CALL)?;
    client.expect_miss(&key)?;
    round_trip(client, "other", LEN, 2)
}

fn memory_comes_and_goes_beside_transfers(ctx: &Context) -> CaseResult {
    let client: &Client = ctx;
    let before = ctx.engine().registrations();
    let key = ctx.key("object")?;
    ctx.store(&key, MIB, 1)?;
    in_parallel(6, |thread| {
        for round in 0..20 {
            if thread < 3 {
                drop(client.empty(4096 * (1 + round))?);
            } else {
                client.expect_bytes(&key, MIB, 1)?;
            }
        }
        Ok(())
    })?;
    ctx.eventually(super::context::SOON, "all memory is given back", || {
        Ok((ctx.engine().registrations() == before).then_some(()))
    })
}

fn refused_calls_beside_good_ones(ctx: &Context) -> CaseResult {
    let client: &Client = ctx;
    let twice = ctx.key("twice")?;
    in_parallel(6, |thread| {
        for round in 0..10 {
            if thread % 2 == 0 {
                round_trip(client, &format!("object-{thread}-{round}"), 20_000, round)?;
            } else {
                let keys = [twice.clone(), twice.clone()];
                let from = client.filled(200, round)?;
                let batch = client.rows(&keys, &from, 100)?;
                let answer = client.engine().put(&batch, &crate::PutOptions::default(), CALL);
                ensure!(
                    answer.is_err(),
                    "a put with a key twice should be refused; it was {answer:?}"
                );
            }
        }
        Ok(())
    })?;
    ctx.expect_absent(&twice)
}

fn a_herd_of_writers_and_one_full_pool(ctx: &Context) -> CaseResult {
    let client: &Client = ctx;
    // 48 MiB for a pool of 32: some puts are stored, some get Full, and every outcome is true.
    in_parallel(8, |thread| {
        for (key, seed) in client.keys(&format!("object-{thread}"), 3)?.iter().zip(0..) {
            match client.put(key, 2 * MIB, seed, Pin::Hard)? {
                crate::PutOutcome::Stored => client.expect_bytes(key, 2 * MIB, seed)?,
                crate::PutOutcome::Full => client.expect_miss(key)?,
                crate::PutOutcome::Failed(error) => return Err(error.into()),
            }
        }
        Ok(())
    })
}
