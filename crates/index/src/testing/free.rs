//! From retired to forgotten.

use tensorhold_core::testing::{CaseResult, ensure, ensure_eq};
use tensorhold_custody::Reason;

use super::client::{CALL, LONG, description, only};
use super::context::Context;

cases! {
    "free" Nothing
    freed_is_forgotten
        "Freed forgets them.";
    freed_twice_is_freed_once
        "Calling freed twice is the same as once.";
    a_failure_is_counted_and_stays
        "A failed remove stays recorded and is tried again.";
    the_description_is_handed_out
        "A task has the producer's description.";
    what_is_read_is_not_given_out
        "Retired samples are listed by to_free when no lease on them is left.";
    only_what_may_be_freed_is_forgotten
        "While a token is good, the objects are not removed.";
    generations_do_not_touch_each_other
        "A generation is one physical incarnation of a sample.";
    no_more_than_asked_for
        "To_free lists at most `limit` samples.";
    another_process_may_free
        "Any process may free what is retired.";
}

async fn freed_is_forgotten(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let held = context.lease(&sample).await?;
    context.ack(&held).await?;
    ensure_eq!(context.free_list().await?, std::slice::from_ref(&sample), "to be freed");
    context.freed(&sample).await?;
    ensure_eq!(context.free_list().await?, [], "to be freed");
    ensure_eq!(context.look(&sample.sample).await?, None, "a look");
    let again = context.publish("s", &["a"]).await?;
    ensure!(again.generation > sample.generation, "{again:?} after {sample:?}");
    Ok(())
}

async fn freed_twice_is_freed_once(context: &Context) -> CaseResult {
    let other = context.join().await?;
    let sample = context.publish("s", &["a"]).await?;
    context.retire(&sample, Reason::Aborted).await?;
    ensure!(context.freed(&sample).await?, "the first one says it");
    ensure!(!context.freed(&sample).await?, "said twice");
    ensure!(!other.freed(&sample).await?, "said by another process too");
    // Also in one batch, and next to another one.
    let (one, two) = (context.publish("t", &["a"]).await?, context.publish("u", &["a"]).await?);
    for sample in [&one, &two] {
        context.retire(sample, Reason::Aborted).await?;
    }
    let items = [one.clone(), one, sample, two];
    for result in context.index().freed(context.session(), &items, CALL).await {
        result?;
    }
    ensure_eq!(context.free_list().await?, [], "to be freed");
    Ok(())
}

async fn a_failure_is_counted_and_stays(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    context.retire(&sample, Reason::Aborted).await?;
    for count in 1..=3 {
        let items = std::slice::from_ref(&sample);
        only(context.index().free_failed(context.session(), items, CALL).await)?;
        let tasks = context.to_free().await?;
        ensure_eq!(tasks.len(), 1, "to be freed after {count} failures");
        ensure_eq!(tasks[0].record.record.failed_frees, count, "failures");
        ensure_eq!(
            tasks[0].description,
            Some(description(&sample)),
            "the description after {count} failures"
        );
    }
    context.freed(&sample).await?;
    // Too late to fail: it is gone.
    let items = std::slice::from_ref(&sample);
    only(context.index().free_failed(context.session(), items, CALL).await)?;
    ensure_eq!(context.free_list().await?, [], "to be freed");
    Ok(())
}

async fn the_description_is_handed_out(context: &Context) -> CaseResult {
    let sample = context.publish("s", &["a"]).await?;
    let aborted = context.reserve("t").await?;
    context.retire(&sample, Reason::Aborted).await?;
    context.abort(&aborted).await?;
    for task in context.to_free().await? {
        let expected = (task.sample == sample).then(|| description(&sample));
        ensure_eq!(task.description, expected, "{:?}", task.sample);
        ensure_eq!(
            task.record.record.generation,
            Some(task.sample.generation),
            "the generation"
        );
        ensure_eq!(task.record.record.producer, context.session().id(), "the producer");
    }
    Ok(())
}

async fn what_is_read_is_not_given_out(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 6, &["a"]).await?;
    let mut readers = Vec::new();
    for sample in &samples {
        readers.push(context.read(sample, LONG).await?);
        context.retire(sample, Reason::Aborted).await?;
    }
    for (at, reader) in readers.iter().enumerate() {
        ensure_eq!(context.free_list().await?, samples[..at], "to be freed after {at}");
        context.release(reader).await?;
    }
    ensure_eq!(context.free_list().await?, samples, "to be freed");
    Ok(())
}

async fn only_what_may_be_freed_is_forgotten(context: &Context) -> CaseResult {
    let live = context.publish("live", &["a"]).await?;
    let read = context.publish("read", &["a"]).await?;
    let reserved = context.reserve("reserved").await?;
    let reader = context.read(&read, LONG).await?;
    context.retire(&read, Reason::Aborted).await?;
    let items = [live.clone(), read.clone(), reserved.clone()];
    // The index may report that there was nothing to forget, or refuse: nothing changes.
    let results = context.index().freed(context.session(), &items, CALL).await;
    ensure_eq!(results.len(), 3, "one result per item");
    context.record(&live).await?;
    context.lease(&live).await?;
    context.commit(&reserved, &["a"]).await?;
    context.release(&reader).await?;
    let tasks = context.to_free().await?;
    ensure_eq!(tasks.len(), 1, "to be freed");
    ensure_eq!(tasks[0].sample, read, "what is to be freed");
    ensure_eq!(tasks[0].description, Some(description(&read)), "its description");
    Ok(())
}

async fn generations_do_not_touch_each_other(context: &Context) -> CaseResult {
    let first = context.publish("s", &["a"]).await?;
    let second = context.publish("s", &["a"]).await?;
    let third = context.publish("s", &["a"]).await?;
    ensure_eq!(
        context.free_list().await?,
        [first.clone(), second.clone()],
        "to be freed"
    );
    context.freed(&first).await?;
    ensure_eq!(context.free_list().await?, std::slice::from_ref(&second), "to be freed");
    context.freed(&second).await?;
    let held = context.lease(&third).await?;
    ensure_eq!(
        held.description.to_vec(),
        description(&third),
        "the live one's description"
    );
    Ok(())
}

async fn no_more_than_asked_for(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 12, &["a"]).await?;
    for result in context
        .index()
        .retire(context.session(), &samples, Reason::Aborted, CALL)
        .await
    {
        result?;
    }
    let mut left = samples.len();
    while left > 0 {
        let tasks = context.index().to_free(None, 5, CALL).await?.tasks;
        ensure_eq!(tasks.len(), left.min(5), "tasks, of {left}");
        let items: Vec<_> = tasks.into_iter().map(|task| task.sample).collect();
        for result in context.index().freed(context.session(), &items, CALL).await {
            result?;
        }
        left -= items.len();
    }
    ensure_eq!(context.free_list().await?, [], "to be freed");
    Ok(())
}

async fn another_process_may_free(context: &Context) -> CaseResult {
    let (producer, freer) = (context.join().await?, context.join().await?);
    let sample = producer.publish("s", &["a"]).await?;
    context.harness().kill_session(producer.session()).await?;
    let held = context.lease(&sample).await?;
    context.ack(&held).await?;
    ensure_eq!(freer.free_list().await?, std::slice::from_ref(&sample), "to be freed");
    freer.freed(&sample).await?;
    ensure_eq!(context.free_list().await?, [], "to be freed");
    Ok(())
}
