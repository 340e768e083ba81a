use std::sync::Arc;

use tensorhold_core::SystemClock;
use tensorhold_engine::{Engine, MemoryCluster, MemoryConfig};

use super::*;
use crate::runtime::blocking::Threads;

const WITHIN: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_millis(30);
const MIB: usize = 1 << 20;

fn pool(budget: usize) -> (BufferPool, Arc<dyn Engine>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let engine: Arc<dyn Engine> = MemoryCluster::new(MemoryConfig::default(), Arc::clone(&clock)).connect();
    let calls = BlockingCalls::new(4, Arc::clone(&clock), Threads::Own);
    (
        BufferPool::new(Backing::Engine(Arc::clone(&engine)), calls, clock, budget as u64),
        engine,
    )
}

#[tokio::test]
async fn a_buffer_comes_back_when_the_last_clone_is_gone() {
    let (pool, engine) = pool(MIB);
    let first = pool.buffer(1000, WITHIN).await.expect("a buffer");
    assert_eq!((first.len(), pool.usage().lent), (1000, 4096));
    let address = first.address();
    let under_way = first.clone();
    drop(first);
    assert_eq!(pool.usage().lent, 4096, "a transfer may still write to it");
    drop(under_way);
    assert_eq!(pool.usage().lent, 0);
    assert_eq!(
        pool.buffer(4096, WITHIN).await.expect("a buffer").address(),
        address,
        "used again"
    );
    assert_eq!(engine.registrations().regions, 1, "registered once");
}

#[tokio::test]
async fn who_finds_nothing_waits_for_what_comes_back() {
    let (pool, _engine) = pool(MIB);
    let all = pool.buffer(MIB, WITHIN).await.expect("a buffer");
    let error = pool.buffer(1, SOON).await.expect_err("nothing comes back");
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Capacity, Retry::Safe),
        "{error}"
    );
    let waiting = tokio::spawn({
        let pool = pool.clone();
        async move { pool.buffer(MIB, WITHIN).await }
    });
    tokio::task::yield_now().await;
    drop(all);
    waiting.await.expect("no panic").expect("a buffer");
    let never = pool.buffer(MIB + 1, WITHIN).await.expect_err("too large for ever");
    assert_eq!(never.retry(), Retry::Never);
}

#[tokio::test]
async fn idle_slabs_make_way_for_one_that_fits() {
    let (pool, engine) = pool(160 * MIB);
    let small = pool.buffer(MIB, WITHIN).await.expect("a buffer");
    drop(pool.buffer(64 * MIB, WITHIN).await.expect("a buffer"));
    assert_eq!(pool.usage().taken, 128 * MIB as u64);
    let large = pool.buffer(90 * MIB, WITHIN).await.expect("the idle slab makes way");
    assert_eq!(pool.usage().taken, 160 * MIB as u64 - 6 * MIB as u64, "64 + 90 MiB");
    drop((small, large));
    assert_eq!(engine.registrations().regions, 2);
    drop(pool);
    assert_eq!(engine.registrations().regions, 0);
}

#[tokio::test]
async fn warming_takes_no_more_than_asked_for() {
    let (pool, _engine) = pool(100 * MIB);
    pool.warm(80 * MIB as u64, WITHIN).await.expect("warm");
    assert_eq!(pool.usage().taken, 100 * MIB as u64);
    pool.warm(u64::MAX, WITHIN).await.expect("warm");
    assert_eq!(
        pool.usage(),
        PoolUse {
            budget: 100 * MIB as u64,
            taken: 100 * MIB as u64,
            lent: 0
        }
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_never_exceed_the_budget() {
    let (pool, _engine) = pool(3 * MIB);
    let tasks: Vec<_> = (0..40_usize)
        .map(|n| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let span = pool.buffer(n % 5 * 200_000 + 1, WITHIN).await.expect("a buffer");
                let mark = [u8::try_from(n).expect("small"); 8];
                let at = span.len().saturating_sub(8);
                span.write(at, &mark[..span.len().min(8)]).expect("fits");
                tokio::task::yield_now().await;
                let mut back = [0; 8];
                let back = &mut back[..span.len().min(8)];
                span.read(at, back).expect("fits");
                assert!(back.iter().all(|byte| usize::from(*byte) == n), "nobody else has it");
                assert!(pool.usage().taken <= pool.usage().budget);
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(pool.usage().lent, 0);
}

#[tokio::test]
async fn requests_are_served_in_turn_and_a_waiter_that_leaves_is_in_nobodys_way() {
    let (pool, _engine) = pool(4 * MIB);
    let held = pool.buffers(&[MIB, MIB, MIB], WITHIN).await.expect("buffers");
    let order = Arc::new(Mutex::new(Vec::new()));
    let spawn = |name: &'static str, lens: Vec<usize>, within: Duration| {
        let (pool, order) = (pool.clone(), Arc::clone(&order));
        tokio::spawn(async move {
            let got = pool.buffers(&lens, within).await;
            order.lock().push((name, got.is_ok()));
            got
        })
    };
    let leaves = spawn("leaves", vec![4 * MIB], SOON);
    tokio::task::yield_now().await;
    let large = spawn("large", vec![2 * MIB, MIB], WITHIN);
    tokio::task::yield_now().await;
    // One MiB is free, and yet it waits: the request before it in the queue is larger.
    let small = spawn("small", vec![MIB], WITHIN);
    tokio::task::yield_now().await;
    assert!(
        pool.free_buffers(&[1], WITHIN).await.expect("an answer").is_none(),
        "others wait"
    );
    assert_eq!(
        leaves.await.expect("no panic").expect_err("no room").kind(),
        ErrorKind::Capacity
    );
    assert!(!small.is_finished() && !large.is_finished());
    drop(held);
    let (large, small) = (large.await.expect("no panic"), small.await.expect("no panic"));
    assert_eq!(*order.lock(), [("leaves", false), ("large", true), ("small", true)]);
    assert_eq!(pool.usage().lent, 4 * MIB as u64);
    drop((large, small));
    assert_eq!(pool.usage().lent, 0);
}

#[tokio::test]
async fn what_fits_an_empty_pool_is_had_however_the_slabs_were_cut() {
    let (pool, _engine) = pool(180 * MIB);
    // Two slabs of 64 MiB, and no room for a third one of 60.
    let cut = pool.buffers(&[64 * MIB, 64 * MIB], WITHIN).await.expect("buffers");
    drop(cut);
    let three = pool
        .buffers(&[60 * MIB; 3], WITHIN)
        .await
        .expect("one slab for all of it");
    assert_eq!((three.len(), pool.usage().lent), (3, 180 * MIB as u64));
    assert_eq!(pool.usage().taken, 180 * MIB as u64);
    drop(three);
    assert_eq!(pool.buffers(&[], WITHIN).await.expect("nothing").len(), 0);
    let never = pool
        .buffers(&[100 * MIB, 100 * MIB], WITHIN)
        .await
        .expect_err("never fits");
    assert_eq!(never.retry(), Retry::Never);
    let none = pool
        .free_buffers(&[100 * MIB, 100 * MIB], WITHIN)
        .await
        .expect("an answer");
    assert!(none.is_none());
    assert!(pool.is_large(&[90 * MIB, 1]) && !pool.is_large(&[90 * MIB]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_several_never_wait_for_each_other() {
    let (pool, _engine) = pool(4 * MIB);
    let tasks: Vec<_> = (0..32_usize)
        .map(|n| {
            let pool = pool.clone();
            tokio::spawn(async move {
                for round in 0..20 {
                    let lens = vec![MIB / 2 + (n + round) % 3 * 4096; 4 + n % 3];
                    let held = pool.buffers(&lens, WITHIN).await.expect("in turn");
                    tokio::task::yield_now().await;
                    drop(held);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(pool.usage().lent, 0);
}
