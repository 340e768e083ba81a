//! Asks the index whether fencing tokens are still valid, in one call for all gets that ask at the same time.
//!
//! A get under a lease asks while its bytes move, and again if something is wrong with them; one whose bytes nothing
//! vouches for asks after the last byte (module `get`). While one call is in flight, further questions gather; the first
//! get among them to obtain the turn asks for all of them. A question never joins a call that was sent before it: what
//! counts is whether the token was valid *after* the moment of asking.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, Error, Result};
use tensorhold_custody::SessionId;
use tensorhold_index::{Index, LeaseGrant, Session};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

#[derive(Debug)]
pub(crate) struct Checks {
    index: Arc<dyn Index>,
    clock: Arc<dyn Clock>,
    gathered: Mutex<Vec<Question>>,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Question {
    session: Arc<Session>,
    held: LeaseGrant,
    deadline: Deadline,
    answer: oneshot::Sender<Result<bool>>,
}

impl Checks {
    pub(crate) fn new(index: Arc<dyn Index>, clock: Arc<dyn Clock>) -> Self {
        Self {
            index,
            clock,
            gathered: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Whether a lease is valid now.
    pub(crate) async fn ask(&self, session: &Arc<Session>, held: &LeaseGrant, deadline: Deadline) -> Result<bool> {
        let left = deadline.remaining(&*self.clock);
        let answer = tokio::time::timeout(left, self.ask_until_answered(session, held, deadline)).await;
        answer.unwrap_or_else(|_| {
            Err(Error::unavailable(
                "features.check",
                "the index did not say within the deadline whether the lease holds; try again",
            ))
        })
    }

    async fn ask_until_answered(&self, session: &Arc<Session>, held: &LeaseGrant, deadline: Deadline) -> Result<bool> {
        loop {
            let (answer, mut answered) = oneshot::channel();
            self.gathered.lock().push(Question {
                session: Arc::clone(session),
                held: held.clone(),
                deadline,
                answer,
            });
            let turn = self.turn.lock().await;
            // The get that had the turn before may have asked for this one.
            let mut told = answered.try_recv();
            if matches!(told, Err(TryRecvError::Empty)) {
                self.ask_all().await;
                told = answered.try_recv();
            }
            drop(turn);
            // No answer: the get that asked for this one left at its own deadline. Ask again.
            if let Ok(answer) = told {
                return answer;
            }
        }
    }

    async fn ask_all(&self) {
        let mut by_session: BTreeMap<SessionId, Vec<Question>> = BTreeMap::new();
        for question in std::mem::take(&mut *self.gathered.lock()) {
            by_session.entry(question.session.id()).or_default().push(question);
        }
        for questions in by_session.into_values() {
            let Some(first) = questions.first() else { continue };
            let session = Arc::clone(&first.session);
            let latest = questions.iter().map(|question| question.deadline).max();
            let within = latest.unwrap_or(first.deadline).remaining(&*self.clock);
            let held: Vec<LeaseGrant> = questions.iter().map(|question| question.held.clone()).collect();
            let answers = match self.index.check(&session, &held, within).await {
                Ok(answers) => answers.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error); questions.len()],
            };
            for (question, answer) in questions.into_iter().zip(answers) {
                // A get that no longer listens has left at its deadline.
                drop(question.answer.send(answer));
            }
        }
    }
}
