//! One registry for each process, and what a fork leaves behind.
//!
//! A child of a fork inherits the memory of its parent: counts that are not its own, and locks that a thread of the parent
//! may have held, which exists on the parent's side only. So a child must not use the parent's registry, nor wait for
//! anything that the parent was making. Registries are a list with one link for each generation of processes, and a link is
//! set by one exchange of a pointer, without a lock ([`OnceBox`]).

use std::process;

use once_cell::race::OnceBox;

use crate::registry::Registry;

struct Link {
    pid: u32,
    registry: Registry,
    next: OnceBox<Link>,
}

static FIRST: OnceBox<Link> = OnceBox::new();

/// The registry of this process. A forked child begins with an empty one.
pub fn registry() -> &'static Registry {
    let pid = process::id();
    let mut link = &FIRST;
    loop {
        let found = link.get_or_init(|| {
            Box::new(Link {
                pid,
                registry: Registry::from_environment(),
                next: OnceBox::new(),
            })
        });
        if found.pid == pid {
            return &found.registry;
        }
        link = &found.next;
    }
}
