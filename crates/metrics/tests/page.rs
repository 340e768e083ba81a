//! The page about the metrics says what the registry says of them.

use std::collections::BTreeSet;
use std::path::Path;

use tensorhold_metrics::{Kind, family};

#[test]
fn the_page_is_up_to_date() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(page).expect("docs/metrics.md");
    assert_eq!(
        page,
        tensorhold_metrics::page(),
        "run: cargo run -p tensorhold-metrics --example metrics_page"
    );
}

#[test]
fn names_follow_the_rules_of_prometheus() {
    let mut names = BTreeSet::new();
    for family in family::ALL {
        let name = family.name;
        assert!(names.insert(name), "{name} twice");
        assert!(name.starts_with("tensorhold_"), "{name}");
        assert!(
            name.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'),
            "{name}"
        );
        assert_eq!(name.ends_with("_total"), matches!(family.kind, Kind::Counter), "{name}");
        assert!(
            family.help.ends_with('.') && !family.help.contains(['|', '\n']),
            "{name}: {}",
            family.help
        );
        for label in family.labels {
            assert!(
                !["sample", "session", "key", "host", "le"].contains(label),
                "{name}: {label}"
            );
        }
    }
}
