//! The worker processes of a proof, as their conductor sees them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tensorhold_core::{Clock, Deadline, SystemClock};
use tensorhold_testkit::{Process, ProcessSpec};

use crate::doom::Doom;
use crate::journal::{Event, Reader};
use crate::worker::{Role, TASK, Task};
use crate::world::Settings;

/// How long a worker may take to end when it was told to.
const END_WITHIN: Duration = Duration::from_secs(90);

/// One worker process and what it wrote down.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) process: Process,
    pub(crate) journal: Reader,
}

impl Member {
    /// Starts a worker.
    pub(crate) fn start(dir: &Path, settings: &Settings, name: &str, role: Role, doom: Option<Doom>) -> Result<Self> {
        let journal: PathBuf = dir.join(format!("{name}.journal"));
        let task = Task {
            name: name.to_owned(),
            settings: settings.clone(),
            journal: journal.clone(),
            role,
            doom,
        };
        let program = std::env::current_exe().context("where is this program?")?;
        let spec =
            ProcessSpec::new(name, program, dir.join(format!("{name}.log"))).env(TASK, serde_json::to_string(&task)?);
        Ok(Self {
            name: name.to_owned(),
            process: Process::spawn(&spec)?,
            journal: Reader::new(journal),
        })
    }

    /// What it has written down so far.
    pub(crate) fn events(&mut self) -> Result<&[Event]> {
        self.journal.refresh()?;
        Ok(&self.journal.events)
    }

    /// How many events are of a kind so far.
    pub(crate) fn count(&mut self, of_kind: impl Fn(&Event) -> bool) -> Result<usize> {
        Ok(self.events()?.iter().filter(|event| of_kind(event)).count())
    }

    /// Waits until it is a member of the store.
    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, END_WITHIN);
        while self.count(|event| matches!(event, Event::Ready))? == 0 {
            ensure!(
                self.process.is_running(),
                "{} ended at once:\n{}",
                self.name,
                self.process.output()
            );
            ensure!(!deadline.passed(&clock), "{} does not begin", self.name);
            clock.sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Fails if it has ended although it should work.
    pub(crate) fn must_run(&self) -> Result<()> {
        match self.process.exit_status() {
            Some(status) if !status.success() => {
                anyhow::bail!("{} ended by itself ({status}):\n{}", self.name, self.process.output())
            }
            _ => Ok(()),
        }
    }

    /// Tells it to stop, waits for its end, and takes in the rest of its journal.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let status = self.process.finish(END_WITHIN)?;
        ensure!(
            status.success(),
            "{} ended with {status}:\n{}",
            self.name,
            self.process.output()
        );
        self.journal.refresh()
    }
}

/// All events of several workers.
pub(crate) fn all(members: &[Member]) -> impl Iterator<Item = &Event> {
    members.iter().flat_map(|member| &member.journal.events)
}
