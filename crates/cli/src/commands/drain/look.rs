//! What of the index's samples a holder has: a look at every record of every store, and at where its objects are.
//!
//! A record of a sample stands in the index before the first byte of the sample is written. So a look that begins after
//! the holder was closed to new objects sees every sample that may have an object there. It reads the records state by
//! state, and a record that changes its state meanwhile may be passed over: the caller looks twice.

use std::time::Duration;

use tensorhold_core::{ObjectKey, StoreId};
use tensorhold_index::{Index as _, RecordQuery, Stage, TxnIndex};

use super::super::holders::{self, ASK, Copies};
use super::super::people::People;
use super::super::record::{generation, stage_name, summary};
use crate::admin::Presence;
use crate::failure::Failure;
use crate::io::Progress;
use crate::reach::Reach;
use crate::text::{ago, shown};

/// Records that are read at once.
const PAGE: usize = 1000;
/// Samples that are named.
const MOST_EXAMPLES: usize = 5;
/// An object with a copy in the holder's DRAM.
#[derive(Clone, Debug)]
pub(super) struct Moving {
    pub(super) key: ObjectKey,
    pub(super) bytes: u64,
    /// The other holders that have it in DRAM.
    pub(super) others: Vec<String>,
}

/// What a holder has of samples.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// In its DRAM.
    pub(super) objects: Vec<Moving>,
    /// On its SSD.
    pub(super) on_ssd: u64,
    /// Objects that are being written, to this holder or to another: where is told when they are there.
    pub(super) unfinished: u64,
    /// Objects of which the master does not say where they are, and records that only a later release can read.
    pub(super) unknown: u64,
    /// Bytes that samples have in the DRAM of other holders.
    pub(super) elsewhere: u64,
    /// Some of these samples, and who keeps each.
    pub(super) examples: Vec<String>,
}

impl Seen {
    /// Whether no sample has, or may have, a copy there.
    pub(super) fn is_clean(&self) -> bool {
        self.objects.is_empty() && self.on_ssd + self.unfinished + self.unknown == 0
    }

    /// Bytes that lie nowhere else.
    pub(super) fn to_move(&self) -> u64 {
        let alone = self.objects.iter().filter(|one| one.others.is_empty());
        alone.map(|one| one.bytes).fold(0, u64::saturating_add)
    }

    /// What an object adds; whether it has to do with the holder.
    fn add(&mut self, holder: &str, object: &holders::Object) -> bool {
        let is_it = |one: &&String| one.as_str() == holder;
        match &object.presence {
            Presence::Present { dram, ssd, bytes } => {
                let others: Vec<String> = dram.iter().filter(|one| !is_it(one)).cloned().collect();
                let copies = u64::try_from(others.len()).unwrap_or(u64::MAX);
                self.elsewhere = self.elsewhere.saturating_add(bytes.saturating_mul(copies));
                let (in_dram, on_ssd) = (others.len() < dram.len(), ssd.iter().any(|one| is_it(&one)));
                self.on_ssd += u64::from(on_ssd);
                if in_dram {
                    match ObjectKey::new(&object.key) {
                        Ok(key) => self.objects.push(Moving {
                            key,
                            bytes: *bytes,
                            others,
                        }),
                        Err(_) => self.unknown += 1,
                    }
                }
                in_dram || on_ssd
            }
            Presence::Unfinished => {
                self.unfinished += 1;
                true
            }
            Presence::Unknown(_) => {
                self.unknown += 1;
                true
            }
            Presence::Absent => false,
        }
    }
}

/// Looks at all samples of all stores.
pub(super) async fn look(
    reach: &Reach,
    holder: &str,
    now_ms: u64,
    progress: &mut Progress<'_>,
) -> Result<Seen, Failure> {
    let mut seen = Seen::default();
    let stores = progress.wait("asking etcd", in_time(reach).all_stores()).await?;
    for store in &stores {
        look_at(reach, store, holder, now_ms, &mut seen, progress).await?;
    }
    Ok(seen)
}

/// No single question may use up the time of the drain.
fn in_time(reach: &Reach) -> Reach {
    reach.renewed(reach.left().min(ASK))
}

async fn look_at(
    reach: &Reach,
    store: &StoreId,
    holder: &str,
    now_ms: u64,
    seen: &mut Seen,
    progress: &mut Progress<'_>,
) -> Result<(), Failure> {
    let index = in_time(reach).index(store).await?;
    let mut people = None;
    // Bytes in all other states are of use to somebody, or may be again: what is lost may come back. A sample goes through
    // the states in this order, so one that changes its state during a look is met later in it. A dead letter that is put
    // back into circulation, and a lost sample that comes back, are not: a reason for the second look.
    for stage in Stage::ALL.into_iter().filter(|stage| *stage != Stage::ToFree) {
        let (query, mut place) = (RecordQuery::of(stage), None);
        loop {
            let reach = in_time(reach);
            let what = format!("looking at store {}", shown(store.as_str()));
            let reading = index.records(&query, place.as_ref(), PAGE, reach.left());
            let page = progress.wait(&what, reading).await;
            let page = page.map_err(|error| reach.failure(&error))?;
            seen.unknown += u64::try_from(page.later).unwrap_or(u64::MAX);
            let copies = progress
                .wait(&what, holders::copies(&reach, store, page.records))
                .await?;
            for one in copies {
                let mut concerned = false;
                for object in &one.objects {
                    concerned |= seen.add(holder, object);
                }
                if !concerned {
                    continue;
                }
                if seen.examples.len() < MOST_EXAMPLES {
                    let example = named(&reach, store, &index, &one, now_ms, &mut people).await?;
                    seen.examples.push(example);
                }
            }
            place = page.next;
            if place.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// A sample that has to do with the holder, and who keeps it.
async fn named(
    reach: &Reach,
    store: &StoreId,
    index: &TxnIndex,
    one: &Copies,
    now_ms: u64,
    people: &mut Option<People>,
) -> Result<String, Failure> {
    if people.is_none() {
        *people = Some(People::read(reach, index).await?);
    }
    let known = people.get_or_insert_default();
    let record = &one.record;
    Ok(format!(
        "{} {} of store {}: {} since {}, {}",
        shown(record.sample.sample.as_str()),
        generation(record.sample.generation),
        shown(store.as_str()),
        stage_name(record.stage),
        ago(record.record.since().0, now_ms),
        summary(record, known)
    ))
}

/// How long nothing is looked at after a look that took so long: looks over many samples must not be all that etcd does.
pub(super) fn pause(took: Duration) -> Duration {
    took.max(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(presence: Presence) -> holders::Object {
        holders::Object {
            key: "k".to_owned(),
            presence,
        }
    }

    fn present(dram: &[&str], ssd: &[&str]) -> Presence {
        let names = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
        Presence::Present {
            dram: names(dram),
            ssd: names(ssd),
            bytes: 10,
        }
    }

    #[test]
    fn nothing_that_may_be_there_is_clean() {
        let seen = |presence| {
            let mut seen = Seen::default();
            let concerned = seen.add("a", &object(presence));
            assert_eq!(concerned, !seen.is_clean());
            (concerned, seen)
        };
        for presence in [
            present(&["a"], &[]),
            present(&["b", "a"], &[]),
            present(&["b"], &["a"]),
            present(&[], &["a"]),
            Presence::Unfinished,
            Presence::Unknown("why".to_owned()),
        ] {
            assert!(seen(presence.clone()).0, "{presence:?}");
        }
        for presence in [present(&["b"], &["b"]), Presence::Absent] {
            assert!(!seen(presence.clone()).0, "{presence:?}");
        }
        let (_, twice) = seen(present(&["b", "a"], &[]));
        assert_eq!((twice.to_move(), twice.elsewhere), (0, 10), "it lies elsewhere too");
        let (_, alone) = seen(present(&["a"], &[]));
        assert_eq!((alone.to_move(), alone.elsewhere), (10, 0));
    }
}
