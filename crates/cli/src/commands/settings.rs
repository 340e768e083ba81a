//! `settings`: every setting in force, and where it comes from.

use std::time::Duration;

use serde_json::Value;
use tensorhold_settings::{ALL, CONFIG, Found, Kind, Source};

use crate::args::Where;
use crate::failure::Failure;
use crate::io::Host;
use crate::output::{Answer, Output, draw, object, table, to_value};
use crate::settings;
use crate::text::{bytes, count, shown};

/// Variables of processes that are no settings.
const OTHERS: [&str; 4] = [
    CONFIG,
    "TENSORHOLD_METRICS",
    "TENSORHOLD_OTLP_ENDPOINT",
    "TENSORHOLD_UNTESTED_MOONCAKE",
];

pub(crate) fn run(place: &Where, host: &Host, output: Output) -> Result<Answer, Failure> {
    // Only read, and not checked: it shall show settings that do not work, too.
    let (settings, _) = settings::all(place, host)?;
    let mut all = settings.all();
    let is_usual_admin = |one: &&mut Found| one.setting.path == "admin" && one.source == Source::Default;
    if let Some(admin) = all.iter_mut().find(is_usual_admin) {
        admin.value = to_value(&settings::usual_admin(&settings.text("master")));
    }
    let mut rows = table(output, &["setting", "value", "from"]);
    for one in &all {
        let from = shown(&one.source.to_string());
        rows.add_row([one.setting.path.to_owned(), shown(&text(one)), from]);
    }
    let mut text = draw(&rows);
    if let Some(path) = settings.config() {
        text.push_str(&format!("\nfile: {}\n", shown(&path.display().to_string())));
    }
    let unknown = unknown(host);
    if !unknown.is_empty() {
        let names: Vec<String> = unknown.iter().map(|name| shown(name)).collect();
        text.push_str(&format!("\nthese variables name no setting: {}\n", names.join(", ")));
    }
    let items: Vec<Value> = all
        .iter()
        .map(|one| {
            object!("setting": one.setting.path, "value": one.shown(), "from": one.source.to_string(),
                "variable": one.setting.variable())
        })
        .collect();
    let value = object!("items": items, "next": Value::Null, "config": settings.config(), "unknown_variables": unknown);
    Ok(Answer::new(value, text))
}

/// The value as people read it.
fn text(found: &Found) -> String {
    let value = found.shown();
    match (found.setting.kind, &value) {
        (_, Value::Null) if found.setting.or_none => "none".to_owned(),
        (_, Value::Null) => "–".to_owned(),
        (Kind::Bytes, Value::Number(number)) => number.as_u64().map_or_else(|| number.to_string(), bytes),
        (Kind::Duration, Value::Number(number)) => time(number.as_f64().unwrap_or_default()),
        (_, Value::String(text)) => text.clone(),
        (Kind::Tables, Value::Array(tables)) => {
            count(u64::try_from(tables.len()).unwrap_or(u64::MAX), "table", "tables")
        }
        (_, Value::Array(items)) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            items.join(", ")
        }
        (_, Value::Object(pairs)) => {
            let pair = |(name, value): (&String, &Value)| format!("{name}={}", value.as_str().unwrap_or_default());
            pairs.iter().map(pair).collect::<Vec<_>>().join(", ")
        }
        _ => value.to_string(),
    }
}

fn time(seconds: f64) -> String {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    match time.subsec_nanos() {
        0 => format!("{}s", time.as_secs()),
        _ => tensorhold_core::duration::text(time),
    }
}

/// Variables that look like settings and are none: slips, mostly.
fn unknown(host: &Host) -> Vec<&str> {
    let known: Vec<String> = ALL.iter().filter_map(|one| one.variable()).collect();
    let is_known = |name: &str| OTHERS.contains(&name) || known.iter().any(|known| known == name);
    let ours = host.variables.keys().map(String::as_str);
    ours.filter(|name| name.starts_with("TENSORHOLD_") && !is_known(name))
        .collect()
}
