//! Tells whether a given process listens on a port.
//!
//! A connection alone does not show that: another program may have the port. The kernel's table of sockets names an
//! inode for each listener, and the process's open files show which inodes are its own.

use std::collections::HashSet;
use std::fs;

const LISTEN: &str = "0A";

/// Whether the process `pid` listens on `port`, on any address.
pub(crate) fn listens(pid: u32, port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let inodes: HashSet<String> = tables.iter().flat_map(|table| listeners(table, port)).collect();
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
    !inodes.is_empty() && links.any(|link| inodes.contains(&*link.to_string_lossy()))
}

/// The sockets that listen on a port, named as the links in `/proc/PID/fd` name them.
fn listeners(table: &str, port: u16) -> Vec<String> {
    let ours = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (_, number) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(number, 16).ok()? == port && fields.get(3) == Some(&LISTEN);
        is_it.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]")))?
    };
    table.lines().skip(1).filter_map(ours).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn only_the_process_that_listens_does() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        assert!(listens(std::process::id(), port));
        assert!(!listens(std::os::unix::process::parent_id(), port));
        drop(listener);
        assert!(!listens(std::process::id(), port));
    }
}
