//! Values as people read them: bytes in binary units, times as ages, and texts that cannot harm a terminal.
//!
//! Names of samples, groups and programs come from the index, where any process may write anything. What is shown of
//! them has no control character, no character that changes the direction or the width of what follows, and a bounded
//! length.

use std::time::Duration;

/// The most characters of one text that are shown in a table or a message.
const MOST_SHOWN: usize = 400;

/// A text that comes from elsewhere, safe to show: what a terminal would act on is escaped.
pub(crate) fn shown(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for (count, one) in text.chars().enumerate() {
        if count == MOST_SHOWN {
            safe.push('…');
            break;
        }
        if acts_on_a_terminal(one) {
            safe.extend(one.escape_unicode());
        } else {
            safe.push(one);
        }
    }
    safe
}

/// Control characters, and those of Unicode that are invisible or reorder text.
fn acts_on_a_terminal(one: char) -> bool {
    one.is_control()
        || matches!(one,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Pretty JSON in which nothing acts on a terminal: JSON itself escapes only the first 32 characters.
pub(crate) fn json(value: &serde_json::Value) -> String {
    let plain = format!("{value:#}");
    let mut safe = String::with_capacity(plain.len());
    for one in plain.chars() {
        if one != '\n' && acts_on_a_terminal(one) {
            let mut units = [0; 2];
            for unit in one.encode_utf16(&mut units) {
                safe.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            safe.push(one);
        }
    }
    safe
}

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// A number of bytes in binary units, with three digits.
pub(crate) fn bytes(count: u64) -> String {
    let mut unit = 0;
    let mut whole = count;
    while whole >= 1024 && unit + 1 < UNITS.len() {
        whole /= 1024;
        unit += 1;
    }
    if unit == 0 {
        return format!("{count} B");
    }
    // A hundredth is enough, and 53 bits of a float hold it for every 64-bit number.
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let value = count as f64 / 1024_f64.powi(i32::try_from(unit).unwrap_or(0));
    let digits = usize::from(value < 100.0) + usize::from(value < 10.0);
    let text = format!("{value:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text.as_str(),
    };
    format!("{text} {}", UNITS[unit])
}

/// A number of bytes that a person has written: `1073741824`, `512MiB`, `1.5 GiB`, `2G` (binary, too).
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    tensorhold_settings::parse_bytes(text).ok_or_else(|| {
        format!(
            "{:?} is no number of bytes: write 1073741824, 512MiB or 1.5GiB",
            shown(text)
        )
    })
}

/// A length of time with its two largest units: `4 ms`, `12 s`, `3 min 5 s`, `2 h 10 min`, `5 d 3 h`.
pub(crate) fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    let two = |large: u64, unit: &str, small: u64, smaller: &str| match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {smaller}"),
    };
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3600 => two(seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// How long ago a moment was, both in milliseconds since 1970; by another host's clock it may lie ahead.
pub(crate) fn ago(then_ms: u64, now_ms: u64) -> String {
    match now_ms.checked_sub(then_ms) {
        _ if then_ms == 0 => "unknown".to_owned(),
        Some(since) => format!("{} ago", age(Duration::from_millis(since))),
        None => format!("in {} (clocks differ)", age(Duration::from_millis(then_ms - now_ms))),
    }
}

/// A length of time that a person has written: `30s`, `5m`, `2h`, `7d`.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{:?} is no length of time: write 500ms, 30s, 5m, 2h or 7d", shown(text));
    let text = text.trim();
    let unit = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(unit);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit.trim() {
        "ms" => return Ok(Duration::from_millis(number)),
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

/// A count and its noun.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_binary_units_and_three_digits() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (5 << 30, "5 GiB"),
            ((1 << 30) + (1 << 27), "1.12 GiB"),
            (123_456_789, "118 MiB"),
            (100 << 20, "100 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn ages_have_two_units_at_most() {
        for (seconds, text) in [
            (1, "1 s"),
            (60, "1 min"),
            (185, "3 min 5 s"),
            (7800, "2 h 10 min"),
            (442_800, "5 d 3 h"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
        assert_eq!(age(Duration::from_millis(4)), "4 ms");
        assert_eq!(ago(1000, 4000), "3 s ago");
        assert_eq!(ago(0, 4000), "unknown");
        assert_eq!(ago(5000, 4000), "in 1 s (clocks differ)");
        assert_eq!(parse_time("2h"), Ok(Duration::from_secs(7200)));
        assert!(parse_time("2").is_err() && parse_time("2 weeks").is_err());
    }

    #[test]
    fn nothing_that_acts_on_a_terminal_is_shown() {
        assert_eq!(
            shown("a\u{1b}[2Jb\u{9b}c\u{202e}d\n"),
            "a\\u{1b}[2Jb\\u{9b}c\\u{202e}d\\u{a}"
        );
        assert_eq!(shown("grün, 緑"), "grün, 緑");
        assert_eq!(shown(&"x".repeat(1000)).chars().count(), MOST_SHOWN + 1);
        let value = crate::output::object!("name": "a\u{1b}\u{9b}\u{e0041}");
        let text = json(&value);
        assert!(
            text.chars().all(|one| one == '\n' || !acts_on_a_terminal(one)),
            "{text}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).expect("still JSON"),
            value
        );
    }
}
