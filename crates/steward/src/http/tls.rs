//! TLS for the HTTP interface.

use std::path::Path;
use std::sync::Arc;

use tensorhold_core::{Error, Result};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::options::TlsFiles;

fn wrong(path: &Path, why: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid("steward.tls", "a certificate or key cannot be used")
        .with("file", path.display())
        .caused_by(why)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).map_err(|error| wrong(path, error))?;
    let all: Result<Vec<_>, _> = read.collect();
    all.map_err(|error| wrong(path, error))
}

/// What accepts TLS connections.
pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor> {
    let provider = Arc::new(ring::default_provider());
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, error))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&files.certificate, error))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(|error| wrong(path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| wrong(path, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder
        .with_single_cert(certificates(&files.certificate)?, key)
        .map_err(|error| wrong(&files.certificate, error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
