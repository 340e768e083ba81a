//! Which place counts for each setting.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tensorhold_core::{Error, Result};

use crate::table::{ALL, Setting, setting};
use crate::{CONFIG, Kind, file};

pub(crate) const OPERATION: &str = "settings.read";
/// The login at etcd.
const LOGIN: [&str; 6] = [
    "etcd_options.user",
    "etcd_options.password",
    "etcd_options.tls.ca",
    "etcd_options.tls.certificate",
    "etcd_options.tls.key",
    "etcd_options.tls.server_name",
];

/// The places that settings are read from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given<'a> {
    /// Values of flags, by the settings that they set.
    pub flags: &'a [(&'static str, String)],
    /// Settings that the caller has values of its own for: they count as flags, but their values are not read here.
    pub named: &'a [&'a str],
    /// The variables of the process.
    pub variables: Option<&'a BTreeMap<String, String>>,
    /// The file, if a flag names one; otherwise `TENSORHOLD_CONFIG` may.
    pub config: Option<&'a Path>,
    /// The addresses that `tensorhold up` recorded.
    pub recorded: &'a [(&'static str, String)],
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A flag of the command.
    Flag,
    /// A variable, by name.
    Variable(String),
    /// The file, at this line.
    File(usize),
    /// What `tensorhold up` recorded.
    Up,
    /// Nothing says anything.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Variable(name) => f.write_str(name),
            Self::File(line) => write!(f, "file:{line}"),
            Self::Up => f.write_str("tensorhold up"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A setting that is given somewhere.
#[derive(Clone, PartialEq)]
pub struct Found {
    /// Which one.
    pub setting: &'static Setting,
    /// Its value, in the one form of its kind. Null is none.
    pub value: Value,
    /// Where it comes from.
    pub source: Source,
}

impl Found {
    /// The value as it may be shown: of a secret, only a reference.
    pub fn shown(&self) -> Value {
        if self.setting.kind.is_literal(&self.value) {
            return "(hidden)".into();
        }
        self.value.clone()
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} ({})", self.setting.path, self.shown(), self.source)
    }
}

/// The settings in force.
#[derive(Clone, Debug)]
pub struct Settings {
    found: BTreeMap<&'static str, Found>,
    config: Option<PathBuf>,
}

impl Settings {
    /// Reads every place.
    ///
    /// # Errors
    /// `Invalid`: a setting that does not exist, a value that is not of its kind, a file that cannot be read.
    pub fn read(given: &Given<'_>) -> Result<Self> {
        let flags = texts(given.flags, &Source::Flag)?;
        let variables = of_variables(given)?;
        let variable = given
            .variables
            .and_then(|variables| variables.get(CONFIG))
            .filter(|path| !path.is_empty());
        let config = given.config.map(Path::to_owned).or_else(|| variable.map(PathBuf::from));
        let named_by = if given.config.is_some() { "--config" } else { CONFIG };
        let file = config
            .as_deref()
            .map_or_else(|| Ok(Vec::new()), |path| file::read(path, named_by))?;
        let recorded = texts(given.recorded, &Source::Up)?;

        let unnamed: &[&str] = &[];
        let mut layers = vec![(given.named, flags), (unnamed, variables), (unnamed, file)];
        let addresses = ["etcd", "master", "admin"];
        let names = |(named, found): &(&[&str], Vec<Found>), path: &str| {
            named.contains(&path) || found.iter().any(|one| one.setting.path == path)
        };
        let mut closed: BTreeSet<&str> = BTreeSet::new();
        if !layers
            .iter()
            .any(|layer| addresses.iter().any(|path| names(layer, path)))
            && !recorded.is_empty()
        {
            // That etcd has no login, and a password must not be offered to it.
            closed.extend(LOGIN);
            layers.push((unnamed, recorded));
        }
        let mut settings = Self {
            found: BTreeMap::new(),
            config,
        };
        for layer in layers {
            let closes: Vec<&str> = [
                ("master", &["admin", "metadata"][..]),
                ("etcd", &LOGIN[..]),
                ("key", &["key_id"][..]),
            ]
            .into_iter()
            .filter(|(path, _)| names(&layer, path))
            .flat_map(|(_, others)| others.iter().copied())
            .collect();
            for one in layer.1.into_iter().filter(|one| !closed.contains(one.setting.path)) {
                settings.add(one);
            }
            closed.extend(closes);
        }
        Ok(settings)
    }

    /// Adds what counts less than what is there. Pairs of names and texts are put together.
    fn add(&mut self, one: Found) {
        match self.found.get_mut(one.setting.path) {
            None => drop(self.found.insert(one.setting.path, one)),
            Some(Found {
                value: Value::Object(pairs),
                ..
            }) if one.setting.kind == Kind::Pairs => {
                if let Value::Object(more) = one.value {
                    for (name, value) in more {
                        pairs.entry(name).or_insert(value);
                    }
                }
            }
            Some(_) => {}
        }
    }

    /// The setting, if it is given.
    pub fn given(&self, path: &str) -> Option<&Found> {
        self.found.get(path)
    }

    /// The value in force: the one that is given, or the default. Null if there is none.
    pub fn value(&self, path: &str) -> Value {
        match (self.found.get(path), setting(path)) {
            (Some(found), _) => found.value.clone(),
            (None, Some(setting)) => setting.default_value(),
            (None, None) => Value::Null,
        }
    }

    /// The text in force; empty if there is none.
    pub fn text(&self, path: &str) -> String {
        self.value(path).as_str().unwrap_or_default().to_owned()
    }

    /// Every setting in force, in the order of the table.
    pub fn all(&self) -> Vec<Found> {
        let in_force = |setting: &'static Setting| {
            self.found.get(setting.path).cloned().unwrap_or_else(|| Found {
                setting,
                value: setting.default_value(),
                source: Source::Default,
            })
        };
        ALL.iter()
            .filter(|setting| !setting.path.contains("[]"))
            .map(in_force)
            .collect()
    }

    /// What is given below a path, as objects within objects; `""` for everything.
    pub fn section(&self, path: &str) -> Map<String, Value> {
        let mut section = Map::new();
        for found in self.found.values() {
            let inner = match path {
                "" => Some(found.setting.path),
                _ => found
                    .setting
                    .path
                    .strip_prefix(path)
                    .and_then(|inner| inner.strip_prefix('.')),
            };
            if let Some(inner) = inner {
                put(&mut section, inner, found.value.clone());
            }
        }
        section
    }

    /// The file that was read, if there is one.
    pub fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }
}

fn put(section: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => drop(section.insert(path.to_owned(), value)),
        Some((name, inner)) => {
            let section = section.entry(name).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(section) = section {
                put(section, inner, value);
            }
        }
    }
}

fn of_variables(given: &Given<'_>) -> Result<Vec<Found>> {
    let Some(variables) = given.variables else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for setting in ALL {
        let Some(name) = setting.variable() else { continue };
        let Some(text) = variables.get(&name).filter(|text| !text.trim().is_empty()) else {
            continue;
        };
        let source = Source::Variable(name.clone());
        let mut value = setting.read_text(text).ok_or_else(|| setting.wrong(&source))?;
        if setting.kind.is_literal(&value) {
            // The secret stays where it is: it is in no pickle, and is read again at every connection.
            value = format!("env:{name}").into();
        }
        found.push(Found { setting, value, source });
    }
    Ok(found)
}

fn texts(given: &[(&'static str, String)], source: &Source) -> Result<Vec<Found>> {
    let read = |(path, text): &(&'static str, String)| {
        let setting = setting(path).ok_or_else(|| file::unknown(path, source))?;
        let value = setting.read_text(text).ok_or_else(|| setting.wrong(source))?;
        let source = source.clone();
        Ok(Found { setting, value, source })
    };
    given.iter().map(read).collect()
}

/// An error about a setting. It never has the value.
pub(crate) fn refused(path: &str, source: &Source, why: &str) -> Error {
    Error::invalid(OPERATION, why)
        .with("setting", path.escape_debug())
        .with("from", source)
}
