//! The contract suite on the memory engine.

fn main() {
    tensorhold_engine::testing::main(tensorhold_engine::testing::MemoryBackend);
}
