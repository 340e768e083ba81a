//! `budget`: how many bytes a store may hold, and setting it.

use serde_json::Value;
use tensorhold_core::StoreId;
use tensorhold_index::{BudgetUse, Index as _};

use super::Context;
use super::people::People;
use crate::args::BudgetChange;
use crate::failure::Failure;
use crate::io::Progress;
use crate::output::{Answer, draw, number, object, table};
use crate::reach::Reach;
use crate::text::{bytes, shown};

pub(crate) async fn run(
    reach: &Reach,
    change: Option<BudgetChange>,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    // A budget may be set before the first process opens the store: then it must be named.
    let store = match (&change, &reach.settings.store) {
        (Some(_), Some(store)) => store.clone(),
        _ => progress.wait("asking etcd", reach.store()).await?,
    };
    if change.is_some() {
        reach.begin(&store).await?;
    }
    let index = reach.index(&store).await?;
    let name = shown(store.as_str());
    match change {
        Some(BudgetChange::Set { bytes: wanted }) => {
            let set = progress
                .wait("setting the budget", index.set_budget(wanted, reach.left()))
                .await;
            set.map_err(|error| {
                Failure::of(
                    format!("the budget of store {name} is not {} now", bytes(wanted)),
                    &error,
                )
            })?;
            let text = format!(
                "the budget of store {name} is {} now; processes that opened the store while it had none need no quota \
                 until they open it again\n",
                bytes(wanted)
            );
            Ok(Answer::new(
                object!("store": store.as_str(), "budget_bytes": wanted),
                text,
            ))
        }
        None => {
            let used = progress
                .wait("reading the budget", index.budget_use(reach.left()))
                .await;
            let used = used.map_err(|error| reach.failure(&error))?;
            let people = progress.wait("reading sessions", People::read(reach, &index)).await?;
            Ok(show(&store, used.as_ref(), &people, context))
        }
    }
}

fn show(store: &StoreId, used: Option<&BudgetUse>, people: &People, context: &Context<'_>) -> Answer {
    let name = shown(store.as_str());
    let Some(used) = used else {
        let text =
            format!("store {name} has no budget: only the engine's memory limits it (`tensorhold budget set BYTES`)\n");
        return Answer::new(object!("store": store.as_str(), "budget_bytes": Value::Null), text);
    };
    let held = used.bytes.saturating_sub(used.free);
    let mut text = format!(
        "store {name}: {} of {} used, {} free\n",
        bytes(held),
        bytes(used.bytes),
        bytes(used.free)
    );
    if !used.waiting.is_empty() {
        let mut rows = table(context.output, &["waits", "wants"]);
        for (session, wanted) in &used.waiting {
            rows.add_row([people.text(*session).into(), number(bytes(*wanted))]);
        }
        text.push_str(&format!("\n{}", draw(&rows)));
    }
    let waiting: Vec<Value> = used
        .waiting
        .iter()
        .map(|(session, wanted)| object!("producer": people.value(*session), "wanted_bytes": wanted))
        .collect();
    let value = object!("store": store.as_str(), "budget_bytes": used.bytes, "free_bytes": used.free, "used_bytes": held, "waiting": waiting,);
    Answer::new(value, text)
}
