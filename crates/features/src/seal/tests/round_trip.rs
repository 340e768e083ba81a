//! What is sealed opens: at every length around the edges, in runs, in jobs, on threads.

use std::num::NonZeroU64;

use proptest::prelude::*;

use super::*;

const CHUNK: usize = MIN_CHUNK_BYTES as usize;

#[test]
fn every_length_around_the_edges_of_chunks_opens() {
    for chunks in 0..4 {
        for around in -17_isize..=17 {
            let Some(len) = (chunks * CHUNK).checked_add_signed(around) else {
                continue;
            };
            let plain = plain(len);
            let sealed = seal_at(&keyring(), here(), "t", &plain, 1);
            assert_eq!(sealed.bytes.len(), len + 16 * len.div_ceil(CHUNK).max(1));
            assert_eq!(
                open_at(&keyring(), here(), "t", &sealed).expect("opens"),
                plain,
                "{len}"
            );
        }
    }
}

#[test]
fn plaintext_does_not_show_in_the_sealed_bytes() {
    let plain = plain(3 * CHUNK + 100);
    let sealed = seal_at(&keyring(), here(), "t", &plain, 1);
    for piece in plain.chunks(8) {
        assert!(!sealed.bytes.windows(piece.len().max(8)).any(|window| window == piece));
    }
    // Nor do equal chunks show as equal, within a tensor and between puts.
    let zeros = vec![0; 2 * CHUNK];
    let one = seal_at(&keyring(), here(), "t", &zeros, 1).bytes;
    let other = seal_at(&keyring(), here(), "t", &zeros, 2).bytes;
    assert_ne!(one[..CHUNK], one[CHUNK..2 * CHUNK]);
    assert_ne!(one, other);
    for bytes in [&one, &other] {
        let zeros = bytes.iter().fold(0, |zeros, &byte| zeros + usize::from(byte == 0));
        assert!(zeros < bytes.len() / 64, "{zeros} zeros: about 1 in 256 are expected");
    }
}

#[test]
fn a_layout_adds_up() {
    let layout = Layout::new(10 * CHUNK as u64 + 5, MIN_CHUNK_BYTES).expect("a layout");
    assert_eq!(layout.chunk_count(), 11);
    assert_eq!(
        (layout.chunk_len(0), layout.chunk_len(10)),
        (Some(CHUNK as u64), Some(5))
    );
    assert_eq!((layout.chunk_len(11), layout.chunk_len(u64::MAX)), (None, None));
    assert_eq!(
        (layout.run(0, 0), layout.run(10, 2), layout.run(1, u64::MAX)),
        (None, None, None)
    );
    for chunks in 1..13 {
        let runs: Vec<Run> = layout.runs(NonZeroU64::new(chunks).expect("not zero")).collect();
        assert_eq!(
            runs.iter().map(|run| run.sealed_len()).sum::<u64>(),
            layout.sealed_len()
        );
        let mut at = (0, 0);
        for run in runs {
            assert_eq!((run.first(), run.offset()), at);
            at = (at.0 + run.count(), at.1 + run.plain_len());
        }
        assert_eq!(at, (11, layout.plain_len()));
    }
    let empty = Layout::new(0, MIN_CHUNK_BYTES).expect("a layout");
    assert_eq!(
        (empty.chunk_count(), empty.sealed_len(), empty.chunk_len(0)),
        (1, 16, Some(0))
    );
    assert_eq!(empty.runs(NonZeroU64::MIN).collect::<Vec<_>>(), [empty.whole()]);

    assert!(Layout::new(MAX_TENSOR_BYTES, MAX_CHUNK_BYTES).is_ok());
    for (len, chunk) in [
        (MAX_TENSOR_BYTES + 1, DEFAULT_CHUNK_BYTES),
        (1, 0),
        (1, MIN_CHUNK_BYTES - 1),
        (1, MAX_CHUNK_BYTES + 1),
    ] {
        assert_eq!(kind(Layout::new(len, chunk)), ErrorKind::Invalid);
    }
    assert_eq!(
        kind(keyring().sealer(here(), 1, &SeededRng::new(1))),
        ErrorKind::Invalid
    );
}

#[test]
fn jobs_run_on_threads_in_any_order_and_give_the_same_bytes() {
    let plain = plain(9 * CHUNK + 77);
    let expected = seal_at(&keyring(), here(), "t", &plain, 5);

    let mut sample = keyring()
        .sealer(here(), MIN_CHUNK_BYTES, &SeededRng::new(5))
        .expect("a sealer");
    let sealer = sample.tensor(&name("t"), plain.len() as u64).expect("a tensor");
    let whole = sealer.layout().whole();
    let mut sealed = vec![0; expected.bytes.len()];
    on_two_threads(sealer.jobs(whole, &plain, &mut sealed).expect("jobs"), SealJob::run);
    assert_eq!(sealed, expected.bytes);

    let opener = opener_at(&keyring(), here(), "t", &expected.header, plain.len()).expect("an opener");
    let mut into = vec![0; plain.len()];
    on_two_threads(opener.jobs(whole, &sealed, &mut into).expect("jobs"), OpenJob::run);
    assert_eq!(into, plain);

    let (bytes, tags) = sealed.split_at_mut(plain.len());
    on_two_threads(opener.jobs_in_place(whole, bytes, tags).expect("jobs"), OpenJob::run);
    assert_eq!(bytes, plain);
}

fn on_two_threads<J: Send>(mut jobs: Vec<J>, run: fn(J) -> Result<()>) {
    jobs.reverse();
    let rest = jobs.split_off(jobs.len() / 3);
    std::thread::scope(|scope| {
        for share in [jobs, rest] {
            scope.spawn(move || share.into_iter().try_for_each(run).expect("runs"));
        }
    });
}

#[test]
fn single_chunks_open_by_themselves() {
    let plain = plain(2 * CHUNK + 9);
    let sealed = seal_at(&keyring(), here(), "t", &plain, 1);
    let opener = opener_at(&keyring(), here(), "t", &sealed.header, plain.len()).expect("an opener");
    let (cipher, tags) = sealed.bytes.split_at(plain.len());
    let (tags, _) = tags.as_chunks::<TAG_BYTES>();
    let mut last = [0; 9];
    opener
        .open_chunk(2, &cipher[2 * CHUNK..], &tags[2], &mut last)
        .expect("opens");
    assert_eq!(last, plain[2 * CHUNK..]);
    let mut first = cipher[..CHUNK].to_vec();
    opener.open_chunk_in_place(0, &mut first, &tags[0]).expect("opens");
    assert_eq!(first, plain[..CHUNK]);

    let mut wrong = [1; 8];
    assert_eq!(
        kind(opener.open_chunk(2, &cipher[2 * CHUNK..], &tags[2], &mut wrong)),
        ErrorKind::Invalid
    );
    assert_eq!(wrong, [0; 8]);
    assert_eq!(kind(opener.open_chunk(3, &[], &tags[0], &mut [])), ErrorKind::Invalid);
}

#[test]
fn nothing_is_sealed_twice() {
    let mut sample = keyring()
        .sealer(here(), MIN_CHUNK_BYTES, &SeededRng::new(1))
        .expect("a sealer");
    let sealer = sample.tensor(&name("t"), 2 * CHUNK as u64).expect("a tensor");
    assert_eq!(kind(sample.tensor(&name("t"), 7)), ErrorKind::Invalid);
    assert!(sample.tensor(&name("u"), 7).is_ok());

    let (mut cipher, mut tag) = (vec![0; CHUNK], [0; TAG_BYTES]);
    let refused = |result| assert_eq!(kind(result), ErrorKind::Invalid);
    refused(sealer.seal_chunk(1, &plain(CHUNK - 1), &mut cipher[1..], &mut tag));
    refused(sealer.seal_chunk(1, &plain(CHUNK), &mut cipher[1..], &mut tag));
    refused(sealer.seal_chunk(2, &plain(CHUNK), &mut cipher, &mut tag));
    assert_eq!(
        (&cipher, tag),
        (&vec![0; CHUNK], [0; TAG_BYTES]),
        "nothing is written by a refusal"
    );
    sealer
        .seal_chunk(1, &plain(CHUNK), &mut cipher, &mut tag)
        .expect("a refusal uses nothing up");
    let before = cipher.clone();
    refused(sealer.seal_chunk(1, &vec![9; CHUNK], &mut cipher, &mut tag));
    assert_eq!(cipher, before, "the second time writes nothing");
    let mut all = vec![0; length(sealer.layout().sealed_len())];
    refused(sealer.seal(&plain(2 * CHUNK), &mut all));
}

#[test]
fn runs_and_buffers_of_another_layout_are_refused() {
    let mut sample = keyring()
        .sealer(here(), MIN_CHUNK_BYTES, &SeededRng::new(1))
        .expect("a sealer");
    let sealer = sample.tensor(&name("t"), 2 * CHUNK as u64).expect("a tensor");
    let foreign = Layout::new(CHUNK as u64 + 1, MIN_CHUNK_BYTES)
        .expect("a layout")
        .whole();
    let mut sealed = vec![0; CHUNK + 33];
    assert_eq!(
        kind(sealer.seal_run(foreign, &plain(CHUNK + 1), &mut sealed)),
        ErrorKind::Invalid
    );
    assert_eq!(kind(sealer.seal(&plain(2 * CHUNK), &mut sealed)), ErrorKind::Invalid);
    let opener = opener_at(&keyring(), here(), "t", sample.header(), 2 * CHUNK).expect("an opener");
    assert_eq!(
        kind(opener.open_run(foreign, &sealed, &mut vec![0; CHUNK + 1])),
        ErrorKind::Invalid
    );
    assert_eq!(
        kind(opener.open(&vec![0; 2 * CHUNK + 32], &mut vec![0; CHUNK])),
        ErrorKind::Invalid,
        "the destination is the caller's own"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_tensor_in_any_runs_opens(
        len in 0_usize..6 * CHUNK, chunk_bytes in MIN_CHUNK_BYTES..3 * MIN_CHUNK_BYTES, chunks in 1_u64..5, seed in any::<u64>(),
    ) {
        let plain = plain(len);
        let mut sample = keyring().sealer(here(), chunk_bytes, &SeededRng::new(seed))?;
        let sealer = sample.tensor(&name("t"), len as u64)?;
        let opener = opener_at(&keyring(), here(), "t", sample.header(), len)?;
        let mut opened = vec![0; len];
        for run in sealer.layout().runs(NonZeroU64::new(chunks).expect("not zero")) {
            let range = length(run.offset())..length(run.offset() + run.plain_len());
            let mut object = vec![0; length(run.sealed_len())];
            sealer.seal_run(run, &plain[range.clone()], &mut object)?;
            opener.open_run(run, &object, &mut opened[range.clone()])?;
            let (bytes, tags) = object.split_at_mut(range.len());
            opener.open_run_in_place(run, bytes, tags)?;
            prop_assert_eq!(&*bytes, &plain[range]);
        }
        prop_assert_eq!(opened, plain);
    }
}

#[test]
fn sealing_in_place_gives_the_same_bytes_and_counts_as_sealing() {
    let plain = plain(5000);
    let sealed = seal_at(&keyring(), here(), "t", &plain, 1);
    let mut sample = keyring()
        .sealer(here(), MIN_CHUNK_BYTES, &SeededRng::new(1))
        .expect("a sealer");
    let sealer = sample.tensor(&name("t"), plain.len() as u64).expect("a tensor");
    let (mut bytes, mut tags) = (plain.clone(), [[0; TAG_BYTES]; 2]);
    let (first, second) = bytes.split_at_mut(4096);
    sealer.seal_chunk_in_place(0, first, &mut tags[0]).expect("seals");
    assert_eq!(
        sealer
            .seal_chunk_in_place(1, &mut second[1..], &mut tags[1])
            .expect_err("short")
            .kind(),
        ErrorKind::Invalid
    );
    sealer.seal_chunk_in_place(1, second, &mut tags[1]).expect("seals");
    let again = sealer.seal_chunk_in_place(1, second, &mut tags[1]).expect_err("twice");
    assert_eq!(again.kind(), ErrorKind::Invalid, "{again}");
    assert_eq!([bytes, tags.concat()].concat(), sealed.bytes);
}
