//! The operations of the index. Each module says what its operations read, what custody decides, and what is written.

mod answers;
mod commit;
mod free;
mod kept;
mod lease;
mod lease_next;
mod list;
mod look;
mod quarantine;
mod reserve;
mod sweep;
