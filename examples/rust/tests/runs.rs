//! Both programs on a real master, holder and etcd, and without any; what they print is what the README shows.
#![allow(clippy::expect_used, reason = "a test says what it expects")]

use std::process::{Child, Command, Stdio};

use tensorhold_testkit::Cluster;

const README: &str = include_str!("../README.md");

fn start(program: &str, variables: &[(&str, String)]) -> Child {
    let mut command = Command::new(program);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

/// What the README shows below the command that runs this program.
fn shown(program: &str) -> String {
    let below = README.split(&format!("--bin {program}\n```\n")).nth(1);
    let block = below.and_then(|text| text.split("```text\n").nth(1));
    let lines = block.and_then(|text| text.split("```").next());
    lines.expect("the README shows it").to_owned()
}

#[test]
fn a_consumer_gets_what_a_producer_put_and_frees_it() {
    let cluster = Cluster::builder().p2p_metadata(true).segment_mib(256).etcd_nodes(1);
    let cluster = cluster.start().expect("a cluster");
    let endpoints = cluster.endpoints();
    let mut variables = vec![
        ("TENSORHOLD_MASTER", endpoints.master.clone()),
        ("TENSORHOLD_METADATA", endpoints.metadata.clone()),
        ("TENSORHOLD_ADMIN", endpoints.admin.join(",")),
        ("TENSORHOLD_ETCD", endpoints.etcd.join(",")),
    ];
    variables.extend(
        endpoints
            .client_env
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone())),
    );
    for (name, program) in [
        ("producer", env!("CARGO_BIN_EXE_producer")),
        ("consumer", env!("CARGO_BIN_EXE_consumer")),
    ] {
        let ran = start(program, &variables).wait_with_output().expect("it ends");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        assert_eq!(String::from_utf8_lossy(&ran.stdout), shown(name));
    }
}

#[test]
fn without_a_cluster_they_say_what_to_do() {
    let nowhere = [("TENSORHOLD_ETCD", "http://127.0.0.1:1".to_owned())];
    // Both at once: each waits for etcd until its deadline.
    let programs = [env!("CARGO_BIN_EXE_producer"), env!("CARGO_BIN_EXE_consumer")].map(|it| start(it, &nowhere));
    for program in programs {
        let ran = program.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(!ran.status.success() && said.contains("tensorhold up"), "{said}");
    }
}
