//! Explores the quota's model completely: two processes with two waiters each, a budget for one sample, a crash of each.
//! About twelve million states.

#![allow(clippy::print_stdout, reason = "a program for people")]

#[path = "../tests/quota_model/model/mod.rs"]
mod model;

fn main() {
    let (broken, states) = model::explore(&model::small(), None);
    println!("{states} states; broken: {broken:?}");
    std::process::exit(i32::from(!broken.is_empty()));
}
