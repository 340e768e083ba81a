//! `sweep`, `end` and `rm`: what changes a store and frees objects. They need a session and an engine.
//!
//! Whatever fails, what was done is done and recorded: another call goes on from there, and so does any process's sweep.

use std::sync::Arc;

use serde_json::Value;
use tensorhold_core::{ErrorKind, SampleId, StoreId, SystemRng};
use tensorhold_engine::Engine;
use tensorhold_features::{FeatureConfig, FeatureStore};
use tensorhold_index::{AckOutcome, Index as _, SampleRef};

use super::Context;
use crate::failure::{Failure, WRONG};
use crate::io::{ConnectEngine, Host, Progress};
use crate::output::{Answer, object, to_value};
use crate::reach::Reach;
use crate::settings::typed;
use crate::text::{count, shown};

/// The store with an engine. It sweeps only when it is told to.
pub(crate) async fn open(
    reach: &Reach,
    store: &StoreId,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<FeatureStore, Failure> {
    let engine = engine(reach, store, context, progress).await?;
    open_on(engine, reach, store, progress).await
}

/// An engine for the store.
pub(crate) async fn engine(
    reach: &Reach,
    store: &StoreId,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Arc<dyn Engine>, Failure> {
    engine_for(reach, &cannot(store), context, progress).await
}

/// An engine; `what` is what cannot be done without one.
pub(crate) async fn engine_for(
    reach: &Reach,
    what: &str,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Arc<dyn Engine>, Failure> {
    let connect = engine_of(context.host, what)?;
    crate::admin::listens(&reach.settings, reach.left()).await?;
    let settings = Value::Object(reach.settings.engine.clone()).to_string();
    let left = reach.left();
    let connecting = tokio::task::spawn_blocking(move || connect(&settings, left));
    let engine = progress.wait("connecting to the cluster", connecting).await;
    let engine = engine.map_err(|failure| {
        let error =
            tensorhold_core::Error::internal("command.engine", "the task that connects panicked or was cancelled");
        Failure::of(what, &error.caused_by(failure))
    })?;
    engine.map_err(|error| Failure::of(what, &error))
}

fn cannot(store: &StoreId) -> String {
    format!("store {} cannot be changed from here", shown(store.as_str()))
}

/// The store on this engine. It sweeps only when it is told to.
pub(crate) async fn open_on(
    engine: Arc<dyn Engine>,
    reach: &Reach,
    store: &StoreId,
    progress: &mut Progress<'_>,
) -> Result<FeatureStore, Failure> {
    let mut features = reach.settings.features.clone();
    features.insert("store".to_owned(), to_value(&store.as_str()));
    features.insert("sweep_every".to_owned(), Value::Null);
    let config: FeatureConfig = typed("features", features)?;
    let index = Arc::new(reach.index(store).await?);
    let opening = FeatureStore::open(engine, index, config, Arc::clone(&reach.clock), Arc::new(SystemRng));
    let opened = progress.wait("opening the store", opening).await;
    opened.map_err(|error| Failure::of(cannot(store), &error))
}

/// How this program connects to an engine. Not every one can.
pub(crate) fn engine_of(host: &Host, what: &str) -> Result<Arc<ConnectEngine>, Failure> {
    host.connect.clone().ok_or_else(|| {
        Failure::new(
            ErrorKind::Unsupported,
            what,
            "objects are removed through Mooncake's Python module, and this program was built without it",
            "use the `tensorhold` command of the Python package, in an environment that has Mooncake: pip install \
             'tensorhold[mooncake]'",
        )
    })
}

/// Closes the store; what the command has done stays done if that fails.
pub(crate) async fn close(reach: &Reach, store: FeatureStore, progress: &mut Progress<'_>) {
    let within = reach.left().max(std::time::Duration::from_secs(5));
    let closing = async move {
        let closed = store.close(within).await;
        // The engine waits for its calls when it is dropped.
        drop(tokio::task::spawn_blocking(move || drop(store)).await);
        closed
    };
    if let Err(error) = progress.wait("closing the store", closing).await {
        progress.note(&format!(
            "note: the command's session did not close: {}",
            shown(&error.to_string())
        ));
    }
}

pub(crate) async fn sweep(
    reach: &Reach,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let name = progress.wait("asking etcd", reach.store()).await?;
    let store = open(reach, &name, context, progress).await?;
    let swept = progress.wait("sweeping", store.sweep(reach.left())).await;
    close(reach, store, progress).await;
    let swept = swept.map_err(|error| {
        Failure::of(
            format!("the sweep of store {} ended early", shown(name.as_str())),
            &error,
        )
    })?;
    let back = swept.taken_back;
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let mut lines = vec![
        format!("freed            {}", count(number(swept.freed), "sample", "samples")),
        format!("not yet free     {}", count(number(swept.failed), "sample", "samples")),
        format!("leases expired   {}", back.taken_back),
        format!("puts given up    {}", back.abandoned),
        format!("sessions cleared {}", back.sessions_cleared),
    ];
    if swept.quarantined + back.quarantined > 0 {
        lines.push(format!(
            "quarantined      {} (`tensorhold quarantine ls`)",
            swept.quarantined + back.quarantined
        ));
    }
    if swept.later + back.later > 0 {
        lines.push(format!(
            "passed over      {} that only a later release can read",
            swept.later + back.later
        ));
    }
    let value = object!("store": name.as_str(), "freed": swept.freed, "failed": swept.failed, "leases_expired": back.taken_back,
        "abandoned": back.abandoned, "retired": back.retired, "sessions_cleared": back.sessions_cleared,
        "quarantined": swept.quarantined + back.quarantined, "later": swept.later + back.later,);
    Ok(Answer::new(value, lines.join("\n") + "\n"))
}

pub(crate) async fn end(
    reach: &Reach,
    others: bool,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let name = progress.wait("asking etcd", reach.store()).await?;
    let store = open(reach, &name, context, progress).await?;
    let ended = progress
        .wait("ending everything", store.end(others, reach.left()))
        .await;
    close(reach, store, progress).await;
    let ended = ended.map_err(|error| {
        let failure = Failure::of(format!("store {} has not ended", shown(name.as_str())), &error);
        match error.kind() {
            ErrorKind::Conflict => failure.advise(
                "`tensorhold sessions` shows who has it open; stop them, or end it under them: tensorhold end --others",
            ),
            _ => failure,
        }
    })?;
    let text = format!("{} ended and freed\n", count(ended, "sample is", "samples are"));
    Ok(Answer::new(object!("store": name.as_str(), "ended": ended), text))
}

/// What became of one sample.
struct Removed {
    sample: SampleId,
    /// `removed`, `busy` while a reader has it, or `not_found`.
    outcome: &'static str,
    why: Option<String>,
}

pub(crate) async fn remove(
    reach: &Reach,
    samples: &[String],
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let name = progress.wait("asking etcd", reach.store()).await?;
    let ids = parse(samples)?;
    let index = reach.index(&name).await?;
    let views = progress
        .wait("looking for the samples", index.look(&ids, reach.left()))
        .await;
    let views = views.map_err(|error| reach.failure(&error))?;
    let live: Vec<SampleRef> = views.iter().flatten().map(|view| view.sample.clone()).collect();
    let mut removed: Vec<Removed> = Vec::new();
    let missing = ids.iter().zip(&views).filter(|(_, view)| view.is_none());
    removed.extend(missing.map(|(sample, _)| Removed {
        sample: sample.clone(),
        outcome: "not_found",
        why: Some("it is not live".to_owned()),
    }));
    if !live.is_empty() {
        let store = open(reach, &name, context, progress).await?;
        let answers = progress.wait("retiring", store.retire(&live, reach.left())).await;
        for (sample, answer) in live.iter().zip(answers) {
            let (outcome, why) = match answer {
                Ok(AckOutcome::Retired { free: false, .. }) => {
                    ("busy", Some("freed when its readers are done".to_owned()))
                }
                Ok(_) => ("removed", None),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Fenced) => {
                    ("not_found", Some("another process was faster".to_owned()))
                }
                Err(error) => ("failed", Some(error.message().to_owned())),
            };
            removed.push(Removed {
                sample: sample.sample.clone(),
                outcome,
                why,
            });
        }
        let drained = progress.wait("freeing", store.drain(reach.left())).await;
        close(reach, store, progress).await;
        if let Err(error) = drained {
            progress.note(&format!(
                "note: not everything is freed yet; a sweep goes on: {}",
                shown(error.message())
            ));
        }
    }
    let failed = removed.iter().any(|one| matches!(one.outcome, "not_found" | "failed"));
    let text: String = removed.iter().map(Removed::line).collect();
    let items: Vec<Value> = removed
        .iter()
        .map(|one| object!("sample": one.sample.as_str(), "outcome": one.outcome, "why": one.why))
        .collect();
    let answer = Answer::new(
        object!("store": name.as_str(), "items": items, "next": Value::Null),
        text,
    );
    Ok(if failed { answer.with_code(WRONG) } else { answer })
}

impl Removed {
    fn line(&self) -> String {
        let why = self
            .why
            .as_deref()
            .map(|why| format!(": {}", shown(why)))
            .unwrap_or_default();
        format!(
            "{}  {}{why}\n",
            shown(self.sample.as_str()),
            self.outcome.replace('_', " ")
        )
    }
}

/// The names of samples that a person has written.
pub(crate) fn parse(samples: &[String]) -> Result<Vec<SampleId>, Failure> {
    let ids: Result<Vec<SampleId>, _> = samples.iter().map(|sample| sample.parse()).collect();
    ids.map_err(|error| Failure::of("this is no name of a sample", &error))
}
