//! Dead letters: samples that a group could not use within its attempts. `tensorhold-custody` has their states.
//!
//! The record of a dead letter stays under `d/` until it is put back into circulation or dropped. While its objects are
//! kept with it there is an entry under `u/`, ordered by the tick at which their time is over. A sweep moves the records
//! whose time is over, and those that are too many, to the list of samples to be freed (`f/`). When the objects are gone,
//! the record comes back to `d/`, without them.
//!
//! A dead letter keeps its generation when it is put back. No token of its earlier leases is good then: tokens are
//! versions. It is refused while another generation of the sample is live.

use tensorhold_core::{Deadline, Error, ErrorKind, Result};
use tensorhold_custody::{Retired, Tick, Version};

use crate::index::TxnIndex;
use crate::record::layout::Layout;
use crate::record::refusal::is_about_one_record;
use crate::record::types::{SampleRef, Versioned};
use crate::store::{Condition, Write};
use crate::txn::batch::{Intent, Loaded};
use crate::txn::decision::{Decision, set_version};
use crate::txn::session::Session;

const SWEEP: &str = "index.sweep";

impl TxnIndex {
    /// Has the objects of dead letters removed that were kept until a tick before this one, or that are too many. Returns
    /// whether there may be more.
    pub(crate) async fn end_letters(
        &self,
        session: &Session,
        tick: Tick,
        limit: usize,
        deadline: Deadline,
    ) -> Result<bool> {
        let layout = self.core.layout();
        let most = self.core.dead_most();
        let all = layout.letters_before(None);
        let found = self.core.read_keys([all], most.saturating_add(limit), deadline).await?;
        let mut due = found.into_iter().next().unwrap_or_default();
        let before = layout.letters_before(Some(tick)).end;
        let over_age = due.partition_point(|key| *key < before);
        let over_count = due.len().saturating_sub(most);
        due.truncate(over_age.max(over_count));
        let more = due.len() > limit;
        due.truncate(limit);
        let letter_of = |entry: &String| {
            let (sample, generation) = Layout::parse_retired(entry)?;
            Some(SampleRef { sample, generation })
        };
        let keys = |entry: &String| {
            let letter = letter_of(entry).map(|sample| layout.dead_letter(&sample));
            letter.into_iter().chain([entry.clone()]).collect()
        };
        let decide = |entry: &String, loaded: &Loaded| {
            let sample = letter_of(entry);
            let letter = match &sample {
                Some(sample) => loaded.record::<Retired>(&layout.dead_letter(sample))?,
                None => None,
            };
            if let (Some(SampleRef { sample, .. }), Some(letter)) = (&sample, &letter)
                && layout.letter_entry(sample, &letter.record).as_ref() == Some(entry)
            {
                let after = letter.record.clone().kept_no_longer();
                return self.core.replace_retired(sample, letter, &after, ());
            }
            // It follows from no record: another program wrote it.
            Ok(match loaded.entry(entry) {
                Some(stray) => Decision::new(
                    vec![Condition::Unchanged(entry.clone(), stray.version)],
                    vec![Write::Delete(entry.clone())],
                    (),
                ),
                None => Decision::nothing(()),
            })
        };
        let intent = Intent::new(SWEEP, &keys, &decide);
        for result in self.core.batch(session, &due, intent, None, deadline).await {
            match result {
                Ok(()) => {}
                Err(error) if is_about_one_record(&error) => {
                    tracing::debug!(%error, "a dead letter cannot be read by this release; it stays");
                }
                Err(error) => tracing::warn!(%error, "a dead letter keeps its objects; the next sweep tries again"),
            }
        }
        Ok(more)
    }

    pub(crate) async fn do_requeue(
        &self,
        session: &Session,
        items: &[SampleRef],
        deadline: Deadline,
    ) -> Vec<Result<Version>> {
        const OPERATION: &str = "index.requeue";
        let layout = self.core.layout();
        let keys = |item: &SampleRef| vec![layout.dead_letter(item), layout.live(&item.sample)];
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let letter = letter_of(OPERATION, layout, loaded, item)?;
            let live = layout.live(&item.sample);
            if loaded.entry(&live).is_some() {
                let message = "the sample was put again meanwhile, and that generation is live; drop the dead letter";
                return Err(refused(OPERATION, message, item));
            }
            let record = letter.record.clone().requeue().map_err(|error| name(error, item))?;
            let conditions = vec![
                Condition::Unchanged(layout.dead_letter(item), letter.version),
                Condition::Absent(live),
            ];
            let entry = layout.letter_entry(&item.sample, &letter.record);
            let gone = entry.into_iter().chain([layout.dead_letter(item)]);
            let mut writes: Vec<Write> = gone.map(Write::Delete).collect();
            writes.extend(layout.put_live(&item.sample, None, &record, &letter.description)?);
            Ok(Decision::new(conditions, writes, Version::default()).settling(set_version))
        };
        let intent = Intent::new(OPERATION, &keys, &decide);
        self.core.batch(session, items, intent, None, deadline).await
    }

    pub(crate) async fn do_drop_dead(
        &self,
        session: &Session,
        items: &[SampleRef],
        deadline: Deadline,
    ) -> Vec<Result<bool>> {
        const OPERATION: &str = "index.drop_dead";
        let layout = self.core.layout();
        let keys = |item: &SampleRef| vec![layout.dead_letter(item)];
        let decide = |item: &SampleRef, loaded: &Loaded| {
            let letter = letter_of(OPERATION, layout, loaded, item)?;
            match letter.record.clone().dropped() {
                Some(after) => self.core.replace_retired(&item.sample, &letter, &after, true),
                None => {
                    let key = layout.dead_letter(item);
                    let unchanged = vec![Condition::Unchanged(key.clone(), letter.version)];
                    Ok(Decision::new(unchanged, vec![Write::Delete(key)], false))
                }
            }
        };
        let intent = Intent::new(OPERATION, &keys, &decide);
        self.core.batch(session, items, intent, None, deadline).await
    }
}

fn letter_of(
    operation: &'static str,
    layout: &Layout,
    loaded: &Loaded,
    item: &SampleRef,
) -> Result<Versioned<Retired>> {
    let found: Option<Versioned<Retired>> = loaded.record(&layout.dead_letter(item))?;
    found.ok_or_else(|| {
        let message = "there is no such dead letter, or its objects are being removed; list them again";
        let error = Error::new(ErrorKind::NotFound, operation, message);
        name(error, item)
    })
}

fn refused(operation: &'static str, message: &str, item: &SampleRef) -> Error {
    name(Error::new(ErrorKind::Conflict, operation, message), item)
}

fn name(error: Error, item: &SampleRef) -> Error {
    error.with("sample", &item.sample).with("generation", item.generation)
}
