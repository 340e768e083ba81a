//! Which generations a record owns, wherever the record is.

use tensorhold_core::Generation;
use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_custody::{Publication, Reason};

use super::client::{CALL, LONG, published_for};
use super::context::Context;
use crate::{Known, SampleRef};

cases! {
    "known" Nothing
    wherever_its_record_is
        "Whether records own the objects of these generations.";
    another_generation_owns_nothing
        "Whether records own the objects of these generations.";
    what_was_never_given_out_is_ahead
        "This index has not given out that generation yet.";
    many_at_once
        "A batch gets one result per item, in order.";
    a_record_that_moves_is_never_missed
        "All places where the record of a generation may be are read at one moment.";
}

async fn known(context: &Context, samples: &[SampleRef]) -> CaseResult<Vec<Known>> {
    Ok(context.index().known(samples, CALL).await?)
}

async fn is_known(context: &Context, sample: &SampleRef, wanted: Known, when: &str) -> CaseResult {
    let known = known(context, std::slice::from_ref(sample)).await?;
    ensure_eq!(known, vec![wanted], "{when}");
    Ok(())
}

pub(super) fn with_generation(sample: &SampleRef, generation: u64) -> CaseResult<SampleRef> {
    Ok(SampleRef {
        generation: Generation::new(generation).ok_or_else(|| Failure::new("no generation"))?,
        ..sample.clone()
    })
}

async fn wherever_its_record_is(context: &Context) -> CaseResult {
    let sample = context.reserve("a/sample, with % in its name").await?;
    is_known(context, &sample, Known::Yes, "reserved").await?;
    context.commit(&sample, &["a"]).await?;
    is_known(context, &sample, Known::Yes, "live").await?;
    let held = context.lease(&sample).await?;
    is_known(context, &sample, Known::Yes, "leased").await?;
    context.retire(&sample, Reason::Aborted).await?;
    is_known(context, &sample, Known::Yes, "retired, with a reader").await?;
    context.release(&held).await?;
    is_known(context, &sample, Known::Yes, "to be freed").await?;
    context.freed(&sample).await?;
    is_known(context, &sample, Known::No, "freed").await?;

    let publication = Publication {
        max_attempts: 1,
        ..published_for(&["a"])?
    };
    let letter = context.publish_as("letter", publication).await?;
    let held = context.lease(&letter).await?;
    context.nack(&held).await?;
    is_known(context, &letter, Known::Yes, "a dead letter, to be freed").await?;
    context.freed(&letter).await?;
    is_known(context, &letter, Known::No, "a dead letter, whose record stays").await?;

    let given_up = context.reserve("given up").await?;
    context.abort(&given_up).await?;
    is_known(context, &given_up, Known::Yes, "given up, and to be freed").await?;
    context.freed(&given_up).await?;
    is_known(context, &given_up, Known::No, "given up and freed").await?;

    let lost = context.publish("lost", &["a"]).await?;
    let reader = context.read(&lost, LONG).await?;
    context.retire(&lost, Reason::Lost).await?;
    is_known(context, &lost, Known::Yes, "lost, with a reader").await?;
    context.release(&reader).await?;
    is_known(context, &lost, Known::No, "lost: its objects are to go").await
}

async fn another_generation_owns_nothing(context: &Context) -> CaseResult {
    let first = context.publish("s", &["a"]).await?;
    // Its successor is being written: both are known.
    let second = context.reserve("s").await?;
    ensure_eq!(
        known(context, &[first.clone(), second.clone()]).await?,
        vec![Known::Yes; 2],
        "a live one and its reserved successor"
    );
    context.commit(&second, &["a"]).await?;
    is_known(context, &first, Known::Yes, "superseded, and to be freed").await?;
    context.freed(&first).await?;
    ensure_eq!(
        known(context, &[first.clone(), second.clone()]).await?,
        vec![Known::No, Known::Yes],
        "one that was freed and its live successor"
    );
    let third = context.reserve("s").await?;
    let held = context.lease(&second).await?;
    context.ack(&held).await?;
    context.freed(&second).await?;
    ensure_eq!(
        known(context, &[first, second, third]).await?,
        vec![Known::No, Known::No, Known::Yes],
        "the reservation of a later generation owns only its own"
    );
    Ok(())
}

async fn what_was_never_given_out_is_ahead(context: &Context) -> CaseResult {
    let live = context.publish("s", &["a"]).await?;
    let ahead = with_generation(&live, u64::MAX)?;
    is_known(context, &ahead, Known::Ahead, "of no state of this index").await?;
    let never = with_generation(&live, live.generation.get() - 1)?;
    is_known(context, &never, Known::No, "of another sample's version").await
}

async fn many_at_once(context: &Context) -> CaseResult {
    let samples = context.publish_many("s", 300, &["a"]).await?;
    for sample in samples.iter().step_by(3) {
        let held = context.lease(sample).await?;
        context.ack(&held).await?;
        context.freed(sample).await?;
    }
    let wanted: Vec<_> = (0..samples.len())
        .map(|at| if at % 3 == 0 { Known::No } else { Known::Yes })
        .collect();
    ensure_eq!(known(context, &samples).await?, wanted, "a third of them was freed");
    ensure_eq!(known(context, &[]).await?, vec![], "nothing at all");
    Ok(())
}

async fn a_record_that_moves_is_never_missed(context: &Context) -> CaseResult {
    let mover = context.join().await?;
    for round in 0..40 {
        let sample = context.reserve(&format!("s-{round}")).await?;
        let moving = async {
            mover_steps(context, &sample).await?;
            CaseResult::Ok(())
        };
        let looking = async {
            for _ in 0..8 {
                let known = mover.index().known(std::slice::from_ref(&sample), CALL).await?;
                ensure!(known == [Known::Yes], "{sample:?} was {known:?} while its record moved");
            }
            CaseResult::Ok(())
        };
        let (moved, looked) = tokio::join!(moving, looking);
        moved?;
        looked?;
    }
    Ok(())
}

/// From reserved to be freed, and not further.
async fn mover_steps(context: &Context, sample: &SampleRef) -> CaseResult {
    context.commit(sample, &["a"]).await?;
    let held = context.lease(sample).await?;
    context.retire(sample, Reason::Aborted).await?;
    context.release(&held).await?;
    Ok(())
}
