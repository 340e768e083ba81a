//! The text format of Prometheus, version 0.0.4: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::fmt::Display;

use crate::readings::{Readings, Series, Value};

pub(crate) fn text(readings: &Readings) -> String {
    let mut text = String::new();
    for series in readings.series() {
        write_family(&mut text, series);
    }
    text
}

fn write_family(text: &mut String, series: &Series) {
    let family = series.family;
    let (name, kind) = (family.name, family.kind.name());
    text.push_str(&format!(
        "# HELP {name} {}\n# TYPE {name} {kind}\n",
        escaped(family.help, false)
    ));
    for (values, value) in &series.values {
        let labels: Vec<(&str, &str)> = family
            .labels
            .iter()
            .copied()
            .zip(values.iter().map(String::as_str))
            .collect();
        match value {
            Value::Count(count) => line(text, family.name, "", &labels, count),
            Value::Gauge(value) => line(text, family.name, "", &labels, value),
            Value::Histogram { buckets, counts, sum } => {
                let mut so_far = 0_u64;
                let limits = buckets
                    .limits
                    .iter()
                    .map(|limit| (as_float(*limit) / buckets.units).to_string());
                for (limit, count) in limits.chain(["+Inf".to_owned()]).zip(counts) {
                    so_far = so_far.wrapping_add(*count);
                    let mut labels = labels.clone();
                    labels.push(("le", &limit));
                    line(text, family.name, "_bucket", &labels, so_far);
                }
                line(text, family.name, "_sum", &labels, as_float(*sum) / buckets.units);
                line(text, family.name, "_count", &labels, so_far);
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "the format's numbers are floats")]
fn as_float(value: u64) -> f64 {
    value as f64
}

fn line(text: &mut String, name: &str, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
    let labels: Vec<String> = labels
        .iter()
        .map(|(label, value)| format!("{label}=\"{}\"", escaped(value, true)))
        .collect();
    let labels = if labels.is_empty() {
        String::new()
    } else {
        format!("{{{}}}", labels.join(","))
    };
    text.push_str(&format!("{name}{suffix}{labels} {value}\n"));
}

/// Backslashes and line ends are escaped; quotes too, in the values of labels.
fn escaped(value: &str, quotes: bool) -> String {
    let value = value.replace('\\', "\\\\").replace('\n', "\\n");
    if quotes { value.replace('"', "\\\"") } else { value }
}
