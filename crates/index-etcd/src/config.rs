//! The settings of an [`EtcdStore`](crate::EtcdStore). They are meant for a file, for a person and for a log that anyone may
//! read, so secrets in them have their own types ([`crate::secret`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, Result};

use crate::secret::{Pem, Secret};

const OPERATION: &str = "etcd.config";

/// How to reach etcd, and how patient to be.
///
/// Times are written as `250ms`, `5s` or `2m`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// The nodes' client addresses, `http://host:port` or `https://host:port`. Name all of them: when one node fails,
    /// only the named ones are tried. Default: none, this must be given.
    pub endpoints: Vec<String>,
    /// The first part of all keys, which are `/{root}/…`: one root is one index. Default: `tensorhold`.
    #[serde(default = "default_root")]
    pub root: String,
    /// The user name, if etcd has authentication enabled. Default: none.
    #[serde(default)]
    pub user: Option<String>,
    /// That user's password: the password itself, `env:NAME` or `file:PATH`. Default: none.
    #[serde(default)]
    pub password: Option<Secret>,
    /// Whether a password may go over `http`, where every host on the network path can read it. Default: false.
    #[serde(default)]
    pub allow_plain_password: bool,
    /// Certificates, for endpoints with `https`. Default: none; `https` then trusts the system's root certificates.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// How long to wait for a connection to one node. Default: `1s`.
    #[serde(default = "default_connect_timeout", with = "tensorhold_core::duration")]
    pub connect_timeout: Duration,
    /// How long to wait for one node's answer to a request that may be retried on another node: reads, keep-alives,
    /// watches. It doubles with every round over the nodes, within the caller's deadline. Default: `1s`.
    #[serde(default = "default_try_timeout", with = "tensorhold_core::duration")]
    pub try_timeout: Duration,
    /// How long to wait for the answer to a transaction before its outcome is reported as ambiguous, within the
    /// caller's deadline. Default: `3s`, longer than an election.
    #[serde(default = "default_write_timeout", with = "tensorhold_core::duration")]
    pub write_timeout: Duration,
    /// How often a silent connection is probed. etcd refuses clients that probe more often than every 5 s. Default:
    /// `10s`.
    #[serde(default = "default_keep_alive", with = "tensorhold_core::duration")]
    pub keep_alive: Duration,
    /// How often a silent watch asks its node for a sign of life. If none comes for the same time again, the watch
    /// moves to another node. Default: `5s`.
    #[serde(default = "default_watch_probe", with = "tensorhold_core::duration")]
    pub watch_probe: Duration,
    /// How long a watch that lost its node looks for another one before it ends with an error. Default: `30s`.
    #[serde(default = "default_watch_patience", with = "tensorhold_core::duration")]
    pub watch_patience: Duration,
    /// Whether to begin with a random endpoint instead of the first one, so that many processes spread over the nodes.
    /// Default: true.
    #[serde(default = "default_spread")]
    pub spread: bool,
}

fn default_root() -> String {
    "tensorhold".to_owned()
}

const fn default_connect_timeout() -> Duration {
    Duration::from_secs(1)
}

const fn default_try_timeout() -> Duration {
    Duration::from_secs(1)
}

const fn default_write_timeout() -> Duration {
    Duration::from_secs(3)
}

const fn default_keep_alive() -> Duration {
    Duration::from_secs(10)
}

const fn default_watch_probe() -> Duration {
    Duration::from_secs(5)
}

const fn default_watch_patience() -> Duration {
    Duration::from_secs(30)
}

const fn default_spread() -> bool {
    true
}

/// Which certificates are trusted, and our own certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The CA certificates that must have signed etcd's certificate. Default: the system's root certificates.
    #[serde(default)]
    pub ca: Option<Pem>,
    /// Our client certificate, if etcd requires one. Default: none.
    #[serde(default)]
    pub certificate: Option<Pem>,
    /// The private key of our certificate. Default: none.
    #[serde(default)]
    pub key: Option<Pem>,
    /// The name that etcd's certificate must carry. Default: the host of the endpoint.
    #[serde(default)]
    pub server_name: Option<String>,
}

impl EtcdConfig {
    /// The default settings for these endpoints.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            root: default_root(),
            user: None,
            password: None,
            allow_plain_password: false,
            tls: None,
            connect_timeout: default_connect_timeout(),
            try_timeout: default_try_timeout(),
            write_timeout: default_write_timeout(),
            keep_alive: default_keep_alive(),
            watch_probe: default_watch_probe(),
            watch_patience: default_watch_patience(),
            spread: default_spread(),
        }
    }

    /// Sets a secret that does not travel with the settings: `password`, `tls.ca`, `tls.certificate` or `tls.key`.
    pub fn set_secret(&mut self, name: &str, text: String) -> Result<()> {
        let pem = |tls: &mut Option<TlsConfig>, field: fn(&mut TlsConfig) -> &mut Option<Pem>, text: String| {
            *field(tls.get_or_insert_default()) = Some(Pem::new(text));
        };
        match name {
            "password" => self.password = Some(Secret::literal(text)),
            "tls.ca" => pem(&mut self.tls, |tls| &mut tls.ca, text),
            "tls.certificate" => pem(&mut self.tls, |tls| &mut tls.certificate, text),
            "tls.key" => pem(&mut self.tls, |tls| &mut tls.key, text),
            _ => {
                return Err(Error::invalid(
                    OPERATION,
                    "there is no secret of this name; use password, tls.ca, tls.certificate or tls.key",
                )
                .with("name", name));
            }
        }
        Ok(())
    }

    /// The certificates of the settings, as they are now: what each is for, where it is, and its text. May wait for a file
    /// system.
    pub fn certificates(&self) -> Vec<(&'static str, String, Result<String>)> {
        let tls = self.tls.as_ref();
        let given = [
            ("etcd_ca", tls.and_then(|tls| tls.ca.as_ref())),
            ("etcd_client", tls.and_then(|tls| tls.certificate.as_ref())),
        ];
        let read = |(what, pem): (&'static str, Option<&Pem>)| {
            let pem = pem?;
            // A certificate is no secret.
            Some((what, format!("{pem:?}"), pem.read().map(|text| text.to_string())))
        };
        given.into_iter().filter_map(read).collect()
    }

    /// Checks the settings and reports the first problem found.
    pub fn check(&self) -> Result<()> {
        let wrong = |message: &str| Err(Error::invalid(OPERATION, message));
        if self.endpoints.is_empty() {
            return wrong("no endpoint of etcd is given; set endpoints to the client addresses of its nodes");
        }
        for endpoint in &self.endpoints {
            let https = endpoint.starts_with("https://");
            // This check comes first, because the errors below print the endpoint, which must not show a password.
            if endpoint.contains('@') {
                return wrong("an endpoint must not have a user or password in it; use the settings user and password");
            }
            if !https && !endpoint.starts_with("http://") {
                return Err(
                    Error::invalid(OPERATION, "an endpoint begins with http:// or https://").with("endpoint", endpoint)
                );
            }
            if !https && self.tls.is_some() {
                return Err(Error::invalid(
                    OPERATION,
                    "certificates are given, but an endpoint is not https; use https or drop tls",
                )
                .with("endpoint", endpoint));
            }
        }
        let plain_endpoint = self.endpoints.iter().find(|endpoint| endpoint.starts_with("http://"));
        if let Some(endpoint) = plain_endpoint
            && self.password.is_some()
            && !self.allow_plain_password
        {
            return Err(Error::invalid(
                OPERATION,
                "a password would go over http, where every host on the network path can read it; \
                 use https endpoints, or set allow_plain_password",
            )
            .with("endpoint", endpoint));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
        if self.root.is_empty() || !self.root.chars().all(plain) || self.root.split('/').any(str::is_empty) {
            return Err(Error::invalid(
                OPERATION,
                "the root may hold only letters, digits, '.', '_', '-', and single '/' between them",
            )
            .with("root", self.root.escape_debug()));
        }
        if self.user.is_some() != self.password.is_some() {
            return wrong("only one of user and password is set; set both or neither");
        }
        if let Some(tls) = &self.tls
            && tls.certificate.is_some() != tls.key.is_some()
        {
            return wrong("only one of tls.certificate and tls.key is set; set both or neither");
        }
        let times = [
            self.connect_timeout,
            self.try_timeout,
            self.write_timeout,
            self.keep_alive,
            self.watch_probe,
            self.watch_patience,
        ];
        if times.iter().any(Duration::is_zero) {
            return wrong("a timeout or an interval is zero; all of them must be positive");
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
