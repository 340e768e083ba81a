//! The part of `deploy/compose/compose.yaml` that matters outside of containers, and its translation to this machine.
//!
//! Ports, flags and settings stay what they are. Three things differ:
//!
//! | in containers | here |
//! |---|---|
//! | the name of a service | an address of its own in 127.0.0.0/8 |
//! | `0.0.0.0` | the same address: nothing listens beyond loopback |
//! | a path under a mount | the folder that is mounted; of `config` a copy, in which the above is replaced too |

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Characters of names. A name that is followed by a dot and more is another one, such as that of a file.
fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

#[derive(Debug, Deserialize)]
pub(super) struct Compose {
    pub(super) services: BTreeMap<String, Service>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Service {
    #[serde(default)]
    entrypoint: Vec<String>,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    env_file: Vec<String>,
    #[serde(default)]
    volumes: Vec<String>,
    healthcheck: Option<Healthcheck>,
    #[serde(default)]
    pub(super) depends_on: BTreeMap<String, Dependency>,
    #[serde(default)]
    pub(super) profiles: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Healthcheck {
    test: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Dependency {
    pub(super) condition: Condition,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Condition {
    ServiceHealthy,
    ServiceCompletedSuccessfully,
}

/// A service as it runs here.
#[derive(Clone, Debug)]
pub(super) struct Translated {
    pub(super) command: Vec<String>,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) healthcheck: Vec<String>,
    /// What is mounted where, longest place first.
    mounts: Vec<(String, String)>,
    address: Ipv4Addr,
}

impl Compose {
    /// Reads the file. Python's parser is the one that is here.
    pub(super) fn read(file: &Path, python: &Path) -> Result<Self> {
        let to_json = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";
        let output = Command::new(python).args(["-c", to_json]).arg(file).output();
        let output = output.with_context(|| format!("{} could not be started: run .ci/setup", python.display()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} cannot be read: {errors}", file.display());
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("{} has parts that are not known", file.display()))
    }
}

/// Where the services are.
#[derive(Debug)]
pub(super) struct Place {
    /// The folder of `compose.yaml`.
    pub(super) compose: PathBuf,
    /// The folder that stands for it where something is written: secrets, data, and translated copies.
    pub(super) scratch: PathBuf,
    /// The address of each service.
    pub(super) addresses: BTreeMap<String, Ipv4Addr>,
}

impl Place {
    /// Translates a service, and the files that it reads. Once: what is translated may contain names again, in paths.
    pub(super) fn translate(&self, name: &str, service: &Service) -> Result<Translated> {
        let address = *self.addresses.get(name).context("every service has an address")?;
        let mut translated = Translated {
            command: Vec::new(),
            environment: BTreeMap::new(),
            healthcheck: Vec::new(),
            mounts: Vec::new(),
            address,
        };
        for volume in &service.volumes {
            let (source, place) = volume
                .trim_end_matches(":ro")
                .split_once(':')
                .with_context(|| format!("{name}: {volume} is no source and target"))?;
            translated.mounts.push((place.to_owned(), self.source(name, source)?));
        }
        translated
            .mounts
            .sort_by_key(|(place, _)| std::cmp::Reverse(place.len()));
        for (_, source) in &translated.mounts {
            self.translate_files(Path::new(source), &translated)?;
        }
        let all = |texts: &[String]| {
            texts
                .iter()
                .map(|text| self.text(text, &translated))
                .collect::<Vec<_>>()
        };
        let command = [&*service.entrypoint, &*service.command].concat();
        let (program, arguments) = command
            .split_first()
            .with_context(|| format!("{name} has no command"))?;
        // A program may have the name of a service.
        let command = [vec![program.clone()], all(arguments)].concat();
        let healthcheck = service.healthcheck.as_ref().map_or(&[][..], |check| &check.test[1..]);
        let healthcheck = all(healthcheck);
        let mut environment = BTreeMap::new();
        for file in &service.env_file {
            let file = self.compose.join(file);
            let text = std::fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
            let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
            for line in lines {
                let (key, value) = line
                    .split_once('=')
                    .with_context(|| format!("{}: {line} is no variable", file.display()))?;
                environment.insert(key.to_owned(), self.text(value, &translated));
            }
        }
        let own = service.environment.iter();
        environment.extend(own.map(|(key, value)| (key.clone(), self.text(value, &translated))));
        environment.insert("MC_TCP_BIND_ADDRESS".to_owned(), address.to_string());
        Ok(Translated {
            command,
            environment,
            healthcheck,
            ..translated
        })
    }

    /// Where the source of a mount is here. What services write, and what is translated, is in the scratch folder.
    fn source(&self, name: &str, source: &str) -> Result<String> {
        let path = if source.starts_with("./secrets") || source.starts_with("./data") {
            self.scratch.join(source)
        } else {
            let original = self.compose.join(source);
            let copy = self.scratch.join("copies").join(name);
            let copy = copy.join(original.file_name().context("a mount has a name")?);
            copy_all(&original, &copy)?;
            copy
        };
        ensure!(path.exists(), "{name}: {} is not there", path.display());
        Ok(path.display().to_string())
    }

    /// Replaces what differs here in all files of a mount.
    fn translate_files(&self, path: &Path, of: &Translated) -> Result<()> {
        if path.is_dir() {
            for entry in std::fs::read_dir(path)? {
                self.translate_files(&entry?.path(), of)?;
            }
            return Ok(());
        }
        let is_text = ["toml", "yml", "flags"]
            .iter()
            .any(|kind| path.extension().is_some_and(|it| it == *kind));
        if is_text {
            let text = std::fs::read_to_string(path)?;
            std::fs::write(path, self.text(&text, of))?;
        }
        Ok(())
    }

    /// A text of a service, as it reads here.
    fn text(&self, text: &str, of: &Translated) -> String {
        let mut result = String::new();
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.find(|c| !is_of_a_name(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            // A part of a path is no host; the end of `https://` begins one.
            let in_path = result.ends_with('/') && !result.ends_with("//");
            match self.addresses.get(word) {
                Some(address) if !in_path => result.push_str(&address.to_string()),
                _ if word == "0.0.0.0" => result.push_str(&of.address.to_string()),
                _ => result.push_str(word),
            }
            let end = after.find(is_of_a_name).unwrap_or(after.len());
            let (between, after) = after.split_at(end);
            result.push_str(between);
            rest = after;
        }
        for (place, source) in &of.mounts {
            result = result.replace(place, source);
        }
        result
    }
}

fn copy_all(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        std::fs::create_dir_all(to)?;
        for entry in std::fs::read_dir(from).with_context(|| format!("{} cannot be read", from.display()))? {
            let entry = entry?;
            copy_all(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("{} cannot be copied", from.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_any_address_and_mounts_are_replaced_and_nothing_else() {
        let place = Place {
            compose: PathBuf::new(),
            scratch: PathBuf::new(),
            addresses: [("etcd-0", 1), ("mooncake-etcd-0", 2)]
                .map(|(name, last)| (name.to_owned(), Ipv4Addr::new(127, 1, 1, last)))
                .into(),
        };
        let of = Translated {
            command: Vec::new(),
            environment: BTreeMap::new(),
            healthcheck: Vec::new(),
            mounts: vec![("/run/tensorhold".to_owned(), "/tmp/etcd-0".to_owned())],
            address: Ipv4Addr::new(127, 1, 1, 9),
        };
        let reads = |text: &str| place.text(text, &of);
        assert_eq!(
            reads("etcd-0=https://etcd-0:2380,x"),
            "127.1.1.1=https://127.1.1.1:2380,x"
        );
        assert_eq!(
            reads("etcd://mooncake-etcd-0:2379;etcd-0.pem"),
            "etcd://127.1.1.2:2379;etcd-0.pem"
        );
        assert_eq!(reads("/data/etcd-0"), "/data/etcd-0");
        assert_eq!(reads("--listen=0.0.0.0:9464"), "--listen=127.1.1.9:9464");
        assert_eq!(reads("file:/run/tensorhold/ca.pem"), "file:/tmp/etcd-0/ca.pem");
    }
}
