//! Moving bytes between memory and the engine: batches, threads, deadlines, checks, seals.

mod checksum;
pub(crate) mod read;
pub(crate) mod sealed;
pub(crate) mod staged;
pub(crate) mod write;
pub(crate) mod write_sealed;

use std::ops::RangeInclusive;
use std::sync::Arc;

use tensorhold_core::TensorSpec;

use self::sealed::Seals;
use crate::memory::Stages;
use crate::reclaim::queue::ReclaimQueue;
use crate::runtime::Runtime;

/// Reads and writes objects.
#[derive(Debug)]
pub(crate) struct Io {
    runtime: Arc<Runtime>,
    /// Told when the engine is full: there may be samples to be freed.
    queue: Arc<ReclaimQueue>,
    pub(crate) stages: Stages,
    /// The keys of a sealed store, and the state that sealing needs.
    pub(crate) seals: Option<Seals>,
}

impl Io {
    pub(crate) fn new(runtime: Arc<Runtime>, queue: Arc<ReclaimQueue>, seals: Option<Seals>) -> Self {
        Self {
            stages: Stages::new(&runtime),
            runtime,
            queue,
            seals,
        }
    }

    /// How many bytes of a tensor are in one object.
    pub(crate) fn object_bytes(&self) -> u64 {
        let sealed = self.seals.as_ref().map(Seals::object_bytes);
        sealed.unwrap_or(self.runtime.config.chunk_bytes)
    }

    /// The stored size of a tensor: the bytes of all its objects.
    pub(crate) fn stored_bytes(&self, spec: &TensorSpec) -> u64 {
        let sealed = self.seals.as_ref().map(|seals| seals.stored_bytes(spec));
        sealed.unwrap_or(spec.bytes())
    }
}

/// Divides objects into calls of at most `most` bytes: large ones by themselves, small ones together.
fn split<T>(objects: Vec<T>, max_batch: usize, most: u64, bytes_of: impl Fn(&T) -> u64) -> Vec<Vec<T>> {
    split_growing(objects, max_batch, most..=most, bytes_of)
}

/// The same with calls that grow: the first has at most the lower bound, each further one twice as much as the one before,
/// until the upper bound.
fn split_growing<T>(
    objects: Vec<T>,
    max_batch: usize,
    most: RangeInclusive<u64>,
    bytes_of: impl Fn(&T) -> u64,
) -> Vec<Vec<T>> {
    let mut units: Vec<Vec<T>> = Vec::new();
    let (mut bytes, mut room) = (0_u64, 0);
    for object in objects {
        let more = bytes_of(&object);
        match units.last_mut() {
            Some(unit) if unit.len() < max_batch && bytes.saturating_add(more) <= room => {
                bytes += more;
                unit.push(object);
            }
            last => {
                room = match last {
                    None => *most.start(),
                    Some(_) => room.saturating_mul(2),
                };
                room = room.min(*most.end());
                bytes = more;
                units.push(vec![object]);
            }
        }
    }
    units
}

/// The same with calls that shrink: the last one is the smallest.
fn split_shrinking<T>(
    mut objects: Vec<T>,
    max_batch: usize,
    most: RangeInclusive<u64>,
    bytes_of: impl Fn(&T) -> u64,
) -> Vec<Vec<T>> {
    objects.reverse();
    let mut units = split_growing(objects, max_batch, most, bytes_of);
    units.reverse();
    for unit in &mut units {
        unit.reverse();
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_grow_or_shrink_and_lose_no_object() {
        let of = |bytes: &u64| *bytes;
        let objects = vec![16, 16, 16, 16, 16, 16, 16, 16, 1, 1];
        let growing = split_growing(objects.clone(), 100, 20..=64, of);
        assert_eq!(growing, [vec![16], vec![16; 2], vec![16; 4], vec![16, 1, 1]]);
        let shrinking = split_shrinking((0..10).zip(objects).collect(), 100, 20..=64, |(_, bytes)| *bytes);
        let sizes: Vec<usize> = shrinking.iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 4, 2, 3]);
        let order: Vec<u64> = shrinking.into_iter().flatten().map(|(n, _)| n).collect();
        assert_eq!(order, (0..10).collect::<Vec<_>>(), "in the order in which they were");
        // One that is larger than any call goes by itself, and so do those that a call may not have more of.
        assert_eq!(split(vec![9, 1, 1, 1], 2, 4, of), [vec![9], vec![1; 2], vec![1]]);
        assert_eq!(split(Vec::new(), 2, 4, of), Vec::<Vec<u64>>::new());
    }
}
