//! Writes `docs/settings.md`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    std::fs::write(page, tensorhold_settings::page())
}
