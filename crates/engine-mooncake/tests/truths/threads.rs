//! Threads: the caller's, and the interpreter's lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pyo3::Python;

use crate::bare::{Bare, Keep, MIB};
use crate::common::plain;

/// The module lets go of the interpreter's lock while bytes move, in both directions. Tensorhold's call threads would
/// otherwise block each other, and every Python thread of its callers.
#[test]
fn the_interpreters_lock_is_free_while_bytes_move() {
    const SIZE: usize = 256 * MIB;
    let cluster = plain().segment_mib(512).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let memory = bare.memory(SIZE);
    let (turns, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                Python::attach(|_| turns.fetch_add(1, Ordering::Relaxed));
            }
        });
        let args = (["k"], [memory.address()], [SIZE]);
        // Both counts are taken with the lock held, and no Python code runs in between: they differ only if the call
        // itself let go of it.
        let moved: Vec<(&str, i64, u64)> = Python::attach(|py| {
            ["batch_put_from", "batch_get_into"]
                .map(|method| {
                    let before = turns.load(Ordering::Relaxed);
                    let codes: Vec<i64> = bare.call(method, args, py);
                    (method, codes[0], turns.load(Ordering::Relaxed) - before)
                })
                .to_vec()
        });
        done.store(true, Ordering::Relaxed);
        println!("turns of another thread during each call: {moved:?}");
        for (method, code, turns) in moved {
            assert!(code >= 0, "{method} failed: {code}");
            assert!(
                turns > 10,
                "{method} used to let go of the interpreter's lock; revisit store.rs and calls.rs"
            );
        }
    });
}

/// One client object serves four threads at once: puts, gets and removes of distinct keys, no error, no wrong byte.
/// Tensorhold has one client per engine and calls it from many threads.
#[test]
fn one_client_serves_four_threads() {
    const THREADS: u64 = 4;
    const TURNS: u64 = 50;
    const SIZE: usize = 256 << 10;
    let cluster = plain().segment_mib(128).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let bare = &bare;
            scope.spawn(move || {
                let into = bare.memory(SIZE);
                for turn in 0..TURNS {
                    let key = format!("{thread}/{turn}");
                    let from = bare.filled(SIZE, thread * TURNS + turn);
                    let seen = (
                        bare.put(&key, &from.whole(), Keep::Pinned),
                        bare.get(&key, &into.whole()),
                        bare.remove(&key, true),
                    );
                    assert_eq!(
                        seen,
                        (0, SIZE as i64, 0),
                        "{key}: one client used to serve four threads; revisit calls.rs"
                    );
                    assert!(
                        into.whole().to_vec() == from.whole().to_vec(),
                        "{key}: one client used to keep the bytes of four threads apart; revisit calls.rs"
                    );
                }
            });
        }
    });
}
