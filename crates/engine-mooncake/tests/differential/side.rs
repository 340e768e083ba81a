//! One of the two engines, and what it answers, in a form that can be compared.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Error, ErrorKind, ObjectKey, Result, Retry};
use tensorhold_engine::testing::pattern;
use tensorhold_engine::{
    Engine, EngineExt, GetOutcome, Presence, PromoteOutcome, PutOptions, PutOutcome, Region, RemoveOutcome, Span,
    Transfer, Usage,
};

use crate::common::WITHIN;
use crate::model::Model;
use crate::op::{CLIENTS, Call, Oddity, Op};

/// Bytes between two buffers. Odd, so that buffers begin anywhere.
const GAP: usize = 37;
/// What lies in memory that nothing was read into.
const POISON: u8 = 0xEE;
/// Room for the gaps of the largest batch.
const GAPS: usize = 64 << 10;

/// The outcome of one object, without the texts of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Stored,
    Full,
    /// The bytes that were first put are in the buffers.
    Loaded,
    /// Loaded, but the bytes are not those that were first put, from this place on.
    OtherBytes(usize),
    /// Something was written outside the buffers.
    Overrun,
    Miss,
    WrongLength(u64),
    Removed,
    Absent,
    Unfinished,
    Present {
        dram: u32,
        ssd: u32,
        bytes: u64,
    },
    InDram,
    Asked,
    Failed(ErrorKind, Retry),
}

impl Seen {
    /// Without its figures, for counting.
    pub fn name(&self) -> String {
        let text = format!("{self:?}");
        let end = text.find(['(', ' ']).unwrap_or(text.len());
        text[..end].to_owned()
    }
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Objects(Vec<Seen>),
    Usage(Usage),
    Refused(ErrorKind, Retry),
    /// A writer began to put and died.
    Abandoned,
}

impl Answer {
    fn of<T>(outcomes: Result<Vec<T>>, seen: impl Fn(T) -> Seen) -> Self {
        match outcomes {
            Ok(outcomes) => Self::Objects(outcomes.into_iter().map(seen).collect()),
            Err(error) => Self::Refused(error.kind(), error.retry()),
        }
    }
}

fn failed(error: &Error) -> Seen {
    Seen::Failed(error.kind(), error.retry())
}

fn put(outcome: PutOutcome) -> Seen {
    match outcome {
        PutOutcome::Stored => Seen::Stored,
        PutOutcome::Full => Seen::Full,
        PutOutcome::Failed(error) => failed(&error),
    }
}

fn get(outcome: GetOutcome) -> Seen {
    match outcome {
        GetOutcome::Loaded => Seen::Loaded,
        GetOutcome::Miss => Seen::Miss,
        GetOutcome::Unfinished => Seen::Unfinished,
        GetOutcome::WrongLength { stored } => Seen::WrongLength(stored),
        GetOutcome::Failed(error) => failed(&error),
    }
}

fn remove(outcome: RemoveOutcome) -> Seen {
    match outcome {
        RemoveOutcome::Removed => Seen::Removed,
        RemoveOutcome::Absent => Seen::Absent,
        RemoveOutcome::Unfinished => Seen::Unfinished,
        RemoveOutcome::Failed(error) => failed(&error),
    }
}

fn probe(presence: Presence) -> Seen {
    match presence {
        Presence::Absent => Seen::Absent,
        Presence::Unfinished => Seen::Unfinished,
        Presence::Present { dram, ssd, bytes } => Seen::Present { dram, ssd, bytes },
    }
}

fn promote(outcome: PromoteOutcome) -> Seen {
    match outcome {
        PromoteOutcome::InDram => Seen::InDram,
        PromoteOutcome::Asked => Seen::Asked,
        PromoteOutcome::Absent => Seen::Absent,
        PromoteOutcome::Failed(error) => failed(&error),
    }
}

/// What is not a client's to do.
pub trait Fate {
    /// Leaves behind a put that never ends.
    fn abandon(&self, key: &ObjectKey, bytes: u64) -> Result<()>;

    /// Where objects lie in the pool: address and length of each that is there. None if the engine has no such thing.
    fn extents(&self, keys: &[ObjectKey]) -> Option<Vec<(u64, u64)>>;
}

struct Client {
    engine: Arc<dyn Engine>,
    arena: Region,
}

/// An engine with its clients.
pub struct Side {
    pub name: &'static str,
    clients: Vec<Client>,
    /// After the clients, because it may own their cluster.
    pub fate: Box<dyn Fate>,
}

impl Side {
    /// `bytes` are the most that one call moves.
    pub fn new(name: &'static str, engines: [Arc<dyn Engine>; CLIENTS], fate: Box<dyn Fate>, bytes: usize) -> Self {
        let clients = engines.map(|engine| Client {
            arena: engine.allocate(bytes + GAPS, WITHIN).expect("registered memory"),
            engine,
        });
        Self {
            name,
            clients: clients.into(),
            fate,
        }
    }

    pub fn probe(&self, keys: &[ObjectKey]) -> Vec<Presence> {
        self.clients[0].engine.probe(keys, WITHIN).expect("presences")
    }

    pub fn remove(&self, keys: &[ObjectKey]) -> Vec<RemoveOutcome> {
        self.clients[0].engine.remove(keys, WITHIN).expect("outcomes")
    }

    pub fn usage(&self) -> Usage {
        let figures = self.clients[0].engine.usage(WITHIN).expect("figures");
        Usage { mounts: 0, ..figures }
    }

    pub fn run(&self, op: &Op, model: &Model) -> Answer {
        match op {
            Op::Put {
                client,
                objects,
                pin,
                replicas,
            } => {
                let client = &self.clients[*client];
                let batch = client.batch(objects.iter().map(|object| (&object.key, &object.parts)));
                for (transfer, object) in batch.iter().zip(objects) {
                    write(&transfer.parts, &pattern(object.len(), object.content));
                }
                let options = PutOptions {
                    pin: *pin,
                    replicas: *replicas,
                    ..PutOptions::default()
                };
                Answer::of(client.engine.put(&batch, &options, WITHIN), put)
            }
            Op::Get { client, reads } => {
                let client = &self.clients[*client];
                let batch = client.batch(reads.iter().map(|read| (&read.key, &read.parts)));
                client.get(&batch, model)
            }
            Op::Remove { client, keys } => Answer::of(self.clients[*client].engine.remove(keys, WITHIN), remove),
            Op::Probe { client, keys } => Answer::of(self.clients[*client].engine.probe(keys, WITHIN), probe),
            Op::Promote { client, keys } => Answer::of(self.clients[*client].engine.promote(keys, WITHIN), promote),
            Op::Usage { client } => usage(self.clients[*client].engine.usage(WITHIN)),
            Op::Odd {
                client,
                call,
                what,
                keys,
            } => self.odd(*client, *call, *what, keys),
            Op::Abandon { key, bytes } => {
                let begun = self.fate.abandon(key, *bytes);
                begun.expect("a writer that dies half-way");
                Answer::Abandoned
            }
        }
    }

    fn odd(&self, client: usize, call: Call, what: Oddity, keys: &[ObjectKey]) -> Answer {
        let other = &self.clients[(client + 1) % CLIENTS];
        let client = &self.clients[client];
        let within = if what == Oddity::NoTime { Duration::ZERO } else { WITHIN };
        let mut keys = keys.to_vec();
        match what {
            Oddity::Empty => keys.clear(),
            Oddity::TooMany => {
                let most = client.engine.capabilities().max_batch;
                let more = (keys.len()..=most).map(|n| ObjectKey::new(format!("many/{n}")).expect("a lawful key"));
                keys.extend(more);
            }
            Oddity::Twice => keys.push(keys[0].clone()),
            Oddity::NoTime | Oddity::NoParts | Oddity::NoCopies | Oddity::Foreign => {}
        }
        let span = |client: &Client| client.arena.span(0..8).expect("inside");
        let mut batch: Vec<_> = keys
            .iter()
            .map(|key| Transfer::new(key.clone(), span(client)))
            .collect();
        match (what, batch.last_mut()) {
            (Oddity::NoParts, Some(last)) => last.parts.clear(),
            (Oddity::Foreign, Some(last)) => last.parts = vec![span(client), span(other)],
            _ => {}
        }
        let options = PutOptions {
            replicas: u32::from(what != Oddity::NoCopies),
            ..PutOptions::default()
        };
        let engine = &client.engine;
        match call {
            Call::Put => Answer::of(engine.put(&batch, &options, within), put),
            Call::Get => Answer::of(engine.get(&batch, within), get),
            Call::Remove => Answer::of(engine.remove(&keys, within), remove),
            Call::Probe => Answer::of(engine.probe(&keys, within), probe),
            Call::Promote => Answer::of(engine.promote(&keys, within), promote),
            Call::Usage => usage(engine.usage(within)),
        }
    }
}

fn usage(figures: Result<Usage>) -> Answer {
    match figures {
        // How often a holder asks to be mounted is its own affair.
        Ok(figures) => Answer::Usage(Usage { mounts: 0, ..figures }),
        Err(error) => Answer::Refused(error.kind(), error.retry()),
    }
}

impl Client {
    /// Buffers for a batch, one after the other in the arena, with gaps; all of it poisoned.
    fn batch<'a>(&self, objects: impl Iterator<Item = (&'a ObjectKey, &'a Vec<usize>)>) -> Vec<Transfer> {
        let mut at = GAP;
        let mut span = |len: &usize| {
            let span = self.arena.span(at..at + len).expect("the arena is large enough");
            at += len + GAP;
            span
        };
        let batch = objects
            .map(|(key, parts)| Transfer::scattered(key.clone(), parts.iter().map(&mut span).collect()))
            .collect();
        let used = self.arena.span(0..at).expect("the arena is large enough");
        used.write(0, &vec![POISON; at]).expect("fits");
        batch
    }

    fn get(&self, batch: &[Transfer], model: &Model) -> Answer {
        let mut answer = Answer::of(self.engine.get(batch, WITHIN), get);
        if let Answer::Objects(seen) = &mut answer {
            for (seen, transfer) in seen.iter_mut().zip(batch) {
                if *seen == Seen::Loaded {
                    *seen = model.check(&transfer.key, &read(&transfer.parts));
                }
            }
            for (seen, transfer) in seen.iter_mut().zip(batch) {
                if transfer.parts.iter().any(|part| !self.is_clean_around(part)) {
                    *seen = Seen::Overrun;
                }
            }
        }
        answer
    }

    /// Whether the gaps before and after a buffer are as they were.
    fn is_clean_around(&self, part: &Span) -> bool {
        let start = part.address() - self.arena.address();
        let end = start + part.len();
        [start - GAP..start, end..end + GAP]
            .into_iter()
            .all(|gap| self.arena.span(gap).expect("inside").to_vec() == [POISON; GAP])
    }
}

fn write(parts: &[Span], mut bytes: &[u8]) {
    for part in parts {
        let (head, tail) = bytes.split_at(part.len());
        part.write(0, head).expect("fits");
        bytes = tail;
    }
}

fn read(parts: &[Span]) -> Vec<u8> {
    parts.iter().map(Span::to_vec).collect::<Vec<_>>().concat()
}
