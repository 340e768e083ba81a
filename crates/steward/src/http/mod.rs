//! The HTTP interface: health, metrics, and an admin interface under `/v1` (described at `/v1/openapi.json`).
//!
//! | path | who may | what |
//! |---|---|---|
//! | `/` | everybody | the page; it has no data of its own |
//! | `/v1/overview`, `/v1/events` | any token | what the page shows, of the stores that the token is for |
//! | `/healthz` | everybody | the steward runs |
//! | `/readyz` | everybody; names and errors for a token for all stores | its stores are open; one that was only found may fail |
//! | `/metrics` | a token for all stores | Prometheus text |
//! | `/v1/…` | a token for that store | see [`openapi`] |
//!
//! Without tokens in the settings, everybody on this machine may do everything; then the interface listens on loopback
//! only, and refuses requests that a web page of another site makes in a browser (a foreign `Host`, an `Origin`, or a
//! `Sec-Fetch-Site` that is not ours).
//!
//! # Bounds
//! So many connections and requests at a time; when there are as many connections, a further one takes the place of the oldest
//! that has not asked for anything yet, so those who connect and say nothing keep nobody out. A request has a time in which its head must have arrived, a time in which it
//! must be answered, and a bounded body. A connection is closed after its current request when it has lasted for as long as
//! a request may take, and cut off after three times that: a peer that does not read its answer holds it no longer. The log of requests has method, path, status, time and the name of the token,
//! and neither queries nor headers.

mod answer;
mod api;
pub mod auth;
mod budget;
mod dead;
mod given;
pub mod openapi;
mod page;
mod people;
mod quarantine;
mod records;
pub mod reference;
mod tls;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::{Request, State as Given};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Router, middleware};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tensorhold_core::{Error, ErrorKind, Result, StoreId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::answer::Refused;
use self::auth::{Asked, Refusal, admit, known};
use self::tls::Tls;
use crate::options::HttpOptions;
use crate::overview::Audience;
use crate::report::now_ms;
use crate::state::State;

/// The time in which the head of a request, and a TLS handshake, must be complete.
const HEAD: Duration = Duration::from_secs(10);
/// The largest body of a request.
const MOST_BODY: usize = 64 << 10;

/// What the handlers and the guard share.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) state: Arc<State>,
    options: Arc<HttpOptions>,
    turns: Arc<Semaphore>,
    /// Places for streams of events.
    streams: Arc<Semaphore>,
}

impl Served {
    /// How long what a request does may take: a little less than the request, so that the answer says what was late.
    fn for_calls(&self) -> Duration {
        self.options.within / 10 * 9
    }
}

/// The server, bound to its address.
pub(crate) struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
    router: Router,
    most: usize,
    /// How long a request may take.
    within: Duration,
}

impl Server {
    pub(crate) async fn bind(options: &HttpOptions, state: Arc<State>) -> Result<Self> {
        let failed = |error: std::io::Error| {
            Error::new(
                ErrorKind::Unavailable,
                "steward.listen",
                "cannot listen there: is the port taken?",
            )
            .with("listen", options.listen)
            .caused_by(error)
        };
        let tls = match &options.tls {
            Some(files) => Some(Arc::new(Tls::new(files)?)),
            None => None,
        };
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let served = Served {
            state,
            options: Arc::new(options.clone()),
            turns: Arc::new(Semaphore::new(options.most)),
            streams: Arc::new(Semaphore::new(options.most.div_ceil(2))),
        };
        tracing::info!(%address, tls = tls.is_some(), tokens = options.tokens.len(), "listening");
        Ok(Self {
            listener,
            address,
            tls,
            router: router(served),
            most: options.most,
            within: options.within,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is told to stop. Requests that are under way then are broken off.
    pub(crate) async fn serve(self, stop: CancellationToken) {
        let mut connections = Vec::with_capacity(self.most);
        let mut tasks = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                Some(_) = tasks.join_next() => continue,
                accepted = self.listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                // Out of file descriptors, or a client that left at once.
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            if !has_room(&mut connections, self.most) {
                tracing::debug!("too many connections; one is refused");
                continue;
            }
            let (tls, router, within) = (self.tls.clone(), self.router.clone(), self.within);
            let has_asked = Arc::new(AtomicBool::new(false));
            let task = serve_connection(stream, tls, router, within, Arc::clone(&has_asked));
            let task = tasks.spawn(task);
            connections.push(Connection { task, has_asked });
        }
    }
}

/// A connection that was accepted.
struct Connection {
    task: AbortHandle,
    /// Whether a request has come over it.
    has_asked: Arc<AtomicBool>,
}

/// Whether there is room for another connection, at the cost of the oldest that has not asked for anything. The oldest
/// comes first.
fn has_room(connections: &mut Vec<Connection>, most: usize) -> bool {
    connections.retain(|connection| !connection.task.is_finished());
    if connections.len() < most {
        return true;
    }
    let has_asked = |connection: &Connection| connection.has_asked.load(Ordering::Acquire);
    let Some(silent) = connections.iter().position(|connection| !has_asked(connection)) else {
        return false;
    };
    connections.remove(silent).task.abort();
    true
}

async fn serve_connection(
    stream: TcpStream,
    tls: Option<Arc<Tls>>,
    router: Router,
    within: Duration,
    has_asked: Arc<AtomicBool>,
) {
    let Some(tls) = tls else {
        return speak(stream, router, within, has_asked).await;
    };
    let shake = async { tls.acceptor().await.accept(stream).await };
    match tokio::time::timeout(HEAD, shake).await {
        Ok(Ok(stream)) => speak(stream, router, within, has_asked).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    within: Duration,
    has_asked: Arc<AtomicBool>,
) {
    let router = TowerToHyperService::new(router);
    let answer = service_fn(move |request| {
        has_asked.store(true, Ordering::Release);
        router.call(request)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = std::pin::pin!(connection);
    let ended = match tokio::time::timeout(within, &mut connection).await {
        Ok(ended) => Ok(ended),
        Err(_) => {
            // The request that is under way is answered, and no other.
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(2 * within, connection).await
        }
    };
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection broke"),
        Err(_) => tracing::debug!("a connection lasted too long; its peer does not read"),
    }
}

/// All paths.
pub(crate) fn router(served: Served) -> Router {
    api::routes()
        .layer(axum::extract::DefaultBodyLimit::max(MOST_BODY))
        .layer(middleware::from_fn_with_state(served.clone(), guard))
        .with_state(served)
}

/// The token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The store that a path is about.
fn store_of(path: &str) -> Option<String> {
    let rest = path.strip_prefix("/v1/stores/")?;
    let segment = rest.split('/').next()?;
    Some(answer::decode(segment))
}

/// Whether a page of another site may be behind a request.
fn is_foreign(headers: &HeaderMap, path: &str) -> bool {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or("");
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|byte| byte.is_ascii_digit()) {
            name
        } else {
            host
        }
    });
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let is_local = name == "localhost" || address.is_ok_and(|address| address.is_loopback());
    // A browser says so of requests that have no `Origin`. The page itself may be reached by a link from anywhere.
    let site = headers.get("sec-fetch-site").map(axum::http::HeaderValue::as_bytes);
    let is_of_others = site.is_some_and(|site| !matches!(site, b"same-origin" | b"none")) && !page::is_file(path);
    !is_local || is_of_others || headers.contains_key(header::ORIGIN)
}

/// Lets a request in, bounds its time, and logs it.
async fn guard(Given(served): Given<Served>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (name, response) = match enter(&served, request.headers(), &method, &path) {
        Err(refused) => (String::new(), refused.into_response()),
        Ok(name) => {
            request.extensions_mut().insert(given::By(name.clone()));
            let response = match served.turns.try_acquire() {
                Err(_) => Refused::busy().into_response(),
                Ok(_turn) => match tokio::time::timeout(served.options.within, next.run(request)).await {
                    Ok(response) => response,
                    Err(_) => Refused::new(
                        StatusCode::GATEWAY_TIMEOUT,
                        "it took too long",
                        "what was begun may still be done; ask for the status",
                    )
                    .into_response(),
                },
            };
            (name, response)
        }
    };
    let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let status = response.status().as_u16();
    let path: String = path.chars().filter(|one| !one.is_control()).take(256).collect();
    tracing::info!(%method, path, status, took_ms, token = name, "request");
    response
}

fn enter(served: &Served, headers: &HeaderMap, method: &Method, path: &str) -> Result<String, Refused> {
    if matches!(path, "/healthz" | "/readyz" | "/v1/openapi.json") {
        return Ok(String::new());
    }
    // It has no data, and asks for a token.
    if page::is_file(path) && !served.options.tokens.is_empty() {
        return Ok(String::new());
    }
    admitted(served, headers, method, path)
}

/// The stores that a request may see.
fn audience(served: &Served, headers: &HeaderMap) -> Result<Audience, Refused> {
    let tokens = &served.options.tokens;
    if tokens.is_empty() {
        return Ok(None);
    }
    let entry = known(tokens, bearer(headers), now_ms() / 1000).map_err(refused)?;
    let name = |store: &StoreId| store.as_str().to_owned();
    Ok(entry.stores.as_ref().map(|stores| stores.iter().map(name).collect()))
}

/// The name of the token that lets a request in, or why none does.
fn admitted(served: &Served, headers: &HeaderMap, method: &Method, path: &str) -> Result<String, Refused> {
    let tokens = &served.options.tokens;
    if tokens.is_empty() {
        if is_foreign(headers, path) {
            let why = "this address is for programs on this machine, and not for web pages";
            return Err(Refused::new(
                StatusCode::FORBIDDEN,
                why,
                "set tokens to use it from a browser",
            ));
        }
        return Ok(String::new());
    }
    if page::is_for_any_store(path) {
        let known = known(tokens, bearer(headers), now_ms() / 1000);
        return known.map(|entry| entry.name.clone()).map_err(refused);
    }
    let store = store_of(path);
    let asked = Asked {
        store: store.as_deref(),
        write: *method != Method::GET && *method != Method::HEAD,
    };
    let admitted = admit(tokens, bearer(headers), asked, now_ms() / 1000);
    admitted.map(str::to_owned).map_err(refused)
}

fn refused(refusal: Refusal) -> Refused {
    match refusal {
        Refusal::Unknown => Refused::new(
            StatusCode::UNAUTHORIZED,
            "no token, or one that is not known",
            "send one as `Authorization: Bearer …`",
        ),
        Refusal::Expired => Refused::new(StatusCode::UNAUTHORIZED, "the token has expired", "ask for a new one"),
        Refusal::OtherStore => Refused::new(
            StatusCode::FORBIDDEN,
            "the token is for other stores",
            "use one for this store",
        ),
        Refusal::LookOnly => Refused::new(
            StatusCode::FORBIDDEN,
            "the token is for looking only",
            "use one that may change something",
        ),
    }
}
