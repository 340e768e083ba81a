//! `dead`: samples that ran out of attempts.

use serde_json::Value;
use tensorhold_core::ErrorKind;
use tensorhold_index::{Index as _, SampleRecord, SampleRef, Session, Stage, TxnIndex};

use super::people::People;
use super::reclaim::parse;
use super::{Context, list, why};
use crate::args::Dead;
use crate::failure::{Failure, WRONG};
use crate::io::Progress;
use crate::output::{Answer, object};
use crate::reach::Reach;
use crate::text::shown;

pub(crate) async fn run(
    reach: &Reach,
    what: Dead,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    match what {
        Dead::Ls { limit, after } => list::run(reach, list::Wanted::dead(limit, after), context, progress).await,
        Dead::Show { sample } => show(reach, &sample, context, progress).await,
        Dead::Requeue { samples } => change(reach, &samples, Change::Requeue, progress).await,
        Dead::Drop { samples } => change(reach, &samples, Change::Drop, progress).await,
    }
}

async fn show(
    reach: &Reach,
    sample: &str,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let store = progress.wait("asking etcd", reach.store()).await?;
    let index = reach.index(&store).await?;
    let sample = parse(&[sample.to_owned()])?.remove(0);
    let mut records = progress
        .wait("reading records", index.records_of(&sample, reach.left()))
        .await;
    if let Ok(records) = &mut records {
        records.retain(|record| record.stage == Stage::Dead);
    }
    let records = records.map_err(|error| reach.failure(&error))?;
    if records.is_empty() {
        return Err(none(sample.as_str()));
    }
    let people = progress.wait("reading sessions", People::read(reach, &index)).await?;
    why::answer(reach, &store, &index, &records, &people, context, progress).await
}

fn none(sample: &str) -> Failure {
    Failure::not_found(
        format!("{} is no dead letter", shown(sample)),
        "no record of it has run out of attempts",
        "`tensorhold dead ls` shows the dead letters, `tensorhold why SAMPLE` what became of a sample",
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Requeue,
    Drop,
}

/// Every dead letter of these samples is given back, or forgotten. The index records it; bytes are removed by the
/// process that sweeps next.
async fn change(
    reach: &Reach,
    samples: &[String],
    change: Change,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let store = progress.wait("asking etcd", reach.store()).await?;
    let index = reach.index(&store).await?;
    let mut letters = Vec::new();
    for sample in parse(samples)? {
        let records = progress
            .wait("reading records", index.records_of(&sample, reach.left()))
            .await;
        let records = records.map_err(|error| reach.failure(&error))?;
        let found: Vec<SampleRef> = records
            .iter()
            .filter(|one| one.stage == Stage::Dead)
            .map(reference)
            .collect();
        // Of several only the newest can come back: the others were replaced.
        let newest = found.last().cloned();
        match change {
            Change::Drop if !found.is_empty() => letters.extend(found),
            Change::Requeue if newest.is_some() => letters.extend(newest),
            _ => return Err(none(sample.as_str())),
        }
    }
    let session = progress
        .wait("opening a session", index.open_session(reach.left()))
        .await;
    let session = session.map_err(|error| reach.failure(&error))?;
    let outcomes = progress
        .wait("changing records", carry_out(reach, &index, &session, &letters, change))
        .await;
    // What was done is done; a session that does not close ends by its time to live.
    drop(progress.wait("closing the session", session.close(reach.left())).await);
    let failed = outcomes.iter().any(|outcome| outcome.error.is_some());
    let text: String = outcomes.iter().map(Outcome::line).collect();
    let items: Vec<Value> = outcomes.iter().map(Outcome::value).collect();
    let answer = Answer::new(
        object!("store": store.as_str(), "items": items, "next": Value::Null),
        text,
    );
    Ok(if failed { answer.with_code(WRONG) } else { answer })
}

fn reference(record: &SampleRecord) -> SampleRef {
    record.sample.clone()
}

/// What became of one dead letter.
struct Outcome {
    letter: SampleRef,
    done: &'static str,
    error: Option<String>,
}

async fn carry_out(
    reach: &Reach,
    index: &TxnIndex,
    session: &Session,
    letters: &[SampleRef],
    change: Change,
) -> Vec<Outcome> {
    let answers: Vec<tensorhold_core::Result<&'static str>> = match change {
        Change::Requeue => {
            let answers = index.requeue(session, letters, reach.left()).await;
            answers.into_iter().map(|answer| answer.map(|_| "requeued")).collect()
        }
        Change::Drop => {
            let answers = index.drop_dead(session, letters, reach.left()).await;
            let done = |to_free| if to_free { "to_free" } else { "dropped" };
            answers.into_iter().map(|answer| answer.map(done)).collect()
        }
    };
    let outcome = |(letter, answer): (&SampleRef, tensorhold_core::Result<&'static str>)| match answer {
        Ok(done) => Outcome {
            letter: letter.clone(),
            done,
            error: None,
        },
        Err(error) => Outcome {
            letter: letter.clone(),
            done: if error.kind() == ErrorKind::NotFound {
                "not_found"
            } else {
                "refused"
            },
            error: Some(error.message().to_owned()),
        },
    };
    letters.iter().zip(answers).map(outcome).collect()
}

impl Outcome {
    fn line(&self) -> String {
        let what = match (self.done, &self.error) {
            ("requeued", _) => "waits for its groups again".to_owned(),
            ("to_free", _) => "dropped; the next sweep removes its bytes".to_owned(),
            ("dropped", _) => "dropped".to_owned(),
            (_, Some(why)) => format!("refused: {}", shown(why)),
            (_, None) => "refused".to_owned(),
        };
        format!(
            "{} g{}  {what}\n",
            shown(self.letter.sample.as_str()),
            self.letter.generation.get()
        )
    }

    fn value(&self) -> Value {
        object!("sample": self.letter.sample.as_str(), "generation": self.letter.generation.get(), "outcome": self.done,
            "why": self.error,)
    }
}
