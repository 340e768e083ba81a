//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tensorhold_steward::Compact;

use crate::text::{parse_bytes, parse_time};

/// See what a store of tensors holds, ask why, repair it, and run a cluster on this machine.
///
/// Exit codes: 0 done, 1 something is wrong or not there, 2 the command line or a setting is wrong, 3 a server cannot be
/// reached, 4 refused, 5 a defect.
#[derive(Debug, Parser)]
#[command(name = "tensorhold", version, disable_help_subcommand = false, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) place: Where,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which store, and how to answer. For every command.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "For every command")]
pub(crate) struct Where {
    /// The store; needed only if the index has several [env: TENSORHOLD_STORE]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) store: Option<String>,
    /// The addresses of etcd's nodes, with commas between them [env: TENSORHOLD_ETCD]
    #[arg(long, global = true, value_name = "URLS")]
    pub(crate) etcd: Option<String>,
    /// Mooncake's master: host:port [env: TENSORHOLD_MASTER]
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub(crate) master: Option<String>,
    /// The masters' HTTP addresses; port 9003 of the master's host if not given [env: TENSORHOLD_ADMIN]
    #[arg(long, global = true, value_name = "URLS")]
    pub(crate) admin: Option<String>,
    /// A file of settings (docs/settings.md) [env: TENSORHOLD_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The folder of the cluster on this machine (`up`, `down`) [default: ~/.local/state/tensorhold]
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
    /// How long the command may take, such as 5s or 2m; each command has its own default
    #[arg(long, global = true, value_name = "TIME", value_parser = parse_time)]
    pub(crate) timeout: Option<Duration>,
    /// Answer in JSON (docs/command.md describes it)
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start an etcd, a master and a holder on this machine, for development
    Up(Up),
    /// End what `up` started, and remove its data
    Down,
    /// Print the variables by which programs find what `up` started: eval "$(tensorhold env)"
    Env,
    /// Every setting in force, and where it comes from
    Settings,
    /// Check versions, reachability, settings and the store's clock; say what to do
    Doctor,
    /// What the stores hold, by state; budget, sessions, and what the engine has
    Status,
    /// What `status` and `sessions` tell, live, until q is pressed
    Top {
        /// How often it looks
        #[arg(long, default_value = "1s", value_name = "TIME", value_parser = parse_time)]
        every: Duration,
    },
    /// List samples
    Ls(Ls),
    /// Where a sample's bytes are, who holds it until when, why it was not freed, and its history
    Why {
        /// The name of a sample, or the key of one of its objects
        #[arg(value_name = "KEY_OR_SAMPLE")]
        what: String,
    },
    /// Processes that have the store open
    Sessions,
    /// The store's budget and what is used of it; or set it
    Budget {
        #[command(subcommand)]
        change: Option<BudgetChange>,
    },
    /// The etcd clusters of the index, and how many stores are on each; or change them
    Clusters {
        #[command(subcommand)]
        change: Option<ClustersChange>,
    },
    /// Samples that ran out of attempts
    #[command(subcommand)]
    Dead(Dead),
    /// Records that could not be decoded and were set aside
    #[command(subcommand)]
    Quarantine(Quarantine),
    /// Take back what has expired, and free what is to be freed, now
    Sweep,
    /// Compare the engine's objects with the records, both ways; or repair what differs
    Audit {
        /// Remove objects that no record owns, and declare samples lost whose objects stay missing
        #[arg(long)]
        repair: bool,
        /// Remove them although they are so many that this may be the wrong index
        #[arg(long, requires = "repair")]
        force: bool,
    },
    /// Make it safe to stop a holder: move what it holds of all stores to the others
    Drain(Drain),
    /// Take samples out of circulation and free them
    Rm {
        /// The samples
        #[arg(required = true, value_name = "SAMPLE")]
        samples: Vec<String>,
    },
    /// End everything that the store holds, and free it
    End {
        /// Also while other processes have the store open; their calls then fail
        #[arg(long)]
        others: bool,
    },
    /// Remove what is left of a store that has ended and is empty, with its budget
    Forget {
        /// The store
        #[arg(value_name = "STORE")]
        name: String,
    },
    /// Look after stores until it is stopped: sweep, free, audit, watch; answer over HTTP (docs/steward.md)
    Steward(Steward),
    /// Make a token for the steward's HTTP interface, and the entry for its settings
    Token(Token),
    /// How fast this cluster is: samples of a scratch store, in turns with the bare engine
    Bench(Bench),
    /// Declare what etcd holds now to be the index, after a restore (docs/etcd-restore.md)
    RestoreGuard {
        /// Do it: every process loses its sessions, leases and reservations
        #[arg(long)]
        yes: bool,
    },
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one for each command
    Man {
        /// The folder that they are written to
        folder: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// How much memory the holder lends to the cluster
    #[arg(long, default_value = "512MiB", value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: u64,
    /// The Python interpreter whose environment has Mooncake's wheel
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) python: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Steward {
    /// Where the HTTP interface listens [default: 127.0.0.1:9464]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// Change nothing: look, warn and answer
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Compare objects and records so often, such as 1h, and repair what differs; never if not given
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) audit_every: Option<Duration>,
    /// End a store that no process has had open for so long, such as 30m; never if not given
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) end_when_unused: Option<Duration>,
    /// Compact etcd: auto, if all its keys are of this index; on; or off [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub(crate) compact: Option<Compact>,
    /// Compact it so often, and keep the history of as long [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) compact_every: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Bench {
    /// How many samples, one after the other
    #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) samples: u32,
    /// The size of each
    #[arg(long, default_value = "1MiB", value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) bytes: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Token {
    /// Whose token it is, for the log
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// It may change something, and not only look
    #[arg(long)]
    pub(crate) write: bool,
    /// How long it is valid, such as 720h; for ever if not given
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) valid: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only samples in this state: reserved, live, retired, to_free, lost or dead
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<String>,
    /// Only samples for this group
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Only samples that this session produced or holds
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// Only samples with a copy on this holder, as `why` names it; or on this host, if it has one holder
    #[arg(long, value_name = "HOLDER")]
    pub(crate) holder: Option<String>,
    /// Only samples that have been in their state for longer than this, such as 10m
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) older_than: Option<Duration>,
    /// How many at most
    #[arg(long, default_value_t = 50, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    /// Go on after the place that the last page ended at
    #[arg(long, value_name = "PLACE")]
    pub(crate) after: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// The holder, as `why` names it; or its host, if that has one holder
    #[arg(value_name = "HOLDER")]
    pub(crate) holder: String,
    /// Do not drain it: let it be given new objects again, after the drain that had this number
    #[arg(long, value_name = "JOB")]
    pub(crate) undo: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BudgetChange {
    /// Set the budget
    Set {
        /// How many bytes, such as 1073741824 or 512GiB
        #[arg(value_name = "BYTES", value_parser = parse_bytes)]
        bytes: u64,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClustersChange {
    /// Make another etcd cluster part of the index, or change its addresses
    Add {
        /// Its name: small letters, digits and hyphens
        name: String,
        /// The client addresses of its nodes, such as http://10.0.0.4:2379
        #[arg(required = true, value_name = "ENDPOINT")]
        endpoints: Vec<String>,
        /// It was part of the index before, and it or the home was restored or replaced (docs/etcd-restore.md)
        #[arg(long)]
        again: bool,
    },
    /// Let new stores begin on a cluster
    Open {
        /// Its name
        name: String,
    },
    /// Let no new store begin on a cluster
    Close {
        /// Its name
        name: String,
    },
    /// Make a cluster no part of the index any more: it must be closed, and no store may be on it
    Remove {
        /// Its name
        name: String,
    },
    /// Ask every cluster for its stores, after the home was restored (docs/etcd-restore.md)
    Check,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dead {
    /// List them
    Ls {
        /// How many at most
        #[arg(long, default_value_t = 50, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Go on after the place that the last page ended at
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
    },
    /// Show one
    Show {
        /// The sample
        sample: String,
    },
    /// Give samples back to the groups that ran out of attempts
    Requeue {
        /// The samples
        #[arg(required = true, value_name = "SAMPLE")]
        samples: Vec<String>,
    },
    /// Forget samples and free what is left of them
    Drop {
        /// The samples
        #[arg(required = true, value_name = "SAMPLE")]
        samples: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Quarantine {
    /// List them
    Ls {
        /// How many at most
        #[arg(long, default_value_t = 50, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Go on after the place that the last page ended at
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
    },
    /// Show the bytes of one
    Show {
        /// The key that it had, as `ls` shows it
        key: String,
    },
}

impl Dead {
    /// Whether it changes anything.
    pub(crate) fn changes(&self) -> bool {
        matches!(self, Self::Requeue { .. } | Self::Drop { .. })
    }
}
