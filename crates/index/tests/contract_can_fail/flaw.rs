//! Ways to break the contract, and the case that must notice each.

/// One way to break the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    // In the index.
    /// An ack is accepted with any token.
    AckIgnoresToken,
    /// Every token is good.
    CheckSaysYes,
    /// The description that a reader gets is cut by a byte.
    DescriptionIsCut,
    /// One refused item ends the batch.
    BatchStopsAtARefusal,
    /// One more sample than was asked for.
    TakesOneMore,
    /// A second `freed` is an error.
    FreedTwiceFails,
    /// A sample is reported as free although it has readers.
    ForgetsReaders,
    /// A lease that is undone costs an attempt all the same.
    UntakeCounts,
    /// A failed free is not counted.
    ForgetsFailures,
    /// Only live samples are known.
    KnowsOnlyLive,
    // In what is written.
    /// No grant list is written.
    TakesNoNotes,
    /// Changes to live records do not require that they are as they were read.
    IgnoresVersions,
    /// A reservation does not require that there is none.
    ReservesOver,
    /// The condition that the session is alive is left out.
    IgnoresSessions,
    /// The ready list is never cleaned.
    LeavesReadyEntries,
    /// Transactions do not go through slots.
    HasNoSlots,
    /// A lost reply is taken for a refusal.
    TakesLostForRefused,
    /// Deadlines are set without a condition on the clock.
    IgnoresTheClock,
    /// Waiting consumers are never told.
    NeverWakes,
    /// An office is taken although a session holds it.
    LeadsOver,
    /// What another process has seen of the holders is overwritten.
    NotesOverOthers,
    /// An office does not end with the session of its holder.
    LeadsForEver,
    // In the settings.
    /// Leases end without a grace period.
    HasNoGrace,
    /// A tick is shorter than it should be.
    RunsFast,
}

pub(crate) const FLAWS: &[(Flaw, &str)] = &[
    (Flaw::AckIgnoresToken, "ack::the_token_of_an_earlier_lease_is_fenced"),
    (Flaw::CheckSaysYes, "read::check_says_no_when_the_lease_has_ended"),
    (Flaw::DescriptionIsCut, "commit::the_description_is_handed_out_as_it_is"),
    (
        Flaw::BatchStopsAtARefusal,
        "reserve::one_taken_item_does_not_hold_up_the_others",
    ),
    (Flaw::TakesOneMore, "lease_next::no_more_than_asked_for"),
    (Flaw::FreedTwiceFails, "free::freed_twice_is_freed_once"),
    (Flaw::ForgetsReaders, "free::what_is_read_is_not_given_out"),
    (Flaw::UntakeCounts, "untake::it_costs_no_attempt"),
    (Flaw::ForgetsFailures, "free::a_failure_is_counted_and_stays"),
    (Flaw::KnowsOnlyLive, "known::wherever_its_record_is"),
    (Flaw::TakesNoNotes, "layout::lists_follow_from_records_seed_1"),
    (Flaw::TakesNoNotes, "sweep::more_than_fits_into_one_transaction"),
    (Flaw::IgnoresVersions, "concurrency::one_of_many_gets_a_sample"),
    (Flaw::IgnoresVersions, "sweep::several_at_once_do_each_thing_once"),
    (Flaw::ReservesOver, "reserve::a_second_producer_is_refused"),
    (
        Flaw::IgnoresSessions,
        "session::one_that_ended_behind_its_holders_back_is_fenced",
    ),
    (Flaw::LeavesReadyEntries, "layout::lists_follow_from_records_seed_1"),
    (Flaw::HasNoSlots, "ambiguity::what_is_late_is_never_done_later"),
    (Flaw::TakesLostForRefused, "ambiguity::a_commit"),
    (
        Flaw::IgnoresTheClock,
        "clock::a_process_that_was_away_sets_no_deadline_in_the_past",
    ),
    (Flaw::NeverWakes, "lease_next::a_commit_wakes_a_waiting_consumer"),
    (Flaw::NeverWakes, "office::a_watch_tells_of_every_change"),
    (Flaw::LeadsOver, "office::one_session_at_a_time_holds_it"),
    (
        Flaw::NotesOverOthers,
        "holders::what_another_process_saw_is_not_overwritten",
    ),
    (Flaw::LeadsForEver, "office::it_ends_with_its_session"),
    (Flaw::HasNoSlots, "ambiguity::an_election"),
    (Flaw::HasNoGrace, "expiry::not_before_its_ticks_and_the_grace"),
    (Flaw::RunsFast, "clock::many_sweepers_do_not_make_it_fast"),
];
