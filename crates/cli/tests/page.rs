//! The reference of the command line says what the command says of itself.

use std::path::Path;

#[test]
fn the_page_is_up_to_date() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/command-reference.md");
    let page = std::fs::read_to_string(page).expect("docs/command-reference.md");
    assert_eq!(
        page,
        tensorhold_cli::page(),
        "run: cargo run -p tensorhold-cli --example command_page"
    );
}
