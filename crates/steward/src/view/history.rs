//! What a store held over time: as many points as fit, the latest ones close together.
//!
//! ```text
//!  earlier: one of ten ┊ recent: one per look
//!  ·    ·    ·    ·    ┊ ··········  ◀── now
//! ```
//! A point that leaves the recent ones is forgotten, or is the one of ten that goes on. With a look every 15 s that is an
//! hour, and ten hours before it. It begins with the steward: nothing is kept on disk.

use std::collections::VecDeque;

use serde::Serialize;
use tensorhold_index::Stage;

/// Points one look apart.
const RECENT: usize = 240;
/// Points [`THINNED`] looks apart.
const EARLIER: usize = 240;
/// One of so many goes on.
const THINNED: u64 = 10;

/// What was seen at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Point {
    /// When, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// Bytes by stage.
    pub(crate) bytes: [u64; 6],
    /// Samples by stage.
    pub(crate) samples: [u64; 6],
    /// Bytes of the budget that are used.
    pub(crate) budget_used: u64,
    /// Bytes of DRAM that the engine has given to objects, of all stores.
    pub(crate) dram_used: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    earlier: VecDeque<Point>,
    recent: VecDeque<Point>,
    /// How many points have left the recent ones.
    left: u64,
}

impl History {
    pub(crate) fn push(&mut self, point: Point) {
        self.recent.push_back(point);
        if self.recent.len() <= RECENT {
            return;
        }
        let Some(oldest) = self.recent.pop_front() else { return };
        if self.left.is_multiple_of(THINNED) {
            self.earlier.push_back(oldest);
            if self.earlier.len() > EARLIER {
                self.earlier.pop_front();
            }
        }
        self.left += 1;
    }

    /// The points after a time, the oldest first.
    pub(crate) fn after(&self, at_ms: u64) -> HistoryReport {
        let points = self.earlier.iter().chain(&self.recent);
        let stage_columns = |what: &str| Stage::ALL.map(|stage| format!("{what}_{}", stage.name()));
        let mut columns = vec!["at_ms".to_owned()];
        columns.extend(stage_columns("bytes"));
        columns.extend(stage_columns("samples"));
        columns.extend(["budget_used".to_owned(), "dram_used".to_owned()]);
        let row = |point: &Point| {
            let mut row = vec![point.at_ms];
            row.extend(point.bytes);
            row.extend(point.samples);
            row.extend([point.budget_used, point.dram_used]);
            row
        };
        HistoryReport {
            columns,
            points: points.filter(|point| point.at_ms > at_ms).map(row).collect(),
        }
    }

    /// When the last point was made.
    pub(crate) fn latest_ms(&self) -> Option<u64> {
        self.recent.back().map(|point| point.at_ms)
    }
}

/// A history, as the interface tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HistoryReport {
    /// The names of what a point has.
    columns: Vec<String>,
    /// The points, the oldest first.
    points: Vec<Vec<u64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_in_order_and_keeps_one_of_ten_of_what_is_old() {
        let mut history = History::default();
        for at_ms in 1..=100_000 {
            history.push(Point {
                at_ms,
                ..Point::default()
            });
        }
        let times: Vec<u64> = history.after(0).points.iter().map(|point| point[0]).collect();
        assert_eq!(times.len(), RECENT + EARLIER);
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "in order");
        assert_eq!(times.last(), Some(&100_000));
        assert!(
            times[..EARLIER].windows(2).all(|pair| pair[1] - pair[0] == THINNED),
            "one of ten"
        );
        assert_eq!(history.after(99_998).points.len(), 2, "only what is new");
        let report = history.after(99_999);
        assert_eq!(report.columns.len(), report.points[0].len(), "each value has a name");
    }
}
