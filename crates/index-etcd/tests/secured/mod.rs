//! A real etcd that refuses every client without a certificate and a password.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, Permission, PermissionType, TlsOptions};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tensorhold_index_etcd::{EtcdConfig, Pem, Secret, TlsConfig};
use tensorhold_testkit::{Install, Process, ProcessSpec, poll};
use tokio::task::block_in_place;

pub(crate) const USER: &str = "tensorhold";
pub(crate) const PASSWORD: &str = "a-password-for-tests";
/// Users of their own, each with a certificate in its name.
pub(crate) const TENANTS: [&str; 2] = ["a", "b"];
const ROOT_PASSWORD: &str = "root-password-for-tests";
const START: Duration = Duration::from_secs(30);

pub(crate) struct SecuredEtcd {
    process: Process,
    spec: ProcessSpec,
    metrics: u16,
    client: u16,
    folder: TempDir,
}

/// A certificate and its key, as files: `{name}.pem` and `{name}.key`. A common name is that of a user, to etcd: then no
/// password matters.
fn sign(
    folder: &Path,
    name: &str,
    usage: ExtendedKeyUsagePurpose,
    common_name: Option<&str>,
    issuer: &Issuer<'_, KeyPair>,
) {
    let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("names");
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some(user) = common_name {
        params.distinguished_name.push(DnType::CommonName, user);
    }
    params
        .distinguished_name
        .push(DnType::OrganizationName, "Tensorhold's tests");
    params.extended_key_usages.push(usage);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, issuer).expect("a certificate");
    std::fs::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("written");
    std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("written");
}

fn make_certificates(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "Tensorhold's tests");
    let key = KeyPair::generate().expect("a key");
    std::fs::write(
        folder.join("ca.pem"),
        params.self_signed(&key).expect("a certificate").pem(),
    )
    .expect("written");
    let issuer = Issuer::new(params, key);
    sign(folder, "server", ExtendedKeyUsagePurpose::ServerAuth, None, &issuer);
    sign(folder, "client", ExtendedKeyUsagePurpose::ClientAuth, None, &issuer);
    for tenant in TENANTS {
        sign(
            folder,
            tenant,
            ExtendedKeyUsagePurpose::ClientAuth,
            Some(tenant),
            &issuer,
        );
    }
}

/// Ports that were free a moment ago. If one no longer is, etcd ends and the start is tried again.
fn ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("an address").port())
}

impl SecuredEtcd {
    pub(crate) async fn start() -> Self {
        let etcd = block_in_place(|| (0..3).find_map(|_| Self::launch())).expect("etcd starts");
        etcd.require_passwords().await;
        etcd
    }

    fn launch() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        make_certificates(folder.path());
        let [client, peer, metrics] = ports();
        let file = |name: &str| folder.path().join(name).display().to_string();
        let program = Install::from_env()
            .and_then(|install| install.etcd())
            .expect("an installed etcd");
        let peer_url = format!("http://127.0.0.1:{peer}");
        let client_url = format!("https://127.0.0.1:{client}");
        let spec = ProcessSpec::new("etcd-secured", program, folder.path().join("etcd.log")).args([
            "--name=secured".to_owned(),
            format!("--data-dir={}", file("data")),
            format!("--listen-client-urls={client_url}"),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=secured={peer_url}"),
            format!("--listen-metrics-urls=http://127.0.0.1:{metrics}"),
            format!("--cert-file={}", file("server.pem")),
            format!("--key-file={}", file("server.key")),
            format!("--trusted-ca-file={}", file("ca.pem")),
            "--client-cert-auth".to_owned(),
            "--auth-token-ttl=1".to_owned(),
            "--bcrypt-cost=4".to_owned(),
        ]);
        let process = Process::spawn(&spec).expect("a process");
        let etcd = Self {
            process,
            spec,
            metrics,
            client,
            folder,
        };
        etcd.wait_until_ready().then_some(etcd)
    }

    /// Whether it serves, rather than having ended.
    fn wait_until_ready(&self) -> bool {
        let address = format!("http://127.0.0.1:{}/health", self.metrics);
        let settings = ureq::config::Config::builder()
            .timeout_global(Some(Duration::from_secs(1)))
            .build();
        let agent = ureq::Agent::from(settings);
        let healthy = || {
            let answer = agent.get(&address).call().ok()?.body_mut().read_to_string().ok()?;
            answer.contains(r#""health":"true""#).then_some(true)
        };
        let ready = poll(START, Duration::from_millis(20), || {
            healthy().or((!self.process.is_running()).then_some(false))
        });
        ready.unwrap_or_else(|| panic!("etcd does not become ready: {}", self.process.output()))
    }

    /// Kills it and starts it again, with the same data.
    pub(crate) fn restart(&mut self) {
        self.process.kill().expect("killed");
        self.process = Process::spawn(&self.spec).expect("a process");
        assert!(self.wait_until_ready(), "etcd ended: {}", self.process.output());
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn endpoint(&self) -> String {
        format!("https://127.0.0.1:{}", self.client)
    }

    /// A client of another make that holds this certificate.
    pub(crate) async fn raw(&self, certificate: &str, user: Option<(&str, &str)>) -> Client {
        let read = |name: String| std::fs::read(self.file(&name)).expect("a file");
        let tls = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(read("ca.pem".into())))
            .identity(Identity::from_pem(
                read(format!("{certificate}.pem")),
                read(format!("{certificate}.key")),
            ));
        let mut options = ConnectOptions::new().with_tls(tls);
        if let Some((user, password)) = user {
            options = options.with_user(user, password);
        }
        Client::connect([self.endpoint()], Some(options))
            .await
            .expect("a client")
    }

    pub(crate) async fn operator(&self) -> Client {
        self.raw("client", Some(("root", ROOT_PASSWORD))).await
    }

    /// Runs a script of an operator's, with `etcdctl` set up for this etcd.
    pub(crate) fn run_as_operator(&self, script: &str, variables: &[(&str, &str)]) {
        let program = Install::from_env()
            .and_then(|install| install.etcd())
            .expect("an installed etcd");
        let programs = program.parent().expect("a folder").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let done = std::process::Command::new("sh")
            .args(["-eu", "-c", script])
            .env("PATH", format!("{programs}:{path}"))
            .env("ETCDCTL_ENDPOINTS", self.endpoint())
            .env("ETCDCTL_CACERT", self.file("ca.pem"))
            .env("ETCDCTL_CERT", self.file("client.pem"))
            .env("ETCDCTL_KEY", self.file("client.key"))
            .env("ETCDCTL_USER", format!("root:{ROOT_PASSWORD}"))
            .envs(variables.iter().copied())
            .output()
            .expect("a shell");
        assert!(
            done.status.success(),
            "{script}: {}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
    }

    /// Other certificates of another authority, in the same files. etcd uses them when it is restarted.
    pub(crate) fn rotate_certificates(&self) {
        make_certificates(self.folder.path());
    }

    async fn require_passwords(&self) {
        let mut operator = self.raw("client", None).await;
        operator.user_add("root", ROOT_PASSWORD, None).await.expect("a user");
        operator.user_grant_role("root", "root").await.expect("a role");
        operator.role_add("tensorhold").await.expect("a role");
        let ours = Permission::new(PermissionType::Readwrite, "/tensorhold/").with_prefix();
        operator
            .role_grant_permission("tensorhold", ours)
            .await
            .expect("a permission");
        operator.user_add(USER, PASSWORD, None).await.expect("a user");
        operator.user_grant_role(USER, "tensorhold").await.expect("a role");
        operator.auth_enable().await.expect("enabled");
    }

    /// Settings that it lets in, and that say only where secrets are. The password is in the file `password`.
    pub(crate) fn config_by_files(&self) -> EtcdConfig {
        let place = |name: &str| format!("file:{}", self.file(name).display());
        std::fs::write(self.file("password"), format!("{PASSWORD}\n")).expect("written");
        let mut config = EtcdConfig::new([self.endpoint()]);
        config.user = Some(USER.to_owned());
        config.password = Some(Secret::new(place("password")));
        config.tls = Some(TlsConfig {
            ca: Some(Pem::new(place("ca.pem"))),
            certificate: Some(Pem::new(place("client.pem"))),
            key: Some(Pem::new(place("client.key"))),
            server_name: None,
        });
        config
    }

    /// Settings of a tenant: its certificate, and its password if it is told.
    pub(crate) fn config_of(&self, tenant: &str, password: Option<&str>) -> EtcdConfig {
        let mut config = self.config_by_files();
        config.user = password.map(|_| tenant.to_owned());
        config.password = password.map(Secret::new);
        let path = |kind: &str| Some(Pem::new(self.file(&format!("{tenant}.{kind}")).display().to_string()));
        let tls = config.tls.get_or_insert_default();
        (tls.certificate, tls.key) = (path("pem"), path("key"));
        config
    }

    /// Settings that it accepts: one file and one literal text, to try both.
    pub(crate) fn config(&self) -> EtcdConfig {
        let path = |name: &str| Pem::new(self.file(name).display().to_string());
        let text = |name: &str| Pem::new(std::fs::read_to_string(self.file(name)).expect("a file"));
        let mut config = EtcdConfig::new([self.endpoint()]);
        config.user = Some(USER.to_owned());
        config.password = Some(Secret::new(PASSWORD));
        config.tls = Some(TlsConfig {
            ca: Some(path("ca.pem")),
            certificate: Some(path("client.pem")),
            key: Some(text("client.key")),
            server_name: None,
        });
        config
    }
}
