//! Conditions, alone and together.

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_custody::Version;

use super::context::{Context, is_kind};
use crate::store::{Condition, TxnOutcome, Write};

cases! { "conditions"
    unchanged "The key was last written at this version.";
    absent "There is no such key.";
    present "There is such a key.";
    none_in "There is no key in the range: from the first, up to but not including the second.";
    none_in_sees_a_key_of_the_same_moment "All conditions are checked and all writes are done at one moment.";
    must_all_hold "All conditions are checked at one moment.";
    need_no_writes "A transaction without writes tells whether its conditions hold.";
    may_be_several_on_one_key "All conditions are checked.";
    see_a_write_of_the_same_value "The version of a key changes whenever it is written.";
    on_version_zero_are_unlawful "A condition on version zero is an error.";
    on_a_range_without_room_are_unlawful "A condition on an empty range is an error.";
}

fn is(key: &str, version: Version) -> Condition {
    Condition::Unchanged(key.to_owned(), version)
}

fn absent_(key: &str) -> Condition {
    Condition::Absent(key.to_owned())
}

fn present_(key: &str) -> Condition {
    Condition::Present(key.to_owned())
}

fn none_in_(start: &str, end: &str) -> Condition {
    Condition::NoneIn(start.to_owned()..end.to_owned())
}

/// Whether a transaction with these conditions is applied; if so, it has written `mark`.
async fn holds(cx: &Context, conditions: Vec<Condition>) -> CaseResult<bool> {
    cx.write(vec![Write::Delete("mark".to_owned())]).await?;
    let applied = matches!(
        cx.transact(conditions, vec![Write::put("mark", "1")]).await?,
        TxnOutcome::Committed(_)
    );
    ensure_eq!(
        cx.get("mark").await?.is_some(),
        applied,
        "whether what was told to be applied is there"
    );
    Ok(applied)
}

async fn unchanged(cx: &Context) -> CaseResult {
    let first = cx.put("a", "1").await?;
    ensure!(
        holds(cx, vec![is("a", first)]).await?,
        "the version that was just written"
    );
    let second = cx.put("a", "2").await?;
    ensure!(holds(cx, vec![is("a", second)]).await?, "the new version");
    ensure!(!holds(cx, vec![is("a", first)]).await?, "the old version");
    ensure!(
        !holds(cx, vec![is("a", Version(second.0 + 1000))]).await?,
        "a version yet to come"
    );
    ensure!(!holds(cx, vec![is("none", second)]).await?, "a key that is not there");
    Ok(())
}

async fn absent(cx: &Context) -> CaseResult {
    ensure!(holds(cx, vec![absent_("a")]).await?, "a key that never was");
    cx.put("a", "").await?;
    ensure!(
        !holds(cx, vec![absent_("a")]).await?,
        "a key with an empty value is there"
    );
    cx.write(vec![Write::Delete("a".to_owned())]).await?;
    ensure!(holds(cx, vec![absent_("a")]).await?, "a key that was deleted");
    Ok(())
}

async fn present(cx: &Context) -> CaseResult {
    ensure!(!holds(cx, vec![present_("a")]).await?, "a key that never was");
    cx.put("a", "").await?;
    ensure!(
        holds(cx, vec![present_("a")]).await?,
        "a key with an empty value is there"
    );
    cx.write(vec![Write::Delete("a".to_owned())]).await?;
    ensure!(!holds(cx, vec![present_("a")]).await?, "a key that was deleted");
    Ok(())
}

async fn none_in(cx: &Context) -> CaseResult {
    ensure!(holds(cx, vec![none_in_("r/", "r0")]).await?, "nothing was ever there");
    cx.put("r", "1").await?;
    cx.put("r0", "1").await?;
    ensure!(
        holds(cx, vec![none_in_("r/", "r0")]).await?,
        "a key before the range, and one at its end"
    );
    for key in ["r/", "r/b", "r/~"] {
        cx.put(key, "").await?;
        ensure!(!holds(cx, vec![none_in_("r/", "r0")]).await?, "{key} is there");
        cx.write(vec![Write::Delete(key.to_owned())]).await?;
        ensure!(holds(cx, vec![none_in_("r/", "r0")]).await?, "{key} was deleted");
    }
    cx.put("r/a", "1").await?;
    cx.put("r/c", "1").await?;
    ensure!(!holds(cx, vec![none_in_("r/", "r0")]).await?, "two are there");
    ensure!(
        holds(cx, vec![none_in_("r/b", "r/c")]).await?,
        "none of the two is between"
    );
    let session = cx.session().await?;
    cx.put_with("v/1", session.id()).await?;
    ensure!(
        !holds(cx, vec![none_in_("v/", "v0")]).await?,
        "a session's key is there"
    );
    cx.harness().end_session(session.id()).await?;
    cx.until_gone("v/1").await?;
    ensure!(holds(cx, vec![none_in_("v/", "v0")]).await?, "it went with its session");
    Ok(())
}

/// Each of two tasks enters its room only if the other room is empty: both are never in.
async fn none_in_sees_a_key_of_the_same_moment(cx: &Context) -> CaseResult {
    for round in 0..20 {
        let (left, right) = (format!("x{round}/l/"), format!("x{round}/r/"));
        let enter = |mine: &str, other: &str| {
            let conditions = vec![none_in_(other, &format!("{other}~"))];
            cx.transact(conditions, vec![Write::put(format!("{mine}1"), "1")])
        };
        let (one, two) = tokio::join!(enter(&left, &right), enter(&right, &left));
        let entered = [one?, two?]
            .iter()
            .filter(|applied| matches!(applied, TxnOutcome::Committed(_)))
            .count();
        ensure_eq!(entered, 1, "how many of two entered, in round {round}");
    }
    Ok(())
}

async fn must_all_hold(cx: &Context) -> CaseResult {
    let version = cx.put("a", "1").await?;
    let good = [is("a", version), present_("a"), absent_("none"), none_in_("b", "c")];
    let bad = [
        is("a", Version(version.0 + 7)),
        present_("none"),
        absent_("a"),
        none_in_("a", "b"),
    ];
    ensure!(holds(cx, good.to_vec()).await?, "all of them hold");
    for wrong in 0..4 {
        let mut conditions = good.to_vec();
        conditions[wrong] = bad[wrong].clone();
        ensure!(
            !holds(cx, conditions.clone()).await?,
            "one of {conditions:?} does not hold"
        );
    }
    ensure!(!holds(cx, bad.to_vec()).await?, "none holds");
    Ok(())
}

async fn need_no_writes(cx: &Context) -> CaseResult {
    let version = cx.put("a", "1").await?;
    ensure_eq!(
        cx.transact(vec![is("a", version)], Vec::new()).await?,
        TxnOutcome::Committed(version),
        "a check that holds"
    );
    ensure_eq!(
        cx.transact(vec![absent_("a")], Vec::new()).await?,
        TxnOutcome::Rejected,
        "a check that does not"
    );
    Ok(())
}

async fn may_be_several_on_one_key(cx: &Context) -> CaseResult {
    let version = cx.put("a", "1").await?;
    ensure!(
        holds(cx, vec![present_("a"), is("a", version)]).await?,
        "two that agree"
    );
    ensure!(
        !holds(cx, vec![present_("a"), absent_("a")]).await?,
        "two that cannot both hold"
    );
    Ok(())
}

async fn see_a_write_of_the_same_value(cx: &Context) -> CaseResult {
    let first = cx.put("a", "same").await?;
    cx.put("a", "same").await?;
    ensure!(
        !holds(cx, vec![is("a", first)]).await?,
        "a write of the same value is a write"
    );
    Ok(())
}

async fn on_version_zero_are_unlawful(cx: &Context) -> CaseResult {
    let error = cx
        .refused(vec![is("none", Version(0))], vec![Write::put("a", "1")])
        .await?;
    is_kind(&error, ErrorKind::Invalid)?;
    ensure_eq!(cx.get("a").await?, None, "what it wrote");
    Ok(())
}

async fn on_a_range_without_room_are_unlawful(cx: &Context) -> CaseResult {
    for (start, end) in [("b", "b"), ("b", "a")] {
        let error = cx
            .refused(vec![none_in_(start, end)], vec![Write::put("a", "1")])
            .await?;
        is_kind(&error, ErrorKind::Invalid)?;
    }
    ensure_eq!(cx.get("a").await?, None, "what it wrote");
    Ok(())
}
