//! Opening one tensor, chunk by chunk: into other memory, or in place.

use std::fmt;

use tensorhold_core::{Error, ErrorKind, Result};

use super::cipher::{TAG_BYTES, Tag, TensorCipher};
use super::layout::{Layout, Run};
use super::sealer::{check_run, chunk_bytes, pieces, pieces_mut};

/// Opens one tensor of a sample. Its methods may be called from many threads at once.
///
/// A failure leaves zeros where the plaintext would be. A caller that runs the jobs of a tensor itself must hand out
/// nothing of the tensor if one of them fails.
#[derive(Debug)]
pub struct TensorOpener {
    cipher: TensorCipher,
}

impl TensorOpener {
    pub(super) fn new(cipher: TensorCipher) -> Self {
        Self { cipher }
    }

    /// Where chunks and tags lie.
    pub fn layout(&self) -> Layout {
        self.cipher.layout()
    }

    /// Opens the whole tensor, sealed as one run, into other memory.
    pub fn open(&self, sealed: &[u8], into: &mut [u8]) -> Result<()> {
        self.open_run(self.layout().whole(), sealed, into)
    }

    /// Opens a run into other memory: `sealed` has its [`Run::sealed_len`] bytes, `into` its [`Run::plain_len`].
    pub fn open_run(&self, run: Run, sealed: &[u8], into: &mut [u8]) -> Result<()> {
        let opened = self
            .jobs(run, sealed, into)
            .and_then(|jobs| jobs.into_iter().try_for_each(OpenJob::run));
        opened.inspect_err(|_| into.fill(0))
    }

    /// Opens a run where its ciphertext lies: `bytes` has its [`Run::plain_len`] bytes, `tags` its [`Run::tags_len`].
    pub fn open_run_in_place(&self, run: Run, bytes: &mut [u8], tags: &[u8]) -> Result<()> {
        let opened = self
            .jobs_in_place(run, bytes, tags)
            .and_then(|jobs| jobs.into_iter().try_for_each(OpenJob::run));
        opened.inspect_err(|_| bytes.fill(0))
    }

    /// [`TensorOpener::open_run`] as one job for each chunk, to be spread over threads.
    pub fn jobs<'a>(&'a self, run: Run, sealed: &'a [u8], into: &'a mut [u8]) -> Result<Vec<OpenJob<'a>>> {
        check_run(&self.cipher, "seal.open", run)?;
        self.check_sealed(run, sealed.len() as u64, run.sealed_len())?;
        if into.len() as u64 != run.plain_len() {
            return Err(self.cipher.about_tensor(
                Error::invalid(
                    "seal.open",
                    "the destination does not have the length that the layout gives",
                )
                .with("bytes", into.len())
                .with("expected", run.plain_len()),
            ));
        }
        let (ciphertext, tags) = sealed.split_at(into.len());
        let chunk_bytes = chunk_bytes(self.layout());
        let bytes = pieces(ciphertext, chunk_bytes)
            .zip(pieces_mut(into, chunk_bytes))
            .map(|(cipher, plain)| Bytes::Into { cipher, plain });
        Ok(self.gather(run, bytes, tags))
    }

    /// [`TensorOpener::open_run_in_place`] as one job for each chunk, to be spread over threads.
    pub fn jobs_in_place<'a>(&'a self, run: Run, bytes: &'a mut [u8], tags: &'a [u8]) -> Result<Vec<OpenJob<'a>>> {
        check_run(&self.cipher, "seal.open", run)?;
        self.check_sealed(run, bytes.len() as u64, run.plain_len())?;
        self.check_sealed(run, tags.len() as u64, run.tags_len())?;
        let bytes = pieces_mut(bytes, chunk_bytes(self.layout())).map(Bytes::InPlace);
        Ok(self.gather(run, bytes, tags))
    }

    /// Opens one chunk into memory of the same length.
    pub fn open_chunk(&self, number: u64, cipher: &[u8], tag: &[u8; TAG_BYTES], into: &mut [u8]) -> Result<()> {
        let checked = self.check_chunk(number, cipher.len()).and_then(|()| {
            if into.len() == cipher.len() {
                return Ok(());
            }
            let error = Error::invalid("seal.open", "the destination does not have the chunk's length");
            Err(self
                .cipher
                .about(number, error.with("bytes", into.len()).with("expected", cipher.len())))
        });
        checked.inspect_err(|_| into.fill(0))?;
        self.cipher.open(number, cipher, tag, into)
    }

    /// Opens one chunk where its ciphertext lies.
    pub fn open_chunk_in_place(&self, number: u64, bytes: &mut [u8], tag: &[u8; TAG_BYTES]) -> Result<()> {
        self.check_chunk(number, bytes.len()).inspect_err(|_| bytes.fill(0))?;
        self.cipher.open_in_place(number, bytes, tag)
    }

    fn gather<'a>(&'a self, run: Run, bytes: impl Iterator<Item = Bytes<'a>>, tags: &'a [u8]) -> Vec<OpenJob<'a>> {
        let (tags, _) = tags.as_chunks::<TAG_BYTES>();
        bytes
            .zip(tags)
            .zip(run.first()..)
            .map(|((bytes, tag), number)| OpenJob {
                opener: self,
                number,
                bytes,
                tag,
            })
            .collect()
    }

    /// Sealed bytes come from the engine, so a wrong length is `Corrupt`, not the caller's mistake.
    fn check_sealed(&self, run: Run, length: u64, expected: u64) -> Result<()> {
        if length == expected {
            return Ok(());
        }
        let error = self.wrong_length(length, expected);
        Err(error.with("first_chunk", run.first()).with("chunks", run.count()))
    }

    fn check_chunk(&self, number: u64, length: usize) -> Result<()> {
        match self.layout().chunk_len(number) {
            Some(expected) if expected == length as u64 => Ok(()),
            Some(expected) => Err(self.wrong_length(length as u64, expected).with("chunk", number)),
            None => {
                let error = Error::invalid("seal.open", "the tensor has no chunk of this number");
                Err(self
                    .cipher
                    .about(number, error.with("chunks", self.layout().chunk_count())))
            }
        }
    }

    fn wrong_length(&self, length: u64, expected: u64) -> Error {
        let message = "the sealed bytes do not have the length that was sealed: they were cut or lengthened; \
                       put the sample again";
        self.cipher
            .about_tensor(Error::new(ErrorKind::Corrupt, "seal.open", message))
            .with("bytes", length)
            .with("expected", expected)
    }
}

/// One chunk to open. Jobs of one tensor are independent of each other.
#[must_use = "nothing is opened until the job is run"]
pub struct OpenJob<'a> {
    opener: &'a TensorOpener,
    number: u64,
    bytes: Bytes<'a>,
    tag: &'a Tag,
}

enum Bytes<'a> {
    Into { cipher: &'a [u8], plain: &'a mut [u8] },
    InPlace(&'a mut [u8]),
}

impl OpenJob<'_> {
    /// Opens the chunk.
    pub fn run(self) -> Result<()> {
        match self.bytes {
            Bytes::Into { cipher, plain } => self.opener.open_chunk(self.number, cipher, self.tag, plain),
            Bytes::InPlace(bytes) => self.opener.open_chunk_in_place(self.number, bytes, self.tag),
        }
    }
}

// By hand, without the bytes: in place, they may already be plaintext.
impl fmt::Debug for OpenJob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenJob(chunk {})", self.number)
    }
}
