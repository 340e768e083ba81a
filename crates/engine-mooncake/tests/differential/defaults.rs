//! The memory engine's defaults are the real master's, as the master itself tells them.

use std::process::Command;
use std::time::Duration;

use tensorhold_engine::MemoryConfig;
use tensorhold_testkit::Install;

/// The default of a flag, out of the master's help: `-name (what it is) type: double default: 0.9`.
fn default_of(help: &str, flag: &str) -> f64 {
    let (_, after) = help
        .split_once(&format!(" -{flag} ("))
        .expect("the master has this flag");
    let (_, value) = after.split_once("default: ").expect("flags have defaults");
    let value = value.split_whitespace().next().expect("a value").trim_matches('"');
    value.parse().expect("a number")
}

#[test]
fn defaults_are_the_real_masters() {
    let master = Install::from_env().and_then(|install| install.mooncake_master());
    let help = Command::new(master.expect("a master")).arg("--help").output();
    let help = String::from_utf8(help.expect("its help").stdout).expect("text");
    let of = |flag: &str| default_of(&help, flag);
    let seconds = |flag: &str| Duration::from_secs_f64(of(flag));

    let ours = MemoryConfig::default();
    assert_eq!(
        f64::from(ours.high_watermark) / 100.0,
        of("eviction_high_watermark_ratio")
    );
    assert_eq!(f64::from(ours.eviction_ratio) / 100.0, of("eviction_ratio"));
    assert_eq!(ours.lease_ttl, seconds("default_kv_lease_ttl") / 1000);
    assert_eq!(ours.put_start_discard_timeout, seconds("put_start_discard_timeout_sec"));
    assert_eq!(ours.put_start_release_timeout, seconds("put_start_release_timeout_sec"));
    assert_eq!(ours.holder_loss_after, seconds("client_ttl"));
}
