//! Runs the README's commands as they are printed, so that CI has tried exactly what a newcomer types.
//!
//! Every block that is marked `sh` is run, in order, each by its own shell, from the repository's root. Blocks that are
//! not meant to be run are marked otherwise (`text`, `rust`).

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// The shell blocks of a Markdown text.
fn blocks(markdown: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = markdown.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "```sh" {
            blocks.push(
                lines
                    .by_ref()
                    .take_while(|line| line.trim() != "```")
                    .collect::<Vec<_>>()
                    .join("\n"),
            );
        }
    }
    blocks
}

pub(crate) fn run() -> Result<()> {
    const WITHIN: Duration = Duration::from_secs(900);
    let readme = crate::repository().join("README.md");
    let text = std::fs::read_to_string(&readme).with_context(|| format!("{} cannot be read", readme.display()))?;
    let blocks = blocks(&text);
    ensure!(!blocks.is_empty(), "the README has no block marked sh");
    for (number, block) in blocks.iter().enumerate() {
        println!("README, block {} of {}:\n{block}\n", number + 1, blocks.len());
        let status = Command::new("timeout")
            .arg(WITHIN.as_secs().to_string())
            .args(["bash", "-euo", "pipefail", "-c", block])
            .current_dir(crate::repository())
            .status()
            .context("timeout (coreutils) could not be started")?;
        ensure!(
            status.success(),
            "the README's block {} ended with {status}",
            number + 1
        );
    }
    println!("{} blocks of the README ran as printed", blocks.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_shell_blocks_are_taken_and_taken_whole() {
        let text = "a\n```sh\none\ntwo\n```\n```text\nno\n```\n```sh\nthree\n```\n";
        assert_eq!(super::blocks(text), ["one\ntwo", "three"]);
    }
}
