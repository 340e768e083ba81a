use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn namespace() -> Namespace {
    Namespace {
        model: "llama".to_owned(),
        weights: "1".to_owned(),
        dtype: "bf16".to_owned(),
        layout: "mha".to_owned(),
        group: "full".to_owned(),
        page_tokens: 4,
        tp: Rank { rank: 1, size: 4 },
        pp: Rank::ONLY,
        cp: Rank::ONLY,
    }
}

type Change = fn(&mut Namespace);

#[test]
fn kv11_object_names_differ_in_everything_that_the_bytes_depend_on() {
    let changes: [Change; 13] = [
        |_| {},
        |n| n.model.push('x'),
        |n| n.weights = "2".to_owned(),
        |n| n.dtype = "fp8".to_owned(),
        |n| n.layout = "mla".to_owned(),
        |n| n.group = "window".to_owned(),
        |n| n.page_tokens = 8,
        |n| n.tp.rank = 2,
        |n| n.tp.size = 8,
        |n| n.pp = Rank { rank: 0, size: 2 },
        |n| n.pp = Rank { rank: 1, size: 2 },
        |n| n.cp = Rank { rank: 0, size: 2 },
        |n| n.cp = Rank { rank: 1, size: 2 },
    ];
    let names: BTreeSet<_> = changes
        .iter()
        .map(|change| {
            let mut namespace = namespace();
            change(&mut namespace);
            let mut keys = namespace.keys();
            keys.extend(&[1, 2, 3, 4, 5, 6, 7, 8]);
            namespace.object_name(&keys.as_slice()[0]).expect("it is there")
        })
        .collect();
    assert_eq!(names.len(), changes.len());
}

#[test]
fn ranks_of_one_group_share_their_chain_keys() {
    let mut other = namespace();
    other.tp.rank = 3;
    assert_eq!(namespace().root(), other.root());
}

#[test]
fn text_cannot_move_from_one_field_to_the_next() {
    let mut one = namespace();
    let mut two = namespace();
    (one.model, one.weights) = ("ab".to_owned(), "c".to_owned());
    (two.model, two.weights) = ("a".to_owned(), "bc".to_owned());
    assert_ne!(one.root(), two.root());
}

#[test]
fn the_chain_is_the_published_one() {
    let mut keys = PageKeys::new(PageKey::from_bytes([7; 32]), 2);
    keys.extend(&[1, 2, 3]);
    let mut frame = b"thk1".to_vec();
    frame.extend([7; 32]);
    frame.extend([2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(keys.as_slice(), [PageKey::of(&digest(&SHA256, &frame))]);
    assert_eq!(keys.tokens(), 3);
}

#[test]
fn salt_and_notes_change_keys_from_where_they_stand() {
    let chain = |salt: Option<&[u8]>, note_at: Option<usize>| {
        let mut keys = namespace().keys();
        if let Some(salt) = salt {
            keys = keys.with_salt(salt).expect("it is there");
        }
        for token in 0..12 {
            if note_at == Some(token) {
                keys.note(b"image");
            }
            keys.extend(&[u32::try_from(token).expect("it is there")]);
        }
        keys.as_slice().to_vec()
    };
    let plain = chain(None, None);
    assert_ne!(chain(Some(b"tenant"), None)[0], plain[0]);
    let noted = chain(None, Some(5));
    assert_eq!(noted[0], plain[0]);
    assert_ne!(noted[1], plain[1]);
    assert_ne!(noted[2], plain[2]);
    assert_ne!(chain(None, Some(0))[0], plain[0]);
}

proptest! {
    #[test]
    fn pieces_do_not_matter(tokens in proptest::collection::vec(any::<u32>(), 0..64), cut in 0usize..64) {
        let mut whole = namespace().keys();
        whole.extend(&tokens);
        let (head, tail) = tokens.split_at(cut.min(tokens.len()));
        let mut pieces = namespace().keys();
        pieces.extend(head);
        pieces.extend(tail);
        prop_assert_eq!(whole, pieces);
    }
}
