//! The contract suite of `Index` on the index in memory.

fn main() {
    tensorhold_index::testing::main(tensorhold_index::testing::MemoryBackend);
}
