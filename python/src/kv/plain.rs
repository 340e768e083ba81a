//! The values that planner and tier exchange with Python, as tuples: namespaces, operations, completions.

use pyo3::prelude::*;
use tensorhold_core::{Error, Result};
use tensorhold_kvcache::plan::{
    Completion, CopyAt, DevicePage, Failure, HostPage, HostPageAt, KeyAt, Namespace, Operation, OperationId, PageKey,
    Rank, Work,
};

const OPERATION: &str = "kv.plain";

/// Model, weights, dtype, layout, group, tokens of a page, and rank and size of tp, pp and cp.
#[derive(FromPyObject)]
pub(crate) struct PlainNamespace(
    String,
    String,
    String,
    String,
    String,
    u32,
    (u32, u32),
    (u32, u32),
    (u32, u32),
);

impl PlainNamespace {
    pub(super) fn read(self) -> Result<Namespace> {
        let rank = |(rank, size)| Rank { rank, size };
        let namespace = Namespace {
            model: self.0,
            weights: self.1,
            dtype: self.2,
            layout: self.3,
            group: self.4,
            page_tokens: self.5,
            tp: rank(self.6),
            pp: rank(self.7),
            cp: rank(self.8),
        };
        namespace.validate()?;
        Ok(namespace)
    }
}

pub(super) fn key(bytes: &[u8]) -> Result<PageKey> {
    let bytes = <[u8; 32]>::try_from(bytes)
        .map_err(|_| Error::invalid(OPERATION, "a page key has 32 bytes").with("bytes", bytes.len()))?;
    Ok(PageKey::from_bytes(bytes))
}

/// Index, key, host page, device page; `None` for a page that the operation does not have.
pub(super) type PlainPage = (u32, Vec<u8>, Option<u32>, Option<u32>);
/// Index, key, host page, device page, for Python.
pub(super) type TellPage = (u32, std::borrow::Cow<'static, [u8]>, Option<u32>, Option<u32>);

/// Id, kind, pages.
#[derive(FromPyObject)]
pub(crate) struct PlainOperation(u64, String, Vec<PlainPage>);

impl PlainOperation {
    pub(super) fn read(self) -> Result<Operation> {
        let Self(id, kind, pages) = self;
        let lacks = || Error::invalid(OPERATION, "a page of this operation lacks its host or its device page");
        let keys = || {
            pages.iter().map(|(index, bytes, _, _)| {
                Ok(KeyAt {
                    index: *index,
                    key: key(bytes)?,
                })
            })
        };
        let hosts = || {
            pages.iter().map(|(index, bytes, host, _)| {
                let host = HostPage(host.ok_or_else(lacks)?);
                Ok(HostPageAt {
                    index: *index,
                    key: key(bytes)?,
                    host,
                })
            })
        };
        let copies = || {
            pages.iter().map(|(index, bytes, host, device)| {
                let (host, device) = host.zip(*device).ok_or_else(lacks)?;
                let (host, device) = (HostPage(host), DevicePage(device));
                Ok(CopyAt {
                    index: *index,
                    key: key(bytes)?,
                    host,
                    device,
                })
            })
        };
        let work = match kind.as_str() {
            "query" => Work::Query(keys().collect::<Result<_>>()?),
            "prefetch" => Work::Prefetch(hosts().collect::<Result<_>>()?),
            "backup" => Work::Backup(hosts().collect::<Result<_>>()?),
            "load-back" => Work::LoadBack(copies().collect::<Result<_>>()?),
            "write-back" => Work::WriteBack(copies().collect::<Result<_>>()?),
            _ => return Err(Error::invalid(OPERATION, "there is no such kind of operation").with("kind", kind)),
        };
        Ok(Operation {
            id: OperationId(id),
            work,
        })
    }
}

/// Id, kind, pages, for Python.
pub(super) type TellOperation = (u64, &'static str, Vec<TellPage>);

pub(super) fn tell_operation(operation: &Operation) -> TellOperation {
    let bytes = |key: &PageKey| std::borrow::Cow::Owned(key.as_bytes().to_vec());
    let hosts = |pages: &[HostPageAt]| {
        let one = |page: &HostPageAt| (page.index, bytes(&page.key), Some(page.host.0), None);
        pages.iter().map(one).collect()
    };
    let copies = |pages: &[CopyAt]| {
        let one = |page: &CopyAt| (page.index, bytes(&page.key), Some(page.host.0), Some(page.device.0));
        pages.iter().map(one).collect()
    };
    let pages: Vec<TellPage> = match &operation.work {
        Work::Query(keys) => keys.iter().map(|at| (at.index, bytes(&at.key), None, None)).collect(),
        Work::Prefetch(pages) | Work::Backup(pages) => hosts(pages),
        Work::LoadBack(pages) | Work::WriteBack(pages) => copies(pages),
    };
    (operation.id.0, operation.work.name(), pages)
}

/// Operation, completed pages, failure.
#[derive(FromPyObject)]
pub(crate) struct PlainCompletion(u64, u32, Option<String>);

/// Operation, completed pages, failure, for Python.
pub(super) type TellCompletion = (u64, u32, Option<&'static str>);

const FAILURES: [(&str, Failure); 7] = [
    ("miss", Failure::Miss),
    ("corrupt", Failure::Corrupt),
    ("full", Failure::Full),
    ("timed-out", Failure::TimedOut),
    ("cancelled", Failure::Cancelled),
    ("refused", Failure::Refused),
    ("failed", Failure::Failed),
];

impl PlainCompletion {
    pub(super) fn read(self) -> Result<Completion> {
        let Self(operation, completed, failure) = self;
        let known = |name: String| {
            let found = FAILURES.iter().find(|(known, _)| *known == name);
            let unknown = || Error::invalid(OPERATION, "there is no such failure").with("failure", &name);
            found.map(|(_, failure)| *failure).ok_or_else(unknown)
        };
        Ok(Completion {
            operation: OperationId(operation),
            completed,
            failure: failure.map(known).transpose()?,
        })
    }
}

pub(super) fn tell_completion(completion: &Completion) -> TellCompletion {
    let name = |failure: Failure| {
        FAILURES
            .iter()
            .find(|(_, known)| *known == failure)
            .map(|(name, _)| *name)
    };
    (
        completion.operation.0,
        completion.completed,
        completion.failure.and_then(name),
    )
}
