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
    /// The columns that there are, if no line may be longer.
    pub(crate) width: Option<u16>,
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

/// The lines of a table, none of them longer than there is room: otherwise each row becomes a paragraph, in which every
/// value has its column's name.
pub(crate) fn fitted(table: &Table, output: Output) -> String {
    let text = draw(table);
    let Some(width) = output.width.map(usize::from) else {
        return text;
    };
    if text.lines().all(|line| line.chars().count() <= width) {
        return text;
    }
    let names: Vec<String> = table
        .header()
        .into_iter()
        .flat_map(|row| row.cell_iter())
        .map(Cell::content)
        .collect();
    let mut text = String::new();
    for row in table.row_iter() {
        let mut cells = row.cell_iter().zip(&names);
        if let Some((first, _)) = cells.next() {
            text.push_str(&first.content());
        }
        let mut line = String::new();
        for (cell, name) in cells {
            let part = format!("{} {}", name.to_lowercase(), cell.content());
            if !line.is_empty() && line.chars().count() + 2 + part.chars().count() <= width {
                line.push_str(&format!("  {part}"));
            } else {
                text.push_str(&line);
                line = format!("\n  {part}");
            }
        }
        text.push_str(&line);
        text.push('\n');
    }
    wrapped(&text, width)
}

/// A text without lines that are longer than there is room.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let width = width.max(1);
    let mut all = String::with_capacity(text.len());
    for line in text.lines() {
        let mut rest: Vec<char> = line.chars().collect();
        while rest.len() > width {
            // At the last blank that still fits; the indentation is none.
            let indented = rest.iter().take_while(|one| **one == ' ').count();
            let blank = rest[..=width]
                .iter()
                .rposition(|one| *one == ' ')
                .filter(|at| *at > indented);
            let tail = rest.split_off(blank.unwrap_or(width));
            all.extend(rest);
            all.push('\n');
            rest = tail.into_iter().skip(usize::from(blank.is_some())).collect();
        }
        all.extend(rest);
        all.push('\n');
    }
    all
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

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: Output = Output {
        colour: false,
        terminal: false,
        width: Some(24),
    };

    #[test]
    fn a_table_that_is_too_wide_becomes_paragraphs_and_loses_nothing() {
        let mut rows = table(NARROW, &["store", "live", "waiting", "budget"]);
        rows.add_row(["run-7", "4", "2", "1000 B of 1 MiB used"]);
        let narrow = fitted(&rows, NARROW);
        assert_eq!(narrow, "run-7\n  live 4  waiting 2\n  budget 1000 B of 1 MiB\nused\n");
        assert!(narrow.lines().all(|line| line.chars().count() <= 24), "{narrow}");
        let wide = Output {
            width: Some(200),
            ..NARROW
        };
        assert_eq!(fitted(&rows, wide), draw(&rows), "with room it is a table");
    }

    #[test]
    fn a_long_line_is_broken_at_blanks_and_a_long_word_anywhere() {
        assert_eq!(wrapped("one two three\nfour", 7), "one two\nthree\nfour\n");
        assert_eq!(wrapped("abcdefghij", 4), "abcd\nefgh\nij\n");
        assert_eq!(
            wrapped("  abcdef", 4),
            "  ab\ncdef\n",
            "an indentation is no place to break"
        );
        assert_eq!(wrapped("", 4), "");
    }
}
