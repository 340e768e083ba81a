//! Samples by name, and how they are got without leases.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use tensorhold_core::{Error, ErrorKind, Result, SampleId};
use tensorhold_features::{DescribedRef, FeatureStore, Lease, SampleRef, TensorOut, Wanted};

use crate::convert::sample_ref;
use crate::lease::PyLease;
use crate::operation::Until;

/// A sample by name: its id, its generation (`None` for the live one), and the bytes of its description, if they are
/// known.
#[derive(FromPyObject)]
pub(crate) struct Named(String, Option<u64>, Option<PyBackedBytes>);

impl Named {
    pub(crate) fn read(self) -> Result<(SampleId, Option<DescribedRef>)> {
        let Self(sample, generation, carried) = self;
        let exact = generation.map(|number| sample_ref(&sample, number)).transpose()?;
        let described = |exact| match &carried {
            Some(carried) => DescribedRef::with_carried(exact, carried),
            None => DescribedRef::from(exact),
        };
        Ok((SampleId::new(sample)?, exact.map(described)))
    }
}

/// A sample to get: by its lease, or by its name.
#[derive(FromPyObject)]
pub(crate) enum Gettable {
    #[pyo3(transparent)]
    Leased(Py<PyLease>),
    #[pyo3(transparent)]
    Named(Named),
}

pub(crate) fn too_few<T>(operation: &'static str) -> Result<T> {
    Err(Error::internal(
        operation,
        "the store returned fewer results than samples; this is a bug in Tensorhold",
    ))
}

/// Gets samples without leases. Those without a generation are looked up first.
pub(crate) async fn get_named(
    store: &FeatureStore,
    named: Vec<((SampleId, Option<DescribedRef>), Wanted)>,
    within: Duration,
) -> Vec<Result<Vec<TensorOut>>> {
    let until = Until::after(within);
    let unknown = named.iter().filter(|((_, exact), _)| exact.is_none());
    let unknown: Vec<SampleId> = unknown.map(|((sample, _), _)| sample.clone()).collect();
    let found = match unknown.is_empty() {
        true => Ok(Vec::new()),
        false => store.find(&unknown, until.left()).await,
    };
    let mut found = match found {
        Ok(found) => found.into_iter(),
        Err(error) => return named.iter().map(|_| Err(error.clone())).collect(),
    };
    let mut items = Vec::with_capacity(named.len());
    let mut gone = Vec::with_capacity(named.len());
    for ((sample, exact), wanted) in named {
        let exact = exact.or_else(|| found.next().flatten().as_ref().map(DescribedRef::from));
        gone.push(exact.is_none().then(|| no_such_sample("python.get", &sample)));
        items.extend(exact.map(|exact| (exact, wanted)));
    }
    let mut got = store.get_described_many(items, until.left()).await.into_iter();
    let answer = |gone| match gone {
        Some(error) => Err(error),
        None => got.next().unwrap_or_else(|| too_few("python.get")),
    };
    gone.into_iter().map(answer).collect()
}

/// Takes leases for reading. Samples without a generation are looked up first.
pub(crate) async fn lease_shared(
    store: &FeatureStore,
    wanted: Vec<(SampleId, Option<SampleRef>)>,
    within: Duration,
) -> Result<Vec<Result<Lease>>> {
    let unknown: Vec<SampleId> = wanted
        .iter()
        .filter(|(_, exact)| exact.is_none())
        .map(|(sample, _)| sample.clone())
        .collect();
    let mut found = match unknown.is_empty() {
        true => Vec::new(),
        false => store.find(&unknown, within).await?,
    }
    .into_iter();
    let refs: Vec<Option<SampleRef>> = wanted
        .iter()
        .map(|(_, exact)| {
            exact
                .clone()
                .or_else(|| found.next().flatten().map(|found| found.reference))
        })
        .collect();
    let live: Vec<SampleRef> = refs.iter().flatten().cloned().collect();
    let mut leases = store.lease_shared(&live, within).await.into_iter();
    let answer = |(reference, (sample, _)): (Option<SampleRef>, &(SampleId, _))| match reference {
        Some(_) => leases.next().unwrap_or_else(|| too_few("python.read")),
        None => Err(no_such_sample("python.read", sample)),
    };
    Ok(refs.into_iter().zip(&wanted).map(answer).collect())
}

fn no_such_sample(operation: &'static str, sample: &SampleId) -> Error {
    let message = "there is no such sample, or not any more";
    Error::new(ErrorKind::NotFound, operation, message).with("sample", sample)
}
