//! The HTTP interface with TLS: whose certificates are accepted, and that a slow peer is cut off.
#![allow(clippy::disallowed_methods, reason = "inside the macro `json`")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tensorhold_steward::http::auth::{TokenEntry, fingerprint};
use tensorhold_steward::{HttpOptions, Options, Steward, TlsFiles};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The time in which the head of a request, its body and a TLS handshake must have arrived.
const HEAD: Duration = Duration::from_secs(10);

/// An authority that signs certificates.
struct Authority {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
struct Signed {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        Self {
            certificate: params.self_signed(&key).expect("a certificate"),
            issuer: Issuer::new(params, key),
        }
    }

    fn sign(&self, usage: ExtendedKeyUsagePurpose, change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("names");
        params.extended_key_usages.push(usage);
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Signed { certificate, key }
    }
}

fn write(folder: &Path, name: &str, text: String) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    path
}

fn files(folder: &Path, server: &Signed, clients: Option<&Authority>) -> TlsFiles {
    TlsFiles {
        certificate: write(folder, "server.pem", server.certificate.pem()),
        key: write(folder, "server.key", server.key.serialize_pem()),
        client_ca: clients.map(|clients| write(folder, "clients.pem", clients.certificate.pem())),
    }
}

fn token() -> TokenEntry {
    TokenEntry {
        name: "anna".to_owned(),
        sha256: fingerprint("sesame"),
        stores: None,
        write: true,
        expires: None,
    }
}

async fn start(tls: Option<TlsFiles>, within: Duration) -> (Steward, SocketAddr) {
    let mut options = Options::new([store("run")]);
    options.http = Some(HttpOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        tokens: vec![token()],
        tls,
        within,
        most: 16,
    });
    let steward = Steward::start(options, World::in_memory()).await.expect("a steward");
    let address = steward.address().expect("it listens");
    until("its store is open", || steward.report().stores["run"].open).await;
    (steward, address)
}

/// What a client with this certificate is answered; empty if it is not let in. With TLS 1.3 a client learns that only when
/// it reads.
async fn answer(address: SocketAddr, server: &Authority, client: Option<&Signed>, token: &str) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(server.certificate.der().clone()).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some(signed) => {
            let chain: Vec<CertificateDer<'static>> = vec![signed.certificate.der().clone()];
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signed.key.serialize_der()));
            config.with_client_auth_cert(chain, key).expect("a certificate")
        }
    };
    let stream = TcpStream::connect(address).await.expect("a connection");
    let name = ServerName::try_from("localhost").expect("a name");
    let Ok(mut stream) = TlsConnector::from(Arc::new(config)).connect(name, stream).await else {
        return String::new();
    };
    let request = format!(
        "GET /v1/stores HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    let mut answer = String::new();
    // A server that closes without saying so is no error here.
    drop(stream.write_all(request.as_bytes()).await);
    drop(stream.read_to_string(&mut answer).await);
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_clients_of_the_authority_are_let_in() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let (servers, clients, others) = (
        Authority::new("servers"),
        Authority::new("clients"),
        Authority::new("others"),
    );
    let folder = tempfile::tempdir().expect("a folder");
    let tls = files(folder.path(), &servers.sign(ServerAuth, |_| {}), Some(&clients));
    let (steward, address) = start(Some(tls), WITHIN).await;
    let right = clients.sign(ClientAuth, |_| {});
    let let_in = answer(address, &servers, Some(&right), "sesame").await;
    assert!(let_in.starts_with("HTTP/1.1 200") && let_in.contains("run"), "{let_in}");
    let without_token = answer(address, &servers, Some(&right), "guess").await;
    assert!(
        without_token.starts_with("HTTP/1.1 401"),
        "a token is asked for all the same: {without_token}"
    );
    let expired = clients.sign(ClientAuth, |params| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    });
    let early = clients.sign(ClientAuth, |params| {
        params.not_before = rcgen::date_time_ymd(2400, 1, 1)
    });
    let of_another = others.sign(ClientAuth, |_| {});
    let of_a_server = clients.sign(ServerAuth, |_| {});
    for (client, what) in [
        (None, "no certificate"),
        (Some(&of_another), "one of another authority"),
        (Some(&expired), "one that has expired"),
        (Some(&early), "one that is not valid yet"),
        (Some(&of_a_server), "one for servers"),
    ] {
        let got = answer(address, &servers, client, "sesame").await;
        assert_eq!(got, "", "with {what}");
    }
    assert_eq!(
        answer(address, &others, Some(&right), "sesame").await,
        "",
        "nobody vouches for the server"
    );
    // A peer that speaks plain HTTP is told nothing, and holds no place.
    for _ in 0..40 {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let sent = stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await;
        let mut got = Vec::new();
        drop((sent, stream.read_to_end(&mut got).await));
        assert!(!got.starts_with(b"HTTP"), "{:?}", String::from_utf8_lossy(&got));
    }
    let let_in = answer(address, &servers, Some(&right), "sesame").await;
    assert!(let_in.starts_with("HTTP/1.1 200"), "{let_in}");
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_cannot_be_used_are_refused_at_the_start() {
    let authority = Authority::new("servers");
    let server = authority.sign(ExtendedKeyUsagePurpose::ServerAuth, |_| {});
    let folder = tempfile::tempdir().expect("a folder");
    let good = files(folder.path(), &server, Some(&authority));
    let other_key = write(
        folder.path(),
        "other.key",
        KeyPair::generate().expect("a key").serialize_pem(),
    );
    let empty = write(folder.path(), "empty.pem", String::new());
    let absent = folder.path().join("absent.pem");
    let with = |change: fn(&mut TlsFiles, &Path), path: &Path| {
        let mut files = good.clone();
        change(&mut files, path);
        files
    };
    for files in [
        with(|files, path| files.key = path.into(), &other_key),
        with(|files, path| files.key = path.into(), &empty),
        with(|files, path| files.certificate = path.into(), &absent),
        with(|files, path| files.certificate = path.into(), &empty),
        with(|files, path| files.client_ca = Some(path.into()), &empty),
        with(|files, path| files.client_ca = Some(path.into()), &absent),
    ] {
        let mut options = Options::new([store("run")]);
        options.http = Some(HttpOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tokens: vec![token()],
            tls: Some(files.clone()),
            within: WITHIN,
            most: 16,
        });
        let error = Steward::start(options, World::in_memory()).await.expect_err("refused");
        assert_eq!(error.operation(), "steward.tls", "{files:?}: {error}");
        assert!(error.fact("file").is_some(), "it says which file: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_machines_need_tokens_and_tls() {
    let authority = Authority::new("servers");
    let folder = tempfile::tempdir().expect("a folder");
    let tls = files(
        folder.path(),
        &authority.sign(ExtendedKeyUsagePurpose::ServerAuth, |_| {}),
        None,
    );
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        for (tokens, tls) in [
            (Vec::new(), None),
            (vec![token()], None),
            (Vec::new(), Some(tls.clone())),
        ] {
            let mut options = Options::new([store("run")]);
            options.http = Some(HttpOptions {
                listen: listen.parse().expect("an address"),
                tokens,
                tls,
                within: WITHIN,
                most: 16,
            });
            let error = Steward::start(options, World::in_memory()).await.expect_err("refused");
            assert_eq!(error.fact("setting"), Some("http.listen"), "{listen}: {error}");
        }
    }
    // With both it listens.
    let mut options = Options::new([store("run")]);
    options.http = Some(HttpOptions {
        listen: "0.0.0.0:0".parse().expect("an address"),
        tokens: vec![token()],
        tls: Some(tls),
        within: WITHIN,
        most: 16,
    });
    let steward = Steward::start(options, World::in_memory()).await.expect("a steward");
    steward.stop(WITHIN).await.expect("stopped");
}

/// Sends the beginning, then a byte every half second, until the other side closes or the time is over. Returns what was
/// answered.
async fn trickle(address: SocketAddr, begin: &str) -> (String, Duration) {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(begin.as_bytes()).await.expect("sent");
    let (mut read, mut write) = stream.split();
    let mut got = Vec::new();
    let all = async {
        tokio::select! {
            _ = read.read_to_end(&mut got) => {}
            () = async {
                loop {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    if write.write_all(b"x").await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            } => {}
        }
    };
    let ended = tokio::time::timeout(HEAD * 2, all).await;
    let took = begun.elapsed();
    assert!(ended.is_ok(), "it still held its place after {took:?}: {begin:?}");
    (String::from_utf8_lossy(&got).into_owned(), took)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_peer_is_cut_off() {
    let authority = Authority::new("servers");
    let folder = tempfile::tempdir().expect("a folder");
    let tls = files(
        folder.path(),
        &authority.sign(ExtendedKeyUsagePurpose::ServerAuth, |_| {}),
        None,
    );
    let ((plain, address), (secured, its_address)) = tokio::join!(start(None, WITHIN), start(Some(tls), WITHIN));
    let head = "GET /v1/stores HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sesame\r\nx-slow: ";
    let body = "PUT /v1/stores/run/budget HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sesame\r\n\
                content-type: application/json\r\ncontent-length: 1000\r\n\r\n{";
    // Who has no token does not get as far as its body.
    let refused = body.replace("sesame", "guess");
    let (head, body, refused, handshake) = tokio::join!(
        trickle(address, head),
        trickle(address, body),
        trickle(address, &refused),
        // The head of a record of 256 bytes, with a greeting of which never more than a part arrives.
        trickle(its_address, "\u{16}\u{3}\u{1}\u{1}\u{0}\u{1}\u{0}\u{0}"),
    );
    for (what, (_, took)) in [("a head", &head), ("a body", &body), ("a handshake", &handshake)] {
        let expected = HEAD - Duration::from_secs(1)..HEAD + Duration::from_secs(5);
        assert!(expected.contains(took), "{what} was cut off after {took:?}");
    }
    assert!(body.0.starts_with("HTTP/1.1 408"), "{}", body.0);
    assert!(refused.0.starts_with("HTTP/1.1 401"), "{}", refused.0);
    plain.stop(WITHIN).await.expect("stopped");
    secured.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_heads_and_bodies_are_refused() {
    let (steward, address) = start(None, WITHIN).await;
    let said = |request: String| async move {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        // It may answer and close before it has read everything.
        drop(stream.write_all(request.as_bytes()).await);
        let mut got = Vec::new();
        drop(stream.read_to_end(&mut got).await);
        String::from_utf8_lossy(&got).into_owned()
    };
    let line = |path: &str, more: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sesame\r\n{more}connection: close\r\n\r\n"
        )
    };
    assert!(said(line("/v1/stores", "")).await.starts_with("HTTP/1.1 200"));
    let long_path = said(line(&format!("/{}", "x".repeat(70_000)), "")).await;
    assert!(long_path.starts_with("HTTP/1.1 414"), "{long_path}");
    let many = (0..200).map(|n| format!("x-{n}: y\r\n")).collect::<String>();
    let many = said(line("/v1/stores", &many)).await;
    assert!(many.starts_with("HTTP/1.1 431"), "{many}");
    let large = said(line("/v1/stores", &format!("x-large: {}\r\n", "y".repeat(1 << 20)))).await;
    assert!(large.is_empty() || large.starts_with("HTTP/1.1 431"), "{large}");
    let chunked = "PUT /v1/stores/run/budget HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sesame\r\n\
                   content-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    let chunks = format!("1000\r\n{}\r\n", " ".repeat(0x1000)).repeat(17);
    let chunked = said(format!("{chunked}{chunks}0\r\n\r\n")).await;
    assert!(
        chunked.starts_with("HTTP/1.1 413"),
        "a body without a length: {chunked}"
    );
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_is_used_and_told_without_a_restart() {
    use ExtendedKeyUsagePurpose::ServerAuth;
    let (first, next) = (Authority::new("first"), Authority::new("next"));
    let folder = tempfile::tempdir().expect("a folder");
    let soon = first.sign(ServerAuth, |params| params.not_after = rcgen::date_time_ymd(2039, 1, 2));
    let (_steward, address) = start(Some(files(folder.path(), &soon, None)), WITHIN).await;
    assert!(answer(address, &first, None, "sesame").await.contains("200 OK"));

    // Half of a renewal: the key does not fit, so the one before is used.
    let later = next.sign(ServerAuth, |params| params.not_after = rcgen::date_time_ymd(2040, 1, 2));
    write(folder.path(), "server.key", later.key.serialize_pem());
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(answer(address, &first, None, "sesame").await.contains("200 OK"));
    write(folder.path(), "server.pem", later.certificate.pem());
    let begun = Instant::now();
    while !answer(address, &next, None, "sesame").await.contains("200 OK") {
        assert!(begun.elapsed() < WITHIN, "the renewed one is not used");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(
        answer(address, &first, None, "sesame").await,
        "",
        "nothing of the one before"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_tells_when_certificates_end_that_it_uses_or_is_shown() {
    use ExtendedKeyUsagePurpose::ServerAuth;
    let authority = Authority::new("servers");
    let folder = tempfile::tempdir().expect("a folder");
    let end = |year| rcgen::date_time_ymd(year, 1, 2);
    let own = authority.sign(ServerAuth, |params| params.not_after = end(2031));
    // What stands for a node of etcd shows a certificate that has ended.
    let (node, shown) = {
        let ended = authority.sign(ServerAuth, |params| params.not_after = end(2020));
        let other = tempfile::tempdir().expect("a folder");
        let (steward, address) = start(Some(files(other.path(), &ended, None)), WITHIN).await;
        ((steward, other), address)
    };
    let mut options = Options::new([store("run")]);
    options.look_every = Duration::from_millis(50);
    options.http = Some(HttpOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        tokens: vec![token()],
        tls: Some(files(folder.path(), &own, None)),
        within: WITHIN,
        most: 16,
    });
    let ca = write(folder.path(), "ca.pem", authority.certificate.pem());
    let reach = serde_json::json!({
        "endpoints": [format!("https://{shown}")],
        "tls": {"ca": ca, "server_name": "localhost"},
    });
    options.etcd = Some(serde_json::from_value(serde_json::json!({"reach": reach})).expect("settings"));
    let steward = Steward::start(options, World::in_memory()).await.expect("a steward");
    let ends = |what: &str| {
        let seen = steward.report().certificates;
        seen.iter().find(|one| one.what == what).and_then(|one| one.ends)
    };
    until("all are seen", || ends("etcd_server").is_some()).await;
    assert_eq!(ends("steward_server"), Some(end(2031).unix_timestamp()));
    assert_eq!(
        ends("etcd_server"),
        Some(end(2020).unix_timestamp()),
        "though it is over"
    );
    assert!(ends("etcd_ca").is_some() && ends("etcd_client").is_none());
    drop(node);
}
