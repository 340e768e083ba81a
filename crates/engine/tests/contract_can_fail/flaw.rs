//! The ways to break the contract, and the case that must notice each.

/// One way to break the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Says Removed and removes nothing.
    RemovesNothing,
    /// Says Removed, and leaves objects that a reader has read, as an unforced remove would.
    RemoveHonoursLeases,
    /// Treats a short or long read as a good one, as users of engines do.
    AnyLengthIsLoaded,
    /// Reports a wrong length, but not the object's.
    TellsTheBuffersLength,
    /// Writes as much of a too long object as fits.
    OverrunsShortBuffers,
    /// Answers a put backwards.
    PutBackwards,
    /// Answers a get backwards.
    GetBackwards,
    /// Answers a remove backwards.
    RemoveBackwards,
    /// Answers a probe backwards.
    ProbeBackwards,
    /// Answers a promotion backwards.
    PromoteBackwards,
    /// Leaves misses out of the answer.
    LeavesMissesOut,
    /// Fills scattered buffers in the order of their addresses.
    PartsByAddress,
    /// Replaces the object that is there.
    Overwrites,
    /// Does its work even with no time at all.
    IgnoresNoTime,
    /// Waits for a dead engine past the deadline.
    WaitsTooLong,
    /// Says Miss when it cannot know.
    UnknownIsMiss,
    /// Says Invalid when the engine is dead.
    DeadIsInvalid,
    /// Probes by asking for the object, which grants a lease and promotes it.
    ProbeHasSideEffects,
    /// Rounds lengths up to the allocator's.
    ProbeRoundsUp,
    /// Reports a put that never ended as absent.
    UnfinishedIsAbsent,
    /// Drops the pin.
    PinsNothing,
    /// Pins everything, to be safe.
    PinsEverything,
    /// Reports a full pool as success.
    FullIsStored,
    /// Reports a full pool as a failure.
    FullIsFailure,
    /// Writes each key of a put once and reports the second as done.
    TakesAKeyTwice,
    /// Skips transfers that have no memory, and does the rest.
    SkipsPartless,
    /// Splits a batch that is too large, without being asked.
    SplitsLargeBatches,
    /// Does the first half of an invalid batch before it refuses.
    RefusesTooLate,
    /// Takes `+` for a space, as form decoding does.
    PlusIsSpace,
    /// Folds the case of keys.
    FoldsCase,
    /// Truncates long keys.
    CutsLongKeys,
    /// Never unregisters.
    KeepsMemory,
    /// Says that a promotion was accepted, whatever object it names.
    EveryPromotionIsAsked,
    /// Accepts every promotion, and forgets it.
    PromotesNothing,
    /// Lists, and promotes what it lists.
    ListHasSideEffects,
    /// Lists what is in DRAM.
    ListLeavesOutSsd,
    /// Begins every list at the start.
    ListForgetsItsPlace,
    /// Lists keys with other prefixes, too.
    ListIgnoresPrefixes,
    /// Accepts every request to move an object, and forgets it.
    MovesNothing,
    /// Reports a usage of zero.
    UsageIsZero,
    /// Tells all holders' memory alike.
    HoldersAreNamesOnly,
    /// Keeps one copy, however many it was asked for.
    OneCopyOnly,
    /// Takes effect after it reported that it had not.
    LateEffect,
}

use Flaw::*;

/// Each flaw, and a case that must notice it.
pub(crate) const FLAWS: &[(Flaw, &str)] = &[
    (RemovesNothing, "remove::removed_means_miss_and_absent"),
    (RemoveHonoursLeases, "remove::under_a_read_lease"),
    (AnyLengthIsLoaded, "lengths::off_by_one"),
    (TellsTheBuffersLength, "lengths::a_wrong_length_can_be_asked_again"),
    (OverrunsShortBuffers, "lengths::a_wrong_length_writes_only_its_buffers"),
    (PutBackwards, "pressure::a_batch_that_fits_in_part"),
    (GetBackwards, "batches::present_and_absent_keys_keep_their_order"),
    (GetBackwards, "lengths::wrong_lengths_do_not_spoil_their_batch"),
    (RemoveBackwards, "batches::present_and_absent_keys_keep_their_order"),
    (RemoveBackwards, "keys::odd_keys_in_one_batch"),
    (ProbeBackwards, "batches::present_and_absent_keys_keep_their_order"),
    (ProbeBackwards, "probe::presents_and_absents_in_one_batch"),
    (PromoteBackwards, "batches::present_and_absent_keys_keep_their_order"),
    (PromoteBackwards, "ssd::a_promotion_of_a_herd_keeps_its_order"),
    (LeavesMissesOut, "batches::present_and_absent_keys_keep_their_order"),
    (PartsByAddress, "put_get::whole_put_scattered_get"),
    (Overwrites, "put_get::a_put_on_an_existing_key_changes_nothing"),
    (IgnoresNoTime, "deadlines::a_put_without_time"),
    (WaitsTooLong, "loss::without_a_master_calls_are_unavailable_in_time"),
    (UnknownIsMiss, "loss::without_a_master_calls_are_unavailable_in_time"),
    (DeadIsInvalid, "loss::without_a_master_calls_are_unavailable_in_time"),
    (ProbeHasSideEffects, "ssd::a_probe_raises_nothing"),
    (ProbeHasSideEffects, "probe::probed_objects_stay_evictable"),
    (ProbeRoundsUp, "probe::lengths_are_exact"),
    (UnfinishedIsAbsent, "unfinished::is_seen_and_not_readable"),
    (PinsNothing, "pressure::pinned_objects_never_give_way"),
    (PinsEverything, "pressure::evictable_objects_give_way"),
    (FullIsStored, "pressure::a_pool_full_of_pinned_objects_is_full"),
    (FullIsFailure, "pressure::full_is_said_at_once"),
    (TakesAKeyTwice, "batches::a_key_twice_in_a_put"),
    (TakesAKeyTwice, "batches::a_key_twice_in_a_get"),
    (SkipsPartless, "batches::a_transfer_without_parts"),
    (SplitsLargeBatches, "batches::too_many_objects_in_other_calls"),
    (RefusesTooLate, "batches::a_key_twice_in_a_large_put"),
    (PlusIsSpace, "keys::near_misses_are_other_objects"),
    (FoldsCase, "keys::near_misses_are_other_objects"),
    (CutsLongKeys, "keys::near_misses_are_other_objects"),
    (KeepsMemory, "registration::a_dropped_region_is_unregistered"),
    (EveryPromotionIsAsked, "probe::promote_of_what_is_in_dram_or_nowhere"),
    (PromotesNothing, "ssd::a_promotion_brings_it_up"),
    (ListHasSideEffects, "list::a_list_raises_nothing"),
    (ListLeavesOutSsd, "list::what_is_on_ssd_only_is_listed"),
    (ListForgetsItsPlace, "list::the_list_comes_in_parts"),
    (ListIgnoresPrefixes, "list::only_what_begins_with_the_prefix"),
    (IgnoresNoTime, "list::a_list_without_time"),
    (MovesNothing, "relocate::objects_lie_elsewhere_afterwards"),
    (UsageIsZero, "probe::capacity_is_the_segments"),
    (
        HoldersAreNamesOnly,
        "loss::a_dead_holder_leaves_the_list_and_comes_with_other_memory",
    ),
    (OneCopyOnly, "loss::a_second_copy_survives"),
    (LateEffect, "deadlines::a_put_with_hardly_any_time"),
];
