//! The contract suite of `Kv` on the memory store.

fn main() {
    holdfast_index::kv::testing::main(holdfast_index::kv::testing::MemoryBackend);
}
