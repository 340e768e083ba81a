//! A file of settings: TOML, with the line of each value.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Map, Value};
use tensorhold_core::{Error, Result};
use toml_edit::{Document, Item, TableLike, Value as Toml};

use crate::Kind;
use crate::layers::{Found, OPERATION, Source, refused};
use crate::table::{ALL, Setting, setting};

/// Reads a file. `named_by` says where its path comes from; the path itself is not repeated, it may be anything.
pub(crate) fn read(path: &Path, named_by: &str) -> Result<Vec<Found>> {
    let unreadable = |error: std::io::Error| {
        let message = "the file of settings cannot be read; check its path and its permissions";
        Error::invalid(OPERATION, message)
            .with("named_by", named_by)
            .with("why", error.kind())
    };
    let text = fs::read_to_string(path).map_err(unreadable)?;
    let found = parse(&text)?;
    let mode = fs::metadata(path).map_err(unreadable)?.permissions().mode();
    if mode & 0o044 != 0
        && let Some(one) = found.iter().find(|one| one.setting.kind.is_literal(&one.value))
    {
        let why =
            "a secret stands in a file that others may read: write file:PATH or env:NAME there, or chmod 600 the file";
        return Err(refused(one.setting.path, &one.source, why));
    }
    Ok(found)
}

/// The settings in a text.
pub(crate) fn parse(text: &str) -> Result<Vec<Found>> {
    let line = |at: Option<std::ops::Range<usize>>| {
        let before = at.and_then(|at| text.get(..at.start)).unwrap_or_default();
        1 + before.bytes().filter(|byte| *byte == b'\n').count()
    };
    let document = Document::parse(text).map_err(|error| {
        // The parser's own text shows the line, and what stands in it.
        Error::invalid(OPERATION, "the file of settings is no TOML").with("line", line(error.span()))
    })?;
    let mut found = Vec::new();
    walk(document.as_table(), "", &line, &mut found)?;
    Ok(found)
}

type Lines<'a> = dyn Fn(Option<std::ops::Range<usize>>) -> usize + 'a;

fn walk(table: &dyn TableLike, above: &str, line: &Lines<'_>, found: &mut Vec<Found>) -> Result<()> {
    for (name, item) in table.iter() {
        let path = if above.is_empty() {
            name.to_owned()
        } else {
            format!("{above}.{name}")
        };
        let source = Source::File(line(table.key(name).and_then(toml_edit::Key::span)));
        let Some(setting) = setting(&path) else {
            let is_section = ALL.iter().any(|one| one.path.starts_with(&format!("{path}.")));
            match item.as_table_like() {
                Some(table) if is_section => walk(table, &path, line, found)?,
                _ if is_section => return Err(refused(&path, &source, "this is a section: it holds settings")),
                _ => return Err(unknown(&path, &source)),
            }
            continue;
        };
        let value = match setting.kind {
            Kind::Tables => tables(setting, item, &source, line)?,
            _ => json(item)
                .and_then(|value| setting.read(&value))
                .ok_or_else(|| setting.wrong(&source))?,
        };
        found.push(Found { setting, value, source });
    }
    Ok(())
}

/// Tables of settings: those of `steward.stores` are `steward.stores[].…`.
fn tables(setting: &'static Setting, item: &Item, source: &Source, line: &Lines<'_>) -> Result<Value> {
    let wrong = || setting.wrong(source);
    let tables: Vec<&dyn TableLike> = match item {
        Item::ArrayOfTables(tables) => tables.iter().map(|table| table as &dyn TableLike).collect(),
        Item::Value(Toml::Array(items)) => {
            let inline = items
                .iter()
                .map(|one| one.as_inline_table().map(|table| table as &dyn TableLike));
            inline.collect::<Option<_>>().ok_or_else(wrong)?
        }
        _ => return Err(wrong()),
    };
    let mut all = Vec::new();
    for table in tables {
        let mut found = Vec::new();
        walk(table, &format!("{}[]", setting.path), line, &mut found)?;
        let field = |one: Found| {
            let name = one.setting.path.rsplit('.').next().unwrap_or_default();
            (name.to_owned(), one.value)
        };
        all.push(Value::Object(found.into_iter().map(field).collect()));
    }
    Ok(Value::Array(all))
}

/// A setting that does not exist, with the one that was probably meant.
pub(crate) fn unknown(path: &str, source: &Source) -> Error {
    let distance = |one: &&Setting| strsim::damerau_levenshtein(one.path, path);
    let nearest = ALL.iter().min_by_key(distance).map_or("", |one| one.path);
    refused(path, source, "there is no such setting").with("nearest", nearest)
}

fn json(item: &Item) -> Option<Value> {
    match item {
        Item::Value(value) => json_of(value),
        Item::Table(table) => table
            .iter()
            .map(|(name, item)| Some((name.to_owned(), json(item)?)))
            .collect::<Option<Map<_, _>>>()
            .map(Value::Object),
        Item::None | Item::ArrayOfTables(_) => None,
    }
}

fn json_of(value: &Toml) -> Option<Value> {
    Some(match value {
        Toml::String(text) => text.value().as_str().into(),
        Toml::Integer(number) => (*number.value()).into(),
        Toml::Float(number) => (*number.value()).into(),
        Toml::Boolean(switch) => (*switch.value()).into(),
        Toml::Datetime(_) => return None,
        Toml::Array(items) => items.iter().map(json_of).collect::<Option<Vec<_>>>()?.into(),
        Toml::InlineTable(table) => {
            let field = |(name, value): (&str, &Toml)| Some((name.to_owned(), json_of(value)?));
            Value::Object(table.iter().map(field).collect::<Option<Map<_, _>>>()?)
        }
    })
}
