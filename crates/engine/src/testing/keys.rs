//! A key is any text that `ObjectKey` takes, and two different texts are two objects.

use tensorhold_core::ObjectKey;
use tensorhold_core::key::MAX_KEY_BYTES;
use tensorhold_core::testing::{CaseResult, ensure, ensure_matches};

use super::Setup;
use super::context::{CALL, Context};
use crate::{Presence, RemoveOutcome};

cases! { "keys"
    odd_characters (Setup::default) "`Stored` means that an object is under the key: this key, to the byte.";
    long_keys (Setup::default) "`Stored` means that an object is under the key: this key, to the byte.";
    near_misses_are_other_objects (Setup::default) "`Stored` means that an object is under the key: this key, to the byte.";
    odd_keys_in_one_batch (Setup::default) "A call returns one outcome per object, in the order of the batch.";
    many_long_keys_in_one_batch (Setup::default) "At most `max_batch` objects in a batch, whatever the length of their keys.";
}

/// Texts that a query string, path, shell, regular expression or JSON parser would read as something else.
const ODD: &[&str] = &[
    "a b",
    " leading and trailing ",
    "a+b",
    "100%",
    "%2C",
    "%2f",
    "a%20b",
    "%",
    "%%%zz",
    "x&keys=y",
    "x=1;y=2",
    "what?",
    "#fragment",
    "\"double\"",
    "'single'",
    "`back`",
    "back\\slash",
    "\\u0041",
    "/",
    "//a//b//",
    "../../etc/passwd",
    ".",
    "a:b@c",
    "{json: [1]}",
    "<tag/>",
    "^.*$",
    "(a|b)+?",
    "*",
    "~tilde~",
    "null",
    "0",
    "-1",
    "Ünïcödé",
    "日本語のキー",
    "🦀🐍",
    "مفتاح",
    "e\u{301} is not \u{e9}",
    "zero\u{200b}width",
    "\u{feff}bom",
];

fn parsed(texts: &[&str]) -> CaseResult<Vec<ObjectKey>> {
    texts.iter().map(|text| Ok(ObjectKey::new(text)?)).collect()
}

/// Put, get, probe and remove, all of this very key.
fn whole_life(ctx: &Context, key: &ObjectKey, len: usize, seed: u64) -> CaseResult {
    ctx.expect_absent(key)?;
    ctx.store(key, len, seed)?;
    ctx.expect_bytes(key, len, seed)?;
    ensure_matches!(
        ctx.presence(key)?,
        Presence::Present { bytes, .. } if bytes == len as u64,
        "{key} should be present with {len} bytes"
    );
    ctx.remove(key)?;
    ctx.expect_absent(key)?;
    ctx.expect_miss(key)
}

fn odd_characters(ctx: &Context) -> CaseResult {
    for (seed, key) in parsed(ODD)?.iter().enumerate() {
        whole_life(ctx, key, 100 + seed, seed as u64)?;
    }
    Ok(())
}

fn long_keys(ctx: &Context) -> CaseResult {
    let longest = [
        "k".repeat(MAX_KEY_BYTES),
        "%/".repeat(MAX_KEY_BYTES / 2),
        "é".repeat(MAX_KEY_BYTES / 2),
        "🦀".repeat(MAX_KEY_BYTES / 4),
        "k".repeat(1025),
        "k".repeat(256),
    ];
    for (seed, text) in longest.iter().enumerate() {
        whole_life(ctx, &ObjectKey::new(text)?, 100 + seed, seed as u64)?;
    }
    Ok(())
}

fn near_misses_are_other_objects(ctx: &Context) -> CaseResult {
    let long = "k".repeat(MAX_KEY_BYTES - 1);
    let (end_a, end_b) = (format!("{long}a"), format!("{long}b"));
    let keys = parsed(&[
        "key",
        "Key",
        "KEY",
        "key ",
        " key",
        "key/",
        "/key",
        "key\u{0301}",
        "k%65y",
        "%6Bey",
        "%6bey",
        "a/b",
        "a%2Fb",
        "a%2fb",
        "a%252Fb",
        "a b",
        "a+b",
        "a%20b",
        "\u{e9}",
        "e\u{301}",
        "k",
        "ke",
        &end_a,
        &end_b,
        &long,
    ])?;
    for (seed, key) in keys.iter().enumerate() {
        ctx.store(key, 64, seed as u64)?;
    }
    for (seed, key) in keys.iter().enumerate() {
        ctx.expect_bytes(key, 64, seed as u64)?;
    }
    // Removing every second object leaves its neighbours alone.
    for key in keys.iter().step_by(2) {
        ctx.remove(key)?;
    }
    for (seed, key) in keys.iter().enumerate() {
        if seed % 2 == 0 {
            ctx.expect_miss(key)?;
        } else {
            ctx.expect_bytes(key, 64, seed as u64)?;
        }
    }
    Ok(())
}

/// Objects of different lengths under these keys, probed and removed as one batch with absent keys between them.
fn as_one_batch(ctx: &Context, keys: &[ObjectKey]) -> CaseResult {
    for (i, key) in keys.iter().enumerate().filter(|(i, _)| i % 3 != 0) {
        ctx.store(key, 10 + i, i as u64)?;
    }
    let seen = ctx.engine().probe(keys, CALL)?;
    ensure!(
        seen.len() == keys.len(),
        "{} answers for {} keys",
        seen.len(),
        keys.len()
    );
    for (i, (key, presence)) in keys.iter().zip(seen).enumerate() {
        match presence {
            Presence::Absent if i % 3 == 0 => {}
            Presence::Present { bytes, .. } if i % 3 != 0 && bytes == 10 + i as u64 => {}
            other => ensure!(false, "{key}, number {i} of the batch, was probed as {other:?}"),
        }
    }
    let removed = ctx.engine().remove(keys, CALL)?;
    ensure!(
        removed.len() == keys.len(),
        "{} outcomes for {} keys",
        removed.len(),
        keys.len()
    );
    for (i, (key, outcome)) in keys.iter().zip(removed).enumerate() {
        match outcome {
            RemoveOutcome::Absent if i % 3 == 0 => {}
            RemoveOutcome::Removed if i % 3 != 0 => {}
            other => ensure!(false, "{key}, number {i} of the batch, was removed as {other:?}"),
        }
    }
    Ok(())
}

fn odd_keys_in_one_batch(ctx: &Context) -> CaseResult {
    as_one_batch(ctx, &parsed(ODD)?)
}

fn many_long_keys_in_one_batch(ctx: &Context) -> CaseResult {
    // 64 keys of 2,359 bytes are more than any query string may have at once.
    let texts: Vec<String> = (0..64)
        .map(|i| format!("{i:03}{}", "%".repeat(MAX_KEY_BYTES - 3)))
        .collect();
    as_one_batch(ctx, &parsed(&texts.iter().map(String::as_str).collect::<Vec<_>>())?)
}
