//! `sessions`: the processes that have a store open, and what they say of themselves.

use tensorhold_index::Index as _;

use super::Context;
use crate::failure::Failure;
use crate::io::Progress;
use crate::output::{Answer, fitted, object, table};
use crate::reach::Reach;
use crate::text::{ago, count, shown};
use serde_json::Value;

pub(crate) async fn run(reach: &Reach, context: &Context<'_>, progress: &mut Progress<'_>) -> Result<Answer, Failure> {
    let store = progress.wait("asking etcd", reach.store()).await?;
    let index = reach.index(&store).await?;
    let sessions = progress.wait("reading sessions", index.sessions(reach.left())).await;
    let mut sessions = sessions.map_err(|error| reach.failure(&error))?;
    sessions.sort_by_key(|session| session.identity.as_ref().map_or(0, |identity| identity.started_ms));
    let items: Vec<_> = sessions
        .iter()
        .map(|session| {
            let known = session.identity.as_ref();
            object!("session": format!("{:x}", session.id.0),
                "host": known.map(|known| &known.host),
                "pid": known.map(|known| known.pid),
                "program": known.map(|known| &known.program),
                "version": known.map(|known| &known.version),
                "role": known.map(|known| &known.role),
                "started_ms": known.map(|known| known.started_ms),)
        })
        .collect();
    let mut rows = table(
        context.output,
        &["session", "program", "role", "host", "pid", "version", "started"],
    );
    for session in &sessions {
        let id = format!("{:x}", session.id.0);
        match &session.identity {
            Some(known) => rows.add_row([
                id,
                shown(&known.program),
                shown(&known.role),
                shown(&known.host),
                known.pid.to_string(),
                shown(&known.version),
                ago(known.started_ms, context.now_ms),
            ]),
            None => rows.add_row([id.as_str(), "(says nothing)"]),
        };
    }
    let number = u64::try_from(sessions.len()).unwrap_or(u64::MAX);
    let name = shown(store.as_str());
    let text = match number {
        0 => format!("no process has store {name} open\n"),
        _ => format!(
            "{}\n{} of store {name}\n",
            fitted(&rows, context.output),
            count(number, "session", "sessions")
        ),
    };
    Ok(Answer::new(
        object!("store": store.as_str(), "items": items, "next": Value::Null),
        text,
    ))
}
