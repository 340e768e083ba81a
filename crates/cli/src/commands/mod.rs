//! The commands that ask the index, the master or the engine.

mod audit;
mod bench;
mod budget;
mod clusters;
mod dead;
mod drain;
mod forget;
pub(crate) mod help;
mod holders;
mod list;
mod people;
mod quarantine;
mod reclaim;
mod record;
mod restore_guard;
mod sessions;
pub(crate) mod settings;
mod status;
pub(crate) mod steward;
mod top;
mod why;

use std::io::Write;
use std::time::Duration;

use crate::args::{Command, Where};
use crate::doctor;
use crate::failure::Failure;
use crate::io::{Host, Progress};
use crate::output::{Answer, Output};
use crate::reach::Reach;
use crate::settings::Settings;

/// How long a command that only looks may take.
const LOOK: Duration = Duration::from_secs(10);
/// How long a command may take that changes something.
const CHANGE: Duration = Duration::from_secs(30);
/// How long freeing may take.
const FREE: Duration = Duration::from_secs(120);

/// How long draining a holder may take.
const DRAIN: Duration = Duration::from_secs(3600);

/// What every command has.
pub(crate) struct Context<'a> {
    pub(crate) host: &'a Host,
    pub(crate) output: Output,
    pub(crate) now_ms: u64,
}

pub(crate) async fn run(
    command: Command,
    place: &Where,
    host: &Host,
    output: Output,
    out: &mut (dyn Write + Send),
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let settings = Settings::read(place, host)?;
    let context = Context {
        host,
        output,
        now_ms: (host.now_ms)(),
    };
    let within = |usual: Duration| place.timeout.unwrap_or(usual);
    let look = async |progress: &mut Progress<'_>, usual| {
        progress
            .wait("asking etcd", Reach::open(settings.clone(), within(usual)))
            .await
    };
    match command {
        Command::Doctor => doctor::run(settings, &context, within(LOOK), progress).await,
        Command::Status => status::run(&look(progress, LOOK).await?, &context, progress).await,
        Command::Top { every } => top::run(&look(progress, LOOK).await?, every, within(LOOK), &context).await,
        Command::Ls(options) => {
            let wanted = list::Wanted::of(options, context.now_ms)?;
            list::run(&look(progress, LOOK).await?, wanted, &context, progress).await
        }
        Command::Why { what } => why::run(&look(progress, LOOK).await?, &what, &context, progress).await,
        Command::Dead(what) => {
            let usual = if what.changes() { CHANGE } else { LOOK };
            dead::run(&look(progress, usual).await?, what, &context, progress).await
        }
        Command::Sessions => sessions::run(&look(progress, LOOK).await?, &context, progress).await,
        Command::Budget { change } => {
            let usual = if change.is_some() { CHANGE } else { LOOK };
            budget::run(&look(progress, usual).await?, change, &context, progress).await
        }
        Command::Clusters { change } => {
            let usual = if change.is_some() { CHANGE } else { LOOK };
            clusters::run(&look(progress, usual).await?, change, &context, progress).await
        }
        Command::Quarantine(what) => quarantine::run(&look(progress, LOOK).await?, what, &context, progress).await,
        Command::Steward(wanted) => steward::run(settings, wanted, place.json, host, out).await,
        Command::RestoreGuard { yes } => restore_guard::run(settings, yes, within(CHANGE), progress).await,
        Command::Bench(wanted) => {
            let reach = look(progress, FREE).await?;
            bench::run(&reach, wanted, &context, progress).await
        }
        Command::Sweep => {
            let reach = look(progress, FREE).await?;
            reclaim::sweep(&reach, &context, progress).await
        }
        Command::Audit { repair, force } => {
            let reach = look(progress, FREE).await?;
            audit::run(&reach, audit::Wanted { repair, force }, &context, progress).await
        }
        Command::Drain(wanted) => {
            // The time is for moving: a server that does not answer is told as soon as by any other command.
            let opening = Reach::open(settings, within(LOOK).min(LOOK));
            let reach = progress.wait("asking etcd", opening).await?.renewed(within(DRAIN));
            drain::run(&reach, wanted, &context, progress).await
        }
        Command::Rm { samples } => {
            let reach = look(progress, FREE).await?;
            reclaim::remove(&reach, &samples, &context, progress).await
        }
        Command::End { others } => {
            let reach = look(progress, FREE).await?;
            reclaim::end(&reach, others, &context, progress).await
        }
        Command::Forget { name } => {
            let reach = look(progress, CHANGE).await?;
            forget::run(&reach, &name, progress).await
        }
        // These need no server and were run before.
        Command::Up(_)
        | Command::Down
        | Command::Env
        | Command::Settings
        | Command::Token(_)
        | Command::Completions { .. }
        | Command::Man { .. } => Err(Failure::usage("this command needs no server", "", "")),
    }
}
