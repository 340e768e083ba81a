//! Looking without changing anything: what is live, and which tokens are good.

use holdfast_core::{Deadline, Result, SampleId};

use crate::index::KvIndex;
use crate::kv::Read;
use crate::layout::decode_live;
use crate::session::Session;
use crate::types::{Held, SampleRef, Versioned, View};

impl KvIndex {
    /// Whether leases are still good: asked after the bytes have arrived and before they are handed out.
    pub(crate) async fn do_check(&self, session: &Session, items: &[Held], deadline: Deadline) -> Result<Vec<bool>> {
        let mut good = Vec::with_capacity(items.len());
        for chunk in items.chunks(self.kv().limits().operations - 1) {
            let mut reads: Vec<Read> = chunk
                .iter()
                .map(|item| Read::Key(self.layout().live(&item.sample.sample)))
                .collect();
            reads.push(Read::Key(self.layout().alive(session.id())));
            let mut snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
            let alive = snapshot.entries.pop().is_some_and(|entries| !entries.is_empty());
            for (item, entries) in chunk.iter().zip(&snapshot.entries) {
                let record = entries.first().map(decode_live).transpose()?;
                let holds =
                    record.is_some_and(|live| live.generation == item.sample.generation && live.holds(item.token));
                good.push(alive && holds);
            }
        }
        Ok(good)
    }

    pub(crate) async fn do_look(&self, samples: &[SampleId], deadline: Deadline) -> Result<Vec<Option<View>>> {
        // A sample that was superseded and freed between the two reads is looked at again; hardly ever twice.
        const LOOKS: usize = 8;
        let mut views: Vec<Option<View>> = samples.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..samples.len()).collect();
        for _ in 0..LOOKS {
            let found = self.look_for_records(samples, &open, &mut views, deadline).await?;
            open = self.look_for_descriptions(&found, &mut views, deadline).await?;
            if open.is_empty() {
                break;
            }
        }
        Ok(views)
    }

    /// Reads the live records of the samples at these places. Returns the places of those that are there.
    async fn look_for_records(
        &self,
        samples: &[SampleId],
        open: &[usize],
        views: &mut [Option<View>],
        deadline: Deadline,
    ) -> Result<Vec<usize>> {
        let mut found = Vec::new();
        for chunk in open.chunks(self.kv().limits().operations) {
            let reads: Vec<Read> = chunk
                .iter()
                .map(|at| Read::Key(self.layout().live(&samples[*at])))
                .collect();
            let snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
            for (at, entries) in chunk.iter().zip(snapshot.entries) {
                let Some(entry) = entries.first() else { continue };
                let record = Versioned {
                    record: decode_live(entry)?,
                    version: entry.version,
                };
                let sample = SampleRef {
                    sample: samples[*at].clone(),
                    generation: record.record.generation,
                };
                views[*at] = Some(View {
                    sample,
                    record,
                    description: Vec::new(),
                });
                found.push(*at);
            }
        }
        Ok(found)
    }

    /// Reads the descriptions of what was found. Returns the places of those that are gone by now.
    async fn look_for_descriptions(
        &self,
        found: &[usize],
        views: &mut [Option<View>],
        deadline: Deadline,
    ) -> Result<Vec<usize>> {
        let mut gone = Vec::new();
        for chunk in found.chunks(self.kv().limits().operations) {
            let reads: Vec<Read> = chunk
                .iter()
                .filter_map(|at| views[*at].as_ref())
                .map(|view| Read::Key(self.layout().description(&view.sample.sample, view.sample.generation)))
                .collect();
            let snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
            for (at, entries) in chunk.iter().zip(snapshot.entries) {
                match (entries.into_iter().next(), &mut views[*at]) {
                    (Some(entry), Some(view)) => view.description = entry.value,
                    (_, view) => {
                        *view = None;
                        gone.push(*at);
                    }
                }
            }
        }
        Ok(gone)
    }
}
