//! Texts of hosts for clients: one line of limited length without control characters and without paths of the machine.

/// Longest reason that a client gets. Units: bytes.
///
/// Source: own choice: the last lines of a log that name the cause; the whole log is on the host.
const REASON_BYTES_MAX: usize = 512;

/// Text in place of the folders of a path.
const FOLDERS: &str = "\u{2026}/";

/// Returns a text without the folders of the paths in it.
///
/// A path may have spaces, so each line loses all from the start of its first absolute path to its last slash: rather
/// too much than a part of a path.
pub fn without_paths(text: &str) -> String {
    let lines = text.lines().map(line_without_paths).filter(|line| !line.is_empty());
    let mut clean = String::new();
    for line in lines {
        if !clean.is_empty() {
            clean.push_str(" | ");
        }
        clean.push_str(&line);
    }
    if clean.len() > REASON_BYTES_MAX {
        // The end names the cause.
        let start = (clean.len() - REASON_BYTES_MAX..).find(|at| clean.is_char_boundary(*at)).unwrap_or_default();
        clean = format!("\u{2026}{}", &clean[start..]);
    }
    clean
}

fn line_without_paths(line: &str) -> String {
    let line: String = line.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let line = line.trim();
    let Some(start) = path_start(line) else { return line.to_owned() };
    let end = line.rfind(['/', '\\']).map_or(start, |slash| slash + 1);
    format!("{}{FOLDERS}{}", &line[..start], &line[end.max(start)..])
}

/// Returns where the first absolute path of a line starts: a slash, a tilde or a drive that follows no part of a word.
fn path_start(line: &str) -> Option<usize> {
    let bytes = line.as_bytes();
    let is_slash = |at: usize| bytes.get(at).is_some_and(|byte| matches!(byte, b'/' | b'\\'));
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_') || !byte.is_ascii();
    (0..bytes.len()).find(|&at| {
        let follows_word = at > 0 && is_word(bytes[at - 1]);
        let is_drive = bytes[at].is_ascii_alphabetic() && bytes.get(at + 1) == Some(&b':') && is_slash(at + 2);
        let is_relative = matches!(bytes[at], b'~' | b'.') && (is_slash(at + 1) || bytes[at..].starts_with(b"../"));
        !follows_word && (is_slash(at) || is_drive || is_relative)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_lose_their_folders_and_names_of_repositories_stay() {
        for (text, expected) in [
            ("out of memory", "out of memory"),
            ("failed to open '/home/ann/models/a.gguf'", "failed to open '\u{2026}/a.gguf'"),
            (
                "failed to open /home/ann b/models/a c.gguf: no such file",
                "failed to open \u{2026}/a c.gguf: no such file",
            ),
            ("C:\\Users\\ann\\a.gguf is damaged", "\u{2026}/a.gguf is damaged"),
            ("cannot read ~/models/a.gguf or ../b/c.gguf", "cannot read \u{2026}/c.gguf"),
            ("ggml-org/gemma-3:Q4_K_M is not cached", "ggml-org/gemma-3:Q4_K_M is not cached"),
            ("path=/data/x.gguf", "path=\u{2026}/x.gguf"),
            ("one\n\n/a/b two\r\n", "one | \u{2026}/b two"),
            ("a\tb\u{7}c", "a b c"),
        ] {
            assert_eq!(without_paths(text), expected, "{text}");
        }
    }

    #[test]
    fn only_the_end_of_a_long_text_is_kept() {
        let text = without_paths(&format!("{}the cause", "\u{fc}".repeat(REASON_BYTES_MAX)));
        assert!(text.len() <= REASON_BYTES_MAX + 3 && text.ends_with("the cause"), "{text}");
    }

    proptest! {
        #[test]
        fn no_folder_of_a_path_is_left(
            before in "[a-z ='(]{0,12}[ ='(]",
            file in "[a-z. ]{1,8}",
            after in "[a-z: ]{0,9}",
        ) {
            let clean = without_paths(&format!("{before}/home/SECRET/{file}{after}"));
            prop_assert!(!clean.contains("SECRET"), "{}", clean);
            prop_assert_eq!(without_paths(&clean), clean, "a host cleans it, and a router again");
        }
    }
}
