//! Copies between host and device, implemented by the serving engine, which knows the device.

use std::fmt::Debug;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Error, Result};

use super::host::HostMemoryMap;
use crate::plan::CopyAt;

/// The result of a copy: how many pages from the start are copied, and why not all.
#[derive(Clone, Debug)]
pub struct Copied {
    /// Pages copied, from the start without a gap.
    pub pages: u32,
    /// Why some pages were not copied, if so.
    pub error: Option<Error>,
}

/// Copies pages between host and device memory. Called on threads of the tier, never on the scheduling path.
///
/// A call returns when the copies are done and **nothing touches the pages any more**: it waits for copies that are
/// still in flight on a stream, also if it fails. It should end within the given time; if it does not, the tier waits
/// for it.
pub trait DeviceCopier: Send + Sync + Debug {
    /// Host → device.
    fn load_back(&self, pages: &[CopyAt], within: Duration) -> Copied;

    /// Device → host.
    fn write_back(&self, pages: &[CopyAt], within: Duration) -> Copied;
}

/// For tests and for machines without a device: device pages in ordinary memory.
#[derive(Debug)]
pub struct MemoryCopier {
    host: HostMemoryMap,
    device: Mutex<Vec<Vec<u8>>>,
}

impl MemoryCopier {
    /// A device of this many pages, all zero.
    pub fn new(host: HostMemoryMap, device_pages: u32) -> Self {
        let bytes = usize::try_from(host.page_bytes()).unwrap_or(usize::MAX);
        let device = Mutex::new((0..device_pages).map(|_| vec![0; bytes]).collect());
        Self { host, device }
    }

    /// The bytes of one device page.
    pub fn page(&self, page: u32) -> Option<Vec<u8>> {
        self.device.lock().get(page as usize).cloned()
    }

    /// Writes one device page, as a forward pass does.
    pub fn set_page(&self, page: u32, bytes: Vec<u8>) -> Result<()> {
        let mut device = self.device.lock();
        match device.get_mut(page as usize) {
            Some(old) if old.len() == bytes.len() => {
                *old = bytes;
                Ok(())
            }
            _ => Err(no_such_page(page)),
        }
    }

    fn each(&self, pages: &[CopyAt], copy: impl Fn(&CopyAt, &mut [u8]) -> Result<()>) -> Copied {
        let mut device = self.device.lock();
        for (done, page) in pages.iter().enumerate() {
            let copied = match device.get_mut(page.device.0 as usize) {
                Some(bytes) => copy(page, bytes),
                None => Err(no_such_page(page.device.0)),
            };
            if let Err(error) = copied {
                return Copied {
                    pages: u32::try_from(done).unwrap_or(u32::MAX),
                    error: Some(error),
                };
            }
        }
        Copied {
            pages: u32::try_from(pages.len()).unwrap_or(u32::MAX),
            error: None,
        }
    }
}

fn no_such_page(page: u32) -> Error {
    Error::invalid(
        "kv.copy",
        "there is no such page on the device, or its length differs from that of a host page",
    )
    .with("page", page)
}

impl DeviceCopier for MemoryCopier {
    fn load_back(&self, pages: &[CopyAt], _within: Duration) -> Copied {
        self.each(pages, |page, bytes| {
            let mut at = 0;
            for part in self.host.parts(page.host)? {
                part.read(0, &mut bytes[at..at + part.len()])?;
                at += part.len();
            }
            Ok(())
        })
    }

    fn write_back(&self, pages: &[CopyAt], _within: Duration) -> Copied {
        self.each(pages, |page, bytes| {
            let mut at = 0;
            for part in self.host.parts(page.host)? {
                part.write(0, &bytes[at..at + part.len()])?;
                at += part.len();
            }
            Ok(())
        })
    }
}
