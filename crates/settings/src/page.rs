//! The reference of the settings, made from the table.

use crate::Kind;
use crate::table::ALL;

const HEAD: &str = "# Settings

Made from the table in `crates/settings/src/table.rs`, by `cargo run -p tensorhold-settings --example settings_page`.

Every setting has a name, a place in a file, and a variable. `tensorhold.open`, the `tensorhold` command and the steward read them
alike, and what stands first counts most:

1. arguments of `tensorhold.open`, flags of the command
2. variables: `TENSORHOLD_` and the name in capitals, with `_` for each dot. `TENSORHOLD_ETCD_…` are those of `etcd_options` and its
   `tls`; the private key is `TENSORHOLD_ETCD_PRIVATE_KEY`. An empty variable counts as none
3. a file: `--config`, or else `TENSORHOLD_CONFIG`. There is no other place that is looked at
4. the addresses that `tensorhold up` recorded, if nothing above names an etcd, a master or an admin address; then no login counts
5. the default

```toml
# tensorhold.toml
store = \"run-7\"
etcd = [\"https://etcd-1:2379\", \"https://etcd-2:2379\"]
master = \"mooncake:50051\"
budget = \"512GiB\"

[etcd_options]
user = \"trainer\"
password = \"file:/run/secrets/etcd\"
tls.ca = \"/etc/tensorhold/ca.pem\"

[index]
tick = \"500ms\"

[[steward.stores]]
store = \"run-7\"
audit_every = \"1h\"
```

- `tensorhold settings` shows every setting in force and where it comes from. A setting that does not exist is refused, with the
  nearest one that does; a value of another kind is refused. No error repeats a value.
- Clusters are not mixed: a place that names `master` closes the places below it for `admin` and `metadata`, and one that names
  `etcd` closes them for `user`, `password` and `tls` of `etcd_options`. So a password goes only to the etcd that it was given with,
  or that nothing above it names.
- Secrets are best given as `file:PATH` or `env:NAME`: they are read at every connection, so a rotated one is picked up. A secret in a
  variable is passed on as `env:` and the variable's name. A file that holds one must not be readable by others.
- `index` and `features.adopt_prefixes` must be the same for all processes of a store, its steward and the command.
";

/// The page, as Markdown.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n## What may be written\n\n| kind | in a file |\n|---|---|\n");
    for kind in [
        Kind::Text,
        Kind::List,
        Kind::Pairs,
        Kind::Bytes,
        Kind::Duration,
        Kind::Count,
        Kind::Share,
        Kind::Switch,
        Kind::Secret,
        Kind::Pem,
        Kind::Tables,
    ] {
        page.push_str(&format!("| {} | {} |\n", kind.name(), kind.expected()));
    }
    page.push_str(
        "\nWhere the table says *or none*, `\"none\"` is a value. A variable holds the same without quotes.\n",
    );
    let mut section = None;
    for one in ALL {
        let of = one.path.split_once('.').map_or("", |(section, _)| section);
        if section != Some(of) {
            section = Some(of);
            let title = if of.is_empty() {
                "The store, and where it is".to_owned()
            } else {
                format!("`{of}`")
            };
            page.push_str(&format!(
                "\n## {title}\n\n| setting | kind | default | variable | meaning |\n|---|---|---|---|---|\n"
            ));
        }
        let code = |text: &str| {
            if text.is_empty() {
                "–".to_owned()
            } else {
                format!("`{text}`")
            }
        };
        let none = if one.or_none { " or none" } else { "" };
        let variable = one.variable().unwrap_or_default();
        page.push_str(&format!(
            "| `{}` | {}{none} | {} | {} | {} |\n",
            one.path,
            one.kind.name(),
            code(one.default),
            code(&variable),
            one.meaning
        ));
    }
    page.push_str(TAIL);
    page
}

const TAIL: &str = "
## Variables that are no settings

| variable | what |
|---|---|
| `TENSORHOLD_CONFIG` | the path of the file |
| `TENSORHOLD_METRICS` | `off`: no metrics ([metrics.md](metrics.md)) |
| `TENSORHOLD_OTLP_ENDPOINT` | where traces go ([traces.md](traces.md)) |
| `TENSORHOLD_UNTESTED_MOONCAKE` | `1`: as `engine.untested_release` |
";
