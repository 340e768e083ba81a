//! What etcd tells of itself on its page of metrics.

use std::ops::Add;

use anyhow::{Context, Result};
use tensorhold_testkit::{EtcdCluster, cpu_us};

/// Some of etcd's figures at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EtcdFigures {
    /// Processor time in microseconds.
    pub(crate) cpu_us: f64,
    /// Requests that it has answered; messages on streams (keep-alives, watches) are not among them.
    pub(crate) requests: f64,
    /// Keep-alives of sessions that it has received.
    pub(crate) keep_alives: f64,
    /// Times that it has waited for its log to be on disk.
    pub(crate) fsyncs: f64,
    /// Bytes of requests and of answers, on the wire.
    pub(crate) received_bytes: f64,
    pub(crate) sent_bytes: f64,
    /// Bytes that it has written to its log.
    pub(crate) log_bytes: f64,
    pub(crate) db_bytes: f64,
    /// Without the pages that it has freed and will use again.
    pub(crate) db_in_use_bytes: f64,
    pub(crate) rss_bytes: f64,
}

impl EtcdFigures {
    pub(crate) fn read(etcd: &EtcdCluster) -> Result<Self> {
        let page = etcd.metrics()?;
        Ok(Self {
            cpu_us: cpu_us(etcd.node(0).pid())?,
            requests: sum(&page, "grpc_server_handled_total", "")?,
            keep_alives: sum(
                &page,
                "grpc_server_msg_received_total",
                r#"grpc_method="LeaseKeepAlive""#,
            )?,
            fsyncs: sum(&page, "etcd_disk_wal_fsync_duration_seconds_count", "")?,
            received_bytes: sum(&page, "etcd_network_client_grpc_received_bytes_total", "")?,
            sent_bytes: sum(&page, "etcd_network_client_grpc_sent_bytes_total", "")?,
            log_bytes: sum(&page, "etcd_disk_wal_write_bytes_total", "")?,
            db_bytes: sum(&page, "etcd_mvcc_db_total_size_in_bytes", "")?,
            db_in_use_bytes: sum(&page, "etcd_mvcc_db_total_size_in_use_in_bytes", "")?,
            rss_bytes: sum(&page, "process_resident_memory_bytes", "")?,
        })
    }
}

impl Add for EtcdFigures {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cpu_us: self.cpu_us + other.cpu_us,
            requests: self.requests + other.requests,
            keep_alives: self.keep_alives + other.keep_alives,
            fsyncs: self.fsyncs + other.fsyncs,
            received_bytes: self.received_bytes + other.received_bytes,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            log_bytes: self.log_bytes + other.log_bytes,
            db_bytes: self.db_bytes + other.db_bytes,
            db_in_use_bytes: self.db_in_use_bytes + other.db_in_use_bytes,
            rss_bytes: self.rss_bytes + other.rss_bytes,
        }
    }
}

/// The sum over the lines of a metric whose labels have this part.
fn sum(page: &str, metric: &str, labels: &str) -> Result<f64> {
    let mut found = page
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .filter(|(name, _)| name.split('{').next() == Some(metric) && name.contains(labels))
        .peekable();
    found
        .peek()
        .with_context(|| format!("etcd's page of metrics has no {metric}"))?;
    Ok(found.map(|(_, value)| value.parse::<f64>()).sum::<Result<f64, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_metric_are_added_up_and_others_left_out() {
        let page = "# HELP handled_total Requests\nhandled_total{m=\"Txn\"} 3\nhandled_total{m=\"Range\"} 4\n\
                    handled_total_more 8\nbytes 1.5e+06\n";
        assert_eq!(sum(page, "handled_total", "").expect("it is well-formed"), 7.0);
        assert_eq!(sum(page, "handled_total", "m=\"Txn\"").expect("it is well-formed"), 3.0);
        assert_eq!(sum(page, "bytes", "").expect("it is well-formed"), 1.5e6);
        assert!(sum(page, "absent", "").is_err());
    }
}
