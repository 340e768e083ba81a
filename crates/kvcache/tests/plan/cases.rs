//! The cases that the tests must reach, counted over all sequences.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! cases {
    ($($name:ident $says:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Case { $($name),* }

        const CASES: &[(Case, &str)] = &[$((Case::$name, $says)),*];
        static COUNTS: [AtomicU64; CASES.len()] = [const { AtomicU64::new(0) }; CASES.len()];
    };
}

cases! {
    GrewBeforeSchedule "host match grows between admission and schedule",
    ShrankBeforeSchedule "host match shrinks between admission and schedule",
    GrewBeforeCompletion "host match grows between schedule and completion",
    ShrankBeforeCompletion "host match shrinks between schedule and completion (cleared)",
    SplitWhilePrefetching "node split while prefetching",
    EvictionAroundAnchor "eviction down to the anchor while prefetching",
    SameSuffixOneAborts "two requests prefetch the same suffix, one aborts",
    PrefetchMeetsWriteBack "prefetch overlaps a write-back of the same keys",
    EvictionBeforeBackupDone "eviction pressure between write-back done and backup done",
    AbortSubmittedQuerying "abort: submitted, query in flight",
    AbortSubmittedWaiting "abort: submitted, in line",
    AbortPrefetching "abort: prefetching",
    AbortPrefetchDone "abort: prefetch done",
    AbortPrefillingLoading "abort: prefilling, load-back in flight",
    AbortPrefillingRunning "abort: prefilling, running",
    AbortPrefillDone "abort: prefill done",
    AbortDecoding "abort: decoding",
    AbortDraining "abort: draining",
    AbortWritingBack "abort: writing back",
    AbortRetractingLoading "abort: retracting, load-back in flight",
    AbortRetractingDraining "abort: retracting, in line",
    AbortRetractingWriting "abort: retracting, write-back in flight",
    AbortRetracted "abort: retracted",
    AbortTwice "abort: aborting already (refused)",
    AbortBackupInFlight "abort: with a backup in flight",
    LateCompletion "completion after the request went on",
    DuplicateCompletion "duplicate completion",
    UnknownCompletion "completion of an unknown operation",
    Reordered "completions out of order",
    LateEventReusedId "late event of an earlier life of a request id",
    LateCompletionReusedId "late completion for an earlier life of a request id",
    Unlawful "event that does not fit the state",
    PartialGet "partial get",
    ZeroGet "get of nothing",
    ShortGet "short or torn get",
    HangingGet "hanging get: the deadline passes first",
    ExistsThenMiss "exists, and then a miss",
    HeadMissing "head page missing while the tail is present",
    OneRankFails "one rank fails",
    OneRankSlow "one rank is slow",
    CountsDiffer "ranks count differently",
    GoneButInL3 "gone from device and host, present in L3: asked for",
    Declined "declined prefetch, request goes on",
    NoRoom "prefetch without room falls through",
    ClearInFlight "clear with operations in flight",
    WeightsInFlight "weights update with operations in flight",
    OverlappingPlans "a plan while an earlier one is under way",
    AtThreshold "hits exactly at the threshold",
    ExactMultiple "prompt length an exact page multiple",
    FailedBackup "failed backup",
    CutWriteBack "write-back that fails half-way",
    CutLoadBack "load-back that fails half-way",
    Retracted "retracted and resumed",
    Duplicates "duplicate page freed",
}

pub(crate) fn note(case: Case) {
    note_times(case, 1);
}

pub(crate) fn note_times(case: Case, times: u64) {
    if times > 0 {
        COUNTS[case as usize].fetch_add(times, Ordering::Relaxed);
    }
}

/// Prints how often each case was reached, and returns those that were not.
pub(crate) fn table() -> Vec<&'static str> {
    let mut missed = Vec::new();
    for (case, says) in CASES {
        let count = COUNTS[*case as usize].load(Ordering::Relaxed);
        println!("{count:>10}  {says}");
        if count == 0 {
            missed.push(*says);
        }
    }
    missed
}
