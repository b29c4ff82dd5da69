//! Finds the name of a pre-tokenizer by its expressions, as a `tokenizer.json` lists them.

use super::{PRE_TOKENIZERS, PreTokenizer, SplitRule};

/// Options of a tokenizer, in addition to its expressions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitOptions {
    /// A word that equals a token is not merged.
    pub ignore_merges: bool,
    /// Detokenization removes spaces before punctuation.
    pub clean_spaces: bool,
}

/// Returns the name of the pre-tokenizer with these expressions; `None` if no known pre-tokenizer splits text this
/// way. Rows that also match `clean_spaces` are preferred.
pub(crate) fn name_of(patterns: &[String], options: SplitOptions) -> Option<&'static str> {
    let wanted: Vec<String> = patterns.iter().map(|p| plain(p)).collect();
    let splits_equally = |row: &&PreTokenizer| {
        let same = |rule: &SplitRule, wanted: &String| matches!(rule, SplitRule::Regex(p) if plain(p) == *wanted);
        row.rules.len() == wanted.len()
            && row.rules.iter().zip(&wanted).all(|(rule, wanted)| same(rule, wanted))
            && row.alphabet == super::Alphabet::Bytes
            && row.ignore_merges == options.ignore_merges
            && !row.keep_newlines
            && !row.force_bos
    };
    let rows = || PRE_TOKENIZERS.iter().filter(splits_equally);
    let exact = rows().find(|row| row.clean_spaces == options.clean_spaces && !row.no_bos && !row.add_sep);
    exact.or_else(|| rows().next())?.names.first().copied()
}

/// Replaces `\x{…}` and escapes of line ends by their characters, and removes other differences in notation.
fn plain(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let code = rest.strip_prefix("\\x{").and_then(|r| r.split_once('}'));
        let code = code.and_then(|(hex, after)| Some((char::from_u32(u32::from_str_radix(hex, 16).ok()?)?, after)));
        if let Some((code, after)) = code {
            out.push(code);
            rest = after;
            continue;
        }
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\\' => {
                let next = rest[1..].chars().next();
                // Punctuation has the same meaning with and without a backslash within brackets.
                out.push('\\');
                out.extend(next);
                rest = &rest[1 + next.map_or(0, char::len_utf8)..];
                continue;
            }
            c => out.push(c),
        }
        rest = &rest[c.len_utf8()..];
    }
    // `tokenizer.json` files spell the case-insensitive contractions in two ways.
    out.replace("'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)")
        .replace("\\p{N}{1}", "\\p{N}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_published_files_have_names() {
        let options = |ignore_merges, clean_spaces| SplitOptions {
            ignore_merges,
            clean_spaces,
        };
        let gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+".to_owned();
        assert_eq!(
            name_of(std::slice::from_ref(&gpt2), options(false, true)),
            Some("gpt-2")
        );
        assert_eq!(
            name_of(&[r"\p{N}".into(), gpt2.clone()], options(false, false)),
            Some("command-r")
        );
        let kana = "[一-龥\u{3040}-ゟ゠-ヿ]+".to_owned();
        let deepseek = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
        assert_eq!(
            name_of(&[r"\p{N}{1,3}".into(), kana, deepseek.into()], options(false, false)),
            Some("deepseek-v3")
        );
        assert_eq!(name_of(&["x".into(), gpt2], options(false, false)), None);
    }
}
