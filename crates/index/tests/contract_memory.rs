//! The contract suite of `Index` on the index in memory.

fn main() {
    holdfast_index::testing::main(holdfast_index::testing::MemoryBackend);
}
