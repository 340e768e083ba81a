//! The store, as a Python object: each method starts an operation and returns it.
//!
//! The interpreter's lock is held while arguments are read, not while anything waits. Wrong arguments raise at once;
//! the operation reports every other error.

use std::sync::Arc;
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyList};
use tensorhold_core::{Digest, Error, ObjectKey, Result, SampleId};
use tensorhold_features::{
    AdoptedTensor, Announcement, DescribedRef, GroupName, Lease, ListPlace, LossScope, LostSample, Publication,
    PutItem, Quarantined, RecordList, RecordQuery, SampleRef, Stage, Tier,
};

use crate::convert::{self, each, publication, sample_ref, seconds};
use crate::errors::{OrRaise, exception};
use crate::keys::Keys;
use crate::kv::pages::{Prefetch, prefetch_counters};
use crate::lease::{PyAnnounced, PyLease};
use crate::named::{Gettable, Named, get_named, lease_shared, too_few};
use crate::opening::{Opened, Parts, Settings, guard, open};
use crate::operation::{Operation, Until};
use crate::process::ProcessBound;
use crate::tensors::{Given, Got, IntoMemory, Ready, Wish, found_for, memory, sources, spec};
use crate::writer::PyWriter;

/// Sample, tensors, groups, retain, most attempts.
pub(crate) type Item = (String, Vec<Given>, Vec<String>, bool, u32);
/// Name, element type, shape, key, checksum.
type Adopted = (String, String, Vec<u64>, String, Option<String>);

/// A sample that can be put.
pub(crate) type Prepared = (SampleId, Publication, Vec<Ready>);

pub(crate) fn prepared(py: Python<'_>, (sample, given, groups, retain, max_attempts): Item) -> Result<Prepared> {
    let publication = publication(&groups, retain, max_attempts)?;
    let ready: Result<Vec<Ready>> = given.into_iter().map(|given| Ready::of(py, given)).collect();
    Ok((SampleId::new(sample)?, publication, ready?))
}

/// An open store.
#[pyclass(frozen, module = "tensorhold._tensorhold")]
pub(crate) struct Core(ProcessBound<Arc<Opened>>);

/// Starts to open a store; the operation's result is a `Core`.
#[pyfunction]
#[pyo3(signature = (settings, client, timeout, keys=None, secrets=Vec::new()))]
pub(crate) fn open_store(
    py: Python<'_>,
    settings: &str,
    client: Option<Py<PyAny>>,
    timeout: f64,
    keys: Option<Keys>,
    secrets: Vec<(String, String)>,
) -> PyResult<Operation> {
    let keyring = keys.map(Keys::keyring).transpose().or_raise(py)?;
    let settings = Settings::read(settings, keyring, secrets).or_raise(py)?;
    let within = seconds(timeout).or_raise(py)?;
    let work = async move { open(settings, client, within).await };
    let deliver = |py: Python<'_>, opened: Opened, _late| Core(ProcessBound::new(Arc::new(opened))).into_py_any(py);
    Operation::begin(within, work, deliver).or_raise(py)
}

/// Starts to run the restore guard; the operation's result is the name of the new epoch.
#[pyfunction]
#[pyo3(signature = (settings, timeout, secrets=Vec::new()))]
pub(crate) fn restore_guard(
    py: Python<'_>,
    settings: &str,
    timeout: f64,
    secrets: Vec<(String, String)>,
) -> PyResult<Operation> {
    let settings = Settings::read(settings, None, secrets).or_raise(py)?;
    let within = seconds(timeout).or_raise(py)?;
    let work = async move { guard(settings, within).await };
    Operation::begin(within, work, |py, epoch: String, _late| epoch.into_py_any(py)).or_raise(py)
}

fn nothing(py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

fn lease(py: Python<'_>, lease: Lease) -> PyResult<Py<PyAny>> {
    PyLease::new(lease).into_py_any(py)
}

fn held(py: Python<'_>, leases: &[Py<PyLease>]) -> PyResult<Vec<Lease>> {
    leases.iter().map(|lease| lease.get().lease(py)).collect()
}

fn references(py: Python<'_>, refs: &[(String, u64)]) -> PyResult<Vec<SampleRef>> {
    let refs: Result<Vec<SampleRef>> = refs
        .iter()
        .map(|(sample, number)| sample_ref(sample, *number))
        .collect();
    refs.or_raise(py)
}

fn sample_ids(py: Python<'_>, samples: &[String]) -> PyResult<Vec<SampleId>> {
    let samples: Result<Vec<SampleId>> = samples.iter().map(SampleId::new).collect();
    samples.or_raise(py)
}

fn adopted(py: Python<'_>, tensors: Vec<Adopted>) -> PyResult<Vec<AdoptedTensor>> {
    let one = |(name, dtype, shape, key, digest): Adopted| {
        Ok(AdoptedTensor {
            spec: spec(&name, &dtype, shape)?,
            key: ObjectKey::new(key)?,
            digest: digest.map(|digest| digest.parse::<Digest>()).transpose()?,
        })
    };
    let tensors: Result<Vec<AdoptedTensor>> = tensors.into_iter().map(one).collect();
    tensors.or_raise(py)
}

/// Samples to read: each with a generation, or `None` for the live one.
fn wanted_refs(py: Python<'_>, refs: Vec<(String, Option<u64>)>) -> PyResult<Vec<(SampleId, Option<SampleRef>)>> {
    let one = |(sample, generation): (String, Option<u64>)| {
        let exact = generation.map(|number| sample_ref(&sample, number)).transpose()?;
        Ok((SampleId::new(sample)?, exact))
    };
    let refs: Result<Vec<_>> = refs.into_iter().map(one).collect();
    refs.or_raise(py)
}

fn quarantined_at(key: String, version: u64, in_place: bool) -> Quarantined {
    Quarantined {
        key,
        version: tensorhold_custody::Version(version),
        why: String::new(),
        bytes: 0,
        in_place,
    }
}

impl Core {
    pub(crate) fn parts(&self, py: Python<'_>) -> PyResult<Parts> {
        self.0.get("store").or_raise(py)?.parts().or_raise(py)
    }

    /// The parts of the store, and the caller's timeout.
    fn begin(&self, py: Python<'_>, timeout: f64) -> PyResult<(Parts, Duration)> {
        Ok((self.parts(py)?, seconds(timeout).or_raise(py)?))
    }
}

#[pymethods]
impl Core {
    /// Puts samples. Result: for each a reference, or an exception.
    fn put(&self, py: Python<'_>, items: Vec<Item>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        // An error in one sample is the result of that sample only.
        let items: Vec<Result<Prepared>> = items.into_iter().map(|item| prepared(py, item)).collect();
        let wanted = items.iter().filter_map(|item| item.as_ref().ok());
        // From now on, even while this put waits, a later put of the id replaces it, and an abort gives it up.
        let turn = parts.store.begin_put(wanted.map(|(sample, _, _)| sample));
        let until = Until::after(within);
        let work = async move {
            let mut refused = Vec::with_capacity(items.len());
            let mut samples = Vec::with_capacity(items.len());
            let mut tensors = Vec::with_capacity(items.len());
            for item in items {
                match item {
                    Ok((sample, publication, ready)) => {
                        samples.push((sample, publication));
                        tensors.push(ready);
                        refused.push(None);
                    }
                    Err(error) => refused.push(Some(error)),
                }
            }
            let tensors = sources(&parts, tensors, until.left()).await?;
            let items = samples
                .into_iter()
                .zip(tensors)
                .map(|((sample, publication), tensors)| PutItem {
                    sample,
                    tensors,
                    publication,
                });
            let mut put = parts
                .store
                .put_begun(turn, items.collect(), until.left())
                .await
                .into_iter();
            let missing = || {
                Err(Error::internal(
                    "python.put",
                    "the store returned fewer results than samples; this is a bug in Tensorhold",
                ))
            };
            let each = refused.into_iter().map(|refused| match refused {
                Some(error) => Err(error),
                None => put.next().unwrap_or_else(missing),
            });
            Ok(each.collect())
        };
        let deliver = |py: Python<'_>, results, late| {
            each(py, results, late, |py, stored: tensorhold_features::Stored| {
                convert::described(py, &DescribedRef::from(&stored))
            })
        };
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// A writer: its puts that are under way at the same time go together.
    fn writer(&self, py: Python<'_>) -> PyResult<PyWriter> {
        Ok(PyWriter::new(self.parts(py)?))
    }

    /// Takes the next samples of a group, and reads `ahead` further ones ahead. Result: a list of leases.
    fn take(&self, py: Python<'_>, group: &str, count: usize, ahead: usize, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let group = GroupName::new(group).or_raise(py)?;
        let work = async move {
            let leases = parts.store.lease_next(&group, count, within).await?;
            if ahead > 0 && !leases.is_empty() {
                parts.store.read_ahead(&group, ahead, count);
            }
            Ok(leases.into_iter().map(Ok).collect())
        };
        let deliver = |py: Python<'_>, leases, late| each(py, leases, late, lease);
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Takes the next sample of a group and gets its tensors into memory of the pool. Result: a list of at most one pair, a
    /// lease, and as for `get` or an exception.
    #[pyo3(signature = (group, names, idle, timeout))]
    fn take_get(
        &self,
        py: Python<'_>,
        group: &str,
        names: Option<Vec<String>>,
        idle: f64,
        timeout: f64,
    ) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let (group, idle) = (GroupName::new(group).or_raise(py)?, seconds(idle).or_raise(py)?);
        let wish = Wish::of(py, names, None)?;
        let work = async move {
            let leases = parts.store.lease_next(&group, 1, idle).await?;
            let wanted = |lease: &Lease| (lease.clone(), wish.of_pool().unwrap_or_default());
            let got = parts.store.get_ahead(leases.iter().map(wanted).collect(), within);
            let got = got.await.into_iter();
            let got = got.map(|got| got.map(|got| Got::new(got, parts.clone())));
            Ok(leases.into_iter().zip(got).collect())
        };
        let deliver = |py: Python<'_>, taken: Vec<(Lease, Result<Got>)>, late| {
            let list = PyList::empty(py);
            for (lease, got) in taken {
                let got = match got {
                    Ok(got) => got.deliver(py)?,
                    Err(error) => exception(py, &error, late).into_value(py).into_any(),
                };
                list.append((PyLease::new(lease), got))?;
            }
            list.into_py_any(py)
        };
        Operation::begin(idle.saturating_add(within), work, deliver).or_raise(py)
    }

    /// Takes these samples for a group. Result: for each a lease, or an exception.
    fn lease(&self, py: Python<'_>, refs: Vec<(String, u64)>, group: &str, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let (refs, group) = (references(py, &refs)?, GroupName::new(group).or_raise(py)?);
        let work = async move { Ok(parts.store.lease(&group, &refs, within).await) };
        let deliver = |py: Python<'_>, leases, late| each(py, leases, late, lease);
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Takes these samples for reading; without a generation, the live one. Result: for each a lease, or an exception.
    fn lease_shared(&self, py: Python<'_>, refs: Vec<(String, Option<u64>)>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let wanted = wanted_refs(py, refs)?;
        let work = async move { lease_shared(&parts.store, wanted, within).await };
        let deliver = |py: Python<'_>, leases, late| each(py, leases, late, lease);
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Gets a leased sample's tensors. Result: for each its spec, and its memory if that belongs to the pool.
    #[pyo3(signature = (held, names, into, timeout))]
    fn get(
        &self,
        py: Python<'_>,
        held: &Bound<'_, PyLease>,
        names: Option<Vec<String>>,
        into: Option<IntoMemory>,
        timeout: f64,
    ) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let lease = held.get().lease(py)?;
        let (wish, until) = (Wish::of(py, names, into)?, Until::after(within));
        let work = async move {
            let wanted = wish.wanted(&parts, lease.description(), until.left()).await?;
            let found_for = found_for(&wanted);
            let tensors = parts.store.get(&lease, wanted, until.left()).await?;
            Ok(Got::some_found(tensors, parts, found_for))
        };
        Operation::begin(within, work, |py, got: Got, _late| got.deliver(py)).or_raise(py)
    }

    /// Looks up and gets a sample's tensors in one call. Result as for `get`.
    #[pyo3(signature = (named, names, into, timeout))]
    fn read_get(
        &self,
        py: Python<'_>,
        named: Named,
        names: Option<Vec<String>>,
        into: Option<IntoMemory>,
        timeout: f64,
    ) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let (sample, exact) = named.read().or_raise(py)?;
        let (wish, until) = (Wish::of(py, names, into)?, Until::after(within));
        let work = async move {
            let generation = exact.as_ref().map(|exact| exact.reference.generation);
            if let (Some(exact), Some(wanted)) = (exact, wish.of_pool()) {
                let got = parts.store.get_described(exact, wanted, until.left()).await?;
                return Ok(Got::new(got, parts));
            }
            let glimpse = parts.store.find_live(&sample, generation, until.left()).await?;
            let wanted = wish.wanted(&parts, glimpse.description(), until.left()).await?;
            let found_for = found_for(&wanted);
            let got = parts.store.get_unleased(glimpse, wanted, until.left()).await?;
            Ok(Got::some_found(got, parts, found_for))
        };
        Operation::begin(within, work, |py, got: Got, _late| got.deliver(py)).or_raise(py)
    }

    /// Gets samples together, leased or not, into memory of the pool. Result: for each as for `get`, or an exception.
    #[pyo3(signature = (samples, names, timeout))]
    fn get_many(
        &self,
        py: Python<'_>,
        samples: Vec<Gettable>,
        names: Option<Vec<String>>,
        timeout: f64,
    ) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let until = Until::after(within);
        let wish = Wish::of(py, names, None)?;
        let wanted = || wish.of_pool().unwrap_or_default();
        let mut leases = Vec::new();
        let mut named = Vec::new();
        let mut leased = Vec::with_capacity(samples.len());
        for sample in samples {
            leased.push(matches!(sample, Gettable::Leased(_)));
            match sample {
                Gettable::Leased(lease) => leases.push((lease.get().lease(py)?, wanted())),
                Gettable::Named(one) => named.push((one.read().or_raise(py)?, wanted())),
            }
        }
        let work = async move {
            let (by_lease, by_name) = tokio::join!(
                parts.store.get_many(leases, until.left()),
                get_named(&parts.store, named, until.left())
            );
            let (mut by_lease, mut by_name) = (by_lease.into_iter(), by_name.into_iter());
            let next = |leased| match leased {
                true => by_lease.next(),
                false => by_name.next(),
            };
            let all = leased
                .into_iter()
                .map(next)
                .map(|got| got.unwrap_or_else(|| too_few("python.get")));
            let parts = &parts;
            Ok(all.map(|got| got.map(|got| Got::new(got, parts.clone()))).collect())
        };
        let deliver = |py: Python<'_>, all, late| each(py, all, late, |py, got: Got| got.deliver(py));
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Takes a sample for reading and gets its tensors into memory of the pool. Result: the lease, and as for `get`.
    #[pyo3(signature = (named, names, timeout))]
    fn lease_get(&self, py: Python<'_>, named: Named, names: Option<Vec<String>>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let (sample, exact) = named.read().or_raise(py)?;
        let (wish, until) = (Wish::of(py, names, None)?, Until::after(within));
        let work = async move {
            let exact = match exact {
                Some(exact) => exact,
                None => parts.store.find_live(&sample, None, until.left()).await?.described(),
            };
            let wanted = wish.of_pool().unwrap_or_default();
            let (lease, got) = parts.store.lease_shared_and_get(exact, wanted, until.left()).await?;
            Ok((lease, Got::new(got, parts)))
        };
        let deliver =
            |py: Python<'_>, (lease, got): (Lease, Got), _late| (PyLease::new(lease), got.deliver(py)?).into_py_any(py);
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Looks up samples. Result: for each what is known, or `None`.
    fn find(&self, py: Python<'_>, samples: Vec<String>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let samples = sample_ids(py, &samples)?;
        let work = async move { Ok(parts.store.find(&samples, within).await?.into_iter().map(Ok).collect()) };
        let deliver = |py: Python<'_>, found, late| each(py, found, late, convert::found);
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Where samples are. Result: for each the name of its tier, or `None` for a sample that is not live.
    fn tiers(&self, py: Python<'_>, samples: Vec<String>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let samples = sample_ids(py, &samples)?;
        let work = async move { parts.store.tiers(&samples, within).await };
        let deliver = |py: Python<'_>, tiers: Vec<Option<Tier>>, _late| {
            let names: Vec<Option<&str>> = tiers.into_iter().map(|tier| tier.map(Tier::name)).collect();
            names.into_py_any(py)
        };
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Begins to bring samples to memory. Result: a prefetch.
    fn prefetch(&self, py: Python<'_>, samples: Vec<String>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let samples = sample_ids(py, &samples)?;
        let work = async move { parts.store.prefetch(&samples, within).await };
        Operation::begin(within, work, |py, prefetch, _late| {
            Prefetch::new(prefetch).into_py_any(py)
        })
        .or_raise(py)
    }

    /// The counters of prefetches.
    fn prefetch_stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        prefetch_counters(&self.parts(py)?.store.prefetch_stats())
            .into_py_dict(py)?
            .into_py_any(py)
    }

    /// Acknowledges that samples were used.
    fn ack(&self, py: Python<'_>, leases: Vec<Py<PyLease>>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let leases = held(py, &leases)?;
        let work = async move { Ok(parts.store.ack(&leases, within).await) };
        Operation::begin(within, work, |py, all, late| each(py, all, late, convert::answered)).or_raise(py)
    }

    /// Hands samples back.
    fn nack(&self, py: Python<'_>, leases: Vec<Py<PyLease>>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let leases = held(py, &leases)?;
        let work = async move { Ok(parts.store.nack(&leases, within).await) };
        Operation::begin(within, work, |py, all, late| each(py, all, late, convert::answered)).or_raise(py)
    }

    /// Releases leases.
    fn release(&self, py: Python<'_>, leases: Vec<Py<PyLease>>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let leases = held(py, &leases)?;
        let work = async move { Ok(parts.store.release(&leases, within).await) };
        Operation::begin(within, work, |py, all, late| each(py, all, late, nothing)).or_raise(py)
    }

    /// Releases leases of readers that have used their samples up.
    fn use_up(&self, py: Python<'_>, leases: Vec<Py<PyLease>>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let leases = held(py, &leases)?;
        let work = async move { Ok(parts.store.use_up(&leases, within).await) };
        Operation::begin(within, work, |py, all, late| each(py, all, late, convert::answered)).or_raise(py)
    }

    /// Extends leases.
    fn renew(&self, py: Python<'_>, leases: Vec<Py<PyLease>>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let leases = held(py, &leases)?;
        let work = async move { Ok(parts.store.renew(&leases, within).await) };
        Operation::begin(within, work, |py, all, late| each(py, all, late, nothing)).or_raise(py)
    }

    /// Takes samples out of circulation, whatever their generation.
    fn abort(&self, py: Python<'_>, samples: Vec<String>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let samples = sample_ids(py, &samples)?;
        let work = async move { Ok(parts.store.abort(&samples, within).await) };
        Operation::begin(within, work, |py, all, late| each(py, all, late, nothing)).or_raise(py)
    }

    /// Takes exactly these generations out of circulation.
    fn retire(&self, py: Python<'_>, refs: Vec<(String, u64)>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let refs = references(py, &refs)?;
        let work = async move { Ok(parts.store.retire(&refs, within).await) };
        Operation::begin(within, work, |py, all, late| each(py, all, late, convert::answered)).or_raise(py)
    }

    /// Starts another epoch of retained samples.
    fn reopen(&self, py: Python<'_>, refs: Vec<(String, u64)>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let refs = references(py, &refs)?;
        let work = async move { Ok(parts.store.reopen(&refs, within).await) };
        Operation::begin(within, work, |py, all, late| each(py, all, late, nothing)).or_raise(py)
    }

    /// Puts dead letters back into circulation. Result: a list of None or errors.
    fn requeue(&self, py: Python<'_>, refs: Vec<(String, u64)>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let refs = references(py, &refs)?;
        let work = async move {
            let requeued = parts.store.requeue(&refs, within).await;
            Ok(requeued.into_iter().map(|result| result.map(drop)).collect())
        };
        Operation::begin(within, work, |py, all, late| each(py, all, late, nothing)).or_raise(py)
    }

    /// Drops dead letters. Result: a list of None or errors.
    fn drop_dead(&self, py: Python<'_>, refs: Vec<(String, u64)>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let refs = references(py, &refs)?;
        let work = async move { Ok(parts.store.drop_dead(&refs, within).await) };
        Operation::begin(within, work, |py, all, late| each(py, all, late, nothing)).or_raise(py)
    }

    /// Lists dead letters: up to `limit`, from behind a place on. Result: a list of them, and the place where it continues.
    fn dead_letters(&self, py: Python<'_>, after: Option<String>, limit: usize, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let work = async move {
            let query = RecordQuery::of(Stage::Dead);
            let after = after.map(ListPlace::from_text);
            parts.store.records(&query, after.as_ref(), limit, within).await
        };
        let deliver = |py: Python<'_>, list: RecordList, _late| {
            let letters: Vec<_> = list.records.into_iter().filter_map(convert::dead_letter).collect();
            let next = list.next.as_ref().map(ListPlace::as_text);
            (letters, next).into_py_any(py)
        };
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Reserves a sample that another writer will write. Result: an `Announced`.
    fn announce(
        &self,
        py: Python<'_>,
        sample: &str,
        keys: Vec<String>,
        nbytes: u64,
        timeout: f64,
    ) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let keys: Result<Vec<ObjectKey>> = keys.into_iter().map(ObjectKey::new).collect();
        let announcement = Announcement {
            sample: SampleId::new(sample).or_raise(py)?,
            keys: keys.or_raise(py)?,
            bytes: nbytes,
        };
        let work = async move { parts.store.announce(announcement, within).await };
        let deliver = |py: Python<'_>, announced, _late| PyAnnounced::new(announced).into_py_any(py);
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Commits an announced sample. Result: its reference.
    #[expect(clippy::too_many_arguments, reason = "as Python passes them")]
    fn adopt(
        &self,
        py: Python<'_>,
        announced: &Bound<'_, PyAnnounced>,
        tensors: Vec<Adopted>,
        groups: Vec<String>,
        retain: bool,
        max_attempts: u32,
        timeout: f64,
    ) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let (announced, tensors) = (announced.get().announced(py)?, adopted(py, tensors)?);
        let publication = publication(&groups, retain, max_attempts).or_raise(py)?;
        let work = async move { parts.store.adopt(&announced, tensors, publication, within).await };
        let deliver =
            |py: Python<'_>, stored: tensorhold_features::Stored, _late| convert::reference(py, &stored.reference);
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Adopts objects that already exist. Result: the sample's reference.
    #[expect(clippy::too_many_arguments, reason = "as Python passes them")]
    fn adopt_now(
        &self,
        py: Python<'_>,
        sample: &str,
        tensors: Vec<Adopted>,
        groups: Vec<String>,
        retain: bool,
        max_attempts: u32,
        timeout: f64,
    ) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let (sample, tensors) = (SampleId::new(sample).or_raise(py)?, adopted(py, tensors)?);
        let publication = publication(&groups, retain, max_attempts).or_raise(py)?;
        let work = async move { parts.store.adopt_now(sample, tensors, publication, within).await };
        let deliver =
            |py: Python<'_>, stored: tensorhold_features::Stored, _late| convert::reference(py, &stored.reference);
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Gives up an announced sample.
    fn discard(&self, py: Python<'_>, announced: &Bound<'_, PyAnnounced>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let announced = announced.get().announced(py)?;
        let work = async move { parts.store.discard(&announced, within).await };
        Operation::begin(within, work, |py, (), _late| Ok(py.None())).or_raise(py)
    }

    /// Allocates memory of the pool, all lengths at once. Result: a `Memory` for each length.
    fn buffers(&self, py: Python<'_>, nbytes: Vec<usize>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let work = async move {
            let found = parts.store.pool().buffers(&nbytes, within);
            let spans = parts.store.unless_closed("python.empty", found).await?;
            Ok((spans, parts))
        };
        let deliver = |py: Python<'_>, (spans, parts): (Vec<_>, Parts), _late| {
            let all = spans.into_iter().map(|span| Py::new(py, memory(span, &parts)));
            all.collect::<PyResult<Vec<_>>>()?.into_py_any(py)
        };
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Takes back ended leases and reservations, and frees what is due. Result: a dictionary of counts.
    fn sweep(&self, py: Python<'_>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let work = async move { parts.store.sweep(within).await };
        Operation::begin(within, work, |py, swept, _late| convert::swept(py, &swept)).or_raise(py)
    }

    /// Lists the sessions that are alive. Result: a list of tuples.
    fn sessions(&self, py: Python<'_>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let work = async move { Ok(parts.store.sessions(within).await?.into_iter().map(Ok).collect()) };
        let deliver = |py: Python<'_>, sessions, late| each(py, sessions, late, convert::live_session);
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Waits for samples that were found lost: this store's own, or all. Result: a list of references.
    fn lost(&self, py: Python<'_>, all: bool, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let scope = if all { LossScope::Store } else { LossScope::Own };
        let work = async move { Ok(parts.store.lost(scope, within).await?.into_iter().map(Ok).collect()) };
        let told = |py: Python<'_>, lost: LostSample| convert::reference(py, &lost.sample);
        let deliver = move |py: Python<'_>, lost, late| each(py, lost, late, told);
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// Lists the records in quarantine, which could not be parsed. Result: a list of tuples.
    fn quarantined(
        &self,
        py: Python<'_>,
        after: Option<(String, u64)>,
        limit: usize,
        timeout: f64,
    ) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let after = after.map(|(key, version)| quarantined_at(key, version, false));
        let work = async move {
            let listed = parts.store.quarantined(after.as_ref(), limit, within).await?;
            Ok(listed.into_iter().map(Ok).collect())
        };
        let deliver = |py: Python<'_>, listed, late| each(py, listed, late, convert::quarantined);
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// The bytes of a record in quarantine.
    fn quarantined_bytes(
        &self,
        py: Python<'_>,
        key: String,
        version: u64,
        in_place: bool,
        timeout: f64,
    ) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let which = quarantined_at(key, version, in_place);
        let work = async move { parts.store.quarantined_bytes(&which, within).await };
        let deliver = |py: Python<'_>, bytes: Vec<u8>, _late| PyBytes::new(py, &bytes).into_py_any(py);
        Operation::begin(within, work, deliver).or_raise(py)
    }

    /// The budget in force, if one was requested.
    fn budget(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(self.parts(py)?.budget)
    }

    /// Changes the store's budget.
    fn set_budget(&self, py: Python<'_>, bytes: u64, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let work = async move { parts.store.set_budget(bytes, within).await };
        Operation::begin(within, work, |py, (), _late| Ok(py.None())).or_raise(py)
    }

    /// Ends everything that the store holds. Result: how many samples ended.
    fn end(&self, py: Python<'_>, others: bool, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let work = async move { parts.store.end(others, within).await };
        Operation::begin(within, work, |py, ended, _late| ended.into_py_any(py)).or_raise(py)
    }

    /// Waits until everything that was retired here is freed.
    fn drain(&self, py: Python<'_>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let work = async move { parts.store.drain(within).await };
        Operation::begin(within, work, |py, (), _late| Ok(py.None())).or_raise(py)
    }

    /// The state of the store. Result: a dictionary.
    fn health(&self, py: Python<'_>, timeout: f64) -> PyResult<Operation> {
        let (parts, within) = self.begin(py, timeout)?;
        let work = async move { Ok(parts.store.health(within).await) };
        Operation::begin(within, work, |py, health, _late| convert::health(py, &health)).or_raise(py)
    }

    /// Ends this process's membership. Does nothing the second time.
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<Operation> {
        let opened = Arc::clone(self.0.get("store").or_raise(py)?);
        let within = seconds(timeout).or_raise(py)?;
        let work = async move { opened.close(within).await };
        Operation::begin_to_the_end(within, work, |py, (), _late| Ok(py.None())).or_raise(py)
    }
}
