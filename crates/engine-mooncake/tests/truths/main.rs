//! The behaviour of the bare engine, pinned.
//!
//! Tensorhold is built on the behaviour of one release of Mooncake Store, and much of that behaviour is documented
//! nowhere. Each test here drives the wheel's own module, on a real master and separate holder processes, and pins one
//! behaviour that Tensorhold relies on. Tensorhold's adapter is not involved. When the wheel is upgraded, these tests show
//! what changed, and each message says which code to review.
//!
//! | module | what it pins |
//! |---|---|
//! | `leases` | which calls grant a read lease, and what a lease stops |
//! | `puts` | puts of a key that exists, of nothing, under odd names; a put that never ends |
//! | `reads` | lengths, codes, reads that outlast their lease, torn reads |
//! | `pressure` | full DRAM, eviction, pins |
//! | `ssd` | what goes down to SSD, what comes up, what comes back from the dead |
//! | `outages`, `failover` | masters and holders that die, hang and return |
//! | `drain` | objects that move between holders, holders that are given nothing new |
//! | `memory` | registration, with and without a metadata server |
//! | `threads` | the interpreter's lock, one client in several threads |
//! | `probe` | the master's HTTP probe |

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test program: helpers outside its test functions may fail and print, too"
)]

#[path = "../common/mod.rs"]
mod common;

mod bare;
mod drain;
mod failover;
mod leases;
mod memory;
mod outages;
mod pressure;
mod probe;
mod puts;
mod reads;
mod ssd;
mod threads;

/// The release that these tests were written for. All of Tensorhold's adapter relies on it.
#[test]
fn the_wheel_is_the_one_these_truths_were_found_on() {
    let version = bare::wheel_version();
    assert_eq!(
        version, "0.3.13.post1",
        "another release of the engine is installed; run this whole file, look at each difference that it finds, and \
         only then write the new version here"
    );
}
