//! The description of the HTTP interface (OpenAPI 3.1), written by hand. A test asks the interface for every path in it,
//! and finds every path of the interface in it; another one has schemathesis send requests that follow from it, and
//! compare the answers with it.
//!
//! Every field of an answer is always there (`required`), null if there is nothing to tell. Answers may get more fields;
//! requests with fields that are not described are refused.
#![expect(clippy::disallowed_methods, reason = "`json!` of texts and numbers does not fail")]

use axum::http::StatusCode;
use serde_json::{Value, json};
use tensorhold_features::Stage;

use super::answer::said;
use super::{given, page, store_of};

/// One path: method, path, what it does, whether a token is needed, the schema of its answer, further parameters.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    bool,
    &'static str,
    &'static [&'static str],
);

/// All paths.
pub const PATHS: &[Row] = &[
    ("get", "/healthz", "The steward runs", false, "Text", &[]),
    (
        "get",
        "/readyz",
        "The stores of its settings are open, those of the index are listed and were tried; otherwise 503, which \
         tells a token for all stores which are not open, and why",
        false,
        "Text",
        &[],
    ),
    ("get", "/metrics", "Prometheus text", true, "Text", &[]),
    (
        "get",
        "/v1/openapi.json",
        "The description of this interface (OpenAPI 3.1)",
        false,
        "Object",
        &[],
    ),
    (
        "get",
        "/v1/stores",
        "The stores that this steward looks after",
        true,
        "Stores",
        &[],
    ),
    (
        "get",
        "/v1/stores/{store}",
        "What was seen and done in a store",
        true,
        "Store",
        &[],
    ),
    (
        "get",
        "/v1/stores/{store}/sessions",
        "The sessions that are alive, and what their processes say of themselves",
        true,
        "Sessions",
        &["after", "limit"],
    ),
    (
        "get",
        "/v1/stores/{store}/records",
        "Records in the order of their states and names, those that match. A request looks at a bounded number of records: an \
         answer may be short or empty, and `next` says where to go on",
        true,
        "Records",
        &["state", "group", "session", "older_than", "limit", "after"],
    ),
    (
        "get",
        "/v1/stores/{store}/records/{sample}",
        "The records of all generations of a sample, the oldest first",
        true,
        "Generations",
        &[],
    ),
    (
        "get",
        "/v1/stores/{store}/dead",
        "The dead letters: samples that ran out of attempts",
        true,
        "Records",
        &["limit", "after"],
    ),
    (
        "post",
        "/v1/stores/{store}/dead/requeue",
        "Put dead letters back into circulation, each with all its attempts",
        true,
        "Outcomes",
        &[],
    ),
    (
        "post",
        "/v1/stores/{store}/dead/drop",
        "Drop dead letters; their bytes are removed if they were kept",
        true,
        "Outcomes",
        &[],
    ),
    (
        "get",
        "/v1/stores/{store}/budget",
        "How many bytes the store may hold, how many it holds, and who waits for more",
        true,
        "Budget",
        &[],
    ),
    (
        "put",
        "/v1/stores/{store}/budget",
        "Set the budget. If samples hold more than that, the answer is 409, and nothing has changed",
        true,
        "Budget",
        &[],
    ),
    (
        "get",
        "/v1/stores/{store}/quarantine",
        "Records that could not be decoded",
        true,
        "Quarantine",
        &["limit", "after"],
    ),
    (
        "post",
        "/v1/stores/{store}/sweep",
        "Sweep now: take back what has expired, and free",
        true,
        "Swept",
        &[],
    ),
    (
        "post",
        "/v1/stores/{store}/audit",
        "Compare the engine's objects with the records, and repair what differs if asked to; 409 while the steward audits the store",
        true,
        "Audited",
        &["repair"],
    ),
    ("get", "/", "The page", false, "Page", &[]),
    ("get", "/page.css", "Its style", false, "Style", &[]),
    ("get", "/page.js", "Its script", false, "Script", &[]),
    ("get", "/icon.svg", "Its icon", false, "Icon", &[]),
    (
        "get",
        "/v1/overview",
        "All that the page shows, of the stores that the token is for",
        true,
        "Overview",
        &[],
    ),
    (
        "get",
        "/v1/events",
        "The same as events named `overview`, when it has changed, at most once a second; ends after the time that a request \
         may take: ask again",
        true,
        "Events",
        &[],
    ),
    (
        "get",
        "/v1/stores/{store}/history",
        "What a store held over time: the points after a time (`after`, in milliseconds since 1970)",
        true,
        "History",
        &["after"],
    ),
    ("get", "/v1/etcd", "How full etcd's nodes are", true, "Etcd", &[]),
];

/// Who may use a path, by the rules of the guard, if there are tokens in the settings.
fn who_may(row: &Row) -> String {
    let (method, path, _, token, ..) = row;
    if !token {
        return "Needs no token".to_owned();
    }
    let which = if page::is_for_any_store(path) {
        "Needs a token, whichever stores it is for"
    } else if store_of(path).is_some() {
        "Needs a token for the store"
    } else {
        "Needs a token for all stores"
    };
    let write = if *method == "get" { "" } else { ", with `write`" };
    format!("{which}{write}")
}

/// The schema of the body that a path takes.
fn body_of(method: &str, path: &str) -> Option<&'static str> {
    match (method, path) {
        ("post", "/v1/stores/{store}/dead/requeue" | "/v1/stores/{store}/dead/drop") => Some("Samples"),
        ("put", "/v1/stores/{store}/budget") => Some("NewBudget"),
        _ => None,
    }
}

/// The statuses with which a path refuses.
fn refusals(row: &Row) -> Vec<StatusCode> {
    let (method, path, _, token, _, parameters) = row;
    // Too many at a time, or a store that is not open; too late.
    let mut all = vec![StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
    if *token {
        all.push(StatusCode::UNAUTHORIZED);
    }
    if !matches!(*path, "/healthz" | "/readyz" | "/v1/openapi.json") {
        // Also for web pages of other sites, if there are no tokens in the settings.
        all.push(StatusCode::FORBIDDEN);
    }
    if path.contains('{') {
        all.push(StatusCode::NOT_FOUND);
    }
    if !parameters.is_empty() {
        all.push(StatusCode::BAD_REQUEST);
    }
    if body_of(method, path).is_some() {
        all.extend([
            StatusCode::BAD_REQUEST,
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::PAYLOAD_TOO_LARGE,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ]);
    }
    if path.starts_with("/v1/stores/{store}/") {
        // What engine and index say.
        all.push(StatusCode::NOT_IMPLEMENTED);
        if *method != "get" {
            all.extend([StatusCode::CONFLICT, StatusCode::INSUFFICIENT_STORAGE]);
        }
    }
    all.sort();
    all.dedup();
    all
}

fn parameter(name: &str, path: &str) -> Value {
    let digits = given::MOST_DIGITS;
    let (place, schema) = match name {
        "store" | "sample" => ("path", json!({"type": "string"})),
        "limit" => (
            "query",
            json!({"type": "integer", "minimum": 1, "maximum": given::MOST_IN_PAGE, "default": given::MOST_IN_PAGE}),
        ),
        "state" => ("query", json!({"enum": Stage::ALL.map(given::stage_name)})),
        "group" => ("query", json!({"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"})),
        "session" => ("query", json!({"type": "string", "pattern": "^[0-9A-Fa-f]{1,16}$"})),
        "older_than" => (
            "query",
            json!({"type": "string", "pattern": format!("^[0-9]{{1,{digits}}}(ms|s|m|h|d)$")}),
        ),
        "after" if path.ends_with("/quarantine") => (
            "query",
            json!({"type": "string", "pattern": "^[0-9]{1,19}/", "maxLength": given::MOST_PLACE}),
        ),
        "after" if path.ends_with("/history") => (
            "query",
            json!({"type": "integer", "minimum": 0, "maximum": given::MOST_EXACT}),
        ),
        "after" => ("query", json!({"type": "string", "maxLength": given::MOST_PLACE})),
        "repair" => ("query", json!({"type": "boolean", "default": false})),
        _ => ("query", json!({"type": "string"})),
    };
    let about = match name {
        "store" => "The store; escape slashes in its name (%2F)",
        "sample" => "The sample; escape slashes in its name (%2F)",
        "state" => "Only samples in this state",
        "group" => "Only samples that were published for this group",
        "session" => "Only samples that this session produced or holds a lease on; its id in hexadecimal",
        "older_than" => {
            "Only samples that have been in their state for longer than this, such as 10m; the units are ms, s, m, h and d"
        }
        "limit" => "How many at most",
        "after" if path.ends_with("/history") => "Only what came after this time, in milliseconds since 1970",
        "after" => "The `next` of the part before",
        "repair" => "Whether to repair what differs, and not only to tell",
        _ => "",
    };
    json!({"name": name, "in": place, "required": place == "path", "schema": schema, "description": about})
}

fn object(fields: &[(&str, Value)]) -> Value {
    let fields: serde_json::Map<String, Value> = fields
        .iter()
        .map(|(name, kind)| ((*name).to_owned(), kind.clone()))
        .collect();
    let names: Vec<String> = fields.keys().cloned().collect();
    json!({"type": "object", "properties": fields, "required": names})
}

/// The schemas of records: what `tensorhold ls --json` tells has the same names.
fn records(schemas: &mut serde_json::Map<String, Value>) {
    let (text, number, yes) = (
        json!({"type": "string"}),
        json!({"type": "integer", "minimum": 0}),
        json!({"type": "boolean"}),
    );
    let maybe = |kind: &str| json!({"type": [kind, "null"]});
    let list = |of: Value| json!({"type": "array", "items": of});
    let named = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
    let maybe_named = |name: &str| json!({"anyOf": [named(name), {"type": "null"}]});
    let person = object(&[
        ("session", text.clone()),
        ("alive", yes.clone()),
        ("program", maybe("string")),
        ("host", maybe("string")),
        ("pid", maybe("integer")),
        ("role", maybe("string")),
    ]);
    let done = object(&[("at_ms", maybe("integer")), ("by", text.clone())]);
    let lease = object(&[
        ("held_by", named("Person")),
        ("since_ms", maybe("integer")),
        ("until_tick", number.clone()),
    ]);
    let group = object(&[
        ("group", text.clone()),
        ("progress", json!({"enum": ["waiting", "leased", "acked", "dead"]})),
        ("attempts", number.clone()),
        ("lease", maybe_named("Lease")),
        ("done", maybe_named("Done")),
    ]);
    let reasons = json!({"enum": [
        "consumed", "aborted", "abandoned", "superseded", "dead_letter", "lost", "other", null
    ]});
    let record = object(&[
        ("sample", text.clone()),
        ("generation", number.clone()),
        ("state", json!({"enum": Stage::ALL.map(given::stage_name)})),
        ("bytes", number.clone()),
        ("since_ms", maybe("integer")),
        ("producer", named("Person")),
        ("reserved_ms", maybe("integer")),
        ("reserved_until_tick", maybe("integer")),
        ("committed_ms", maybe("integer")),
        ("retired", maybe_named("Done")),
        ("reason", reasons),
        ("freed", maybe_named("Done")),
        ("failed_frees", number.clone()),
        ("kept_until_tick", maybe("integer")),
        ("retain", maybe("boolean")),
        ("max_attempts", maybe("integer")),
        ("groups", list(group)),
        ("readers", list(named("Lease"))),
    ]);
    let outcome = object(&[
        ("sample", text.clone()),
        ("generation", maybe("integer")),
        (
            "outcome",
            json!({"enum": ["requeued", "dropped", "not_found", "refused", "failed"]}),
        ),
        ("why", maybe("string")),
    ]);
    let waiting = object(&[("producer", named("Person")), ("wanted_bytes", number.clone())]);
    let quarantined = object(&[
        ("key", text.clone()),
        ("version", number.clone()),
        ("why", text.clone()),
        ("bytes", number.clone()),
        ("in_place", yes),
    ]);
    let mut told = |name: &str, schema: Value| schemas.insert(name.to_owned(), schema);
    told("Person", person);
    told("Done", done);
    told("Lease", lease);
    told("Record", record);
    let page = [
        ("items", list(named("Record"))),
        ("next", maybe("string")),
        ("looked_at", number.clone()),
        ("later", number.clone()),
    ];
    told("Records", object(&page));
    told("Generations", object(&[("items", list(named("Record")))]));
    told("Outcomes", object(&[("items", list(outcome))]));
    let budget = [
        ("budget_bytes", maybe("integer")),
        ("free_bytes", maybe("integer")),
        ("used_bytes", maybe("integer")),
        ("waiting", list(waiting)),
    ];
    told("Budget", object(&budget));
    told(
        "Quarantine",
        object(&[("items", list(quarantined)), ("next", maybe("string"))]),
    );
    let most = super::dead::MOST_SAMPLES;
    let samples = json!({"type": "array", "items": text, "minItems": 1, "maxItems": most});
    told("Samples", request("samples", samples));
    let bytes = json!({"type": "integer", "minimum": 1, "maximum": super::budget::MOST_BUDGET});
    told("NewBudget", request("budget_bytes", bytes));
}

/// The schema of a body with one field.
fn request(field: &str, schema: Value) -> Value {
    json!({"type": "object", "properties": {field: schema}, "required": [field], "additionalProperties": false})
}

fn schemas() -> Value {
    let mut all = schemas_of_reports();
    if let Some(all) = all.as_object_mut() {
        records(all);
    }
    all
}

fn schemas_of_reports() -> Value {
    let (text, number, yes) = (
        json!({"type": "string"}),
        json!({"type": "integer"}),
        json!({"type": "boolean"}),
    );
    let maybe = |kind: &str| json!({"type": [kind, "null"]});
    let list = |of: &Value| json!({"type": "array", "items": of});
    let leader = object(&[
        ("session", text.clone()),
        ("host", text.clone()),
        ("pid", number.clone()),
        ("since_ms", number.clone()),
    ]);
    let session = object(&[
        ("session", text.clone()),
        ("host", text.clone()),
        ("pid", number.clone()),
        ("program", text.clone()),
        ("version", text.clone()),
        ("role", text.clone()),
        ("steward", yes.clone()),
        ("started_ms", number.clone()),
    ]);
    let line = object(&[
        ("store", text.clone()),
        ("open", yes.clone()),
        ("idle", yes.clone()),
        ("on_duty", yes.clone()),
        ("users", maybe("integer")),
    ]);
    let counts = |names: &[&str]| {
        let fields: Vec<(&str, Value)> = names.iter().map(|name| (*name, number.clone())).collect();
        object(&fields)
    };
    let audits = object(&[
        ("ended", number.clone()),
        ("failed", number.clone()),
        ("refused", number.clone()),
        ("orphans", number.clone()),
        ("removed", number.clone()),
        ("lost", number.clone()),
        ("last_ended_ms", maybe("integer")),
        ("trouble", maybe("string")),
    ]);
    json!({
        "Text": text,
        "Object": {"type": "object"},
        "Page": text.clone(),
        "Style": text.clone(),
        "Script": text.clone(),
        "Icon": text.clone(),
        "Events": text.clone(),
        "History": object(&[("columns", list(&text)), ("points", list(&list(&number)))]),
        "Overview": overview(),
        "Problem": object(&[("error", text.clone()), ("why", text.clone()), ("do", text.clone())]),
        "Stores": object(&[("read_only", yes.clone()), ("stores", list(&line))]),
        "Store": object(&[
            ("open", yes.clone()),
            ("idle", yes.clone()),
            ("trouble", maybe("string")),
            ("on_duty", yes.clone()),
            ("steward", json!({"anyOf": [leader.clone(), {"type": "null"}]})),
            ("sweepers", list(&leader)),
            ("sweeps", number.clone()),
            ("failed_sweeps", number.clone()),
            ("taken_back", counts(&["leases", "reservations", "retired", "sessions", "quarantined"])),
            ("freed", number.clone()),
            ("failed_frees", number.clone()),
            ("users", maybe("integer")),
            ("unused_seconds", maybe("integer")),
            ("budget", json!({"anyOf": [object(&[
                ("bytes", number.clone()),
                ("free", number.clone()),
                ("waiting", number.clone()),
                ("first_waits_for", maybe("integer")),
            ]), {"type": "null"}]})),
            ("dead_letters", maybe("integer")),
            ("lost", maybe("integer")),
            ("backlog", list(&object(&[
                ("group", text.clone()),
                ("waiting", number.clone()),
                ("oldest_seconds", maybe("integer")),
            ]))),
            ("quarantined", maybe("integer")),
            ("holders", json!({"anyOf": [object(&[
                ("listed", number.clone()),
                ("missing", list(&object(&[("name", text.clone()), ("since_ms", number.clone())]))),
                ("suspected", number.clone()),
                ("unsettled", yes.clone()),
            ]), {"type": "null"}]})),
            ("audits", audits),
            ("actions", list(&object(&[("at_ms", number.clone()), ("what", text.clone()), ("why", text.clone())]))),
        ]),
        "Sessions": object(&[("sessions", list(&session)), ("next", maybe("string"))]),
        "Swept": counts(&["leases", "reservations", "retired", "sessions", "freed", "failed", "quarantined"]),
        "Audited": object(&[
            ("orphans", number.clone()),
            ("removed", number.clone()),
            ("lost", number.clone()),
            ("samples", number.clone()),
            ("refused", maybe("string")),
            ("complete", yes.clone()),
        ]),
        "Etcd": list(&object(&[
            ("endpoint", text.clone()),
            ("bytes", number.clone()),
            ("used", number.clone()),
            ("quota", number.clone()),
            ("full", yes.clone()),
            ("leads", yes),
            ("trouble", maybe("string")),
        ])),
    })
}

/// What `/v1/overview` answers with. What is below its stores is described in words: it is for people.
fn overview() -> Value {
    let (text, yes, list) = (
        json!({"type": "string"}),
        json!({"type": "boolean"}),
        json!({"type": "array", "items": {"type": "object"}}),
    );
    object(&[
        ("version", text),
        ("read_only", yes.clone()),
        ("whole", yes),
        ("look_every_ms", json!({"type": "integer"})),
        ("attention", list.clone()),
        ("stores", list),
        ("etcd", json!({"type": ["object", "null"]})),
    ])
}

/// The document.
pub fn document() -> Value {
    let mut paths = serde_json::Map::new();
    for row in PATHS {
        let (method, path, about, token, schema, more) = row;
        let named = ["store", "sample"]
            .into_iter()
            .filter(|name| path.contains(&format!("{{{name}}}")));
        let parameters: Vec<Value> = named
            .chain(more.iter().copied())
            .map(|name| parameter(name, path))
            .collect();
        let kind = match *schema {
            "Text" => "text/plain",
            "Page" => "text/html",
            "Style" => "text/css",
            "Script" => "text/javascript",
            "Icon" => "image/svg+xml",
            "Events" => "text/event-stream",
            _ => "application/json",
        };
        let mut responses = serde_json::Map::new();
        let told = json!({
            "description": "As asked",
            "content": {kind: {"schema": {"$ref": format!("#/components/schemas/{schema}")}}},
        });
        responses.insert("200".to_owned(), told);
        for status in refusals(row) {
            let mut refused = json!({
                "description": said(status),
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            });
            if *path == "/readyz" && status == StatusCode::SERVICE_UNAVAILABLE {
                // Which stores are not open is told as text.
                refused["content"]["text/plain"] = json!({"schema": {"$ref": "#/components/schemas/Text"}});
            }
            responses.insert(status.as_str().to_owned(), refused);
        }
        let mut operation = json!({
            "summary": about,
            "description": who_may(row),
            "parameters": parameters,
            "security": if *token { json!([{"token": []}]) } else { json!([]) },
            "responses": responses,
        });
        if let Some(body) = body_of(method, path) {
            operation["requestBody"] = json!({
                "required": true,
                "content": {"application/json": {"schema": {"$ref": format!("#/components/schemas/{body}")}}},
            });
        }
        let entry = paths.entry((*path).to_owned()).or_insert_with(|| json!({}));
        if let Some(entry) = entry.as_object_mut() {
            entry.insert((*method).to_owned(), operation);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tensorhold steward",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What a steward sees and does in the stores that it looks after. Escape slashes in names of stores (%2F).",
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    })
}
