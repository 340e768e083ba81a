//! The targets of the fuzzer: every decoder of bytes that another process, another release or an attacker may have
//! written.
//!
//! A target takes any bytes and panics if a property of its decoder does not hold: a decoded value can be written and
//! read back unchanged, values derived from it (keys, decisions) can be computed, and bytes that were changed under a
//! seal or a checksum are not accepted as the bytes that were put. [`meter`] checks for all targets that a decoder
//! takes no more memory than its input justifies.
//!
//! `cargo xtask fuzz` builds `src/main.rs` with libFuzzer and the compiler's coverage instrumentation and lets it grow the
//! corpora; `tests/corpora.rs` replays them as ordinary tests, on any toolchain. A crash becomes a file in
//! `regressions/<target>`, which is replayed as well.

pub mod meter;

use tensorhold_core::key::{escape, unescape};
use tensorhold_core::{DType, Digest, ObjectKey, SampleKey, TensorSpec};

/// One decoder, or a few that read the same kind of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Also the name of the folders with its inputs.
    pub name: &'static str,
    /// Panics if a property does not hold.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("record", tensorhold_index::fuzzing::record),
    target("note", tensorhold_index::fuzzing::note),
    target("index_key", tensorhold_index::fuzzing::key),
    target("ready", tensorhold_index::fuzzing::ready),
    target("quarantined", tensorhold_index::fuzzing::quarantined),
    target("object_key", object_key),
    target("description", tensorhold_features::fuzzing::description),
    target("plan", tensorhold_features::fuzzing::plan),
    target("seal_header", tensorhold_features::fuzzing::seal_header),
    target("sealed_bytes", tensorhold_features::fuzzing::sealed_bytes),
    target("page", tensorhold_kvcache::tier::fuzzing::page),
    target("sealed_page", tensorhold_kvcache::tier::fuzzing::sealed_page),
    target("master_answer", tensorhold_engine_mooncake::fuzzing::answer),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

/// The target with this name.
pub fn find(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}

impl Target {
    /// Runs it once, and checks how much memory it took.
    pub fn try_input(self, bytes: &[u8]) {
        meter::measured(bytes.len(), || (self.run)(bytes));
    }
}

/// Keys, names, tensor specs and digests: the parts of every record.
fn object_key(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(name) = unescape(text) {
        assert_eq!(escape(&name), text, "one name, one text");
    }
    if let Ok(key) = ObjectKey::new(text)
        && let Ok(parts) = SampleKey::parse(&key)
    {
        assert_eq!(parts.to_object_key(), key);
        assert!(
            ObjectKey::new(parts.to_object_key().as_str()).is_ok(),
            "a key of our own that no engine takes"
        );
    }
    if let Ok(digest) = text.parse::<Digest>() {
        assert_eq!(digest.to_string(), text);
    }
    if let Ok(dtype) = text.parse::<DType>() {
        assert_eq!(dtype.to_string(), text);
    }
    if let Ok(spec) = serde_json::from_str::<TensorSpec>(text) {
        let written = serde_json::to_string(&spec).unwrap_or_default();
        assert_eq!(serde_json::from_str::<TensorSpec>(&written).ok(), Some(spec));
    }
}
