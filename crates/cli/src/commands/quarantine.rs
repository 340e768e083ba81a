//! `quarantine`: records that could not be decoded and were set aside.

use serde_json::Value;
use tensorhold_core::StoreId;
use tensorhold_index::{Index as _, Quarantined, TxnIndex};

use super::Context;
use crate::args::Quarantine;
use crate::failure::Failure;
use crate::io::Progress;
use crate::output::{Answer, draw, number, object, table, to_value};
use crate::reach::Reach;
use crate::text::{bytes, count, shown};

/// Records in one read.
const PAGE: usize = 1000;
/// How much of a record is shown to people; JSON has all of it.
const MOST_SHOWN: usize = 4096;

pub(crate) async fn run(
    reach: &Reach,
    what: Quarantine,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let store = progress.wait("asking etcd", reach.store()).await?;
    let index = reach.index(&store).await?;
    match what {
        Quarantine::Ls { limit, after } => {
            let limit = usize::try_from(limit).unwrap_or(PAGE);
            let after = after.as_deref().map(place).transpose()?;
            // One more than is shown, to learn whether there is more.
            let mut found = progress
                .wait("reading the quarantine", listed(reach, &index, after, limit + 1, None))
                .await?;
            let more = found.len() > limit;
            found.truncate(limit);
            let next = found.last().filter(|_| more).map(Quarantined::place);
            Ok(list(&store, &found, next, context))
        }
        Quarantine::Show { key } => {
            let found = progress
                .wait(
                    "reading the quarantine",
                    listed(reach, &index, None, usize::MAX, Some(&key)),
                )
                .await?;
            let found = found.last().ok_or_else(|| {
                Failure::not_found(
                    format!("no record in quarantine had the key {}", shown(&key)),
                    format!("the quarantine of store {} does not have it", shown(store.as_str())),
                    "`tensorhold quarantine ls` shows the keys",
                )
            })?;
            let record = index.quarantined_bytes(found, reach.left()).await;
            let record = record.map_err(|error| reach.failure(&error))?;
            Ok(show(&store, found, &record))
        }
    }
}

/// The place at which the last page ended.
fn place(text: &str) -> Result<Quarantined, Failure> {
    Quarantined::at_place(text).ok_or_else(|| {
        Failure::usage(
            format!("{} is no place in the quarantine", shown(text)),
            "a place is what the page before ended with",
            "give it unchanged, or leave --after out to begin at the start",
        )
    })
}

/// The records in quarantine behind a place, up to `limit`; only those of one key, if it is given.
async fn listed(
    reach: &Reach,
    index: &TxnIndex,
    after: Option<Quarantined>,
    limit: usize,
    key: Option<&str>,
) -> Result<Vec<Quarantined>, Failure> {
    let (mut found, mut last) = (Vec::new(), after);
    while found.len() < limit {
        let page = PAGE.min(limit);
        let part = index.quarantined(last.as_ref(), page, reach.left()).await;
        let part = part.map_err(|error| reach.failure(&error))?;
        last = part.last().cloned();
        if last.is_none() {
            break;
        }
        found.extend(part.into_iter().filter(|one| key.is_none_or(|key| one.key == key)));
    }
    found.truncate(limit);
    Ok(found)
}

fn item(one: &Quarantined) -> Value {
    object!("key": one.key, "version": one.version.0, "why": one.why, "bytes": one.bytes, "in_place": one.in_place,)
}

fn list(store: &StoreId, found: &[Quarantined], next: Option<String>, context: &Context<'_>) -> Answer {
    let mut rows = table(context.output, &["key", "bytes", "why"]);
    for one in found {
        rows.add_row([shown(&one.key).into(), number(bytes(one.bytes)), shown(&one.why).into()]);
    }
    let name = shown(store.as_str());
    let mut text = match found.len() {
        0 => format!("no record of store {name} is in quarantine\n"),
        many => format!(
            "{}\n{} in quarantine; `tensorhold quarantine show KEY` shows the bytes of one\n",
            draw(&rows),
            count(u64::try_from(many).unwrap_or(u64::MAX), "record is", "records are")
        ),
    };
    if let Some(next) = &next {
        text.push_str(&format!(
            "there is more: tensorhold quarantine ls … --after '{}'\n",
            shown(next)
        ));
    }
    let items: Vec<Value> = found.iter().map(item).collect();
    Answer::new(object!("store": store.as_str(), "items": items, "next": next), text)
}

fn show(store: &StoreId, found: &Quarantined, record: &[u8]) -> Answer {
    let part = &record[..record.len().min(MOST_SHOWN)];
    let bytes_shown = shown_bytes(part);
    let cut = if part.len() < record.len() { "…" } else { "" };
    let place = if found.in_place {
        "\nit is too long to be moved, and stays under its key"
    } else {
        ""
    };
    let text = format!(
        "key      {}\nversion  {}\nwhy      {}\nbytes    {}{place}\n\n{bytes_shown}{cut}\n",
        shown(&found.key),
        found.version.0,
        shown(&found.why),
        bytes(found.bytes),
    );
    let mut value = item(found);
    if let Value::Object(fields) = &mut value {
        fields.insert("store".to_owned(), to_value(&store.as_str()));
        fields.insert("text".to_owned(), to_value(&(std::str::from_utf8(record).ok())));
        let hex: String = record.iter().map(|byte| format!("{byte:02x}")).collect();
        fields.insert("hex".to_owned(), to_value(&hex));
    }
    Answer::new(value, text)
}

/// Bytes as text, with what is no text escaped.
fn shown_bytes(record: &[u8]) -> String {
    record
        .utf8_chunks()
        .map(|chunk| {
            let safe: String = chunk.valid().split('\n').map(shown_line).collect::<Vec<_>>().join("\n");
            let bad: String = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")).collect();
            safe + &bad
        })
        .collect()
}

/// A line of any length.
fn shown_line(line: &str) -> String {
    let parts: Vec<char> = line.chars().collect();
    parts
        .chunks(256)
        .map(|part| shown(&part.iter().collect::<String>()))
        .collect()
}
