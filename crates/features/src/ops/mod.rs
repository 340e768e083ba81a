//! The operations of a store. Each module has one: its states, the call that a user makes, and the steps below it.

pub(crate) mod adopt;
pub(crate) mod ahead;
mod answer;
mod commit;
mod early;
mod end;
mod get;
mod get_plan;
mod letters;
pub(crate) mod put;
mod put_elsewhere;
mod put_plan;
mod put_reserve;
mod put_write;
pub(crate) mod residency;
mod retire;
mod seen;
mod take;
pub(crate) mod unfed;
pub(crate) mod unleased;
pub(crate) mod writer;
