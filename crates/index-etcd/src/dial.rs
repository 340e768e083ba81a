//! Making one connection to one node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, KvClient, LeaseClient, WatchClient};
use holdfast_core::{Error, ErrorKind, Result};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use zeroize::Zeroizing;

use crate::config::EtcdConfig;
use crate::outcome::{Failure, judge};

const OPERATION: &str = "etcd.connect";
/// Answers may be large (a range of many records); requests are bounded by our own limits.
const LARGEST_ANSWER: usize = 256 << 20;
/// How much may be under way before the other side must wait for us: enough for a fast network and large answers.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// A connection to one node. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Link {
    /// Which node of the pool.
    pub(crate) node: usize,
    /// Which connection of that node: no two are the same.
    pub(crate) serial: u64,
    /// Whether its node has shown, since the last trouble, that it follows a leader that lives.
    pub(crate) proven: Arc<AtomicBool>,
    pub(crate) kv: KvClient,
    pub(crate) lease: LeaseClient,
    pub(crate) watch: WatchClient,
}

/// What a connection is made with: read anew for each, so that what was rotated meanwhile is used.
pub(crate) struct Credentials {
    endpoint: Endpoint,
    user: Option<(String, Zeroizing<String>)>,
}

/// Reads them. May wait for a file system.
pub(crate) fn credentials(url: &str, config: &EtcdConfig) -> Result<Credentials> {
    let user = match (&config.user, &config.password) {
        (Some(user), Some(password)) => Some((user.clone(), password.read()?)),
        _ => None,
    };
    let endpoint = endpoint(url, config)?;
    Ok(Credentials { endpoint, user })
}

/// The address of a node and how to speak to it, from the settings.
fn endpoint(url: &str, config: &EtcdConfig) -> Result<Endpoint> {
    let wrong = |error: tonic::transport::Error| {
        let error = Error::invalid(OPERATION, "an endpoint or a certificate is not usable").caused_by(error);
        error.with("endpoint", url)
    };
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(wrong)?
        .connect_timeout(config.connect_timeout)
        .tcp_nodelay(true)
        // Only with streams open: etcd hangs up on clients that probe without ("too many pings").
        .keep_alive_while_idle(false)
        .http2_keep_alive_interval(config.keep_alive)
        .keep_alive_timeout(config.try_timeout.max(Duration::from_secs(1)))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    if !url.starts_with("https://") {
        return Ok(endpoint);
    }
    endpoint.tls_config(tls(config)?).map_err(wrong)
}

fn tls(config: &EtcdConfig) -> Result<ClientTlsConfig> {
    let given = config.tls.clone().unwrap_or_default();
    let mut tls = ClientTlsConfig::new();
    tls = match &given.ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(ca.read()?.as_bytes())),
        None => tls.with_native_roots(),
    };
    if let (Some(certificate), Some(key)) = (&given.certificate, &given.key) {
        tls = tls.identity(Identity::from_pem(
            certificate.read()?.as_bytes(),
            key.read()?.as_bytes(),
        ));
    }
    if let Some(name) = given.server_name {
        tls = tls.domain_name(name);
    }
    Ok(tls)
}

/// Connects to a node and, if there is a user, gets a token. Bounded by the caller.
pub(crate) async fn dial(node: usize, url: &str, config: &Arc<EtcdConfig>) -> Result<Link, Failure> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let reading = {
        let (url, config) = (url.to_owned(), Arc::clone(config));
        tokio::task::spawn_blocking(move || credentials(&url, &config))
    };
    // They could be read when the store was opened. That they cannot be now may be one moment of a rotation.
    let not_now = |cause: Error| {
        let message = "the certificates or the password for etcd cannot be read now";
        let error = Error::new(ErrorKind::Unavailable, OPERATION, message).caused_by(cause);
        Failure::NotDone(error.with("endpoint", url))
    };
    let Credentials { endpoint, user } = reading
        .await
        .map_err(|failure| not_now(Error::internal(OPERATION, "reading them did not end").caused_by(failure)))?
        .map_err(not_now)?;
    let channel = endpoint.connect().await.map_err(|error| {
        let message = "there is no connection to etcd: is it up, and are the address and the certificates right?";
        let error = Error::new(ErrorKind::Unavailable, OPERATION, message).caused_by(error);
        Failure::NotDone(error.with("endpoint", url))
    })?;
    let mut options = ConnectOptions::new()
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some((user, password)) = &user {
        options = options.with_user(user, password.as_str());
    }
    let client = Client::from_channel(Channel::Tonic(channel), Some(options)).await;
    let client = client.map_err(|error| judge(OPERATION, url, error).before_sending())?;
    Ok(Link {
        node,
        serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        proven: Arc::default(),
        kv: client.kv_client().max_decoding_message_size(LARGEST_ANSWER),
        lease: client.lease_client(),
        watch: client.watch_client().max_decoding_message_size(LARGEST_ANSWER),
    })
}
