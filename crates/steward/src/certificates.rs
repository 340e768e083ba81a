//! When certificates end: those that this steward uses, and those that it is shown.
//!
//! | what | where it is read |
//! |---|---|
//! | `etcd_client`, `etcd_ca` | the files or variables of the settings, as at each new connection to etcd |
//! | `etcd_server` | a TLS handshake with each node, which is broken off before anything is sent |
//! | `steward_server`, `steward_client_ca` | the files of the settings |
//!
//! Of several certificates in a file, or in a chain, the one counts that ends first. A node's certificate is not verified
//! here: one that has ended is shown, too. The connections that are used verify it.
//!
//! The certificates that etcd's nodes show each other are not shown to clients. `deploy/` signs them on the same day.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tensorhold_core::{Error, ErrorKind, Result};
use tensorhold_index_etcd::EtcdConfig;
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme};
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::state::State;

const OPERATION: &str = "steward.certificates";
/// The looks at stores for each look at certificates, which change once a year.
const LOOKS: u32 = 4;
/// How long a handshake may take.
const WITHIN: Duration = Duration::from_secs(5);

/// A certificate, or several of which this one ends first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CertificateReport {
    /// What it is for: see the module.
    pub what: &'static str,
    /// Where it was seen: a file, a variable, or a node.
    pub at: String,
    /// When it ends, in seconds since 1970; none if it cannot be read now.
    pub ends: Option<i64>,
}

/// Looks at the certificates until it is told to stop.
pub(crate) async fn watch(state: Arc<State>, stop: CancellationToken) {
    let mut looks = interval_at(Instant::now(), LOOKS * state.options.look_every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = looks.tick() => {}
        }
        let seen = tokio::select! {
            () = stop.cancelled() => return,
            seen = look(&state) => seen,
        };
        state.note_certificates(seen);
    }
}

async fn look(state: &State) -> Vec<CertificateReport> {
    let mut seen = BTreeMap::new();
    let mut saw = |what, at: String, ends: Result<i64>| {
        if let Err(error) = &ends {
            tracing::warn!(what, %at, %error, "it is not known when a certificate ends");
        }
        seen.insert((what, at), ends.ok());
    };
    let (tls, etcd) = (
        state.options.http.as_ref().and_then(|http| http.tls.clone()),
        state.options.etcd.as_ref(),
    );
    let reach = etcd.map(|etcd| etcd.reach.clone());
    // They may lie on a file system that is slow.
    let own = tokio::task::spawn_blocking(move || {
        let of_steward = tls.into_iter().flat_map(|tls| {
            let files = [
                ("steward_server", Some(tls.certificate)),
                ("steward_client_ca", tls.client_ca),
            ];
            files.into_iter().filter_map(|(what, path)| Some((what, path?)))
        });
        let mut read: Vec<(&'static str, String, Result<i64>)> = Vec::new();
        for (what, path) in of_steward {
            let text = std::fs::read(&path).map_err(|error| unreadable().caused_by(error));
            read.push((
                what,
                path.display().to_string(),
                text.and_then(|text| first_end_of_pem(&text)),
            ));
        }
        for (what, at, text) in reach.iter().flat_map(EtcdConfig::certificates) {
            read.push((what, at, text.and_then(|text| first_end_of_pem(text.as_bytes()))));
        }
        read
    });
    match own.await {
        Ok(own) => own.into_iter().for_each(|(what, at, ends)| saw(what, at, ends)),
        Err(failure) => tracing::warn!(%failure, "the certificates of this steward were not read"),
    }
    if let Some(etcd) = etcd {
        for endpoint in etcd
            .reach
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.starts_with("https://"))
        {
            let shown = match tokio::time::timeout(WITHIN, shown_by(endpoint, &etcd.reach)).await {
                Ok(shown) => shown,
                Err(_) => Err(Error::new(
                    ErrorKind::Unavailable,
                    OPERATION,
                    "the node did not answer in time",
                )),
            };
            saw("etcd_server", endpoint.clone(), shown);
        }
    }
    let report = |((what, at), ends)| CertificateReport { what, at, ends };
    seen.into_iter().map(report).collect()
}

fn unreadable() -> Error {
    Error::invalid(OPERATION, "a certificate cannot be read")
}

fn first_end_of_pem(text: &[u8]) -> Result<i64> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    first_end(&read.map_err(|error| unreadable().caused_by(error))?)
}

/// When the first of these ends.
fn first_end(chain: &[CertificateDer<'_>]) -> Result<i64> {
    let mut first = None;
    for certificate in chain {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| unreadable().caused_by(error))?;
        let ends = parsed.validity().not_after.timestamp();
        first = Some(first.unwrap_or(ends).min(ends));
    }
    first.ok_or_else(|| Error::invalid(OPERATION, "there is no certificate in it"))
}

/// When what a node shows ends.
async fn shown_by(endpoint: &str, config: &EtcdConfig) -> Result<i64> {
    let wrong = |message: &str| Error::invalid(OPERATION, message.to_owned());
    let address = endpoint.trim_start_matches("https://").trim_end_matches('/');
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = config
        .tls
        .as_ref()
        .and_then(|tls| tls.server_name.as_deref())
        .unwrap_or(host);
    let name = ServerName::try_from(name.to_owned()).map_err(|error| wrong("no name of a host").caused_by(error))?;
    let shown = Arc::new(Shown {
        provider: Arc::new(ring::default_provider()),
        ends: Mutex::default(),
    });
    let tls = ClientConfig::builder_with_provider(Arc::clone(&shown.provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong("no TLS").caused_by(error))?
        .dangerous()
        .with_custom_certificate_verifier(shown.clone())
        .with_no_client_auth();
    let silent = |error| {
        let message = "the node cannot be reached";
        Error::new(ErrorKind::Unavailable, OPERATION, message).caused_by(error)
    };
    let stream = TcpStream::connect(address).await.map_err(silent)?;
    // A node that asks for a certificate of ours ends the handshake, after it has shown its own.
    let shaken = TlsConnector::from(Arc::new(tls)).connect(name, stream).await;
    let ends = shown.ends.lock().take();
    match (ends, shaken) {
        (Some(ends), _) => ends,
        (None, Err(error)) => Err(silent(error)),
        (None, Ok(_)) => Err(wrong("the node has shown no certificate")),
    }
}

/// Notes what a server shows, and breaks the handshake off.
#[derive(Debug)]
struct Shown {
    provider: Arc<CryptoProvider>,
    ends: Mutex<Option<Result<i64>>>,
}

impl ServerCertVerifier for Shown {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let chain: Vec<_> = std::iter::once(end_entity).chain(intermediates).cloned().collect();
        *self.ends.lock() = Some(first_end(&chain));
        Err(TlsError::General("it was only to be shown".to_owned()))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(TlsError::General("it was only to be shown".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(TlsError::General("it was only to be shown".to_owned()))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
