//! Holders: processes that lend memory (and, with the SSD tier, a folder) to the cluster and do nothing else.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::node::{Node, Ready};
use crate::site::Site;

const SCRIPT: &str = include_str!("holder.py");
const READY_LINE: &str = "tensorhold holder ready";

/// What all holders of a cluster have in common.
#[derive(Debug, Clone)]
pub(crate) struct HolderPlan {
    pub(crate) master: String,
    pub(crate) metadata: String,
    pub(crate) segment_bytes: u64,
    pub(crate) ssd: bool,
    pub(crate) env: Vec<(String, String)>,
}

/// The script's settings, as JSON.
#[derive(Serialize)]
struct Settings<'a> {
    master: &'a str,
    metadata: &'a str,
    segment_bytes: u64,
    ssd_path: Option<PathBuf>,
    ready_line: &'a str,
    until_stdin_closes: bool,
}

impl HolderPlan {
    /// Launches the holder without waiting for it.
    pub(crate) fn launch(&self, site: &Site, index: usize) -> Result<Node> {
        let name = format!("holder-{index}");
        let script = site.dir().join("holder.py");
        fs::write(&script, SCRIPT).with_context(|| format!("cannot write {}", script.display()))?;
        let ssd_path = self.ssd.then(|| site.folder(&format!("{name}-ssd"))).transpose()?;
        let mut spec = site.spec(&name, site.install.python()?);
        if let Some(path) = &ssd_path {
            // Objects should reach the SSD within seconds: a short heartbeat, and a bucket per object, because a bucket
            // is written only when it is full. An object larger than a bucket never gets there, so buckets may be
            // large. The default read buffer (1.25 GiB) would take a second to allocate.
            spec = spec
                .env("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", path)
                .env("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "1")
                .env("MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT", "1")
                .env("MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES", (256_u32 << 20).to_string())
                .env("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", (256_u32 << 20).to_string());
        }
        let settings = serde_json::to_string(&Settings {
            master: &self.master,
            metadata: &self.metadata,
            segment_bytes: self.segment_bytes,
            ssd_path,
            ready_line: READY_LINE,
            until_stdin_closes: !site.is_detached(),
        })?;
        spec = spec.arg("-u").arg(script).arg(settings);
        for (key, value) in &self.env {
            spec = spec.env(key, value);
        }
        site.launch(spec, Ready::Line(READY_LINE))
    }
}
