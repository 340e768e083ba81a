//! The master's HTTP probe and the names of keys.

use crate::bare::{Bare, Keep};
use crate::common::plain;

/// The engine stores keys with a comma, but its HTTP probe splits its list of keys after unescaping, so that it cannot be
/// asked about them. `ObjectKey` refuses commas.
#[test]
fn the_probe_splits_keys_at_commas() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let from = bare.filled(4096, 1);
    assert_eq!(
        (bare.put("a,b", &from.whole(), Keep::Evictable), bare.is_exist("a,b")),
        (0, 1),
        "a key with a comma used to be stored"
    );
    let answer = bare.probe_raw("a,b");
    let names: Vec<_> = answer.as_object().expect("a map").keys().cloned().collect();
    assert_eq!(
        names,
        ["a", "b"],
        "the probe used to split an escaped comma; if it does not any more, ObjectKey may allow commas"
    );
}

/// All other characters come through the probe if they are percent-escaped. Tensorhold's keys may have them.
#[test]
fn other_characters_survive_the_probe() {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let bare = Bare::connect(&cluster);
    let from = bare.filled(4096, 1);
    for key in [
        "a/b", "a b", "a&b=c", "a%2Cb", "a+b", "a#b", "a?b", "a;b", "a\"b", "a\\b", "é", "日本", "🦀", "a:b@c", "~.-_",
        "<a>", "a|b", "{a}", "[a]", "'a'",
    ] {
        assert_eq!(bare.put(key, &from.whole(), Keep::Evictable), 0, "{key:?}");
        assert_eq!(
            bare.probe(key),
            Ok((1, 0)),
            "the probe used to find {key:?}, percent-escaped; revisit what ObjectKey allows"
        );
        assert_eq!(bare.remove(key, true), 0);
        assert_eq!(bare.probe(key), Err("OBJECT_NOT_FOUND".to_owned()), "{key:?}");
    }
}
