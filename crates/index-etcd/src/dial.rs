//! Opens one connection to one node.
//!
//! **A connection is made once.** tonic's channel would make a broken one again by itself, and send the next request to
//! whatever listens there now: an etcd that was restored meanwhile, with nothing that shows it before the request is
//! applied. So the channel gets a connector ([`Once`]) that connects once and then fails:
//!
//! ```text
//!   dial ──▶ connected ──breaks──▶ dead: each request fails, unsent, with tonic's ConnectError
//! ```
//!
//! What a connection has shown (which etcd this is, [`crate::history`]) therefore holds for all requests on it. The pool
//! forgets a dead one and dials anew.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, KvClient, LeaseClient, MaintenanceClient, WatchClient};
use hyper_util::client::legacy::connect::HttpConnector;
use tensorhold_core::{Error, ErrorKind, Result};
use tonic::codegen::{Service, StdError, http::Uri};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use zeroize::Zeroizing;

use crate::config::EtcdConfig;
use crate::history::Shown;
use crate::outcome::{Failure, judge};

const OPERATION: &str = "etcd.connect";
/// The largest answer that is accepted. Answers may be large (a range of many records); requests are bounded by our own
/// limits.
const LARGEST_ANSWER: usize = 256 << 20;
/// How many bytes may be in flight before the sender must wait for flow control: enough for a fast network and large
/// answers.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// A connection to one node. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Link {
    /// Which node of the pool.
    pub(crate) node: usize,
    /// The number of this connection: unique, also among connections to the same node.
    pub(crate) serial: u64,
    /// What the node has shown on this connection since the last failure: which etcd it is, and that it follows a live leader.
    pub(crate) shown: Arc<Shown>,
    pub(crate) kv: KvClient,
    pub(crate) lease: LeaseClient,
    pub(crate) watch: WatchClient,
    pub(crate) maintenance: MaintenanceClient,
}

/// The credentials of a connection. They are read anew for each connection, so that rotated ones are used.
pub(crate) struct Credentials {
    endpoint: Endpoint,
    user: Option<(String, Zeroizing<String>)>,
}

/// Reads the credentials. May wait for a file system.
pub(crate) fn credentials(url: &str, config: &EtcdConfig) -> Result<Credentials> {
    let user = match (&config.user, &config.password) {
        (Some(user), Some(password)) => Some((user.clone(), password.read()?)),
        _ => None,
    };
    let endpoint = endpoint(url, config)?;
    Ok(Credentials { endpoint, user })
}

/// The address of a node and its connection options, from the settings.
fn endpoint(url: &str, config: &EtcdConfig) -> Result<Endpoint> {
    let wrong = |error: tonic::transport::Error| {
        let error = Error::invalid(OPERATION, "an endpoint or a certificate cannot be parsed").caused_by(error);
        error.with("endpoint", url)
    };
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(wrong)?
        // Only with streams open: etcd closes connections that are probed without streams ("too many pings").
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

/// Connects the first time that it is asked, and never again.
struct Once(Option<HttpConnector>);

impl Once {
    fn new(config: &EtcdConfig) -> Self {
        let mut connector = HttpConnector::new();
        // TLS comes after it.
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(config.connect_timeout));
        Self(Some(connector))
    }
}

impl Service<Uri> for Once {
    type Response = <HttpConnector as Service<Uri>>::Response;
    type Error = StdError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        match &mut self.0 {
            Some(connector) => connector.poll_ready(cx).map_err(Into::into),
            None => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let connecting = self.0.take().map(|mut connector| connector.call(address));
        Box::pin(async move {
            match connecting {
                Some(connecting) => Ok(connecting.await?),
                None => Err("the connection to etcd was lost".into()),
            }
        })
    }
}

/// Connects to a node and, if a user is set, gets a token. The caller bounds the time.
pub(crate) async fn dial(node: usize, url: &str, config: &Arc<EtcdConfig>) -> Result<Link, Failure> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let client = client(url, config).await?;
    Ok(Link {
        node,
        serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        shown: Arc::new(Shown::nothing()),
        kv: client.kv_client().max_decoding_message_size(LARGEST_ANSWER),
        lease: client.lease_client(),
        watch: client.watch_client().max_decoding_message_size(LARGEST_ANSWER),
        maintenance: client.maintenance_client(),
    })
}

/// A connection to a node, with everything that etcd offers. The caller bounds the time.
pub(crate) async fn client(url: &str, config: &Arc<EtcdConfig>) -> Result<Client, Failure> {
    let reading = {
        let (url, config) = (url.to_owned(), Arc::clone(config));
        tokio::task::spawn_blocking(move || credentials(&url, &config))
    };
    // They were readable when the store was opened. A failure now may be a moment in the middle of a rotation.
    let not_now = |cause: Error| {
        let message = "the certificates or the password for etcd cannot be read now";
        let error = Error::new(ErrorKind::Unavailable, OPERATION, message).caused_by(cause);
        Failure::NotDone(error.with("endpoint", url))
    };
    let Credentials { endpoint, user } = reading
        .await
        .map_err(|failure| {
            not_now(Error::internal(OPERATION, "the reading task panicked or was cancelled").caused_by(failure))
        })?
        .map_err(not_now)?;
    let connected = endpoint.connect_with_connector(Once::new(config)).await;
    let channel = connected.map_err(|error| {
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
    client.map_err(|error| judge(OPERATION, url, error).before_sending())
}
