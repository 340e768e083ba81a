//! Offices: one session at a time holds each, and everybody can see who.

use std::time::Duration;

use tensorhold_core::ErrorKind;
use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};

use super::check::refused;
use super::client::{CALL, Client};
use super::context::Context;
use crate::{LeaderWatch, Leaders, Office};

cases! {
    "office" Nothing
    one_session_at_a_time_holds_it
        "Lead gives an office to one session at a time, and tells the others whose it is.";
    of_many_at_once_one_leads
        "Lead gives an office to one session at a time.";
    leading_twice_is_leading_once
        "A session that leads is told so again.";
    the_offices_are_apart
        "Who holds one office does not hold the other.";
    it_ends_with_its_session
        "An office is vacant when the session of its holder has ended.";
    it_ends_with_a_session_that_was_cut_off
        "An office is vacant when the session of its holder has ended, even if the holder does not know.";
    only_its_holder_resigns
        "Resign leaves an office that the session holds, and no other.";
    a_watch_tells_of_every_change
        "A watch tells who holds the offices when that has changed.";
    a_watch_begins_where_the_reading_ended
        "A watch misses nothing that came after what it begins with.";
    an_ended_session_is_fenced
        "Every call in the name of an ended session is refused as `Fenced`.";
}

pub(super) async fn lead(client: &Client, office: Office) -> CaseResult<bool> {
    let leader = client.index().lead(client.session(), office, CALL).await?;
    Ok(leader.session == client.session().id())
}

async fn watch(context: &Context) -> CaseResult<(Leaders, LeaderWatch)> {
    let leaders = context.index().leaders(CALL).await?;
    let watch = context.index().watch_leaders(&leaders, CALL).await?;
    Ok((leaders, watch))
}

/// What a watch tells next, until it is so.
async fn told(watch: &mut LeaderWatch, is_so: impl Fn(&Leaders) -> bool, what: &str) -> CaseResult<Leaders> {
    let until = async {
        loop {
            let leaders = watch.next().await?;
            if is_so(&leaders) {
                return Ok(leaders);
            }
        }
    };
    let told: Result<CaseResult<Leaders>, _> = tokio::time::timeout(CALL, until).await;
    told.map_err(|_| Failure::new(format!("the watch did not tell: {what}")))?
}

async fn one_session_at_a_time_holds_it(context: &Context) -> CaseResult {
    let other = context.join().await?;
    ensure!(lead(context, Office::Steward).await?, "the first one leads");
    let leader = other.index().lead(other.session(), Office::Steward, CALL).await?;
    ensure_eq!(
        leader.session,
        context.session().id(),
        "who leads, as the other is told"
    );
    let leaders = other.index().leaders(CALL).await?;
    ensure_eq!(leaders.of(Office::Steward), Some(&leader), "who leads");
    ensure_eq!(leader.identity.pid, std::process::id(), "its process");
    Ok(())
}

async fn of_many_at_once_one_leads(context: &Context) -> CaseResult {
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(context.join().await?);
    }
    let tries = clients.iter().map(|client| lead(client, Office::Sweeper));
    let mut leading = 0;
    for answer in futures_util::future::join_all(tries).await {
        leading += usize::from(answer?);
    }
    ensure_eq!(leading, 1, "sessions that were told that they lead");
    Ok(())
}

async fn leading_twice_is_leading_once(context: &Context) -> CaseResult {
    ensure!(lead(context, Office::Sweeper).await?, "it leads");
    let before = context.index().leaders(CALL).await?;
    ensure!(lead(context, Office::Sweeper).await?, "it leads still");
    let after = context.index().leaders(CALL).await?;
    ensure_eq!(after.of(Office::Sweeper), before.of(Office::Sweeper), "who leads");
    Ok(())
}

async fn the_offices_are_apart(context: &Context) -> CaseResult {
    let other = context.join().await?;
    ensure!(lead(context, Office::Steward).await?, "the steward");
    ensure!(lead(&other, Office::Sweeper).await?, "the sweeper");
    let leaders = context.index().leaders(CALL).await?;
    ensure!(
        leaders.is_held_by(Office::Steward, context.session().id())
            && leaders.is_held_by(Office::Sweeper, other.session().id()),
        "{leaders:?}"
    );
    Ok(())
}

async fn it_ends_with_its_session(context: &Context) -> CaseResult {
    let other = context.join().await?;
    ensure!(lead(&other, Office::Steward).await?, "it leads");
    other.session().close(CALL).await?;
    let leaders = context.index().leaders(CALL).await?;
    ensure_eq!(leaders.of(Office::Steward), None, "who leads");
    ensure!(lead(context, Office::Steward).await?, "the next one leads");
    Ok(())
}

async fn it_ends_with_a_session_that_was_cut_off(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let (_, mut told_of) = watch(context).await?;
    ensure!(lead(&other, Office::Sweeper).await?, "it leads");
    let vacant = |leaders: &Leaders| leaders.of(Office::Sweeper).is_none();
    told(&mut told_of, |leaders| !vacant(leaders), "it was taken").await?;
    context.harness().kill_session(other.session()).await?;
    told(&mut told_of, vacant, "it is vacant").await?;
    ensure!(lead(context, Office::Sweeper).await?, "the next one leads");
    Ok(())
}

async fn only_its_holder_resigns(context: &Context) -> CaseResult {
    let other = context.join().await?;
    ensure!(lead(context, Office::Steward).await?, "it leads");
    other.index().resign(other.session(), Office::Steward, CALL).await?;
    context.index().resign(context.session(), Office::Sweeper, CALL).await?;
    ensure!(!lead(&other, Office::Steward).await?, "it leads still");
    context.index().resign(context.session(), Office::Steward, CALL).await?;
    context.index().resign(context.session(), Office::Steward, CALL).await?;
    ensure!(lead(&other, Office::Steward).await?, "the next one leads");
    Ok(())
}

async fn a_watch_tells_of_every_change(context: &Context) -> CaseResult {
    let (leaders, mut told_of) = watch(context).await?;
    ensure_eq!(leaders.of(Office::Steward), None, "who leads at first");
    let other = context.join().await?;
    for office in Office::ALL {
        for client in [context.first(), &other] {
            ensure!(lead(client, office).await?, "it leads");
            let id = client.session().id();
            told(&mut told_of, |leaders| leaders.is_held_by(office, id), "it was taken").await?;
            client.index().resign(client.session(), office, CALL).await?;
            told(&mut told_of, |leaders| leaders.of(office).is_none(), "it is vacant").await?;
        }
    }
    // Other keys of the store are not its business.
    context.publish("s", &["a"]).await?;
    let more = tokio::time::timeout(Duration::from_millis(200), told_of.next()).await;
    ensure!(more.is_err(), "it told of {more:?}");
    Ok(())
}

async fn a_watch_begins_where_the_reading_ended(context: &Context) -> CaseResult {
    let leaders = context.index().leaders(CALL).await?;
    ensure!(lead(context, Office::Sweeper).await?, "it leads");
    context.index().resign(context.session(), Office::Sweeper, CALL).await?;
    ensure!(lead(context, Office::Steward).await?, "it leads");
    let mut told_of = context.index().watch_leaders(&leaders, CALL).await?;
    let id = context.session().id();
    let leaders = told(
        &mut told_of,
        |leaders| leaders.is_held_by(Office::Steward, id),
        "what came before it began",
    )
    .await?;
    ensure_eq!(leaders.of(Office::Sweeper), None, "who sweeps");
    Ok(())
}

async fn an_ended_session_is_fenced(context: &Context) -> CaseResult {
    let other = context.join().await?;
    context.harness().kill_session(other.session()).await?;
    let answer = other.index().lead(other.session(), Office::Steward, CALL).await;
    refused(answer, ErrorKind::Fenced, "an office for an ended session")?;
    // One that another session holds, as well.
    ensure!(lead(context, Office::Steward).await?, "it leads");
    let answer = other.index().lead(other.session(), Office::Steward, CALL).await;
    refused(answer, ErrorKind::Fenced, "another's office for an ended session")?;
    other.index().resign(other.session(), Office::Steward, CALL).await?;
    ensure!(lead(context, Office::Steward).await?, "it leads still");
    Ok(())
}
