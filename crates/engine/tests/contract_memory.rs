//! The contract suite on the memory engine.

fn main() {
    holdfast_engine::testing::main(holdfast_engine::testing::MemoryBackend);
}
