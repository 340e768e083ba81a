//! The real pool, as its allocator sees it (`--memory_allocator=offset`, the default): an object takes its length,
//! rounded up to one of eight steps per power of two, out of one hole.

/// The largest run of a pool of `capacity` bytes in which no object lies. `extents` are those of all objects, relative
/// to the pool.
pub fn largest_hole(mut extents: Vec<(u64, u64)>, capacity: u64) -> Result<u64, String> {
    extents.sort_unstable();
    let (mut end, mut largest) = (0, 0);
    for (start, len) in extents {
        let hole = start.checked_sub(end).ok_or("the real engine's objects overlap")?;
        largest = largest.max(hole);
        end = start + rounded_up(len);
    }
    Ok(largest.max(
        capacity
            .checked_sub(end)
            .ok_or("the real engine's objects leave the pool")?,
    ))
}

/// The steps of the real allocator: every length below 16, then eight per power of two.
fn step(len: u64) -> u64 {
    1 << len.checked_ilog2().unwrap_or(0).saturating_sub(3)
}

fn rounded_up(len: u64) -> u64 {
    len.next_multiple_of(step(len))
}

/// Whether the real allocator finds this hole for an object of `len` bytes: it looks for holes by their steps, too.
pub fn fits(len: u64, hole: u64) -> bool {
    hole - hole % step(hole) >= rounded_up(len)
}

#[test]
fn steps_are_those_that_were_measured() {
    // How many pinned objects of each length a real pool of 64 MiB took.
    for (len, count) in [
        (4 << 20, 16),
        ((4 << 20) + 1, 14),
        (5_000_001, 12),
        (7 << 20, 9),
        ((8 << 20) - 1, 8),
        (1_000_003, 64),
        (300_001, 204),
        (30_001, 2184),
    ] {
        assert_eq!((64 << 20) / rounded_up(len), count, "{len}");
    }
    assert!(fits(4 << 20, 4 << 20));
    assert!(
        !fits((4 << 20) + 1, (4 << 20) + 1),
        "a hole that is no step is taken for a smaller one"
    );
    assert_eq!(largest_hole(vec![(100, 20), (0, 10)], 200), Ok(90));
}
