//! Which faults strike, and how often.

use std::fmt;
use std::time::Duration;

use tensorhold_core::Digest;

use super::log::Operation;

/// The kinds of faults. The documentation of [`crate::fault`] says what each of them does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the table in the module's documentation says what each does")]
pub enum FaultKind {
    LostReply,
    LostRequest,
    Delay,
    ShortRead,
    TornBytes,
    PartialBatch,
    HolderLoss,
    MasterLoss,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::LostReply,
        Self::LostRequest,
        Self::Delay,
        Self::ShortRead,
        Self::TornBytes,
        Self::PartialBatch,
        Self::HolderLoss,
        Self::MasterLoss,
    ];
}

/// How often each kind of fault strikes, and the seed. Rates are per mille of calls; for short reads, torn bytes and
/// partial batches they are per mille of objects.
#[derive(Clone, PartialEq, Eq)]
pub struct FaultPlan {
    seed: u64,
    rates: [u32; FaultKind::ALL.len()],
    pub(super) longest_delay: Duration,
    pub(super) holder_loss_calls: u32,
    pub(super) master_loss_calls: u32,
}

impl FaultPlan {
    /// A plan without faults: every rate is zero. Delays last up to 100 ms, outages 8 calls.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            rates: [0; FaultKind::ALL.len()],
            longest_delay: Duration::from_millis(100),
            holder_loss_calls: 8,
            master_loss_calls: 8,
        }
    }

    /// Sets the rate of one kind to `per_mille` of 1,000.
    pub fn with_rate(mut self, kind: FaultKind, per_mille: u32) -> Self {
        self.rates[kind as usize] = per_mille;
        self
    }

    /// Sets the rate of every kind to `per_mille` of 1,000.
    pub fn with_all(mut self, per_mille: u32) -> Self {
        self.rates = [per_mille; FaultKind::ALL.len()];
        self
    }

    /// [`FaultKind::LostReply`], per mille of calls.
    pub fn with_lost_reply(self, per_mille: u32) -> Self {
        self.with_rate(FaultKind::LostReply, per_mille)
    }

    /// [`FaultKind::LostRequest`], per mille of calls.
    pub fn with_lost_request(self, per_mille: u32) -> Self {
        self.with_rate(FaultKind::LostRequest, per_mille)
    }

    /// [`FaultKind::Delay`], per mille of calls, each of up to `longest`.
    pub fn with_delay(mut self, per_mille: u32, longest: Duration) -> Self {
        self.longest_delay = longest;
        self.with_rate(FaultKind::Delay, per_mille)
    }

    /// [`FaultKind::ShortRead`], per mille of objects read.
    pub fn with_short_read(self, per_mille: u32) -> Self {
        self.with_rate(FaultKind::ShortRead, per_mille)
    }

    /// [`FaultKind::TornBytes`], per mille of objects read.
    pub fn with_torn_bytes(self, per_mille: u32) -> Self {
        self.with_rate(FaultKind::TornBytes, per_mille)
    }

    /// [`FaultKind::PartialBatch`], per mille of the objects in batches of two or more.
    pub fn with_partial_batch(self, per_mille: u32) -> Self {
        self.with_rate(FaultKind::PartialBatch, per_mille)
    }

    /// [`FaultKind::HolderLoss`], per mille of calls, each for `calls` calls.
    pub fn with_holder_loss(mut self, per_mille: u32, calls: u32) -> Self {
        self.holder_loss_calls = calls;
        self.with_rate(FaultKind::HolderLoss, per_mille)
    }

    /// [`FaultKind::MasterLoss`], per mille of calls, each for `calls` calls.
    pub fn with_master_loss(mut self, per_mille: u32, calls: u32) -> Self {
        self.master_loss_calls = calls;
        self.with_rate(FaultKind::MasterLoss, per_mille)
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The rate of one kind, per mille.
    pub fn rate(&self, kind: FaultKind) -> u32 {
        self.rates[kind as usize]
    }

    /// Whether this kind strikes at this place.
    pub(super) fn strikes(&self, kind: FaultKind, place: Place) -> bool {
        self.draw(kind, place, Draw::Strike, 1000) < u64::from(self.rate(kind))
    }

    /// A number in `0..bound` that is determined by the plan and the place; zero if `bound` is zero.
    pub(super) fn draw(&self, kind: FaultKind, place: Place, draw: Draw, bound: u64) -> u64 {
        let item = place.item.map_or(u64::MAX, |item| item as u64);
        let words = [
            self.seed,
            place.call,
            place.operation as u64,
            item,
            kind as u64,
            draw as u64,
        ];
        spread(&bytes_of(words), bound)
    }

    /// Whether a key is on the holder that died at `call`.
    pub(super) fn on_lost_holder(&self, call: u64, key: &str) -> bool {
        let mut bytes = bytes_of([self.seed, call]);
        bytes.extend_from_slice(key.as_bytes());
        spread(&bytes, 2) == 0
    }
}

impl fmt::Debug for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut plan = f.debug_struct("FaultPlan");
        plan.field("seed", &self.seed);
        for kind in FaultKind::ALL {
            if self.rate(kind) > 0 {
                plan.field(&format!("{kind:?}"), &self.rate(kind));
            }
        }
        plan.field("longest_delay", &self.longest_delay)
            .field("holder_loss_calls", &self.holder_loss_calls)
            .field("master_loss_calls", &self.master_loss_calls)
            .finish()
    }
}

/// Where a fault may strike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) call: u64,
    pub(super) operation: Operation,
    pub(super) item: Option<usize>,
}

/// The purpose of a drawn number, so that several numbers of one fault differ.
#[derive(Clone, Copy, Debug)]
pub(super) enum Draw {
    Strike,
    Where,
    HowMuch,
}

fn bytes_of<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A hash that is the same on every machine and in every release, as a number in `0..bound`.
fn spread(bytes: &[u8], bound: u64) -> u64 {
    let hash = Digest::of(bytes).as_u128() >> 64;
    u64::try_from((hash * u128::from(bound)) >> 64).unwrap_or(0)
}
