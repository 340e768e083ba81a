//! What a proof says in the end: a table of claims for people, one JSON object for scripts.

use anyhow::Result;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};

/// One thing that was claimed, and what was seen.
#[derive(Serialize)]
struct Claim {
    #[serde(rename = "claim")]
    text: String,
    seen: String,
    holds: bool,
}

/// What a proof found.
pub(crate) struct Report {
    name: &'static str,
    claims: Vec<Claim>,
    tables: Vec<String>,
    notes: Vec<String>,
    figures: Map<String, Value>,
}

impl Report {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            claims: Vec::new(),
            tables: Vec::new(),
            notes: Vec::new(),
            figures: Map::new(),
        }
    }

    /// A claim that holds or does not.
    pub(crate) fn claim(&mut self, text: impl Into<String>, seen: impl Into<String>, holds: bool) {
        self.claims.push(Claim {
            text: text.into(),
            seen: seen.into(),
            holds,
        });
    }

    /// A table for people, shown before the claims.
    pub(crate) fn table(&mut self, text: String) {
        self.tables.push(text);
    }

    /// Something to know when reading the claims.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// A figure for scripts.
    pub(crate) fn figure(&mut self, name: &str, value: impl Into<Value>) {
        self.figures.insert(name.to_owned(), value.into());
    }

    pub(crate) fn holds(&self) -> bool {
        self.claims.iter().all(|claim| claim.holds)
    }

    /// The tables for people, unless only JSON is wanted; then the one line of JSON, last.
    pub(crate) fn print(&self, json_only: bool, quick: bool) -> Result<()> {
        if !json_only {
            for table in &self.tables {
                println!("{table}\n");
            }
            let mut table = table(&["claim", "seen", "holds"]);
            for claim in &self.claims {
                table.add_row([
                    claim.text.as_str(),
                    claim.seen.as_str(),
                    if claim.holds { "yes" } else { "NO" },
                ]);
            }
            println!("{table}");
            for note in &self.notes {
                println!("note: {note}");
            }
        }
        let mut line = Map::new();
        line.insert("proof".to_owned(), self.name.into());
        line.insert("holds".to_owned(), self.holds().into());
        line.insert("quick".to_owned(), quick.into());
        line.insert("claims".to_owned(), serde_json::to_value(&self.claims)?);
        line.extend(self.figures.clone());
        println!("{}", serde_json::to_string(&line)?);
        Ok(())
    }
}

/// An empty table with these headings.
pub(crate) fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(headings.to_vec());
    table
}

/// The value that a share `q` of all values does not exceed; zero if there are none.
pub(crate) fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index between 0 and the length"
    )]
    let at = (values.len().saturating_sub(1) as f64 * q).ceil() as usize;
    values.get(at).copied().unwrap_or(0.0)
}

/// For printing: three digits behind the point.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
