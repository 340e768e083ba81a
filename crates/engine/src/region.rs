//! Memory that bytes move from and to.
//!
//! A transfer that outlives its caller's deadline still reads or writes memory: a call into the engine cannot be
//! cancelled. So memory is not borrowed for a call, it is *registered*, and the registration is a guard:
//!
//! ```text
//! HostMemory ──Engine::register──▶ Region ──span()──▶ Span ──in a batch──▶ a transfer in flight
//!                                     │                  └ holds the Region ──────┘ holds the Span
//!                                     └ last holder gone ─▶ unregistered ─▶ the memory's owner is dropped
//! ```
//!
//! Invariants:
//! - R1: memory stays mapped and registered until the last transfer that names it has returned, even if every caller
//!   has left by then.
//! - R2: memory is unregistered exactly once, and its owner is dropped only after that.
//!
//! Registered memory is shared with code that knows nothing of Rust's rules (a NIC, another thread of the engine). So
//! it is never handed out as a reference: it is copied in and out. Bytes read while a transfer writes them are
//! unspecified, but reading them is not undefined behaviour here, because no code holds a reference to them.

#![expect(
    unsafe_code,
    reason = "the FFI edge: memory that foreign code reads and writes; each block says why it holds"
)]

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tensorhold_core::{Error, Result};

/// The alignment of memory that Tensorhold allocates.
const PAGE: usize = 4096;
/// The alignment, and the least size, of memory for which the kernel is asked for huge pages. Huge pages mean fewer
/// page faults and fewer TLB misses while bytes move.
const HUGE_PAGE: usize = 2 << 20;

/// A contiguous range of memory in this process, not yet known to any engine.
pub struct HostMemory {
    base: NonNull<u8>,
    len: usize,
    /// Keeps the memory valid; dropped last.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory is only reached by raw copies, and its owner is itself Send and Sync.
unsafe impl Send for HostMemory {}
// SAFETY: as above; every access through a shared reference is a raw copy.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates zeroed, page-aligned memory.
    pub fn allocate(len: usize) -> Result<Self> {
        let pages = Pages::allocate(len)?;
        Ok(Self {
            base: pages.base,
            len,
            _owner: Box::new(pages),
        })
    }

    /// Memory that another component owns: a tensor, a pool, a pinned buffer. `owner` keeps it alive, and is dropped
    /// when no registration and no transfer needs the memory any more.
    ///
    /// # Safety
    /// `base..base + len` must be valid for reads and writes until `owner` is dropped, whichever thread drops it, and
    /// no Rust reference into it may exist while a transfer or a copy touches it.
    pub unsafe fn lent(base: *mut u8, len: usize, owner: impl Any + Send + Sync) -> Result<Self> {
        let base = NonNull::new(base).ok_or_else(|| Error::invalid("region.lent", "the memory's address is null"))?;
        if len == 0 || isize::try_from(len).is_err() || base.addr().get().checked_add(len).is_none() {
            return Err(
                Error::invalid("region.lent", "the memory is empty or leaves the address space").with("len", len),
            );
        }
        Ok(Self {
            base,
            len,
            _owner: Box::new(owner),
        })
    }

    /// The address of its first byte.
    pub fn address(&self) -> usize {
        self.base.addr().get()
    }

    /// Its length in bytes; never zero.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} bytes at {:#x})", self.len, self.address())
    }
}

/// The allocation under a [`HostMemory`] that Tensorhold allocated.
struct Pages {
    base: NonNull<u8>,
    layout: std::alloc::Layout,
}

// SAFETY: Pages only frees the memory; it never reads or writes it.
unsafe impl Send for Pages {}
// SAFETY: as above; a shared reference gives access to nothing.
unsafe impl Sync for Pages {}

impl Pages {
    fn allocate(len: usize) -> Result<Self> {
        let refuse = |why: &str| Error::invalid("region.allocate", why).with("len", len);
        if len == 0 {
            return Err(refuse("memory of zero bytes cannot be registered"));
        }
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let layout = std::alloc::Layout::from_size_align(len, align)
            .map_err(|_| refuse("this length is larger than the address space; ask for less"))?;
        // SAFETY: the layout's size is not zero.
        let base = unsafe { std::alloc::alloc(layout) };
        let base = NonNull::new(base).ok_or_else(|| {
            Error::new(
                tensorhold_core::ErrorKind::Capacity,
                "region.allocate",
                "this host does not have that much memory left; ask for less, or free some",
            )
            .with("len", len)
        })?;
        if align == HUGE_PAGE {
            // SAFETY: advice about memory that was just allocated, before any code has touched it; it changes no
            // content. Whatever the kernel answers, the memory stays valid.
            unsafe {
                libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
            }
        }
        // SAFETY: as many bytes were allocated, and no other code knows of them.
        unsafe {
            base.write_bytes(0, len);
        }
        Ok(Self { base, layout })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `base` came from alloc with this very layout and is freed only here.
        unsafe {
            std::alloc::dealloc(self.base.as_ptr(), self.layout);
        }
    }
}

/// Tells engines apart, so that a region of one is not used with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EngineId(u64);

impl EngineId {
    /// An id that no other engine of this process has.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The part of an engine that takes a [`Region`]'s memory back when its last holder is gone.
pub trait Registrar: Send + Sync + fmt::Debug {
    /// The engine that registered the memory.
    fn engine(&self) -> EngineId;

    /// Takes the memory back. Called once per region, possibly on a transfer's thread: must not block. The memory may
    /// be dropped only after the engine has unregistered it.
    fn unregister(&self, memory: HostMemory);
}

/// Memory that is registered with an engine. Cheap to clone; the drop of the last clone, span or transfer unregisters
/// it.
#[derive(Clone)]
pub struct Region(Arc<Registered>);

struct Registered {
    memory: ManuallyDrop<HostMemory>,
    registrar: Arc<dyn Registrar>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: this is the only place that takes the memory out, and `self.memory` is not touched after it.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        self.registrar.unregister(memory);
    }
}

impl Region {
    /// For engines: wraps memory that `registrar`'s engine has just registered.
    pub fn new(memory: HostMemory, registrar: Arc<dyn Registrar>) -> Self {
        Self(Arc::new(Registered {
            memory: ManuallyDrop::new(memory),
            registrar,
        }))
    }

    /// The engine that registered it.
    pub fn engine(&self) -> EngineId {
        self.0.registrar.engine()
    }

    /// The address of its first byte.
    pub fn address(&self) -> usize {
        self.0.memory.address()
    }

    /// Its length in bytes; never zero.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.memory.len()
    }

    /// A part of it. Fails if the part is empty or does not lie inside.
    pub fn span(&self, range: Range<usize>) -> Result<Span> {
        if range.start >= range.end || range.end > self.len() {
            return Err(Error::invalid("region.span", "the span is empty or leaves its region")
                .with("span", format!("{range:?}"))
                .with("region", self.len()));
        }
        Ok(Span {
            region: self.clone(),
            offset: range.start,
            len: range.end - range.start,
        })
    }

    /// All of it.
    pub fn whole(&self) -> Span {
        Span {
            region: self.clone(),
            offset: 0,
            len: self.len(),
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes at {:#x})", self.len(), self.address())
    }
}

/// A part of a [`Region`]. It keeps the region registered.
#[derive(Clone)]
pub struct Span {
    region: Region,
    offset: usize,
    len: usize,
}

impl Span {
    /// The region that it is a part of.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The address of its first byte.
    pub fn address(&self) -> usize {
        self.region.address() + self.offset
    }

    /// Its length in bytes; never zero.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its address range.
    pub fn range(&self) -> Range<usize> {
        self.address()..self.address() + self.len
    }

    /// Copies `bytes` in at `at`. Fails if they do not fit.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let to = self.pointer(at, bytes.len())?;
        // SAFETY: `pointer` checked that the bytes lie inside memory that this span keeps valid; `bytes` is a Rust
        // slice and no Rust reference into registered memory exists, so the two do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(())
    }

    /// Copies `bytes` in at `at`, past the processor's caches. For many bytes that this core will not read soon: a plain write
    /// first fetches each line that it is going to overwrite, and takes about 1.4 times as long. Fails if they do not fit.
    pub fn write_streaming(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let to = self.pointer(at, bytes.len())?;
        // SAFETY: as in `write`.
        unsafe {
            crate::streaming::copy(bytes, to);
        }
        Ok(())
    }

    /// Copies bytes out from `at` until `bytes` is full. Fails if the span has fewer.
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        let from = self.pointer(at, bytes.len())?;
        // SAFETY: as in `write`, in the other direction.
        unsafe {
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
        Ok(())
    }

    /// Copies `len` bytes of another span in, from `from_at` there to `at` here. Fails if either has fewer.
    pub fn copy_from(&self, at: usize, from: &Span, from_at: usize, len: usize) -> Result<()> {
        let (to, from) = (self.pointer(at, len)?, from.pointer(from_at, len)?);
        // SAFETY: `pointer` checked both ranges, and the spans keep their memory valid; the two may overlap, which this
        // copy allows. No Rust reference into registered memory exists.
        unsafe {
            std::ptr::copy(from, to, len);
        }
        Ok(())
    }

    /// A copy of all its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        let from = self.region.0.memory.base.as_ptr().wrapping_add(self.offset);
        // SAFETY: the span's own range is always inside its region, and `bytes` has just been made.
        unsafe {
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), self.len);
        }
        bytes
    }

    fn pointer(&self, at: usize, len: usize) -> Result<*mut u8> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::invalid("span.copy", "the copy leaves its span")
                .with("at", at)
                .with("len", len)
                .with("span", self.len));
        }
        let base = self.region.0.memory.base.as_ptr();
        // SAFETY: offset + at lies inside the region's one allocation, as checked here and in `Region::span`.
        Ok(unsafe { base.add(self.offset + at) })
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span({} bytes at {:#x})", self.len, self.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Debug)]
    struct Log(Mutex<Vec<&'static str>>);

    impl Registrar for Log {
        fn engine(&self) -> EngineId {
            EngineId(0)
        }

        fn unregister(&self, memory: HostMemory) {
            self.0.lock().expect("log").push("unregistered");
            drop(memory);
        }
    }

    struct Owner(Arc<Log>);

    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.0.lock().expect("log").push("owner dropped");
        }
    }

    fn region(len: usize) -> Region {
        let log = Arc::new(Log(Mutex::new(Vec::new())));
        Region::new(HostMemory::allocate(len).expect("memory"), log)
    }

    #[test]
    fn the_last_span_unregisters_once_and_then_the_owner_goes() {
        let log = Arc::new(Log(Mutex::new(Vec::new())));
        let bytes = Box::leak(Box::new([7_u8; 16]));
        // SAFETY: the array is leaked, so it is valid for ever.
        let memory = unsafe { HostMemory::lent(bytes.as_mut_ptr(), 16, Owner(log.clone())) }.expect("lent");
        let region = Region::new(memory, log.clone());
        let span = region.span(4..8).expect("inside");
        let in_flight = span.clone();
        drop((region, span));
        assert!(log.0.lock().expect("log").is_empty(), "a transfer still holds it");
        assert_eq!(in_flight.to_vec(), [7; 4]);
        drop(in_flight);
        assert_eq!(*log.0.lock().expect("log"), ["unregistered", "owner dropped"]);
    }

    #[test]
    fn copies_stay_inside() {
        let region = region(100);
        let span = region.span(10..20).expect("inside");
        span.write(7, &[1, 2, 3]).expect("fits");
        let mut back = [0; 4];
        span.read(6, &mut back).expect("fits");
        assert_eq!(back, [0, 1, 2, 3]);
        assert_eq!(region.whole().to_vec()[16..20], [0, 1, 2, 3]);
        region
            .span(0..4)
            .expect("inside")
            .copy_from(1, &span, 7, 3)
            .expect("fits");
        assert_eq!(region.whole().to_vec()[..4], [0, 1, 2, 3]);
        assert!(span.copy_from(8, &region.whole(), 0, 3).is_err());
        assert!(span.copy_from(0, &region.whole(), 98, 3).is_err());
        assert!(span.write(8, &[1, 2, 3]).is_err());
        assert!(span.write(usize::MAX, &[1]).is_err());
        for range in [0..0, 5..5, 99..101, Range { start: 9, end: 3 }] {
            assert!(region.span(range.clone()).is_err(), "{range:?}");
        }
    }

    #[test]
    fn memory_is_zeroed_aligned_and_never_empty() {
        let memory = HostMemory::allocate(5000).expect("memory");
        assert_eq!((memory.address() % PAGE, memory.len()), (0, 5000));
        assert!(HostMemory::allocate(0).is_err());
        assert!(HostMemory::allocate(usize::MAX).is_err());
    }
}
