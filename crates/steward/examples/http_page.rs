//! Writes `docs/http.md`, and beside it the description that the page is made from.

use std::path::Path;

use tensorhold_steward::http::{openapi, reference};

fn main() -> std::io::Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::write(docs.join("http.md"), reference::page())?;
    std::fs::write(docs.join("openapi.json"), format!("{:#}\n", openapi::document()))
}
