//! Which holders have copies of which samples.

use std::time::Duration;

use tensorhold_core::StoreId;
use tensorhold_index::SampleRecord;

use super::record::keys;
use crate::admin::{self, Presence, Segment};
use crate::failure::Failure;
use crate::io::Progress;
use crate::reach::Reach;
use crate::text::shown;

/// How long one question may take.
pub(crate) const ASK: Duration = Duration::from_secs(30);

/// One object of a sample, and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) key: String,
    pub(crate) presence: Presence,
}

/// A sample's record, and where its objects are.
#[derive(Debug)]
pub(crate) struct Copies {
    pub(crate) record: SampleRecord,
    pub(crate) objects: Vec<Object>,
}

impl Object {
    pub(crate) fn is_on(&self, holder: &str) -> bool {
        match &self.presence {
            Presence::Present { dram, ssd, .. } => dram.iter().chain(ssd).any(|one| one == holder),
            _ => false,
        }
    }
}

/// The holder that a person means: by its whole name, or by its host if that has one holder.
pub(crate) async fn find(reach: &Reach, holder: &str, progress: &mut Progress<'_>) -> Result<Segment, Failure> {
    let (_, all) = progress.wait("asking the master", segments(reach)).await?;
    pick(all, holder)
}

fn pick(all: Vec<Segment>, holder: &str) -> Result<Segment, Failure> {
    let host = |name: &str| name.rsplit_once(':').map(|(host, _)| host.to_owned());
    let mut named: Vec<&Segment> = all.iter().filter(|one| one.segment_name == holder).collect();
    if named.is_empty() {
        named = all
            .iter()
            .filter(|one| host(&one.segment_name).as_deref() == Some(holder))
            .collect();
    }
    match named.as_slice() {
        [only] => return Ok((*only).clone()),
        [] => {}
        _ => {
            return Err(Failure::usage(
                format!("{} is not one holder", shown(holder)),
                format!("the master knows {}", listed(named.iter().copied())),
                "name one of these whole; memory of one process in several parts cannot be told apart",
            ));
        }
    }
    Err(Failure::not_found(
        format!("there is no holder {}", shown(holder)),
        format!("the master knows {}", listed(&all)),
        "name one of these; one that has ended has left nothing to look at",
    ))
}

fn listed<'a>(segments: impl IntoIterator<Item = &'a Segment>) -> String {
    let mut names: Vec<String> = segments.into_iter().map(|one| shown(&one.segment_name)).collect();
    names.sort();
    match names.is_empty() {
        true => "no holder at all".to_owned(),
        false => names.join(", "),
    }
}

/// The address of the leading master, and the memory of all holders.
pub(crate) async fn segments(reach: &Reach) -> Result<(String, Vec<Segment>), Failure> {
    let (admin, within) = (reach.settings.admin.clone(), reach.left().min(ASK));
    let asking = tokio::task::spawn_blocking(move || admin::segments(&admin, within));
    let asked = asking.await.unwrap_or_else(|failure| Err(failure.to_string()));
    asked.map_err(|why| no_master(reach, why))
}

/// Where objects are.
pub(crate) async fn probe(reach: &Reach, keys: Vec<String>) -> Result<Vec<Presence>, Failure> {
    let (admin, within) = (reach.settings.admin.clone(), reach.left().min(ASK));
    let asking = tokio::task::spawn_blocking(move || admin::probe(&admin, &keys, within));
    let asked = asking.await.unwrap_or_else(|failure| Err(failure.to_string()));
    asked.map_err(|why| no_master(reach, why))
}

/// Where the objects of these samples are. A record whose objects cannot be told is an error: nothing may be said of
/// holders without it.
pub(crate) async fn copies(reach: &Reach, store: &StoreId, records: Vec<SampleRecord>) -> Result<Vec<Copies>, Failure> {
    let mut all = Vec::new();
    let mut counts = Vec::with_capacity(records.len());
    for record in &records {
        let keys = keys(store, record).map_err(|error| {
            let sample = shown(record.sample.sample.as_str());
            Failure::of(format!("the objects of sample {sample} are not known"), &error)
        })?;
        counts.push(keys.len());
        all.extend(keys);
    }
    let seen = if all.is_empty() {
        Vec::new()
    } else {
        probe(reach, all.clone()).await?
    };
    let mut objects = all
        .into_iter()
        .zip(seen)
        .map(|(key, presence)| Object { key, presence });
    let of = |(record, count)| Copies {
        record,
        objects: objects.by_ref().take(count).collect(),
    };
    Ok(records.into_iter().zip(counts).map(of).collect())
}

pub(crate) fn no_master(reach: &Reach, why: String) -> Failure {
    Failure::new(
        tensorhold_core::ErrorKind::Unavailable,
        "the master's admin port does not answer",
        why,
        reach.settings.advice_if_unreachable("--admin, or TENSORHOLD_ADMIN"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(names: &[&str]) -> Vec<Segment> {
        let segment = |name: &&str| Segment {
            segment_name: (*name).to_owned(),
            ..Segment::default()
        };
        names.iter().map(segment).collect()
    }

    #[test]
    fn a_holder_is_named_whole_or_by_its_host() {
        let picked = |holder: &str| pick(all(&["a:1", "b:1", "b:2", "[::1]:7"]), holder).map(|one| one.segment_name);
        assert_eq!(picked("a:1").expect("whole"), "a:1");
        assert_eq!(picked("a").expect("its host"), "a:1");
        assert_eq!(picked("[::1]").expect("its host"), "[::1]:7");
        assert_eq!(picked("b:2").expect("whole"), "b:2");
        assert_eq!(picked("b").expect_err("two").code, crate::failure::USAGE);
        assert_eq!(picked("c").expect_err("none").code, crate::failure::WRONG);
        assert!(pick(all(&["a:1", "a:1"]), "a:1").is_err(), "two parts under one name");
    }
}
