//! The reference of the command line, made from its definition.

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory as _};

use crate::args::Cli;

const HEAD: &str = "# Every command and flag

Made from the definition in `crates/cli/src/args.rs`, by `cargo run -p tensorhold-cli --example command_page`.

What `tensorhold COMMAND --help` says, in one place. [The command](command.md) says what each command opens, which settings it
goes by, and what its JSON holds.
";

/// The page, as Markdown.
pub fn page() -> String {
    let mut command = Cli::command();
    // Usage lines then have the names of the commands above.
    command.build();
    let mut page = format!("{HEAD}\n{}\n", text_of(command.get_long_about()));
    page.push_str("\n## Flags of every command\n");
    push_table(&mut page, command.get_arguments().filter(|arg| arg.is_global_set()));
    for below in command.get_subcommands() {
        push_command(&mut page, below, "tensorhold", "##");
    }
    page
}

/// The section of a command, and those of the commands below it.
fn push_command(page: &mut String, command: &Command, above: &str, heading: &str) {
    if command.get_name() == "help" {
        return;
    }
    let name = format!("{above} {}", command.get_name());
    let about = linked(&text_of(command.get_about()));
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    page.push_str(&format!("\n{heading} {name}\n\n{about}.\n\n```text\n{usage}\n```\n"));
    push_table(page, command.get_arguments().filter(|arg| !arg.is_global_set()));
    for below in command.get_subcommands() {
        push_command(page, below, &name, &format!("{heading}#"));
    }
}

/// Arguments and flags, but for `--help` and `--version`, which every command line has.
fn push_table<'a>(page: &mut String, args: impl Iterator<Item = &'a Arg>) {
    let rows: Vec<String> = args
        .filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version"))
        .map(row)
        .collect();
    if !rows.is_empty() {
        page.push_str(&format!("\n| argument | meaning |\n|---|---|\n{}", rows.concat()));
    }
}

fn row(arg: &Arg) -> String {
    let mut meaning = linked(&text_of(arg.get_help()));
    if arg.get_action().takes_values() {
        let defaults = arg
            .get_default_values()
            .iter()
            .map(|value| value.to_string_lossy().into_owned());
        let possible = arg
            .get_possible_values()
            .into_iter()
            .map(|value| value.get_name().to_owned());
        push_list(&mut meaning, "default", defaults);
        push_list(&mut meaning, "possible values", possible);
    }
    format!("| `{arg}` | {} |\n", meaning.replace('|', "\\|"))
}

/// As `--help` shows them.
fn push_list(meaning: &mut String, of: &str, values: impl Iterator<Item = String>) {
    let values: Vec<String> = values.collect();
    if !values.is_empty() {
        meaning.push_str(&format!(" [{of}: {}]", values.join(", ")));
    }
}

fn text_of(said: Option<&StyledStr>) -> String {
    said.map(ToString::to_string).unwrap_or_default()
}

/// Pages that a text names (`docs/steward.md`) as links, from a page beside them.
fn linked(text: &str) -> String {
    let mut parts = text.split("docs/");
    let mut linked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (page, rest) = part.split_once(".md").unwrap_or((part, ""));
        linked.push_str(&format!("[{page}.md]({page}.md){rest}"));
    }
    linked
}
