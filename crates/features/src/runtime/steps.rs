//! Steps in the life of a sample, for traces. Without a tracer each costs a look at an `Option`.

use tensorhold_core::{Error, Nonce, Timestamp};
use tensorhold_index::SampleRef;
use tensorhold_trace::{Incarnation, Step, Tracer};

use super::Runtime;

/// What a trace begins with.
const FIRST: [&str; 2] = ["put", "adopt"];

impl Runtime {
    /// The start of a step; none if traces are off.
    pub(crate) fn step_begins(&self) -> Option<Timestamp> {
        self.tracer.as_ref().map(Tracer::now)
    }

    /// A step that began then has ended.
    pub(crate) fn step_ended(
        &self,
        name: &'static str,
        started: Option<Timestamp>,
        sample: &SampleRef,
        nonce: Option<Nonce>,
        error: Option<&Error>,
    ) {
        let (Some(tracer), Some(started)) = (&self.tracer, started) else {
            return;
        };
        let incarnation = Incarnation {
            store: &self.config.store,
            sample: &sample.sample,
            generation: sample.generation,
            nonce,
        };
        let step = Step {
            name,
            is_first: FIRST.contains(&name),
            started,
            error: error.map(Error::kind),
        };
        tracer.ended(&incarnation, &step);
    }
}
