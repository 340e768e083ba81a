//! Sealing one tensor, chunk by chunk, each chunk once.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorhold_core::{Error, Result};

use super::cipher::{TAG_BYTES, Tag, TensorCipher};
use super::layout::{Layout, Run};

/// Seals one tensor of one put. Its methods may be called from many threads at once, for different chunks.
///
/// Every chunk is sealed at most once. If a chunk was sealed and its bytes are gone, the put must begin a new seal.
#[derive(Debug)]
pub struct TensorSealer {
    cipher: TensorCipher,
    /// One bit for each chunk, set before it is sealed.
    sealed: Box<[AtomicU64]>,
}

impl TensorSealer {
    pub(super) fn new(cipher: TensorCipher) -> Result<Self> {
        let words = usize::try_from(cipher.layout().chunk_count().div_ceil(64)).map_err(|_| {
            cipher.about_tensor(Error::invalid(
                "seal.tensor",
                "the tensor is too large for this machine",
            ))
        })?;
        let sealed = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { cipher, sealed })
    }

    /// Where chunks and tags lie.
    pub fn layout(&self) -> Layout {
        self.cipher.layout()
    }

    /// Seals the whole tensor as one run.
    pub fn seal(&self, plain: &[u8], sealed: &mut [u8]) -> Result<()> {
        self.seal_run(self.layout().whole(), plain, sealed)
    }

    /// Seals a run: `plain` has its [`Run::plain_len`] bytes, `sealed` its [`Run::sealed_len`].
    pub fn seal_run(&self, run: Run, plain: &[u8], sealed: &mut [u8]) -> Result<()> {
        self.jobs(run, plain, sealed)?.into_iter().try_for_each(SealJob::run)
    }

    /// [`TensorSealer::seal_run`] as one job for each chunk, to be spread over threads.
    pub fn jobs<'a>(&'a self, run: Run, plain: &'a [u8], sealed: &'a mut [u8]) -> Result<Vec<SealJob<'a>>> {
        check_run(&self.cipher, "seal.seal", run)?;
        let lengths = (plain.len() as u64, sealed.len() as u64);
        if lengths != (run.plain_len(), run.sealed_len()) {
            return Err(self.cipher.about_tensor(
                Error::invalid("seal.seal", "the buffers do not have the lengths that the layout gives")
                    .with("plain", lengths.0)
                    .with("plain_expected", run.plain_len())
                    .with("sealed", lengths.1)
                    .with("sealed_expected", run.sealed_len()),
            ));
        }
        let (ciphertext, tags) = sealed.split_at_mut(plain.len());
        let chunk_bytes = chunk_bytes(self.layout());
        let (tags, _) = tags.as_chunks_mut::<TAG_BYTES>();
        let jobs = pieces(plain, chunk_bytes)
            .zip(pieces_mut(ciphertext, chunk_bytes))
            .zip(tags)
            .zip(run.first()..);
        Ok(jobs
            .map(|(((plain, cipher), tag), number)| SealJob {
                sealer: self,
                number,
                plain,
                cipher,
                tag,
            })
            .collect())
    }

    /// Seals one chunk into ciphertext of the same length, and its tag.
    pub fn seal_chunk(&self, number: u64, plain: &[u8], cipher: &mut [u8], tag: &mut [u8; TAG_BYTES]) -> Result<()> {
        self.check_chunk(number, plain.len(), cipher.len())?;
        self.claim(number)?;
        self.cipher.seal(number, plain, cipher, tag)
    }

    /// Seals one chunk where its plaintext lies.
    pub fn seal_chunk_in_place(&self, number: u64, bytes: &mut [u8], tag: &mut [u8; TAG_BYTES]) -> Result<()> {
        self.check_chunk(number, bytes.len(), bytes.len())?;
        self.claim(number)?;
        self.cipher.seal_in_place(number, bytes, tag)
    }

    fn check_chunk(&self, number: u64, plain: usize, cipher: usize) -> Result<()> {
        let expected = self.layout().chunk_len(number);
        if expected == Some(plain as u64) && plain == cipher {
            return Ok(());
        }
        let error = Error::invalid(
            "seal.seal",
            "there is no such chunk, or the buffers do not have its length",
        );
        Err(self.cipher.about(
            number,
            error
                .with("plain", plain)
                .with("cipher", cipher)
                .with("expected", expected.unwrap_or_default()),
        ))
    }

    /// Sets the chunk's bit; an error if it was set. A failure after this is not retried.
    fn claim(&self, number: u64) -> Result<()> {
        let word = usize::try_from(number / 64)
            .ok()
            .and_then(|index| self.sealed.get(index));
        let bit = 1 << (number % 64);
        // Relaxed: the bit guards no other memory, and of two threads that set it one sees the other's bit.
        match word.map(|word| word.fetch_or(bit, Ordering::Relaxed) & bit) {
            Some(0) => Ok(()),
            _ => Err(self.cipher.about(
                number,
                Error::invalid(
                    "seal.seal",
                    "this chunk was sealed already; use those bytes, or begin a new seal for the whole sample",
                ),
            )),
        }
    }
}

/// One chunk to seal. Jobs of one tensor are independent of each other.
#[must_use = "nothing is sealed until the job is run"]
pub struct SealJob<'a> {
    sealer: &'a TensorSealer,
    number: u64,
    plain: &'a [u8],
    cipher: &'a mut [u8],
    tag: &'a mut Tag,
}

impl SealJob<'_> {
    /// Seals the chunk.
    pub fn run(self) -> Result<()> {
        self.sealer.seal_chunk(self.number, self.plain, self.cipher, self.tag)
    }
}

// By hand, without the plaintext.
impl fmt::Debug for SealJob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealJob(chunk {}, {} bytes)", self.number, self.plain.len())
    }
}

/// Refuses a run that does not belong to the layout it is used with.
pub(super) fn check_run(cipher: &TensorCipher, operation: &'static str, run: Run) -> Result<()> {
    if cipher.layout().run(run.first(), run.count()) == Some(run) {
        return Ok(());
    }
    Err(cipher.about_tensor(
        Error::invalid(
            operation,
            "this run is not of this tensor's layout; ask the layout for its runs",
        )
        .with("first", run.first())
        .with("count", run.count()),
    ))
}

/// At most 64 MiB, by the layout: fits everywhere.
pub(super) fn chunk_bytes(layout: Layout) -> usize {
    usize::try_from(layout.chunk_bytes()).unwrap_or(usize::MAX)
}

/// The chunks of a run's bytes; one empty chunk if there are none.
pub(super) fn pieces(bytes: &[u8], chunk_bytes: usize) -> impl Iterator<Item = &[u8]> {
    let empty = bytes.is_empty().then_some([].as_slice());
    bytes.chunks(chunk_bytes).chain(empty)
}

/// The same, for writing.
pub(super) fn pieces_mut(bytes: &mut [u8], chunk_bytes: usize) -> impl Iterator<Item = &mut [u8]> {
    let empty = bytes.is_empty().then(|| [].as_mut_slice());
    bytes.chunks_mut(chunk_bytes).chain(empty)
}
