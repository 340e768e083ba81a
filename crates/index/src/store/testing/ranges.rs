//! Ranges: order, ends, limits.

use std::ops::Range;

use super::context::Context;
use crate::store::{Read, Write, prefix};
use tensorhold_core::testing::{CaseResult, ensure_eq};

cases! { "ranges"
    are_ordered_by_key "The keys of a range come in order.";
    have_their_start_and_not_their_end "From the first key, up to but not including the second.";
    give_the_first_of_a_limit "The first `limit` keys of a range.";
    without_values_have_keys_and_versions "Values that are left out come back empty.";
    of_a_prefix_have_all_that_begins_with_it "The range of all keys that begin with a prefix.";
    give_the_oldest_first_if_asked_to "The `limit` keys of a range that were written longest ago, oldest first.";
    that_are_empty_read_as_empty "An empty range, and a limit of zero, give nothing.";
}

async fn fill(cx: &Context, keys: &[&str]) -> CaseResult {
    for key in keys {
        cx.put(key, &format!("value of {key}")).await?;
    }
    Ok(())
}

async fn range(cx: &Context, keys: Range<&str>, limit: usize) -> CaseResult<Vec<String>> {
    let keys = keys.start.to_owned()..keys.end.to_owned();
    let entries = cx
        .read(Read::Range {
            keys,
            limit,
            keys_only: false,
        })
        .await?;
    for entry in &entries {
        ensure_eq!(
            entry.value,
            format!("value of {}", entry.key).into_bytes(),
            "the value of {}",
            entry.key
        );
    }
    Ok(entries.into_iter().map(|entry| entry.key).collect())
}

async fn are_ordered_by_key(cx: &Context) -> CaseResult {
    fill(cx, &["r/b", "r/a", "r/10", "r/9", "r/B", "r/ab", "r/a/1", "r/~"]).await?;
    let wanted = ["r/10", "r/9", "r/B", "r/a", "r/a/1", "r/ab", "r/b", "r/~"];
    ensure_eq!(range(cx, "r/".."r0", 100).await?, wanted, "the order of the bytes");
    Ok(())
}

async fn have_their_start_and_not_their_end(cx: &Context) -> CaseResult {
    fill(cx, &["a", "b", "c", "d"]).await?;
    ensure_eq!(range(cx, "b".."d", 100).await?, ["b", "c"], "b..d");
    ensure_eq!(range(cx, "aa".."cc", 100).await?, ["b", "c"], "ends between keys");
    ensure_eq!(range(cx, "b".."c", 100).await?, ["b"], "b..c");
    Ok(())
}

async fn give_the_first_of_a_limit(cx: &Context) -> CaseResult {
    fill(cx, &["l/3", "l/1", "l/2"]).await?;
    ensure_eq!(range(cx, "l/".."l0", 2).await?, ["l/1", "l/2"], "two of three");
    ensure_eq!(range(cx, "l/".."l0", 3).await?.len(), 3, "three of three");
    ensure_eq!(
        range(cx, "l/".."l0", usize::MAX).await?.len(),
        3,
        "no limit to speak of"
    );
    Ok(())
}

async fn without_values_have_keys_and_versions(cx: &Context) -> CaseResult {
    let version = cx.write(vec![Write::put("k/1", "long"), Write::put("k/2", "")]).await?;
    let entries = cx
        .read(Read::Range {
            keys: prefix("k/"),
            limit: 9,
            keys_only: true,
        })
        .await?;
    let seen: Vec<_> = entries
        .iter()
        .map(|entry| (entry.key.as_str(), entry.value.len(), entry.version))
        .collect();
    ensure_eq!(seen, [("k/1", 0, version), ("k/2", 0, version)], "keys without values");
    Ok(())
}

async fn of_a_prefix_have_all_that_begins_with_it(cx: &Context) -> CaseResult {
    fill(cx, &["p", "p/", "p/1", "p/zz", "p0", "o/1", "q"]).await?;
    ensure_eq!(cx.keys("p/").await?, ["p/", "p/1", "p/zz"], "the keys below p/");
    ensure_eq!(
        cx.keys("p").await?,
        ["p", "p/", "p/1", "p/zz", "p0"],
        "the keys that begin with p"
    );
    let all = cx.keys("").await?.into_iter();
    let all: Vec<_> = all.filter(|key| !["schema", "epoch"].contains(&key.as_str())).collect();
    ensure_eq!(all.len(), 7, "all keys but the store's own: {all:?}");
    Ok(())
}

async fn oldest(cx: &Context, keys: Range<&str>, limit: usize) -> CaseResult<Vec<String>> {
    let keys = keys.start.to_owned()..keys.end.to_owned();
    let entries = cx.read(Read::Oldest { keys, limit }).await?;
    Ok(entries.into_iter().map(|entry| entry.key).collect())
}

async fn give_the_oldest_first_if_asked_to(cx: &Context) -> CaseResult {
    fill(cx, &["w/c", "w/a", "w/d", "w/b", "w0", "v/9"]).await?;
    ensure_eq!(
        oldest(cx, "w/".."w0", 9).await?,
        ["w/c", "w/a", "w/d", "w/b"],
        "in the order in which they were written"
    );
    ensure_eq!(oldest(cx, "w/".."w0", 2).await?, ["w/c", "w/a"], "two of four");
    fill(cx, &["w/c"]).await?;
    ensure_eq!(
        oldest(cx, "w/".."w0", 2).await?,
        ["w/a", "w/d"],
        "one that was written again is the youngest"
    );
    for (keys, limit) in [("w/".."w/", 9), ("w0".."w/", 9), ("x/".."x0", 9), ("w/".."w0", 0)] {
        ensure_eq!(oldest(cx, keys.clone(), limit).await?.len(), 0, "{limit} of {keys:?}");
    }
    let version = cx.put("u/1", "one").await?;
    let read = cx
        .read(Read::Oldest {
            keys: prefix("u/"),
            limit: 1,
        })
        .await?;
    let seen: Vec<_> = read
        .iter()
        .map(|entry| (entry.value.as_slice(), entry.version))
        .collect();
    ensure_eq!(seen, [(b"one".as_slice(), version)], "its value and version");
    Ok(())
}

async fn that_are_empty_read_as_empty(cx: &Context) -> CaseResult {
    fill(cx, &["a", "b"]).await?;
    ensure_eq!(range(cx, "b".."b", 9).await?.len(), 0, "b..b");
    ensure_eq!(range(cx, "b".."a", 9).await?.len(), 0, "b..a");
    ensure_eq!(range(cx, "x".."y", 9).await?.len(), 0, "nothing there");
    ensure_eq!(range(cx, "a".."z", 0).await?.len(), 0, "a limit of none");
    Ok(())
}
