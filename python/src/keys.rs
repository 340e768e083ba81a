//! The keys of a sealed store or of a KV tier, from Python: bytes, text, or a reference to one of these.
//!
//! They are passed beside the settings, never in them. Copies made here are wiped; Python's own copies are not. No
//! error repeats a key.

use pyo3::prelude::*;
use tensorhold_core::{Error, Result};
use tensorhold_features::seal::{KeyId, Keyring, StoreKey};
use tensorhold_kvcache::tier::PageSeal;
use zeroize::Zeroizing;

/// One key from Python: of a store, or of a KV tier.
#[derive(FromPyObject)]
pub(crate) enum Secret {
    #[pyo3(transparent)]
    Text(String),
    #[pyo3(transparent)]
    Bytes(Vec<u8>),
}

/// The id of the key that seals, and all keys by their ids.
#[derive(FromPyObject)]
pub(crate) struct Keys(String, Vec<(String, Secret)>);

impl Keys {
    pub(crate) fn keyring(self) -> Result<Keyring> {
        let Self(current, secrets) = self;
        let keys: Result<Vec<StoreKey>> = secrets.into_iter().map(|(id, secret)| secret.key(id)).collect();
        Keyring::new(&key_id(&current)?, keys?)
    }
}

fn key_id(text: &str) -> Result<KeyId> {
    // The given text is not repeated: the caller may have passed the key in place of its id.
    KeyId::new(text)
}

impl Secret {
    /// The seal of a KV tier with this key.
    pub(crate) fn page_seal(self) -> Result<PageSeal> {
        PageSeal::new(self.key("tier".to_owned())?.expose())
    }

    fn key(self, id: String) -> Result<StoreKey> {
        let id = key_id(&id)?;
        match self {
            Self::Bytes(bytes) => StoreKey::from_bytes(id, &Zeroizing::new(bytes)),
            Self::Text(text) => {
                let text = Zeroizing::new(text);
                match text.split_once(':') {
                    Some(("env", variable)) => StoreKey::from_env(id, variable),
                    Some(("file", path)) => StoreKey::from_file(id, path),
                    Some(_) => Err(Error::invalid(
                        "python.key",
                        "a key as text is base64 or hex, or begins with `env:` or `file:`",
                    )
                    .with("key_id", id)),
                    None => StoreKey::from_text(id, &text),
                }
            }
        }
    }
}
