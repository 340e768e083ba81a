//! Who may use the admin interface: bearer tokens.
//!
//! The settings hold no token, only its SHA-256, so a reader of the settings cannot use the interface. Tokens are long random
//! texts ([`new_token`]), which a plain hash suffices for. A given token is compared with all entries, each in constant
//! time, so the time of an answer tells nothing about them.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, Result, Rng, StoreId};

/// The bytes of randomness in a token.
const RANDOM: usize = 32;
/// The longest token that is looked at.
const MOST_TEXT: usize = 256;

/// A token that opens the interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenEntry {
    /// Who this is, for the log.
    pub name: String,
    /// The SHA-256 of the token, as 64 hex digits.
    pub sha256: String,
    /// The stores that it is for; none for all. Default: none.
    #[serde(default)]
    pub stores: Option<Vec<StoreId>>,
    /// Whether it may change something, and not only look. Default: false.
    #[serde(default)]
    pub write: bool,
    /// When it expires, in seconds since 1970; none for never. Default: none.
    #[serde(default)]
    pub expires: Option<u64>,
}

impl TokenEntry {
    /// Checks its name and its hash.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn validate(&self) -> Result<()> {
        let wrong = |why: &str| Err(Error::invalid("steward.config", why).with("token", &self.name));
        if self.name.is_empty() || self.name.len() > 64 || self.name.chars().any(char::is_control) {
            return wrong("a token has a name of 1 to 64 characters, for the log");
        }
        if parse(&self.sha256).is_none() {
            return wrong("sha256 is the SHA-256 of the token, as 64 hex digits");
        }
        Ok(())
    }

    fn is_for(&self, store: Option<&str>) -> bool {
        match (&self.stores, store) {
            (None, _) => true,
            (Some(stores), Some(store)) => stores.iter().any(|known| known.as_str() == store),
            // What concerns all stores needs a token for all.
            (Some(_), None) => false,
        }
    }
}

fn parse(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// The SHA-256 of a token, as the settings hold it.
pub fn fingerprint(token: &str) -> String {
    let digest = digest(&SHA256, token.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A new token.
pub fn new_token(rng: &dyn Rng) -> String {
    let words = (0..RANDOM / 8).map(|_| format!("{:016x}", rng.next_u64()));
    format!("th_{}", words.collect::<String>())
}

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No token, or one that nobody has.
    Unknown,
    /// The token has expired.
    Expired,
    /// The token is for other stores.
    OtherStore,
    /// The token is for looking only.
    LookOnly,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// The store that it is about; none if it is about all of them, or about none.
    pub(crate) store: Option<&'a str>,
    /// Whether it changes something.
    pub(crate) write: bool,
}

/// The entry of a token that is good, whatever it is for.
pub(crate) fn known<'a>(
    entries: &'a [TokenEntry],
    token: Option<&str>,
    now: u64,
) -> std::result::Result<&'a TokenEntry, Refusal> {
    let token = token.filter(|token| token.len() <= MOST_TEXT).ok_or(Refusal::Unknown)?;
    let given = digest(&SHA256, token.as_bytes());
    let mut found = None;
    // All of them, whichever it is.
    for entry in entries {
        let known = parse(&entry.sha256).unwrap_or_default();
        if verify_slices_are_equal(&known, given.as_ref()).is_ok() {
            found = Some(entry);
        }
    }
    let entry = found.ok_or(Refusal::Unknown)?;
    if entry.expires.is_some_and(|expires| expires <= now) {
        return Err(Refusal::Expired);
    }
    Ok(entry)
}

/// Lets a request in, or not. Returns the name of the token.
pub(crate) fn admit<'a>(
    entries: &'a [TokenEntry],
    token: Option<&str>,
    asked: Asked<'_>,
    now: u64,
) -> std::result::Result<&'a str, Refusal> {
    let entry = known(entries, token, now)?;
    if !entry.is_for(asked.store) {
        return Err(Refusal::OtherStore);
    }
    if asked.write && !entry.write {
        return Err(Refusal::LookOnly);
    }
    Ok(&entry.name)
}

#[cfg(test)]
mod tests {
    use tensorhold_core::SeededRng;

    use super::*;

    fn entry(name: &str, token: &str) -> TokenEntry {
        TokenEntry {
            name: name.to_owned(),
            sha256: fingerprint(token),
            stores: None,
            write: true,
            expires: None,
        }
    }

    #[test]
    fn only_who_has_the_token_of_this_store_is_let_in() {
        let of_one = TokenEntry {
            stores: Some(vec![StoreId::new("eagle").expect("a name")]),
            ..entry("one", "secret-one")
        };
        let expired = TokenEntry {
            expires: Some(99),
            ..entry("old", "secret-old")
        };
        let looks = TokenEntry {
            write: false,
            ..entry("eyes", "secret-eyes")
        };
        let entries = [entry("all", "secret-all"), of_one, expired, looks];
        entries.iter().try_for_each(TokenEntry::validate).expect("lawful");
        let ask = |token, store, write| admit(&entries, token, Asked { store, write }, 100);
        assert_eq!(ask(Some("secret-all"), Some("eagle"), true), Ok("all"));
        assert_eq!(ask(Some("secret-all"), None, false), Ok("all"));
        assert_eq!(ask(Some("secret-one"), Some("eagle"), true), Ok("one"));
        assert_eq!(ask(Some("secret-one"), Some("other"), false), Err(Refusal::OtherStore));
        assert_eq!(ask(Some("secret-one"), None, false), Err(Refusal::OtherStore));
        assert_eq!(ask(Some("secret-old"), Some("eagle"), false), Err(Refusal::Expired));
        assert_eq!(ask(Some("secret-eyes"), Some("eagle"), false), Ok("eyes"));
        assert_eq!(ask(Some("secret-eyes"), Some("eagle"), true), Err(Refusal::LookOnly));
        for wrong in [None, Some(""), Some("secret"), Some("secret-all ")] {
            assert_eq!(ask(wrong, Some("eagle"), false), Err(Refusal::Unknown), "{wrong:?}");
        }
        let long = "x".repeat(MOST_TEXT + 1);
        assert_eq!(ask(Some(&long), None, false), Err(Refusal::Unknown));
    }

    #[test]
    fn a_hash_that_is_none_lets_nobody_in() {
        let broken = TokenEntry {
            sha256: "zz".to_owned(),
            ..entry("x", "y")
        };
        assert!(broken.validate().is_err());
        let asked = Asked {
            store: None,
            write: false,
        };
        assert_eq!(admit(&[broken], Some("y"), asked, 0), Err(Refusal::Unknown));
    }

    #[test]
    fn new_tokens_differ() {
        let rng = SeededRng::new(1);
        let (one, two) = (new_token(&rng), new_token(&rng));
        assert!(one != two && one.len() == 3 + 2 * RANDOM, "{one} {two}");
    }
}
