//! TLS for the HTTP interface.
//!
//! The files are read again for new connections, at most once in [`REST`]: certificates that were renewed are used without a
//! restart. Files that cannot be used, such as the halves of a renewal under way, change nothing: what was read before goes on
//! being used, and the next connection after the rest tries again.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Error, Result};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use zeroize::Zeroizing;

use crate::options::TlsFiles;

/// The files are not read more often than this.
const REST: Duration = Duration::from_secs(1);

/// What accepts TLS connections, with the certificates that the files hold now.
pub(super) struct Tls {
    files: TlsFiles,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    texts: Texts,
    read: Instant,
}

/// What the files hold.
#[derive(PartialEq, Eq)]
struct Texts {
    certificate: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
    client_ca: Option<Vec<u8>>,
}

impl Tls {
    /// Fails if the files cannot be used.
    pub(super) fn new(files: &TlsFiles) -> Result<Self> {
        let texts = Texts::read(files)?;
        let current = Current {
            acceptor: acceptor(files, &texts)?,
            texts,
            read: Instant::now(),
        };
        Ok(Self {
            files: files.clone(),
            current: Mutex::new(current),
        })
    }

    /// For a new connection.
    pub(super) async fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().await;
        if current.read.elapsed() < REST {
            return current.acceptor.clone();
        }
        current.read = Instant::now();
        let files = self.files.clone();
        // They may lie on a file system that is slow.
        let reading = tokio::task::spawn_blocking(move || {
            let texts = Texts::read(&files)?;
            let acceptor = acceptor(&files, &texts)?;
            Ok::<_, Error>((acceptor, texts))
        });
        match reading.await {
            Ok(Ok((acceptor, texts))) if texts != current.texts => {
                tracing::info!(certificate = %self.files.certificate.display(), "using another certificate from now on");
                (current.acceptor, current.texts) = (acceptor, texts);
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the files of TLS cannot be used now; going on with those before"),
            Err(failure) => tracing::warn!(%failure, "the files of TLS were not read; going on with those before"),
        }
        current.acceptor.clone()
    }
}

impl Texts {
    fn read(files: &TlsFiles) -> Result<Self> {
        let read = |path: &Path| std::fs::read(path).map_err(|error| wrong(path, error));
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: Zeroizing::new(read(&files.key)?),
            client_ca: files.client_ca.as_deref().map(read).transpose()?,
        })
    }
}

fn wrong(path: &Path, why: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid("steward.tls", "a certificate or key cannot be used")
        .with("file", path.display())
        .caused_by(why)
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    all.map_err(|error| wrong(path, error))
}

fn acceptor(files: &TlsFiles, texts: &Texts) -> Result<TlsAcceptor> {
    let provider = Arc::new(ring::default_provider());
    let key = PrivateKeyDer::from_pem_slice(&texts.key).map_err(|error| wrong(&files.key, error))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&files.certificate, error))?;
    let builder = match files.client_ca.as_deref().zip(texts.client_ca.as_deref()) {
        None => builder.with_no_client_auth(),
        Some((path, text)) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path, text)? {
                roots.add(authority).map_err(|error| wrong(path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| wrong(path, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder
        .with_single_cert(certificates(&files.certificate, &texts.certificate)?, key)
        .map_err(|error| wrong(&files.certificate, error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
