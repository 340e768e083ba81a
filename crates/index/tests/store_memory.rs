//! The contract suite of `TxnStore` on the memory store.

fn main() {
    tensorhold_index::store::testing::main(tensorhold_index::store::testing::MemoryBackend);
}
