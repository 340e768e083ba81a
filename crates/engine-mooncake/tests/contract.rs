//! The contract suite on a real master with separate holder processes, a cluster of its own for each case.

mod common;

fn main() {
    tensorhold_engine::testing::main(common::RealBackend);
}
