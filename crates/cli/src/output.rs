//! What a command answers: a value for programs, a text for people, and the exit code.

use comfy_table::{Cell, CellAlignment, Color, Table, presets};
use serde::Serialize;
use serde_json::Value;

use crate::failure::DONE;

/// How an answer is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) colour: bool,
    /// Whether a person sees it as it is written.
    pub(crate) terminal: bool,
}

/// What a command answers.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    pub(crate) text: String,
    pub(crate) code: u8,
}

impl Answer {
    pub(crate) fn new(value: Value, text: impl Into<String>) -> Self {
        Self {
            value,
            text: text.into(),
            code: DONE,
        }
    }

    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }
}

/// A table without lines, whose width is that of its cells: it is read by people and by `grep`.
pub(crate) fn table(output: Output, columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|name| Cell::new(name.to_uppercase())));
    if output.colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// The lines of a table without blanks at their ends.
pub(crate) fn draw(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    format!("{}\n", lines.join("\n"))
}

/// A number, at the right of its column.
pub(crate) fn number(text: impl ToString) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// A word in a colour.
pub(crate) fn word(text: impl ToString, colour: Color) -> Cell {
    Cell::new(text).fg(colour)
}

/// A value for programs; nothing for what JSON cannot say.
pub(crate) fn to_value(value: &(impl Serialize + ?Sized)) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// An object for programs. Unlike `json!`, it does not panic.
macro_rules! object {
    ($($name:literal: $value:expr),* $(,)?) => {{
        let mut fields = serde_json::Map::new();
        $(fields.insert($name.to_owned(), $crate::output::to_value(&$value));)*
        serde_json::Value::Object(fields)
    }};
}
pub(crate) use object;
