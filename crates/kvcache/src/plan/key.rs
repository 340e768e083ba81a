//! Page keys: a chain of hashes, framed, rooted in a namespace.
//!
//! ```text
//! root    = SHA-256(frame("thr1", model, weights, dtype, layout, group, page tokens, tp, pp and cp sizes))
//! key(-1) = root
//! key(i)  = SHA-256("thk1" ‖ key(i-1) ‖ count: u32 ‖ tokens: count × u32 ‖ extras: u32 ‖ each: length u32, bytes)
//! ```
//! All numbers are little-endian, and every text is preceded by its length: two different inputs never give the same
//! bytes to the hash (KV6). Since a key includes the one before it, *equal keys mean equal prefixes*; the radix index
//! relies on that.
//!
//! # Chain keys and object names
//! A [`PageKey`] is the same on every rank: all ranks must plan alike (KV21), so nothing that a planner compares may
//! depend on a rank. Each rank stores only its own shard of the page, so the *name of the stored object* carries the
//! rank: [`Namespace::object_name`]. The sizes of the rank groups are part of the root: a page cut for eight ranks is
//! never taken for one cut for four (KV11). A layout whose pages are the same on every TP rank (MLA) has one writer:
//! give all of those ranks the [`Rank::ONLY`] of TP.
//!
//! # Once per request
//! [`PageKeys`] is the chain of one prompt. It is computed once, grows with the generated tokens, and stays with the
//! request: match, L3 query, insert and backup all take their keys from it, by absolute page index.
//!
//! A page of 64 tokens is five blocks of SHA-256, one after the other: the chain leaves nothing to do in parallel. The
//! hash comes from `aws-lc-rs`, which the workspace uses anyway; the `sha2` crate is as fast (`plan_bench` prints
//! both).

use std::fmt;

use aws_lc_rs::digest::{Context, Digest, SHA256, digest};
use tensorhold_core::{Error, ObjectKey, Result};

/// The identity of a page: the hash of its tokens and of everything before them. Equal on every rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey([u8; 32]);

impl PageKey {
    /// A key from its stored bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The raw bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn of(digest: &Digest) -> Self {
        let mut key = [0; 32];
        key.copy_from_slice(digest.as_ref());
        Self(key)
    }

    /// Its first eight bytes: as good as any hash of the key, since the key is one.
    pub(crate) fn short(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Display for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PageKey {
    /// The first four bytes, short enough for a log line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A position in one group of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank {
    /// From zero.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
}

impl Rank {
    /// The only rank of a group of one.
    pub const ONLY: Self = Self { rank: 0, size: 1 };
}

/// Everything that a page's bytes depend on besides its tokens. Two namespaces that differ in any field share no
/// object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// The model.
    pub model: String,
    /// The version of its weights. A weights update is a new namespace.
    pub weights: String,
    /// What the elements are, such as `bf16` or `fp8_e4m3`: not the type that they are stored as.
    pub dtype: String,
    /// The memory layout of a page, such as `mha-layer-first`.
    pub layout: String,
    /// The cache group: which layers share these pages.
    pub group: String,
    /// Tokens per page.
    pub page_tokens: u32,
    /// Tensor parallelism.
    pub tp: Rank,
    /// Pipeline parallelism.
    pub pp: Rank,
    /// Context parallelism.
    pub cp: Rank,
}

impl Namespace {
    /// Checks that every rank is inside its group and that a page holds tokens.
    pub fn validate(&self) -> Result<()> {
        if self.page_tokens == 0 {
            return Err(Error::invalid("kv.namespace", "a page must hold at least one token"));
        }
        for (name, rank) in [("tp", self.tp), ("pp", self.pp), ("cp", self.cp)] {
            if rank.rank >= rank.size {
                return Err(Error::invalid("kv.namespace", "a rank must be smaller than its group")
                    .with("group", name)
                    .with("rank", rank.rank)
                    .with("size", rank.size));
            }
        }
        Ok(())
    }

    /// The key that every chain of this namespace starts from. The same on every rank.
    pub fn root(&self) -> PageKey {
        let mut hash = Context::new(&SHA256);
        hash.update(b"thr1");
        for text in [&self.model, &self.weights, &self.dtype, &self.layout, &self.group] {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        for number in [self.page_tokens, self.tp.size, self.pp.size, self.cp.size] {
            hash.update(&number.to_le_bytes());
        }
        PageKey::of(&hash.finish())
    }

    /// The name under which this rank stores its shard of a page: the key and the rank.
    pub fn object_name(&self, key: &PageKey) -> Result<ObjectKey> {
        let (tp, pp, cp) = (self.tp.rank, self.pp.rank, self.cp.rank);
        ObjectKey::new(format!("kv/{key}/t{tp}p{pp}c{cp}"))
    }

    /// The chain of an empty prompt.
    pub fn keys(&self) -> PageKeys {
        PageKeys::new(self.root(), self.page_tokens)
    }
}

/// The chain of one prompt: one key for each full page, and the tokens of the page that is not full yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageKeys {
    root: PageKey,
    page_tokens: u32,
    keys: Vec<PageKey>,
    /// The tokens of the page that is not full yet.
    tail: Vec<u32>,
    /// Goes into the key of every page: a salt, an adapter.
    salt: Option<Box<[u8]>>,
    /// Goes into the key of the page that is not full yet: the hash of an image, for example.
    notes: Vec<Box<[u8]>>,
}

impl PageKeys {
    /// The chain of an empty prompt under `root`. A page size of zero tokens is treated as one.
    pub fn new(root: PageKey, page_tokens: u32) -> Self {
        let page_tokens = page_tokens.max(1);
        Self {
            root,
            page_tokens,
            keys: Vec::new(),
            tail: Vec::new(),
            salt: None,
            notes: Vec::new(),
        }
    }

    /// Adds bytes that go into the key of every page: a tenant's salt, an adapter's name. Only before the first token.
    pub fn with_salt(mut self, salt: &[u8]) -> Result<Self> {
        if self.tokens() > 0 {
            return Err(Error::invalid("kv.keys", "a salt must be given before the first token"));
        }
        self.salt = Some(salt.into());
        Ok(self)
    }

    /// Adds bytes to the key of the page that the next token falls into: content of that page besides tokens.
    pub fn note(&mut self, bytes: &[u8]) {
        self.notes.push(bytes.into());
    }

    /// Appends the next tokens. How they are split into calls does not matter.
    pub fn extend(&mut self, mut tokens: &[u32]) {
        let size = self.page_tokens as usize;
        self.keys.reserve((self.tail.len() + tokens.len()) / size);
        let mut frame = Vec::with_capacity(64 + 4 * size);
        while self.tail.len() + tokens.len() >= size {
            let (head, rest) = tokens.split_at(size - self.tail.len());
            tokens = rest;
            let previous = *self.keys.last().unwrap_or(&self.root);
            frame.clear();
            write_frame(&mut frame, &previous, self.page_tokens, &[&self.tail, head]);
            let extras = self.salt.iter().chain(&self.notes);
            let count = self.notes.len() + usize::from(self.salt.is_some());
            frame.extend_from_slice(&length(count));
            for extra in extras {
                frame.extend_from_slice(&length(extra.len()));
                frame.extend_from_slice(extra);
            }
            self.keys.push(PageKey::of(&digest(&SHA256, &frame)));
            self.tail.clear();
            self.notes.clear();
        }
        self.tail.extend_from_slice(tokens);
    }

    /// The key that the chain starts from.
    pub fn root(&self) -> &PageKey {
        &self.root
    }

    /// The keys of the full pages, by absolute page index.
    pub fn as_slice(&self) -> &[PageKey] {
        &self.keys
    }

    /// The number of full pages.
    pub fn pages(&self) -> u32 {
        u32::try_from(self.keys.len()).unwrap_or(u32::MAX)
    }

    /// Tokens per page.
    pub fn page_tokens(&self) -> u32 {
        self.page_tokens
    }

    /// The number of tokens so far.
    pub fn tokens(&self) -> u64 {
        self.keys.len() as u64 * u64::from(self.page_tokens) + self.tail.len() as u64
    }
}

/// A length, written in front of the bytes that it counts. No input here reaches 4 GiB.
fn length(of: usize) -> [u8; 4] {
    u32::try_from(of).unwrap_or(u32::MAX).to_le_bytes()
}

fn write_frame(frame: &mut Vec<u8>, previous: &PageKey, count: u32, parts: &[&[u32]]) {
    frame.extend_from_slice(b"thk1");
    frame.extend_from_slice(&previous.0);
    frame.extend_from_slice(&count.to_le_bytes());
    for part in parts {
        let start = frame.len();
        frame.resize(start + 4 * part.len(), 0);
        for (place, token) in frame[start..].chunks_exact_mut(4).zip(*part) {
            place.copy_from_slice(&token.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
