//! The reference of the HTTP interface says what the steward says of it.
#![allow(clippy::expect_used, reason = "a test says what it expects")]

use std::path::Path;

use tensorhold_steward::http::{openapi, reference};

const HOW: &str = "run: cargo run -p tensorhold-steward --example http_page";

fn in_the_book(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
    std::fs::read_to_string(path).expect(file)
}

#[test]
fn the_page_is_up_to_date() {
    assert_eq!(in_the_book("http.md"), reference::page(), "{HOW}");
}

#[test]
fn the_description_that_the_book_offers_is_the_one_that_is_served() {
    assert_eq!(
        in_the_book("openapi.json"),
        format!("{:#}\n", openapi::document()),
        "{HOW}"
    );
}
