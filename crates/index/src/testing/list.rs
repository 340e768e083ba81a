//! What a store has: live samples, sessions, and what comes next.

use std::collections::BTreeSet;

use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_custody::Reason;

use super::client::{CALL, a};
use super::context::Context;
use crate::record::identity::LiveSession;
use crate::{RecordQuery, Stage};

cases! {
    "list" Nothing
    live_samples_come_in_pages
        "Looks at `limit` at most, from behind a place on, and returns those that match.";
    sessions_are_those_alive
        "The sessions that are alive, and what their processes say of themselves.";
    what_is_peeked_is_what_the_next_take_gets
        "Those that the next takes of this process begin with, if each takes `at_once`.";
}

async fn live_samples_come_in_pages(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 10, &["a"]).await?;
    context.reserve("being-put").await?;
    context.retire(&samples[3], Reason::Aborted).await?;
    let mut expected: BTreeSet<_> = samples.iter().map(|sample| sample.sample.clone()).collect();
    expected.remove(&samples[3].sample);
    let (mut seen, mut place, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = context
            .index()
            .records(&RecordQuery::of(Stage::Live), place.as_ref(), 4, CALL)
            .await?;
        ensure!(page.records.len() <= 4, "a page has {}", page.records.len());
        seen.extend(page.records.into_iter().map(|found| found.sample.sample));
        pages += 1;
        place = page.next;
        if place.is_none() {
            break;
        }
        ensure!(pages < 10, "the list has no end");
    }
    ensure!(pages >= 3, "{pages} pages of four have nine samples");
    ensure_eq!(seen, expected.into_iter().collect::<Vec<_>>(), "the live samples");
    Ok(())
}

async fn sessions_are_those_alive(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let ids = |alive: &[LiveSession]| alive.iter().map(|session| session.id).collect::<BTreeSet<_>>();
    let both = BTreeSet::from([context.session().id(), other.session().id()]);
    let alive = context.index().sessions(CALL).await?;
    ensure_eq!(ids(&alive), both, "both sessions");
    for session in &alive {
        let said = session
            .identity
            .as_ref()
            .map(|identity| (identity.pid, identity.started_ms > 0));
        ensure_eq!(
            said,
            Some((std::process::id(), true)),
            "what a session says of its process"
        );
    }
    context.harness().kill_session(other.session()).await?;
    let alive = context.index().sessions(CALL).await?;
    ensure_eq!(
        ids(&alive),
        BTreeSet::from([context.session().id()]),
        "the one that is left"
    );
    Ok(())
}

async fn what_is_peeked_is_what_the_next_take_gets(context: &Context) -> CaseResult {
    // So many that no shard has fewer than a take gets: there, a peek is a guess.
    context.publish_many("s", 600, &["a"]).await?;
    for at_once in [1, 4] {
        // A process that has read nothing yet.
        let consumer = context.join().await?;
        let peeked = consumer.index().peek(&a()?, at_once, at_once, CALL).await?;
        let taken = consumer.next(&a()?, at_once, CALL).await?;
        let taken: Vec<_> = taken.into_iter().map(|held| held.sample).collect();
        ensure_eq!(taken, peeked, "{at_once} at once");
    }
    let many = context.index().peek(&a()?, 50, 4, CALL).await?;
    ensure_eq!(many.len(), 50, "as many as asked for");
    Ok(())
}
