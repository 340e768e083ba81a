//! This host: releases, RDMA devices, and what the kernel lets us do.

use std::fs;
use std::time::Duration;

use super::Finding;
use crate::io::Host;
use crate::local::install::Environment;
use crate::settings::Settings;
use crate::text::shown;

/// The releases of Mooncake that Tensorhold was tested with; those of `tensorhold-engine-mooncake`.
pub(crate) const TESTED_MOONCAKE: &[&str] = &["0.3.13.post1"];
/// The bit of CAP_SYS_NICE in a set of capabilities.
const CAP_SYS_NICE: u32 = 23;

pub(super) async fn versions(host: &Host, within: Duration) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(
        "versions",
        format!("tensorhold {}", env!("CARGO_PKG_VERSION")),
    )];
    let asked = host.clone();
    let asking = tokio::task::spawn_blocking(move || Environment::find(None, &asked));
    let install = "pip install 'tensorhold[mooncake]', in the environment that this command runs in; where it is to use CUDA, \
                   mooncake-transfer-engine instead of the extra (both have the same files: install one of them)";
    findings.push(match tokio::time::timeout(within, asking).await {
        Ok(Ok(Ok(environment))) => match &environment.mooncake_release {
            Some(release) if TESTED_MOONCAKE.contains(&release.split('+').next().unwrap_or_default()) => {
                Finding::ok("versions", format!("Mooncake {}", shown(release)))
            }
            Some(release) => Finding::problem(
                "versions",
                format!(
                    "Mooncake {} was never tested with this release of Tensorhold",
                    shown(release)
                ),
                format!(
                    "install {}, or set TENSORHOLD_UNTESTED_MOONCAKE=1 at your own risk",
                    TESTED_MOONCAKE.join(" or ")
                ),
            ),
            None => Finding::note(
                "versions",
                "Mooncake's wheel is not installed here: a store cannot be opened",
                install,
            ),
        },
        Ok(Ok(Err(_))) => Finding::note(
            "versions",
            "no Python interpreter was found: Mooncake's release is unknown",
            install,
        ),
        Ok(Err(_)) | Err(_) => Finding::note(
            "versions",
            "Python did not say in time which Mooncake is installed",
            install,
        ),
    });
    findings
}

#[expect(clippy::unused_async, reason = "a probe like the others")]
pub(super) async fn kernel(settings: &Settings) -> Vec<Finding> {
    vec![rdma(settings), priorities()]
}

fn rdma(settings: &Settings) -> Finding {
    let devices = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut devices: Vec<String> = devices
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    devices.sort();
    match (settings.protocol.as_str(), devices.is_empty()) {
        ("rdma", true) => Finding::problem(
            "rdma",
            "the protocol is rdma, and this host has no RDMA device (/sys/class/infiniband)",
            "load the device's driver, or use the protocol tcp",
        ),
        ("rdma", false) => Finding::ok("rdma", format!("devices: {}", shown(&devices.join(", ")))),
        (protocol, true) => Finding::ok("rdma", format!("no device, and the protocol is {}", shown(protocol))),
        (protocol, false) => Finding::note(
            "rdma",
            format!(
                "devices {} are not used: the protocol is {}",
                shown(&devices.join(", ")),
                shown(protocol)
            ),
            "set protocol to rdma, if the whole cluster can do it",
        ),
    }
}

/// Threads that wait for a transfer go behind those that move bytes, if they may come back from there.
fn priorities() -> Finding {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let nice = limits.lines().find_map(|line| line.strip_prefix("Max nice priority"));
    let nice: u64 = nice
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    match (effective >> CAP_SYS_NICE & 1, nice >= 20) {
        (1, _) => Finding::ok(
            "priorities",
            "this process has CAP_SYS_NICE: waiting threads make room for transfers",
        ),
        (_, true) => Finding::ok(
            "priorities",
            "the limit of nice priorities lets waiting threads make room for transfers",
        ),
        _ => Finding::note(
            "priorities",
            "this process has neither CAP_SYS_NICE nor a limit of nice priorities of 20: waiting threads compete with transfers",
            "give processes of a store CAP_SYS_NICE, or `ulimit -e 20`; it makes transfers faster on a busy host",
        ),
    }
}

#[cfg(all(test, feature = "embed"))]
mod tests {
    #[test]
    fn the_tested_releases_are_those_of_the_engine() {
        assert_eq!(super::TESTED_MOONCAKE, tensorhold_engine_mooncake::TESTED_RELEASES);
    }
}
