//! Where records are stored, and which list entries follow from a record.
//!
//! Each record has one key. The description that its producer gave the sample is stored behind the record, in the same
//! value. Which entries the ready lists must have follows from the record alone. So to change a record means: the keys
//! that followed from it before and no longer do are deleted, and the new ones are put. Nothing else ever writes these
//! lists. An index is consistent when its lists are exactly what follows from its records.
//!
//! A ready entry of a sample with one group holds a copy of the record. The consumer that leases the sample need not
//! read the record, if no process has changed it since (both have the same version).
//!
//! What a session holds is not listed sample by sample but once per transaction: see [`crate::record::grants`].
//!
//! | key, under the store's root | what | kept in step by |
//! |---|---|---|
//! | `n/{session}` | the session is alive (vanishes with it), and who holds it: [`crate::record::identity`] | session |
//! | `z/{session}` | the session existed and is not cleared yet | session, sweep |
//! | `o/{session}/{slot}` | the last transaction of one slot (vanishes with the session) | every transaction |
//! | `p/{sample}` | [`Reserved`] | reserve, commit, abort |
//! | `s/{sample}` | [`Live`] | commit, lease, ack, … |
//! | `g/{sample}/{generation}` | [`Retired`] with readers | retire, release, sweep |
//! | `f/{sample}/{generation}` | [`Retired`] without readers: to be freed | as above, freed |
//! | `l/{kept}/{sample}/{generation}` | [`Retired`] without readers, lost, and kept until a tick: then it moves to `f` | retire, sweep |
//! | `d/{sample}/{generation}` | [`Retired`], a dead letter: with its objects (until it moves to `f`), or without | nack, sweep, freed, requeue, drop |
//! | `u/{kept}/{sample}/{generation}` | a dead letter's objects are kept until a tick | follows from `d` |
//! | `a/{reservation}/{its generation}` | the sample that a reservation made ahead has become | commit, freed |
//! | `q/{group}/{shard}/{order}/{sample}` | ready for a group; the order is the version at which it was reserved | follows from `s` |
//! | `h/{session}/{until}/{by}-{number}` | grant list: what one transaction granted a session until a tick | every grant, sweep |
//! | `k/{object key}` | which sample owns an object that another writer named; its generation is this entry's version | reserve, freed |
//! | `x/i/{key}/{version}` | why a record is in quarantine | see [`crate::txn::quarantine`] |
//! | `x/o/{key}/{version}` | the original bytes of that record | as above |
//! | `t` | the shared clock | tick |
//! | `e/{office}` | the session that holds an office, and who that is (vanishes with it): [`crate::record::office`] | lead, resign |
//! | `place` (at home), `here` (elsewhere) | which cluster the store is on: see [`crate::placement`] | its first opening |
//! | `r` | the engine's holders, as they were seen last: [`crate::record::engine`] | the process that looks at them |
//! | `b/budget` | the store's budget in bytes; without this key there is no budget | set_budget |
//! | `b/a/{session}-{number}` | a deposit: bytes of the budget that no sample was paid with | reserve, freed: see [`crate::quota`] |
//! | `b/w/{session}` | a process waits for quota, and what it wants to reserve (vanishes with its session) | reserve, freed |
//! | `b/t/{session}` | the last answer to a process that waited (vanishes with its session) | reserve, freed |
//!
//! Numbers in keys are sixteen hex digits, so that keys sort as their numbers do. Names are escaped.

use std::ops::Range;

use tensorhold_core::key::{escape, escape_into, unescape};
use tensorhold_core::{Digest, Error, Generation, ObjectKey, Result, SampleId, StoreId};
use tensorhold_custody::{GroupName, GroupState, Live, Progress, Reserved, Retired, SessionId, Tick, Version};

use crate::record::ahead::{MARK, ReadyValue};
use crate::record::codec::{Description, encode, encode_described};
use crate::record::office::Office;
use crate::record::types::{SampleRef, Stage};
use crate::store::{Read, Write, prefix};

/// Ready lists are split into this many shards, so that consumers do not all try the same sample.
pub(crate) const SHARDS: u64 = 32;

/// The kinds of records of retired samples that own objects and whose keys name a generation: with readers, and to be
/// freed. A dead letter's does too, and owns its objects only as long as they are kept.
const RETIRED: [&str; 2] = ["g", "f"];

/// The keys of one store.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: String,
}

/// The keys under which a record that cannot be decoded is quarantined.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Aside {
    pub(crate) info: String,
    pub(crate) bytes: String,
}

/// Capacity hint: hardly any change of a record takes more writes.
const USUAL_WRITES: usize = 2;

/// A key under construction. Each change of a sample builds several, so they are put together by hand: `format!` would
/// take longer than everything else.
struct Key(String);

impl Key {
    fn text(mut self, text: &str) -> Self {
        self.0.push_str(text);
        self
    }

    fn name(mut self, name: &str) -> Self {
        escape_into(&mut self.0, name);
        self
    }

    /// Appends the number in hex, two digits per byte.
    fn number<const BYTES: usize>(mut self, number: [u8; BYTES]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |at: u8| char::from(DIGITS[usize::from(at & 15)]);
        let digits = number.into_iter().flat_map(|byte| [digit(byte >> 4), digit(byte)]);
        self.0.extend(digits);
        self
    }
}

impl Layout {
    pub(crate) fn new(store: &StoreId) -> Self {
        Self {
            root: format!("{}/", escape(store.as_str())),
        }
    }

    /// The store's name as it is in keys, for logs.
    pub(crate) fn root(&self) -> &str {
        self.root.trim_end_matches('/')
    }

    /// Begins a key that holds a sample's name.
    fn of_sample(&self, kind: &str, sample: &SampleId) -> Key {
        const NUMBERS_AND_SLASHES: usize = 48;
        let name = sample.as_str();
        let length = self.root.len() + kind.len() + name.len() + NUMBERS_AND_SLASHES;
        Key(String::with_capacity(length)).text(&self.root).text(kind)
    }

    /// Where the record under a key is quarantined; none for a key of another store.
    pub(crate) fn aside(&self, key: &str, version: Version) -> Option<Aside> {
        let rest = key.strip_prefix(&self.root)?;
        let place = |kind: &str| format!("{}x/{kind}/{rest}/{:016x}", self.root, version.0);
        Some(Aside {
            info: place("i"),
            bytes: place("o"),
        })
    }

    pub(crate) fn all_aside(&self) -> Range<String> {
        prefix(self.key(format_args!("x/i/")))
    }

    /// The original key and version of a record in quarantine.
    pub(crate) fn parse_aside(&self, info: &str) -> Option<(String, Version)> {
        let rest = info.strip_prefix(&self.root)?.strip_prefix("x/i/")?;
        let (key, version) = rest.rsplit_once('/')?;
        let version = Version(u64::from_str_radix(version, 16).ok()?);
        let key = format!("{}{key}", self.root);
        // Any other key would be listed again and again: a listing continues behind the key that follows from these
        // two.
        (self.aside(&key, version)?.info == info).then_some((key, version))
    }

    fn key(&self, rest: std::fmt::Arguments<'_>) -> String {
        format!("{}{rest}", self.root)
    }

    /// All keys of the store.
    pub(crate) fn all(&self) -> Range<String> {
        prefix(self.root.clone())
    }

    /// At home: which cluster the store is on.
    pub(crate) fn place(&self) -> String {
        self.key(format_args!("place"))
    }

    /// On any other cluster: that the store is there.
    pub(crate) fn here(&self) -> String {
        self.key(format_args!("here"))
    }

    pub(crate) fn clock(&self) -> String {
        self.key(format_args!("t"))
    }

    pub(crate) fn holders(&self) -> String {
        self.key(format_args!("r"))
    }

    pub(crate) fn office(&self, office: Office) -> String {
        self.key(format_args!("e/{}", office.name()))
    }

    pub(crate) fn all_offices(&self) -> Range<String> {
        prefix(self.key(format_args!("e/")))
    }

    pub(crate) fn budget(&self) -> String {
        self.key(format_args!("b/budget"))
    }

    /// Where earlier releases kept the bytes that belonged to no session.
    pub(crate) fn earlier_free(&self) -> String {
        self.key(format_args!("b/free"))
    }

    pub(crate) fn deposits(&self) -> Range<String> {
        prefix(self.key(format_args!("b/a/")))
    }

    pub(crate) fn deposit(&self, session: SessionId, number: u64) -> String {
        self.key(format_args!("b/a/{:016x}-{number:x}", session.0))
    }

    pub(crate) fn wait_request(&self, session: SessionId) -> String {
        self.key(format_args!("b/w/{:016x}", session.0))
    }

    /// The queue of sessions that wait for quota.
    pub(crate) fn shared_queue(&self) -> Range<String> {
        prefix(self.key(format_args!("b/w/")))
    }

    /// Where a waiting process is told what became of its request.
    pub(crate) fn wait_result(&self, session: SessionId) -> String {
        self.key(format_args!("b/t/{:016x}", session.0))
    }

    pub(crate) fn alive(&self, session: SessionId) -> String {
        self.key(format_args!("n/{:016x}", session.0))
    }

    pub(crate) fn all_alive(&self) -> Range<String> {
        prefix(self.key(format_args!("n/")))
    }

    pub(crate) fn existed(&self, session: SessionId) -> String {
        self.key(format_args!("z/{:016x}", session.0))
    }

    pub(crate) fn all_existed(&self) -> Range<String> {
        prefix(self.key(format_args!("z/")))
    }

    /// The session that a key of `n/`, `z/` or `b/w/` names.
    pub(crate) fn session_of(key: &str) -> Option<SessionId> {
        u64::from_str_radix(key.rsplit('/').next()?, 16).ok().map(SessionId)
    }

    pub(crate) fn slot(&self, session: SessionId, slot: u64) -> String {
        self.key(format_args!("o/{:016x}/{slot:016x}", session.0))
    }

    pub(crate) fn pending(&self, sample: &SampleId) -> String {
        self.of_sample("p/", sample).name(sample.as_str()).0
    }

    /// Whether this is the key of a reservation.
    pub(crate) fn is_pending(&self, key: &str) -> bool {
        key.strip_prefix(&self.root).is_some_and(|rest| rest.starts_with("p/"))
    }

    /// The claim on an object that another writer named: its value names the owning sample.
    pub(crate) fn claim(&self, key: &ObjectKey) -> String {
        self.key(format_args!("k/{}", escape(key.as_str())))
    }

    /// Every key that must be absent for a reservation: the sample's reservation by another producer, and other
    /// samples' claims on its objects.
    pub(crate) fn in_its_way<'a>(
        &'a self,
        sample: &'a SampleId,
        claims: &'a [ObjectKey],
    ) -> impl Iterator<Item = String> + 'a {
        std::iter::once(self.pending(sample)).chain(claims.iter().map(|key| self.claim(key)))
    }

    /// The writes that give a sample its claims.
    pub(crate) fn put_claims<'a>(
        &'a self,
        sample: &'a SampleId,
        claims: &'a [ObjectKey],
    ) -> impl Iterator<Item = Write> + 'a {
        claims.iter().map(|key| Write::put(self.claim(key), sample.as_str()))
    }

    pub(crate) fn live(&self, sample: &SampleId) -> String {
        self.of_sample("s/", sample).name(sample.as_str()).0
    }

    pub(crate) fn retired_with_readers(&self, sample: &SampleId, generation: Generation) -> String {
        let key = self.of_sample("g/", sample).name(sample.as_str()).text("/");
        key.number(generation.get().to_be_bytes()).0
    }

    /// The key of a retired sample's record that is to be freed.
    pub(crate) fn free_key(&self, sample: &SampleRef) -> String {
        self.to_free(&sample.sample, sample.generation)
    }

    pub(crate) fn to_free(&self, sample: &SampleId, generation: Generation) -> String {
        let key = self.of_sample("f/", sample).name(sample.as_str()).text("/");
        key.number(generation.get().to_be_bytes()).0
    }

    /// The key that says which sample a reservation made ahead has become, until that sample's objects are removed.
    pub(crate) fn owner_key(&self, reservation: &SampleId, generation: Generation) -> String {
        let key = self.of_sample("a/", reservation).name(reservation.as_str()).text("/");
        key.number(generation.get().to_be_bytes()).0
    }

    pub(crate) fn put_owner(&self, reservation: &SampleRef, sample: &SampleId) -> Write {
        let key = self.owner_key(&reservation.sample, reservation.generation);
        Write::put(key, sample.as_str())
    }

    /// The write that forgets which reservation made ahead a sample was written under, if it was.
    pub(crate) fn forget_owner(&self, record: &Retired) -> Option<Write> {
        let reserved_as = record.reserved_as.as_ref()?;
        Some(Write::Delete(self.owner_key(&reserved_as.name, reserved_as.generation)))
    }

    /// All records of a stage of a sample's life.
    pub(crate) fn all_of(&self, stage: Stage) -> Range<String> {
        prefix(self.key(format_args!("{}/", letter(stage))))
    }

    /// As [`Layout::all_of`], for people: without the reservations that were made ahead, most of which are for no sample
    /// yet. Of all keys of reservations, theirs come last.
    pub(crate) fn listed(&self, stage: Stage) -> Range<String> {
        let all = self.all_of(stage);
        match stage {
            Stage::Reserved => all.start..self.key(format_args!("p/{MARK}")),
            _ => all,
        }
    }

    /// The records of a sample in one of the stages whose keys begin with its name.
    pub(crate) fn all_of_sample(&self, stage: Stage, sample: &SampleId) -> Range<String> {
        prefix(self.key(format_args!("{}/{}/", letter(stage), escape(sample.as_str()))))
    }

    /// Every place where a record may be that owns objects of this generation: see [`crate::ops::known`]. The values of
    /// records whose keys do not name their generation; of the others, whether they are there.
    pub(crate) fn whereabouts(&self, sample: &SampleRef) -> Vec<Read> {
        let SampleRef { sample, generation } = sample;
        let name = escape(sample.as_str());
        let of_generation = |kind: &str| format!("{kind}/{name}/{:016x}", generation.get());
        let is_there = |keys: Range<String>| Read::Range {
            keys,
            limit: 1,
            keys_only: true,
        };
        let mut reads = vec![Read::Key(self.pending(sample)), Read::Key(self.live(sample))];
        let aside = [format!("p/{name}"), format!("s/{name}")];
        // Its value says whether it has its objects.
        reads.push(Read::Key(self.letter_key(sample, *generation)));
        reads.push(is_there(prefix(self.key(format_args!("x/i/{}/", of_generation("d"))))));
        for place in RETIRED.map(of_generation) {
            let key = self.key(format_args!("{place}"));
            reads.push(is_there(key.clone()..after(&key)));
            reads.push(is_there(prefix(self.key(format_args!("x/i/{place}/")))));
        }
        reads.extend(aside.map(|place| is_there(prefix(self.key(format_args!("x/i/{place}/"))))));
        let owner = self.owner_key(sample, *generation);
        reads.push(is_there(owner.clone()..after(&owner)));
        reads
    }

    /// The lost samples that are kept until a tick before this one.
    pub(crate) fn kept_before(&self, tick: Tick) -> Range<String> {
        self.key(format_args!("l/"))..self.key(format_args!("l/{:016x}", tick.0))
    }

    /// The entries of dead letters whose objects are kept until a tick before this one; of all if there is none.
    pub(crate) fn letters_before(&self, tick: Option<Tick>) -> Range<String> {
        let all = prefix(self.key(format_args!("u/")));
        match tick {
            Some(tick) => all.start..self.key(format_args!("u/{:016x}", tick.0)),
            None => all,
        }
    }

    pub(crate) fn dead_letter(&self, sample: &SampleRef) -> String {
        self.letter_key(&sample.sample, sample.generation)
    }

    fn letter_key(&self, sample: &SampleId, generation: Generation) -> String {
        let key = self.of_sample("d/", sample).name(sample.as_str()).text("/");
        key.number(generation.get().to_be_bytes()).0
    }

    pub(crate) fn ready_shard(&self, group: &GroupName, shard: u64) -> Range<String> {
        prefix(self.key(format_args!("q/{group}/{shard:02x}/")))
    }

    /// From a key of a shard to the end of that shard.
    pub(crate) fn rest_of_shard(&self, from: &str) -> Option<Range<String>> {
        let in_list = from.strip_prefix(&self.root)?.strip_prefix("q/")?;
        let (group, rest) = in_list.split_once('/')?;
        let (shard, _) = rest.split_once('/')?;
        let shard = prefix(self.key(format_args!("q/{group}/{shard}/")));
        Some(from.to_owned()..shard.end)
    }

    /// The ready lists of all groups.
    pub(crate) fn all_ready(&self) -> Range<String> {
        prefix(self.key(format_args!("q/")))
    }

    pub(crate) fn ready(&self, group: &GroupName) -> Range<String> {
        prefix(self.key(format_args!("q/{group}/")))
    }

    /// A session's grant lists that end before `tick`; all of them if there is no `tick`.
    pub(crate) fn held(&self, session: SessionId, before: Option<Tick>) -> Range<String> {
        let all = prefix(self.key(format_args!("h/{:016x}/", session.0)));
        match before {
            Some(tick) => all.start..self.key(format_args!("h/{:016x}/{:016x}", session.0, tick.0)),
            None => all,
        }
    }

    /// The grant lists of all sessions.
    pub(crate) fn all_held(&self) -> Range<String> {
        prefix(self.key(format_args!("h/")))
    }

    /// The session that a grant list belongs to.
    pub(crate) fn holder_of(&self, key: &str) -> Option<SessionId> {
        let (session, _) = key.strip_prefix(&self.root)?.strip_prefix("h/")?.split_once('/')?;
        // Only what sorts where the session's keys do.
        let is_ours = session.len() == 16 && session.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        u64::from_str_radix(session, 16).ok().filter(|_| is_ours).map(SessionId)
    }

    /// The grant lists of what a session was granted until a tick.
    pub(crate) fn grant_lists(&self, to: SessionId, until: Tick) -> String {
        self.key(format_args!("h/{:016x}/{:016x}/", to.0, until.0))
    }

    /// The grant list with this number, written by session `by`.
    pub(crate) fn grant_list(&self, to: SessionId, until: Tick, by: SessionId, number: u64) -> String {
        format!("{}{:016x}-{number:x}", self.grant_lists(to, until), by.0)
    }

    /// The sample that a key of `s/` or of a ready list names.
    pub(crate) fn sample_of(key: &str) -> Option<SampleId> {
        unescaped(key.rsplit('/').next()?)
    }

    /// The sample and generation that a key of `f/`, `g/`, `l/`, `d/` or `u/` names.
    pub(crate) fn parse_retired(key: &str) -> Option<(SampleId, Generation)> {
        let mut parts = key.rsplit('/');
        let generation = Generation::new(u64::from_str_radix(parts.next()?, 16).ok()?)?;
        Some((unescaped(parts.next()?)?, generation))
    }

    /// The write that puts a reservation under its key.
    pub(crate) fn put_reserved(&self, sample: &SampleId, record: &Reserved) -> Result<Write> {
        Ok(Write::put(self.pending(sample), encode(record)?))
    }

    /// The key of the ready entry of a sample with this position that waits for the group.
    pub(crate) fn ready_entry(&self, sample: &SampleId, order: Generation, group: &GroupName) -> String {
        let key = self.of_sample("q/", sample).text(group.as_str()).text("/");
        let key = key.number([shard_of(sample)]).text("/");
        let key = key.number(order.get().to_be_bytes()).text("/");
        key.name(sample.as_str()).0
    }

    /// The keys of the ready entries that follow from one record and not from the other.
    pub(crate) fn ready_entries<'a>(
        &'a self,
        sample: &'a SampleId,
        of: &'a Live,
        not_of: Option<&'a Live>,
    ) -> impl Iterator<Item = String> + 'a {
        let other = not_of.filter(|other| other.order() == of.order());
        let waiting = of.groups.iter().filter(|state| state.progress == Progress::Waiting);
        let only_here = waiting.filter(move |state| !other.is_some_and(|other| waits_for(other, &state.group)));
        only_here.map(|state| self.ready_entry(sample, of.order(), &state.group))
    }

    /// The writes that replace the live record of a sample, if there is one, by another.
    pub(crate) fn put_live(
        &self,
        sample: &SampleId,
        before: Option<&Live>,
        after: &Live,
        description: &Description,
    ) -> Result<Vec<Write>> {
        self.put_in_place(sample, before, before, after, description)
    }

    /// The writes that put the live record of another incarnation of a sample, in the place of the one before, if there
    /// was one. Two that were reserved by one write may have the same place in a ready list: then the entry is replaced.
    pub(crate) fn put_another(
        &self,
        sample: &SampleId,
        before: Option<&Live>,
        after: &Live,
        description: &Description,
    ) -> Result<Vec<Write>> {
        self.put_in_place(sample, before, None, after, description)
    }

    /// As [`Layout::put_live`]; the ready entries that follow from `listed` already are as they should be.
    fn put_in_place(
        &self,
        sample: &SampleId,
        before: Option<&Live>,
        listed: Option<&Live>,
        after: &Live,
        description: &Description,
    ) -> Result<Vec<Write>> {
        let value = encode_described(after, description)?;
        let entry = if after.groups.len() == 1 {
            value.clone()
        } else {
            ReadyValue::of(after)?
        };
        let mut writes = Vec::with_capacity(USUAL_WRITES);
        writes.extend(
            before
                .into_iter()
                .flat_map(|before| self.ready_entries(sample, before, Some(after)))
                .map(Write::Delete),
        );
        writes.extend(
            self.ready_entries(sample, after, listed)
                .map(|key| Write::put(key, entry.clone())),
        );
        writes.push(Write::put(self.live(sample), value));
        Ok(writes)
    }

    /// The writes that turn the live record of a sample into a retired one.
    pub(crate) fn put_live_away(
        &self,
        sample: &SampleId,
        before: &Live,
        after: &Retired,
        description: &Description,
    ) -> Result<Vec<Write>> {
        let mut writes = Vec::with_capacity(USUAL_WRITES);
        writes.extend(self.ready_entries(sample, before, None).map(Write::Delete));
        writes.push(Write::Delete(self.live(sample)));
        writes.extend(self.put_retired(sample, None, after, description)?);
        Ok(writes)
    }

    /// The key of a retired record. It contains the generation, so a record that was never reserved at a known version
    /// cannot be retired.
    pub(crate) fn retired_home(&self, sample: &SampleId, record: &Retired) -> Result<String> {
        let generation = record.generation.ok_or_else(|| {
            Error::internal("index.place", "a retired record has no generation; this is a bug").with("sample", sample)
        })?;
        Ok(match record.kept {
            _ if !record.may_be_freed() => self.retired_with_readers(sample, generation),
            _ if record.keeps_its_objects() || record.freed.is_some() => self.letter_key(sample, generation),
            Some(until) => self.kept("l/", until, sample, generation),
            None => self.to_free(sample, generation),
        })
    }

    fn kept(&self, kind: &str, until: Tick, sample: &SampleId, generation: Generation) -> String {
        let key = self.of_sample(kind, sample).number(until.0.to_be_bytes()).text("/");
        let key = key.name(sample.as_str()).text("/");
        key.number(generation.get().to_be_bytes()).0
    }

    /// The entry by which a sweep finds a dead letter whose objects are kept too long; none for any other record.
    pub(crate) fn letter_entry(&self, sample: &SampleId, record: &Retired) -> Option<String> {
        let keeps = record.may_be_freed() && record.keeps_its_objects();
        let (until, generation) = (record.kept.filter(|_| keeps)?, record.generation?);
        Some(self.kept("u/", until, sample, generation))
    }

    /// The writes that put a retired record under its key, in the place of an earlier one, if there was one. The record is
    /// put last.
    pub(crate) fn put_retired(
        &self,
        sample: &SampleId,
        before: Option<&Retired>,
        after: &Retired,
        description: &Description,
    ) -> Result<Vec<Write>> {
        let mut writes = Vec::with_capacity(USUAL_WRITES);
        let home = self.retired_home(sample, after)?;
        let entry = self.letter_entry(sample, after);
        if let Some(before) = before {
            let old_home = Some(self.retired_home(sample, before)?).filter(|old| *old != home);
            let old_entry = self
                .letter_entry(sample, before)
                .filter(|old| Some(old) != entry.as_ref());
            writes.extend(old_home.into_iter().chain(old_entry).map(Write::Delete));
        }
        writes.extend(entry.map(|entry| Write::put(entry, Vec::new())));
        writes.push(Write::put(home, encode_described(after, description)?));
        Ok(writes)
    }
}

/// The first segment of the keys of a stage's records.
fn letter(stage: Stage) -> char {
    match stage {
        Stage::Reserved => 'p',
        Stage::Live => 's',
        Stage::Retired => 'g',
        Stage::ToFree => 'f',
        Stage::Lost => 'l',
        Stage::Dead => 'd',
    }
}

/// Decodes the sample name in a segment of a key. Hardly any name needs an escape.
fn unescaped(segment: &str) -> Option<SampleId> {
    if segment.contains('%') {
        SampleId::new(unescape(segment)?).ok()
    } else {
        SampleId::new(segment).ok()
    }
}

/// The key from which a list is read on, given the last key that was seen. The store shows bytes that are not text as
/// `U+FFFD`, which is not where they sort. Our own keys are ASCII, so everything that begins like such a key is
/// skipped.
pub(crate) fn after(key: &str) -> String {
    match key.split_once(char::REPLACEMENT_CHARACTER) {
        Some((before, _)) => prefix(before).end,
        None => format!("{key}\0"),
    }
}

pub(crate) fn waits_for(record: &Live, group: &GroupName) -> bool {
    let waits = |state: &GroupState| state.group == *group && state.progress == Progress::Waiting;
    record.groups.iter().any(waits)
}

/// The shard of a sample: hashed from its name, because samples that were reserved together share one generation.
pub(crate) fn shard_of(sample: &SampleId) -> u8 {
    let hash = Digest::of(sample.as_str().as_bytes()).as_u128();
    u8::try_from(hash % u128::from(SHARDS)).unwrap_or(0)
}
