//! The command as a person runs it, and what of its output differs from run to run.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use std::path::PathBuf;

use tensorhold_cli::{Host, Io, wall_clock_ms};
use tensorhold_testkit::{Endpoints, Install};

/// A shell: an environment in which commands are run.
#[derive(Clone, Debug)]
pub struct Shell {
    pub host: Host,
    /// Arguments of every command.
    pub usual: Vec<String>,
    /// Whether a person looks on.
    pub terminal: bool,
}

/// What a command answered.
#[derive(Debug)]
pub struct Ran {
    pub code: u8,
    pub out: String,
    pub err: String,
    command: String,
}

impl Shell {
    /// An environment that has nothing but the programs that tests use.
    pub fn new() -> Self {
        let install = Install::from_env().expect("what .ci/setup installed");
        let etcd = install.etcd().expect("etcd");
        let etcd = etcd.parent().expect("a folder").display().to_string();
        let variables = [("PATH", etcd.as_str()), ("XDG_STATE_HOME", "/nowhere")];
        Self {
            host: Host {
                variables: variables
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into(),
                python: Some(install.python().expect("python")),
                connect: None,
                show_events: None,
                now_ms: wall_clock_ms,
            },
            usual: Vec::new(),
            terminal: false,
        }
    }

    /// With the addresses of a cluster.
    pub fn at(endpoints: &Endpoints) -> Self {
        let mut shell = Self::new();
        shell.set("TENSORHOLD_ETCD", &endpoints.etcd.join(","));
        shell.set("TENSORHOLD_MASTER", &endpoints.master);
        shell.set("TENSORHOLD_ADMIN", &endpoints.admin.join(","));
        shell.set("TENSORHOLD_METADATA", &endpoints.metadata);
        shell
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.host.variables.insert(name.to_owned(), value.to_owned());
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        let all = std::iter::once("tensorhold").chain(arguments.iter().copied());
        let all: Vec<String> = all.map(str::to_owned).chain(self.usual.iter().cloned()).collect();
        let (host, terminal) = (self.host.clone(), self.terminal);
        // The command makes a runtime of its own, and a test has one already.
        let ran = std::thread::spawn(move || {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let mut io = Io {
                out: &mut out,
                err: &mut err,
                out_is_terminal: terminal,
                err_is_terminal: terminal,
            };
            let code = tensorhold_cli::run(all, &mut io, &host);
            (code, out, err)
        });
        let (code, out, err) = ran.join().expect("the command does not panic");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let (out, err) = (text(out), text(err));
        for text in [&out, &err] {
            let harmless = text.chars().all(|one| one == '\n' || !one.is_control());
            assert!(terminal || harmless, "a terminal would act on {text:?}");
        }
        Ran {
            code,
            out,
            err,
            command: arguments.join(" "),
        }
    }

    /// The value that a command answers with.
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let ran = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        serde_json::from_str(&ran.out).expect("JSON")
    }
}

impl Ran {
    /// Everything that a person sees.
    pub fn transcript(&self) -> String {
        let mut text = format!("$ tensorhold {}\n{}", self.command, self.out);
        if !self.err.is_empty() {
            text.push_str(&format!("[stderr]\n{}", self.err));
        }
        if self.code != 0 {
            text.push_str(&format!("[exit code {}]\n", self.code));
        }
        text
    }
}

/// Compares with what is in the repository. What differs from run to run is replaced, and so are the widths of columns,
/// which follow from it.
pub fn golden(name: &str, ran: &[Ran]) {
    let text: Vec<String> = ran.iter().map(Ran::transcript).collect();
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let filters = [
        (r"127\.0\.0\.1:\d{4,5}\b", "127.0.0.1:[port]"),
        (r"/tmp/\S*?/(run|state|env)\b", "[folder]/$1"),
        (r"(--dir|in) /tmp/[^\s)]+", "$1 [folder]"),
        (r"(--config|file:) /tmp/\S+", "$1 [file]"),
        (r#""/tmp/[^"]+""#, r#""[path]""#),
        (r"\(pid \d+\)", "(pid [pid])"),
        (r"(?m)^\S+ +(rdma|priorities) .*(\n +→.*)?", "[depends on the host]  $1"),
        (r"sessions cleared \d+", "sessions cleared [n]"),
        (
            r"\d+ sessions? (has|have) ended: the next",
            "[n] sessions have ended: the next",
        ),
        (
            r#""(\w+_ms|generation|version|until_tick|kept_until_tick|reserved_until_tick)": \d+"#,
            r#""$1": [number]"#,
        ),
        (r"\b[0-9a-f]{11,16}\b", "[session]"),
        (r"\bg\d+\b", "g[n]"),
        (r"\bg\d+-[0-9a-f]{16}\b", "g[n]-[nonce]"),
        (r"version  \d+", "version  [number]"),
        (r"\d+ (ms|s|min|min \d+ s) (ago|more)", "[age] $2"),
        (r"(takes|in|for) \d+ (ms|s|min|min \d+ s)\b", "$1 [time]"),
        (r"(?m)^ +\[age\]", "  [age]"),
        (r"tries: \d+", "tries: [n]"),
        (r"holds [\d.]+ [KM]iB", "holds [bytes]"),
        (r"epoch \S+ of", "epoch [epoch] of"),
        (r#""epoch": "[^"]+""#, r#""epoch": "[epoch]""#),
        (r"(?m)^(etcd|master|holder)  +\d+", "$1  [pid]"),
        (r"(\S)  +", "$1  "),
    ];
    for (pattern, replacement) in filters {
        settings.add_filter(pattern, replacement);
    }
    #[expect(clippy::disallowed_methods, reason = "inside the macro")]
    settings.bind(|| insta::assert_snapshot!(name, text.join("\n")));
}
