//! The seal in the store: how a store with keys encrypts bytes on their way out and decrypts them on their way in.
//!
//! ```text
//!          private memory               one core's cache         registered memory (a stage)
//! put   the caller's tensor ──copy──▶ chunk, sealed in place ──copy──▶ ciphertext, tags ─────▶ engine
//! get   the caller's tensor ◀──copy── chunk, opened in place ◀──copy── ciphertext, tags ◀───── engine
//!          (or the pool's)               │ does not open
//!                                        ▼
//!                                     `Corrupt`; the tensors are cleared
//! ```
//! An object is a run of chunks (module [`crate::seal`]). A put takes a stage for each of its calls, and so does a get.
//! It gives the stage back when the engine has let go of it, so a sample may be far larger than all stages. While the
//! bytes of one call move, those of another are sealed or opened.
//!
//! # What must hold
//! - SS1: plaintext is never in registered memory. Any process that reaches the engine's ports can read and write that
//!   memory.
//! - SS2: the bytes that are checked are the bytes that are used: a chunk is copied out of the stage first, so no
//!   process can change it in between.
//! - SS3: only authenticated bytes are written to a tensor's memory. If the get fails, that memory is cleared; memory of a
//!   device is not, and its content is unspecified.
//! - SS4: a store with keys reads only sealed samples. Otherwise an attacker that can write an object and a record
//!   could present plain bytes as a sample of the store. So there is no downgrade, and no adoption of objects of other
//!   writers.
//! - SS5: a description is proven to be the producer's before it is acted on: nothing is handed out, and no memory is
//!   allocated, for a sample whose description does not have its tag. A tensor without bytes has no object that could
//!   prove it.
//! - SS6: puts and gets have separate stages. A put that waits for room in the engine keeps its stage, and gets make
//!   that room.
//!
//! | event | outcome |
//! |---|---|
//! | a plain sample in a sealed store | `Unsupported`: a process writes to the store without a key. No byte is read |
//! | a sealed sample in a store without keys; a key that is not here, or another under its id | `Denied`, names the id |
//! | adopting or announcing in a sealed store | `Unsupported`: the other writer does not seal |
//! | a description that was altered or comes from elsewhere | `Corrupt`; no byte is read |
//! | a sample of the first seal, whose description has no tag | `Unsupported`, unless `accept_seal_v1` is set |
//! | bytes that do not open, objects of another length | `Corrupt` |
//! | all stages are taken until the deadline | `Capacity`; nothing was sealed or read |

use std::ops::RangeInclusive;
use std::sync::Arc;

use tensorhold_core::{Error, ErrorKind, Nonce, Result, Rng, StoreId, TensorSpec};
use tensorhold_engine::Span;
use tensorhold_index::SampleRef;

use crate::memory::spans::{read_at, stream_at, write_at};
use crate::record::description::Description;
use crate::runtime::config::FeatureConfig;
use crate::seal::{
    DEFAULT_CHUNK_BYTES, Incarnation, Keyring, Layout, Run, SampleOpener, SampleSealer, Scheme, TAG_BYTES,
    TensorOpener, TensorSealer,
};

/// The additional state of a store with keys.
#[derive(Debug)]
pub(crate) struct Seals {
    keyring: Keyring,
    /// Whether samples of the first scheme are read, whose descriptions have no tag.
    accept_v1: bool,
    /// How many bytes are sealed as one chunk.
    chunk_bytes: u32,
    /// How many bytes of a tensor are in one object: whole chunks.
    object_bytes: u64,
    /// The most bytes of one call, if it has more than one object: of the smallest of an operation's calls, and of any.
    unit_bytes: RangeInclusive<u64>,
}

/// The most bytes of the first call of a put, and of the last one of a get: an object of the usual size with its tags. What is
/// sealed before the first bytes move, and opened after the last have arrived, is not done beside anything. The calls in
/// between are larger, because each begins and ends with an answer of the master, for which all threads wait.
const SMALLEST_UNIT_BYTES: u64 = 20 << 20;
/// Chunks of so many bytes are written past the caches: together they would not stay in them anyway.
const STREAMED_BYTES: usize = 256 << 10;

impl Seals {
    pub(crate) fn new(keyring: Keyring, config: &FeatureConfig) -> Self {
        let chunk_bytes = u32::try_from(config.chunk_bytes).map_or(DEFAULT_CHUNK_BYTES, |n| n.min(DEFAULT_CHUNK_BYTES));
        let whole = u64::from(chunk_bytes.max(1));
        // Two at a time: one moves, while another is sealed or opened.
        let most = config.stage_bytes / 2;
        Self {
            keyring,
            accept_v1: config.accept_seal_v1,
            chunk_bytes,
            object_bytes: config.chunk_bytes / whole * whole,
            unit_bytes: SMALLEST_UNIT_BYTES.min(most)..=most,
        }
    }

    pub(crate) fn unit_bytes(&self) -> RangeInclusive<u64> {
        self.unit_bytes.clone()
    }

    pub(crate) fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// The stored size of a tensor: the bytes of all its objects.
    pub(crate) fn stored_bytes(&self, spec: &TensorSpec) -> u64 {
        let tags = spec
            .bytes()
            .div_ceil(u64::from(self.chunk_bytes))
            .saturating_mul(TAG_BYTES as u64);
        spec.bytes().saturating_add(tags)
    }

    /// Begins a put.
    pub(crate) fn sealer(
        &self,
        store: &StoreId,
        sample: &SampleRef,
        nonce: Nonce,
        rng: &dyn Rng,
    ) -> Result<SampleSealer> {
        let place = incarnation(store, sample, nonce);
        self.keyring.sealer(place, self.chunk_bytes, rng)
    }

    fn opener(&self, store: &StoreId, sample: &SampleRef, description: &Description) -> Result<SampleOpener> {
        let (Some(header), Some(nonce)) = (description.encoding().seal(), description.nonce) else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "features.get",
                "this store was opened with a key, and this sample is not sealed: some process puts without the key; \
                 find that process and give it the key",
            )
            .with("sample", &sample.sample)
            .with("generation", sample.generation));
        };
        let opener = self.keyring.opener(header, incarnation(store, sample, nonce))?;
        match header.scheme()? {
            Scheme::V1 if self.accept_v1 => {}
            Scheme::V1 | Scheme::V2 => {
                opener.check_record(&description.record(), description.record_tag.as_ref())?;
            }
        }
        Ok(opener)
    }
}

fn incarnation(store: &StoreId, sample: &SampleRef, nonce: Nonce) -> Incarnation {
    Incarnation {
        store: store.clone(),
        sample: sample.sample.clone(),
        generation: sample.generation,
        nonce,
    }
}

/// Begins a get: none if store and sample are plain, an error if only one of them is (SS4), or if the description is
/// not proven to be the producer's (SS5).
pub(crate) fn opener(
    seals: Option<&Seals>,
    store: &StoreId,
    sample: &SampleRef,
    description: &Description,
) -> Result<Option<SampleOpener>> {
    match (seals, description.encoding().seal()) {
        (Some(seals), _) => seals.opener(store, sample, description).map(Some),
        (None, None) => Ok(None),
        (None, Some(header)) => Err(Error::new(
            ErrorKind::Denied,
            "features.get",
            "this sample is sealed, and this store was opened without a key; open it with the key of this id",
        )
        .with("key_id", header.key_id())
        .with("sample", &sample.sample)
        .with("generation", sample.generation)),
    }
}

/// Refuses what a sealed store cannot do: adopt bytes that another program wrote (SS4).
pub(crate) fn refuse_foreign(seals: Option<&Seals>, operation: &'static str) -> Result<()> {
    match seals {
        None => Ok(()),
        Some(_) => Err(Error::new(
            ErrorKind::Unsupported,
            operation,
            "this store was opened with a key, and what a serving engine writes is not sealed; \
             put the tensors through this store, or use a store without a key",
        )),
    }
}

/// The chunks in the `n`-th object of a tensor, where each object holds `object_bytes` of it.
pub(crate) fn run_of(layout: Layout, object_bytes: u64, n: usize) -> Result<Run> {
    let each = object_bytes / u64::from(layout.chunk_bytes());
    let first = each.saturating_mul(n as u64);
    let count = each.min(layout.chunk_count().saturating_sub(first));
    layout.run(first, count).ok_or_else(|| {
        Error::internal("features.seal", "an object holds no chunk of its tensor; this is a bug")
            .with("object", n)
            .with("chunks", layout.chunk_count())
    })
}

/// Part of a tensor that is sealed or opened as one object.
#[derive(Clone, Debug)]
pub(crate) struct SealedRun<T> {
    pub(crate) with: Arc<T>,
    pub(crate) run: Run,
}

impl<T> SealedRun<T> {
    /// The length of the object.
    pub(crate) fn sealed_len(&self) -> Result<usize> {
        length(self.run.sealed_len())
    }
}

impl SealedRun<TensorSealer> {
    /// Seals memory into a stage.
    pub(crate) fn seal(&self, plain: &[Span], stage: &Span, scratch: &mut Scratch) -> Result<()> {
        for place in places(self.with.layout(), self.run) {
            let place = place?;
            let chunk = scratch.of(place.len);
            let mut tag = [0; TAG_BYTES];
            read_at(plain, place.at, chunk)?;
            self.with.seal_chunk_in_place(place.number, chunk, &mut tag)?;
            match chunk.len() < STREAMED_BYTES {
                true => stage.write(place.at, chunk)?,
                false => stage.write_streaming(place.at, chunk)?,
            }
            stage.write(place.tag_at, &tag)?;
        }
        Ok(())
    }
}

impl SealedRun<TensorOpener> {
    /// Opens what has arrived in a stage into memory.
    pub(crate) fn open(&self, stage: &Span, plain: &[Span], scratch: &mut Scratch) -> Result<()> {
        for place in places(self.with.layout(), self.run) {
            let place = place?;
            let chunk = scratch.of(place.len);
            let mut tag = [0; TAG_BYTES];
            stage.read(place.at, chunk)?;
            stage.read(place.tag_at, &mut tag)?;
            self.with.open_chunk_in_place(place.number, chunk, &tag)?;
            match chunk.len() < STREAMED_BYTES {
                true => write_at(plain, place.at, chunk)?,
                false => stream_at(plain, place.at, chunk)?,
            }
        }
        Ok(())
    }
}

/// Where a chunk lies in its object.
struct ChunkPlace {
    number: u64,
    at: usize,
    len: usize,
    tag_at: usize,
}

fn places(layout: Layout, run: Run) -> impl Iterator<Item = Result<ChunkPlace>> {
    (0..run.count()).map(move |n| {
        let number = run.first() + n;
        let missing = || Error::internal("features.seal", "a run has a chunk that its tensor lacks");
        Ok(ChunkPlace {
            number,
            at: length(n * u64::from(layout.chunk_bytes()))?,
            len: length(layout.chunk_len(number).ok_or_else(missing)?)?,
            tag_at: length(run.plain_len() + n * TAG_BYTES as u64)?,
        })
    })
}

fn length(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::invalid("features.seal", "this is larger than an address space"))
}

/// Memory of one thread for one chunk at a time, reused for the next.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    fn of(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len {
            self.0.resize(len, 0);
        }
        &mut self.0[..len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_bound_to_the_very_incarnation() {
        let of = |generation| {
            let sample = SampleRef {
                sample: "run/1".parse().expect("a name"),
                generation: tensorhold_core::Generation::new(generation).expect("not zero"),
            };
            incarnation(&"s".parse().expect("a name"), &sample, Nonce::from_u64(7))
        };
        // The nonce of a put differs, too; but the nonce is not what keeps an older generation's bytes out.
        let (older, newer) = (of(1), of(2));
        assert_eq!((older.generation.get(), newer.generation.get()), (1, 2));
        assert_eq!(
            (older.sample, older.store, older.nonce),
            (newer.sample, newer.store, newer.nonce)
        );
    }

    #[test]
    fn objects_are_whole_chunks_and_cover_the_tensor() {
        let layout = Layout::new(4096 * 7 + 5, 4096).expect("a layout");
        let runs: Vec<(u64, u64)> = (0..3)
            .map(|n| run_of(layout, 3 * 4096, n).expect("a run"))
            .map(|run| (run.first(), run.plain_len()))
            .collect();
        assert_eq!(runs, [(0, 3 * 4096), (3, 3 * 4096), (6, 4096 + 5)]);
        assert!(run_of(layout, 3 * 4096, 3).is_err());
    }
}
