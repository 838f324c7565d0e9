//! The known names that are most like an unknown one.

/// Most names of a suggestion. Source: own choice: more are not read.
const SUGGESTED_MAX: usize = 3;

/// Longest name that is compared. Units: characters. Source: own choice: it bounds the time; longer names are rare.
const COMPARED_MAX: usize = 128;

/// Most known names that are compared. Source: own choice: the time of some thousand comparisons is below 100 ms.
const KNOWN_MAX: usize = 4096;

/// Returns `; did you mean …?` with the names nearest to `name`, or an empty text if none is near.
pub(super) fn suggestion(name: &str, known: &[String]) -> String {
    let nearest: Vec<String> = nearest(name, known).into_iter().map(|name| format!("`{name}`")).collect();
    if nearest.is_empty() { String::new() } else { format!("; did you mean {}?", nearest.join(" or ")) }
}

/// Returns the nearest names, the best first: those that contain the name or are part of it, then those with few other
/// letters.
fn nearest<'a>(name: &str, known: &'a [String]) -> Vec<&'a str> {
    let letters = lowercase(name);
    if letters.is_empty() {
        return Vec::new();
    }
    let distance_max = letters.len() / 4;
    let text: String = letters.iter().collect();
    let rank = |known_name: &str| {
        let other_letters = lowercase(known_name);
        let other_text: String = other_letters.iter().collect();
        let n_more = letters.len().abs_diff(other_letters.len());
        let is_part = |part: &str, name: &str| part.chars().count() >= 3 && name.contains(part);
        if is_part(&text, &other_text) || is_part(&other_text, &text) {
            return Some((0, n_more));
        }
        if n_more > distance_max {
            return None;
        }
        let distance = distance(&letters, &other_letters);
        (distance <= distance_max).then_some((1, distance))
    };
    let compared = known.iter().take(KNOWN_MAX).filter_map(|name| Some((rank(name)?, name.as_str())));
    let mut near_names: Vec<_> = compared.collect();
    near_names.sort_by_key(|(rank, _)| *rank);
    near_names.into_iter().take(SUGGESTED_MAX).map(|(_, name)| name).collect()
}

fn lowercase(name: &str) -> Vec<char> {
    name.chars().flat_map(char::to_lowercase).take(COMPARED_MAX).collect()
}

/// Returns the number of letters to insert, remove or replace (Levenshtein's distance).
///
/// Cost: O(product of the lengths).
fn distance(one: &[char], other: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (idx, letter) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], idx + 1);
        for (column, other_letter) in other.iter().enumerate() {
            let n_if_replaced = diagonal + usize::from(letter != other_letter);
            diagonal = row[column + 1];
            row[column + 1] = n_if_replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_names_are_those_that_a_person_may_have_meant() {
        let known: Vec<String> =
            ["qwen3-0.6b", "Qwen/Qwen3-8B-GGUF:Q8_0", "gemma-3-4b", "gemma-3-12b", "a"].map(str::to_owned).into();
        let check = |name: &str, expected: &[&str]| assert_eq!(nearest(name, &known), expected, "{name}");
        check("qwen3", &["qwen3-0.6b", "Qwen/Qwen3-8B-GGUF:Q8_0"]);
        check("qwen3-8b", &["Qwen/Qwen3-8B-GGUF:Q8_0"]);
        check("gema-3-4b", &["gemma-3-4b"]);
        check("GEMMA-3-4B", &["gemma-3-4b", "gemma-3-12b"]);
        check("b", &[]);
        check("gpt-4o", &[]);
        check("", &[]);
        assert_eq!(suggestion("gema-3-4b", &known), "; did you mean `gemma-3-4b`?");
        assert_eq!(suggestion("gpt-4o", &known), "");
    }

    #[test]
    fn the_distance_counts_letters() {
        let check = |one: &str, other: &str, expected: usize| {
            assert_eq!(distance(&lowercase(one), &lowercase(other)), expected, "{one} {other}");
        };
        check("", "", 0);
        check("abc", "", 3);
        check("kitten", "sitting", 3);
        check("abc", "abc", 0);
    }
}
