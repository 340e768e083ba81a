//! Writes `docs/command-reference.md`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/command-reference.md");
    std::fs::write(page, tensorhold_cli::page())
}
