//! Writes `docs/metrics.md`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    std::fs::write(page, tensorhold_metrics::page())
}
