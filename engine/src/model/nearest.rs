//! Suggestions for misspelled names.

/// Maximum number of suggestions.
const MAX_NAMES: usize = 3;

/// Returns up to three `known` names with a small edit distance to `name` or a long common prefix, closest
/// first.
pub fn nearest_names<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let n = name.chars().count();
    let near = |other: &'a str| {
        let start = other.chars().zip(name.chars()).take_while(|(a, b)| a == b).count();
        let distance = edit_distance(name, other);
        if distance <= 1 + n / 4 || start >= 3.max(n / 2) {
            Some((distance, other))
        } else {
            None
        }
    };
    let mut found: Vec<(usize, &str)> = known.into_iter().filter_map(near).collect();
    found.sort();
    found
        .into_iter()
        .take(MAX_NAMES)
        .map(|(_, name)| name.to_owned())
        .collect()
}

/// Formats ` (did you mean a or b?)`, or an empty string without names.
pub fn did_you_mean(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!(" (did you mean {}?)", names.join(" or ")),
    }
}

/// Returns the Levenshtein distance.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j].min(diagonal) + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_names_finds_typos() {
        let known = ["llama", "llama4", "qwen2", "qwen3", "qwen3moe", "t5"];
        assert_eq!(nearest_names("qwn3", known)[0], "qwen3");
        assert_eq!(nearest_names("Llama", known)[0], "llama");
        assert_eq!(nearest_names("qwen3mo", known)[0], "qwen3moe");
        assert_eq!(nearest_names("lama4", known)[0], "llama4");
        assert_eq!(nearest_names("clip-vision", known), [""; 0]);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }
}
