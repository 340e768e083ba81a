//! Runs the README's commands as they are printed, so that CI has tried exactly what a newcomer types.
//!
//! Every block that is marked `sh` is run, in order, each by its own shell, from the repository's root. Every block that is
//! marked `python` is lines of one of the examples, word by word, and a `sh` block runs it. Blocks that are not meant to be
//! run here are marked otherwise (`console`, `text`, `rust`).

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// The README.
pub(crate) fn text() -> Result<String> {
    let path = crate::repository().join("README.md");
    std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))
}

/// The blocks of a Markdown text in a language.
pub(crate) fn blocks(markdown: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = markdown.lines();
    while let Some(line) = lines.next() {
        if line.trim().strip_prefix("```") == Some(language) {
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
    let text = text()?;
    let shell = blocks(&text, "sh");
    ensure!(!shell.is_empty(), "the README has no block marked sh");
    for block in blocks(&text, "python") {
        check_example(&block, &shell)?;
    }
    for (number, block) in shell.iter().enumerate() {
        if block.contains("tensorhold up") {
            // With a folder of its own for what `up` records.
            crate::quickstart::run(&crate::quickstart::Quickstart { json: false })?;
            continue;
        }
        println!("README, block {} of {}:\n{block}\n", number + 1, shell.len());
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
    println!("{} blocks of the README ran as printed", shell.len());
    Ok(())
}

/// A block of Python is an example that a block of commands runs.
fn check_example(block: &str, shell: &[String]) -> Result<()> {
    const EXAMPLES: &str = "examples";
    for entry in std::fs::read_dir(crate::repository().join(EXAMPLES)).context("no examples")? {
        let path = entry.context("an example cannot be listed")?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_run = || {
            shell
                .iter()
                .any(|commands| commands.contains(&format!("{EXAMPLES}/{name}")))
        };
        if path.is_file() && std::fs::read_to_string(&path).is_ok_and(|text| has_lines(&text, block)) && is_run() {
            return Ok(());
        }
    }
    bail!("this Python of the README is no file in {EXAMPLES} that one of its sh blocks runs:\n{block}")
}

/// Whether a text has the lines of a block, in their order and whatever their indentation: an example has more around them.
fn has_lines(text: &str, block: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    block
        .lines()
        .map(str::trim)
        .all(|wanted| lines.any(|line| line == wanted))
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_shell_blocks_are_taken_and_taken_whole() {
        let text = "a\n```sh\none\ntwo\n```\n```text\nno\n```\n```sh\nthree\n```\n";
        assert_eq!(super::blocks(text, "sh"), ["one\ntwo", "three"]);
        assert_eq!(super::blocks(text, "text"), ["no"]);
    }

    #[test]
    fn python_that_is_no_example_or_is_not_run_is_found() {
        let readme = std::fs::read_to_string(crate::repository().join("README.md")).expect("a README");
        let first = super::blocks(&readme, "python").concat();
        let runs = ["python examples/first.py".to_owned()];
        super::check_example(&first, &runs).expect("the same, and run");
        super::check_example(&first, &[]).expect_err("not run");
        super::check_example(&format!("{first}#"), &runs).expect_err("not the same");
    }
}
