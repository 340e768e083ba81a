//! The page about the metrics, made from their descriptions.

use crate::cells::{Buckets, LATENCY};
use crate::family;
use crate::outcome::Outcome;
use crate::store::{CAUSES, ENGINE_CALLS, INDEX_CALLS, OBJECT_OUTCOMES, OPERATIONS, READS};

const HEAD: &str = "# Metrics

Made from the descriptions in `crates/metrics/src/family.rs`, by `cargo run -p tensorhold-metrics --example metrics_page`.

Every process that uses Tensorhold has them. In Python:

```python
import tensorhold.metrics
import prometheus_client

print(tensorhold.metrics.text())                          # the text format of Prometheus
server = tensorhold.metrics.start_http(port=9401)         # GET /metrics, on 127.0.0.1 unless told otherwise
prometheus_client.REGISTRY.register(tensorhold.metrics.collector())   # beside the program's own
```

In Rust: `tensorhold_metrics::registry().text()`.

- A scrape does no I/O: it asks neither the engine nor the index.
- Counters begin at zero with the process, and a forked child begins at zero too. A child has no server until it starts one.
- A store that is closed keeps its counts; its gauges are gone.
- Counts and sums of a store that is open twice in one process are added up.
- No label holds the name of a sample, a session or a host. A process has labels for its first 64 stores; later ones
  share the label `other`.
- `TENSORHOLD_METRICS=off` in the environment of a process switches them off: nothing is timed, and the text is empty.
";

/// The page, as Markdown.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n## The metrics\n\n| name | type | labels | meaning |\n|---|---|---|---|\n");
    for family in family::ALL {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let row = [
            format!("`{}`", family.name),
            family.kind.name().to_owned(),
            labels.join(", "),
            family.help.to_owned(),
        ];
        page.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    page.push_str("\n## The values of labels\n\n| label | of | values |\n|---|---|---|\n");
    let outcomes: Vec<&str> = Outcome::all().map(Outcome::name).collect();
    let lists: [(&str, &str, &[&str]); 7] = [
        ("operation", family::OPERATION.name, OPERATIONS),
        ("call", family::ENGINE_CALL.name, ENGINE_CALLS),
        ("call", family::INDEX_CALL.name, INDEX_CALLS),
        ("outcome", "latencies", &outcomes),
        ("outcome", family::ENGINE_OBJECTS.name, OBJECT_OUTCOMES),
        ("kind", family::INDEX_READS.name, READS),
        ("cause", family::INDEX_READS.name, CAUSES),
    ];
    for (label, of, values) in lists {
        page.push_str(&format!("| `{label}` | {of} | {} |\n", values.join(", ")));
    }
    page.push_str(&format!("\nThe buckets of latencies end at {} s.\n", limits(&LATENCY)));
    page
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a limit in whole nanoseconds, shown in seconds"
)]
fn limits(buckets: &Buckets) -> String {
    let shown = buckets
        .limits
        .iter()
        .map(|limit| (*limit as f64 / buckets.units).to_string());
    shown.collect::<Vec<_>>().join(", ")
}
