//! Completions of shells, and manual pages.

use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use tensorhold_core::ErrorKind;

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::{Answer, object};

pub(crate) fn completions(shell: clap_complete::Shell) -> Answer {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tensorhold", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    Answer::new(object!("shell": shell.to_string(), "script": script), script)
}

pub(crate) fn manual(folder: &Path) -> Result<Answer, Failure> {
    let cannot = |error: std::io::Error| {
        let what = format!("the manual pages cannot be written to {}", folder.display());
        Failure::new(
            ErrorKind::Denied,
            what,
            error.to_string(),
            "name a folder that you may write to",
        )
    };
    fs::create_dir_all(folder).map_err(cannot)?;
    let mut command = Cli::command();
    // Every page then has the flags of every command.
    command.build();
    let mut files = Vec::new();
    write(&command, "tensorhold", folder, &mut files).map_err(cannot)?;
    let text = format!("{} pages are in {}\n", files.len(), folder.display());
    Ok(Answer::new(object!("folder": folder, "files": files), text))
}

/// One page for a command, and one for each below it.
fn write(command: &clap::Command, name: &str, folder: &Path, files: &mut Vec<String>) -> std::io::Result<()> {
    let file = format!("{name}.1");
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone().display_name(name.to_owned())).render(&mut page)?;
    fs::write(folder.join(&file), page)?;
    files.push(file);
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        write(below, &format!("{name}-{}", below.get_name()), folder, files)?;
    }
    Ok(())
}
