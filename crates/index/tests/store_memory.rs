//! The contract suite of `TxnStore` on the memory store.

fn main() {
    holdfast_index::store::testing::main(holdfast_index::store::testing::MemoryBackend);
}
