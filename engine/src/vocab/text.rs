//! Streaming detokenization with stop strings.

use super::Utf8Stream;

/// Converts token bytes to text and stops at the first stop string. Output that may be a prefix of a stop
/// string is withheld until the match is decided.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    characters: Utf8Stream,
    /// Withheld text that may be a prefix of a stop string.
    withheld: String,
    /// Number of bytes at the start of `withheld` where stop strings are part of the text.
    n_exempt: usize,
    stops: Vec<String>,
}

impl TextStream {
    /// Creates a stream that ends before the first occurrence of any of `stops`. Empty stop strings are
    /// ignored.
    pub fn new(mut stops: Vec<String>) -> TextStream {
        stops.retain(|stop| !stop.is_empty());
        TextStream {
            characters: Utf8Stream::new(),
            withheld: String::new(),
            n_exempt: 0,
            stops,
        }
    }

    /// Appends the bytes of a token that does not end the stream: a stop string that ends within this token is part of
    /// the text. Writes all text that is safe to emit to `out`.
    pub fn push_exempt(&mut self, bytes: &[u8], out: &mut String) {
        self.characters.push(bytes, &mut self.withheld);
        self.n_exempt = self.withheld.len();
        self.release(out);
    }

    /// Appends the bytes of a token and writes all text that is safe to emit to `out`. Returns the stop
    /// string if one was matched; the stream has then ended.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) -> Option<&str> {
        self.characters.push(bytes, &mut self.withheld);
        let places = self.stops.iter().enumerate();
        let found = places.filter_map(|(i, stop)| Some((self.find(stop)?, i)));
        if let Some((at, i)) = found.min() {
            out.push_str(&self.withheld[..at]);
            self.withheld.clear();
            return Some(&self.stops[i]);
        }
        self.release(out);
        None
    }

    /// Returns the position of the first occurrence of `stop` that ends after the exempt bytes.
    fn find(&self, stop: &str) -> Option<usize> {
        let mut from = self.n_exempt.saturating_sub(stop.len() - 1);
        while !self.withheld.is_char_boundary(from) {
            from += 1;
        }
        let at = self.withheld[from..].find(stop)?;
        Some(from + at)
    }

    /// Writes the withheld text to `out`, except an end that may be a prefix of a stop string.
    fn release(&mut self, out: &mut String) {
        let open = self
            .stops
            .iter()
            .map(|stop| partial_match_len(&self.withheld, stop))
            .max();
        let n = self.withheld.len() - open.unwrap_or(0);
        out.push_str(&self.withheld[..n]);
        self.withheld.drain(..n);
        self.n_exempt = self.n_exempt.saturating_sub(n);
    }

    /// Writes the withheld text to `out` when no more tokens follow. The first bytes of a character whose other tokens
    /// are missing are dropped.
    pub fn finish(&mut self, out: &mut String) {
        self.characters = Utf8Stream::new();
        out.push_str(&self.withheld);
        self.withheld.clear();
    }
}

/// Returns the length in bytes of the longest proper prefix of `other` that `text` ends with.
pub fn partial_match_len(text: &str, other: &str) -> usize {
    let most = text.len().min(other.len().saturating_sub(1));
    let is_begun = |n: &usize| other.is_char_boundary(*n) && text.ends_with(&other[..*n]);
    (1..=most).rev().find(is_begun).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<'a>(stops: &'a [&str], pieces: &[&str]) -> (Vec<String>, Option<&'a str>) {
        let mut stream = TextStream::new(stops.iter().map(ToString::to_string).collect());
        let (mut said, mut stopped) = (Vec::new(), None);
        for piece in pieces {
            let mut out = String::new();
            stopped = stream.push(piece.as_bytes(), &mut out).map(str::to_owned);
            said.push(out);
            if stopped.is_some() {
                break;
            }
        }
        if stopped.is_none() {
            let mut out = String::new();
            stream.finish(&mut out);
            said.push(out);
        }
        said.retain(|text| !text.is_empty());
        (
            said,
            stops.iter().copied().find(|stop| Some(*stop) == stopped.as_deref()),
        )
    }

    #[test]
    fn stop_string_ends_stream_and_is_hidden() {
        assert_eq!(run(&[], &["a", "b"]), (vec!["a".into(), "b".into()], None));
        assert_eq!(
            run(&["\n\n"], &["a\n", "b\n", "\nc"]),
            (vec!["a".into(), "\nb".into()], Some("\n\n"))
        );
        assert_eq!(
            run(&["User:", "er"], &["Us", "er", ": x"]),
            (vec!["Us".into()], Some("er"))
        );
        assert_eq!(run(&["é!"], &["aé", "?"]), (vec!["a".into(), "é?".into()], None));
        assert_eq!(run(&["abab"], &["aba", "bab"]), (vec![], Some("abab")));
        assert_eq!(run(&["abc"], &["ab"]), (vec!["ab".into()], None));
        assert_eq!(run(&[""], &["a"]), (vec!["a".into()], None));
    }

    #[test]
    fn stop_string_within_exempt_tokens_is_text() {
        let run = |stops: &[&str], exempt: &[&str], rest: &[&str]| {
            let mut stream = TextStream::new(stops.iter().map(ToString::to_string).collect());
            let mut out = String::new();
            for piece in exempt {
                stream.push_exempt(piece.as_bytes(), &mut out);
            }
            let found = rest
                .iter()
                .find_map(|piece| stream.push(piece.as_bytes(), &mut out).map(str::to_owned));
            stream.finish(&mut out);
            (out, found)
        };
        let stopped = |out: &str, stop: &str| (out.to_owned(), Some(stop.to_owned()));
        assert_eq!(run(&["b"], &["a", "bc"], &["d", "b"]), stopped("abcd", "b"));
        assert_eq!(run(&["bc"], &["ab"], &["cd"]), stopped("a", "bc"));
        assert_eq!(run(&["ab", "xabx"], &["xab"], &["y", "z"]), ("xabyz".to_owned(), None));
        assert_eq!(run(&["ab", "xabx"], &["xab"], &["x"]), stopped("", "xabx"));
        assert_eq!(run(&["é"], &["aé"], &["bé"]), stopped("aéb", "é"));
        assert_eq!(run(&["aa"], &["aa"], &["a"]), stopped("a", "aa"));
        assert_eq!(run(&["b"], &["ab"], &[]), ("ab".to_owned(), None));
    }

    #[test]
    fn incomplete_character_at_end_is_dropped() {
        let finished = |pieces: &[&[u8]], stops: &[&str]| {
            let mut stream = TextStream::new(stops.iter().map(ToString::to_string).collect());
            let mut out = String::new();
            for piece in pieces {
                assert_eq!(stream.push(piece, &mut out), None);
            }
            stream.finish(&mut out);
            out
        };
        let emoji = "😀".as_bytes();
        for n in 1..4 {
            assert_eq!(finished(&[b"a", &emoji[..n]], &[]), "a");
            assert_eq!(finished(&[b"User", &emoji[..n]], &["User:"]), "User");
        }
        assert_eq!(finished(&[&emoji[..1], &emoji[1..]], &[]), "😀");
        assert_eq!(
            finished(&[b"\xff", &emoji[..2]], &[]),
            "\u{fffd}",
            "invalid bytes are shown"
        );
    }

    #[test]
    fn earliest_stop_string_wins() {
        assert_eq!(run(&["c", "b"], &["abc"]), (vec!["a".into()], Some("b")));
        assert_eq!(run(&["bc", "b"], &["abc"]), (vec!["a".into()], Some("bc")));
    }
}
