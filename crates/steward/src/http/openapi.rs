//! The description of the HTTP interface (OpenAPI 3.1), written by hand. A test asks the interface for every path in it,
//! and finds every path of the interface in it.
#![expect(clippy::disallowed_methods, reason = "`json!` of texts and numbers does not fail")]

use serde_json::{Value, json};

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
        "All its stores are open; if not, 503 says which are not and why",
        false,
        "Text",
        &[],
    ),
    (
        "get",
        "/metrics",
        "Prometheus text; needs a token for all stores",
        true,
        "Text",
        &[],
    ),
    ("get", "/v1/openapi.json", "This document", false, "Object", &[]),
    (
        "get",
        "/v1/stores",
        "The stores that this steward looks after; needs a token for all stores",
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
        "/v1/stores/{store}/quarantine",
        "Records that could not be decoded",
        true,
        "Quarantine",
        &[],
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
        "Compare the engine's objects with the records, and repair what differs if asked to",
        true,
        "Audited",
        &["repair"],
    ),
    (
        "get",
        "/v1/etcd",
        "How full etcd's nodes are; needs a token for all stores",
        true,
        "Etcd",
        &[],
    ),
];

fn parameter(name: &str) -> Value {
    let (place, schema) = match name {
        "store" => ("path", json!({"type": "string"})),
        "limit" => ("query", json!({"type": "integer", "minimum": 1, "maximum": 1000})),
        "repair" => ("query", json!({"type": "boolean", "default": false})),
        _ => ("query", json!({"type": "string"})),
    };
    json!({"name": name, "in": place, "required": place == "path", "schema": schema})
}

fn object(fields: &[(&str, Value)]) -> Value {
    let fields: serde_json::Map<String, Value> = fields
        .iter()
        .map(|(name, kind)| ((*name).to_owned(), kind.clone()))
        .collect();
    json!({"type": "object", "properties": fields})
}

fn schemas() -> Value {
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
        ("on_duty", yes.clone()),
        ("users", maybe("integer")),
    ]);
    let counts = |names: &[&str]| {
        let fields: Vec<(&str, Value)> = names.iter().map(|name| (*name, number.clone())).collect();
        object(&fields)
    };
    json!({
        "Text": text,
        "Object": {"type": "object"},
        "Problem": object(&[("error", text.clone()), ("do", text.clone())]),
        "Stores": object(&[("read_only", yes.clone()), ("stores", list(&line))]),
        "Store": object(&[
            ("open", yes.clone()),
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
            ("budget", json!({"anyOf": [counts(&["bytes", "free", "waiting"]), {"type": "null"}]})),
            ("actions", list(&object(&[("at_ms", number.clone()), ("what", text.clone()), ("why", text.clone())]))),
        ]),
        "Sessions": object(&[("sessions", list(&session)), ("next", maybe("string"))]),
        "Quarantine": list(&object(&[
            ("key", text.clone()),
            ("version", number.clone()),
            ("why", text.clone()),
            ("bytes", number.clone()),
            ("in_place", yes.clone()),
        ])),
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

/// The document.
pub fn document() -> Value {
    let mut paths = serde_json::Map::new();
    for (method, path, about, token, schema, more) in PATHS {
        let named = path.contains("{store}").then_some("store");
        let parameters: Vec<Value> = named.into_iter().chain(more.iter().copied()).map(parameter).collect();
        let kind = if *schema == "Text" {
            "text/plain"
        } else {
            "application/json"
        };
        let refused = json!({
            "description": "Refused: what, and what to do",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        });
        let operation = json!({
            "summary": about,
            "parameters": parameters,
            "security": if *token { json!([{"token": []}]) } else { json!([]) },
            "responses": {
                "200": {
                    "description": "As asked",
                    "content": {kind: {"schema": {"$ref": format!("#/components/schemas/{schema}")}}},
                },
                "default": refused,
            },
        });
        let entry = paths.entry((*path).to_owned()).or_insert_with(|| json!({}));
        if let Some(entry) = entry.as_object_mut() {
            entry.insert((*method).to_owned(), operation);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast steward",
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
