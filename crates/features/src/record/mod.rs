//! What is recorded of a sample: its description, the plan of its objects, and which of them its store may own.

pub(crate) mod described;
pub(crate) mod description;
pub(crate) mod encoding;
pub(crate) mod limits;
pub(crate) mod objects;
pub(crate) mod ownership;
pub(crate) mod plan;
