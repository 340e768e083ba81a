//! Chaos: a three-node etcd whose leader is killed three times, sixteen workers in four processes, one of which is
//! killed and one stopped until its session is over. Every operation is recorded, and the history is checked by a
//! linearizability checker.
//!
//! This program is its own worker: started with `TENSORHOLD_CHAOS_WORKER` in the environment it works, otherwise it is the
//! test.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the test tells what it did")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]
#![allow(unreachable_pub, reason = "one program, several files")]

mod conduct;
mod history;
mod spec;
mod worker;

fn main() {
    if let Ok(task) = std::env::var(worker::TASK) {
        worker::main(&task);
        return;
    }
    let arguments = libtest_mimic::Arguments::from_args();
    let trial = libtest_mimic::Trial::test("sixteen_workers_three_dead_leaders", || {
        conduct::run();
        Ok(())
    });
    libtest_mimic::run(&arguments, vec![trial]).exit_if_failed();
}
