//! Text as it comes out of a model: whole characters, up to the first text that ends it.

use super::Utf8Stream;

/// Turns the bytes of tokens into text. What could be the beginning of a stop text waits until it is one or is not.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    characters: Utf8Stream,
    /// What may be the beginning of a stop text.
    held: String,
    stops: Vec<String>,
}

impl TextStream {
    /// Nothing yet; each of `stops` ends the text before it. Empty ones end nothing.
    pub fn new(mut stops: Vec<String>) -> TextStream {
        stops.retain(|stop| !stop.is_empty());
        TextStream {
            characters: Utf8Stream::new(),
            held: String::new(),
            stops,
        }
    }

    /// Takes a token's bytes, and appends to `out` what is sure to be text. The stop text, if one has come: nothing follows.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) -> Option<&str> {
        self.characters.push(bytes, &mut self.held);
        let places = self.stops.iter().enumerate();
        let found = places.filter_map(|(i, stop)| Some((self.held.find(stop.as_str())?, i)));
        if let Some((at, i)) = found.min() {
            out.push_str(&self.held[..at]);
            self.held.clear();
            return Some(&self.stops[i]);
        }
        let open = self.stops.iter().map(|stop| n_begun(&self.held, stop)).max();
        let n = self.held.len() - open.unwrap_or(0);
        out.push_str(&self.held[..n]);
        self.held.drain(..n);
        None
    }

    /// Appends what is left when no token follows.
    pub fn finish(&mut self, out: &mut String) {
        self.characters.flush(&mut self.held);
        out.push_str(&self.held);
        self.held.clear();
    }
}

/// Bytes at the end of a text with which another one begins, short of all of it.
pub fn n_begun(text: &str, other: &str) -> usize {
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
    fn a_stop_text_ends_what_comes_and_is_not_shown() {
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
    fn the_first_place_counts_and_then_the_first_stop() {
        assert_eq!(run(&["c", "b"], &["abc"]), (vec!["a".into()], Some("b")));
        assert_eq!(run(&["bc", "b"], &["abc"]), (vec!["a".into()], Some("bc")));
    }
}
