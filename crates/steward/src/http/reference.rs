//! The reference of the HTTP interface, made from its description ([`openapi`]).

use serde_json::Value;

use super::answer::STATUSES;
use super::openapi;

const HEAD: &str = "# The steward's HTTP interface

Made from the description in `crates/steward/src/http/openapi.rs`, by `cargo run -p tensorhold-steward --example http_page`.
";

const ABOUT: &str = "A steward serves its description at `/v1/openapi.json`. The one of this release is [openapi.json](openapi.json), for
programs that make clients or check requests; it also has the patterns of texts, which are left out here.
[The steward](steward.md#http) says how tokens are made and sent, how large and how slow a request may be, and what is logged.

## Paths

A request *needs* a token if there are tokens in the steward's settings. Without them every program on its machine may use every path,
and no web page of another site may.
";

const REFUSALS: &str = "
## Refusals

A refusal is a [Problem](#problem). Its `error` follows from the status, `why` says more, and `do` says what to do. Besides what is
listed for a path, there is 404 for a path that does not exist and 405 for a method that a path does not have.
";

const VALUES: &str = "
## Values

Every field of an answer is always there, null if there is nothing to tell. Later releases may add fields. A request with a field that
is not listed is refused. Sizes are in bytes; names with `_ms` are milliseconds, points in time since 1970. The command's JSON has the same
names for records: [command.md](command.md#json).
";

/// The page, as Markdown.
pub fn page() -> String {
    let document = openapi::document();
    let mut page = format!("{HEAD}\n{}\n{ABOUT}", text(&document["info"]["description"]));
    let requests = || {
        openapi::PATHS.iter().map(|(method, path, ..)| {
            (
                format!("{} {path}", method.to_uppercase()),
                &document["paths"][path][method],
            )
        })
    };
    push_table(
        &mut page,
        &["request", "needs"],
        requests().map(|(request, operation)| {
            let needs = text(&operation["description"]).replace("Needs ", "");
            vec![format!("[`{request}`](#{})", anchor(&request)), needs]
        }),
    );
    for (request, operation) in requests() {
        push_operation(&mut page, &request, operation, &document);
    }
    page.push_str(REFUSALS);
    push_table(
        &mut page,
        &["status", "error"],
        STATUSES
            .iter()
            .map(|(status, said)| vec![status.as_u16().to_string(), (*said).to_owned()]),
    );
    page.push_str(VALUES);
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        push_value(&mut page, name, schema);
    }
    page
}

/// One request: what it does, and what it takes.
fn push_operation(page: &mut String, request: &str, operation: &Value, document: &Value) {
    let (about, needs) = (text(&operation["summary"]), text(&operation["description"]));
    page.push_str(&format!("\n### `{request}`\n\n{about}. {needs}.\n"));
    let parameters = list(&operation["parameters"]);
    push_table(
        page,
        &["parameter", "in", "type", "meaning"],
        parameters.iter().map(|one| {
            vec![
                format!("`{}`", text(&one["name"])),
                text(&one["in"]),
                kind(&one["schema"]),
                text(&one["description"]),
            ]
        }),
    );
    if operation["requestBody"].is_object() {
        page.push_str(&format!("\nBody: {}.\n", content(&operation["requestBody"], document)));
    }
    let answers = &operation["responses"];
    let statuses = answers
        .as_object()
        .into_iter()
        .flatten()
        .map(|(status, _)| status.as_str());
    let refusals: Vec<&str> = statuses.filter(|status| *status != "200").collect();
    let answer = content(&answers["200"], document);
    page.push_str(&format!("\nAnswer: {answer}. Refusals: {}.\n", refusals.join(", ")));
}

/// What a body holds: a link to its fields, or else its media type.
fn content(body: &Value, document: &Value) -> String {
    let mut kinds = body["content"].as_object().into_iter().flatten();
    let Some((media, holds)) = kinds.next() else {
        return String::new();
    };
    let name = text(&holds["schema"]["$ref"]).replace("#/components/schemas/", "");
    match fields_within(&document["components"]["schemas"][&name]) {
        Some(_) => kind(&holds["schema"]),
        None => format!("`{media}`"),
    }
}

/// The fields of a value. One without fields is a text: its media type says it all.
fn push_value(page: &mut String, name: &str, schema: &Value) {
    let Some((mark, fields)) = fields_within(schema) else {
        return;
    };
    let several = if mark.is_empty() { "" } else { "\nA list of:\n" };
    page.push_str(&format!("\n### {name}\n{several}"));
    let mut rows = Vec::new();
    push_fields(&mut rows, "", fields);
    push_table(page, &["field", "type"], rows.into_iter());
}

/// Fields, each followed by those below it: `budget.free`, `groups[].lease`.
fn push_fields(rows: &mut Vec<Vec<String>>, above: &str, fields: &serde_json::Map<String, Value>) {
    for (name, schema) in fields {
        let name = format!("{above}{name}");
        rows.push(vec![format!("`{name}`"), kind(schema)]);
        if let Some((mark, below)) = fields_within(schema) {
            push_fields(rows, &format!("{name}{mark}."), below);
        }
    }
}

/// The fields of an object, of the items of a list, or of what is an object or null; and the mark of a list.
fn fields_within(schema: &Value) -> Option<(&'static str, &serde_json::Map<String, Value>)> {
    if let Some(fields) = schema["properties"].as_object() {
        return Some(("", fields));
    }
    if let Some(fields) = schema["items"]["properties"].as_object() {
        return Some(("[]", fields));
    }
    list(&schema["anyOf"]).iter().find_map(fields_within)
}

/// A schema in a few words.
fn kind(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        return format!("[{name}](#{})", anchor(name));
    }
    let any = list(&schema["anyOf"]);
    if !any.is_empty() {
        return any.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    let values = list(&schema["enum"]);
    if !values.is_empty() {
        let values = values
            .iter()
            .map(|value| value.as_str().map_or("null".to_owned(), |value| format!("`{value}`")));
        return values.collect::<Vec<_>>().join(", ");
    }
    let mut said = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(text).collect::<Vec<_>>().join(" or "),
        one if one == "array" => format!("list of {}", kind(&schema["items"])),
        one => text(one),
    };
    for (least, most, of) in [("minimum", "maximum", ""), ("minItems", "maxItems", " of them")] {
        if !schema[most].is_null() {
            said.push_str(&format!(", {} to {}{of}", schema[least], schema[most]));
        }
    }
    for (bound, words) in [("maxLength", "length at most"), ("default", "default")] {
        if !schema[bound].is_null() {
            said.push_str(&format!(", {words} {}", schema[bound]));
        }
    }
    said
}

fn push_table(page: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let rows: String = rows.map(|row| format!("| {} |\n", row.join(" | "))).collect();
    if !rows.is_empty() {
        page.push_str(&format!(
            "\n| {} |\n{}|\n{rows}",
            head.join(" | "),
            "|---".repeat(head.len())
        ));
    }
}

/// The anchor of a heading, as the book makes it.
fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|one| one.is_alphanumeric() || matches!(one, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
