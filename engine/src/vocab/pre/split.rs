//! Splits text into words: rules are applied in order, each to the pieces produced by the previous rule.

use super::dfa::Dfa;

/// Split rule. Every match is a piece, and so is the text between two matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SplitRule {
    /// Matches of an expression; see [`Dfa`] for the syntax.
    Regex(&'static str),
    /// Groups of three digits, counted from the right.
    Digits(DigitGroups),
}

/// Selects the runs of digits to group. The published expressions look ahead over the whole run at every
/// digit (quadratic time); grouping complete runs is equivalent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DigitGroups {
    /// Matches every run of `\p{N}`.
    Numbers,
    /// `(?=(\d{3})+(?!\d))`: splits before each group; text before the first group stays attached.
    Boundaries,
    /// `\d{1,3}(?=(?:\d{3})*\b)`: runs not followed by a word character.
    Words,
}

/// Compiled rules of a pre-tokenizer.
#[derive(Debug)]
pub(crate) struct Splitter {
    rules: Vec<Cut>,
}

#[derive(Debug)]
enum Cut {
    Regex(Dfa),
    Digits(DigitGroups),
}

impl Splitter {
    pub fn new(rules: &[SplitRule]) -> Result<Self, String> {
        let cut = |rule: &SplitRule| match rule {
            SplitRule::Regex(pattern) => Dfa::new(pattern)
                .map(Cut::Regex)
                .map_err(|e| format!("`{pattern}`: {e}")),
            SplitRule::Digits(groups) => Ok(Cut::Digits(*groups)),
        };
        Ok(Self {
            rules: rules.iter().map(cut).collect::<Result<_, _>>()?,
        })
    }

    /// Calls `word` for every piece of `text`, in order. Pieces are non-empty and concatenate to `text`.
    pub fn split<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str)) {
        apply(&self.rules, text, word);
    }
}

fn apply<'t>(rules: &[Cut], text: &'t str, word: &mut dyn FnMut(&'t str)) {
    if text.is_empty() {
        return;
    }
    match rules {
        [] => word(text),
        // Fast path for the last rule, which does most of the work: one closure less per piece.
        [Cut::Regex(dfa)] => matches(dfa, text, word),
        [Cut::Regex(dfa), rest @ ..] => matches(dfa, text, &mut |piece| apply(rest, piece, word)),
        [Cut::Digits(groups), rest @ ..] => digit_groups(*groups, text, &mut |piece| apply(rest, piece, word)),
    }
}

/// Splits `text` into matches and the text between them.
fn matches<'t>(dfa: &Dfa, text: &'t str, word: &mut dyn FnMut(&'t str)) {
    let mut scan = dfa.scan(text);
    let (mut gap, mut at) = (0, 0);
    while at < text.len() {
        match scan.match_at(at) {
            Some(end) => {
                if gap < at {
                    word(&text[gap..at]);
                }
                word(&text[at..end]);
                (gap, at) = (end, end);
            }
            None => at += char_at(text, at).map_or(1, char::len_utf8),
        }
    }
    if gap < text.len() {
        word(&text[gap..]);
    }
}

fn digit_groups<'t>(groups: DigitGroups, text: &'t str, word: &mut dyn FnMut(&'t str)) {
    let is_digit = |c: char| match groups {
        DigitGroups::Numbers => c.is_numeric(),
        // Decimal digits of any script; other numbers have no place value.
        DigitGroups::Boundaries | DigitGroups::Words => is_decimal(c),
    };
    let mut done = 0;
    let mut at = 0;
    while let Some(start) = text[at..].find(is_digit).map(|i| at + i) {
        let n = text[start..].chars().take_while(|&c| is_digit(c)).count();
        let end = start + text[start..].chars().take(n).map(char::len_utf8).sum::<usize>();
        at = end;
        if groups == DigitGroups::Words && char_at(text, end).is_some_and(is_word) {
            continue;
        }
        let cuts = text[start..end].char_indices().enumerate();
        if groups != DigitGroups::Boundaries && done < start {
            word(&text[done..start]);
            done = start;
        }
        for (i, (offset, _)) in cuts {
            if (n - i).is_multiple_of(3) && done < start + offset {
                word(&text[done..start + offset]);
                done = start + offset;
            }
        }
        if groups != DigitGroups::Boundaries {
            word(&text[done..end]);
            done = end;
        }
    }
    if done < text.len() {
        word(&text[done..]);
    }
}

fn char_at(text: &str, at: usize) -> Option<char> {
    text[at..].chars().next()
}

/// Returns true if `c` matches `\d`.
fn is_decimal(c: char) -> bool {
    c.is_ascii_digit() || (!c.is_ascii() && c.is_numeric() && regex_syntax::is_word_character(c) && !c.is_alphabetic())
}

/// Returns true if `c` matches `\w`.
fn is_word(c: char) -> bool {
    regex_syntax::is_word_character(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces<'t>(rules: &[SplitRule], text: &'t str) -> Vec<&'t str> {
        let mut found = Vec::new();
        Splitter::new(rules)
            .unwrap()
            .split(text, &mut |piece| found.push(piece));
        assert_eq!(found.concat(), text);
        assert!(found.iter().all(|piece| !piece.is_empty()));
        found
    }

    #[test]
    fn later_rules_split_pieces_of_earlier_rules() {
        let rules = [SplitRule::Regex(r"\p{N}"), SplitRule::Regex(r" ?\p{L}+")];
        assert_eq!(pieces(&rules, "a12 b!c"), ["a", "1", "2", " b", "!", "c"]);
        assert_eq!(pieces(&[], "a b"), ["a b"]);
        assert_eq!(pieces(&rules, ""), [""; 0]);
        // `$` matches at the end of the piece, not of the text.
        assert_eq!(
            pieces(&[SplitRule::Regex("x"), SplitRule::Regex(r"\s+$")], "a  x  "),
            ["a", "  ", "x", "  "]
        );
    }

    #[test]
    fn digits_are_grouped_right_to_left() {
        let numbers = [SplitRule::Digits(DigitGroups::Numbers)];
        assert_eq!(
            pieces(&numbers, "a1234567 12b123"),
            ["a", "1", "234", "567", " ", "12", "b", "123"]
        );
        let words = [SplitRule::Digits(DigitGroups::Words)];
        assert_eq!(
            pieces(&words, "1234, 1234x 12345_ 99"),
            ["1", "234", ", 1234x 12345_ ", "99"]
        );
        let boundaries = [SplitRule::Regex(r"\p{N}+"), SplitRule::Digits(DigitGroups::Boundaries)];
        assert_eq!(
            pieces(&boundaries, "x1234567 123"),
            ["x", "1", "234", "567", " ", "123"]
        );
        assert_eq!(pieces(&boundaries, "12½345"), ["12½", "345"]);
        assert_eq!(pieces(&words, "١٢٣٤"), ["١", "٢٣٤"]);
        assert_eq!(pieces(&words, "½²"), ["½²"]);
    }
}
