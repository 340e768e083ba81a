//! What the index keeps: its keys, the records under them, and what is refused because of them. Nothing is read or sent
//! here.

pub(crate) mod ahead;
pub(crate) mod codec;
pub(crate) mod engine;
pub(crate) mod grants;
pub(crate) mod identity;
pub(crate) mod layout;
pub(crate) mod office;
pub(crate) mod refusal;
pub mod schema;
pub(crate) mod types;
