//! Text as it comes out of a model: whole characters, up to the first text that ends an answer.

use std::io;

use engine::vocab::Utf8Stream;

/// Where text goes.
pub type Emit<'a> = dyn FnMut(&str) -> io::Result<()> + 'a;

/// Bytes of tokens on their way to text.
pub struct Output {
    characters: Utf8Stream,
    /// What may be the beginning of a stop text.
    held: String,
    stops: Vec<String>,
    /// All that has gone out.
    pub text: String,
}

impl Output {
    /// Nothing yet; each of `stops` ends the text before it.
    pub fn new(stops: Vec<String>) -> Output {
        Output {
            characters: Utf8Stream::new(),
            held: String::new(),
            stops,
            text: String::new(),
        }
    }

    /// Takes a token's bytes. True if a stop text has come.
    pub fn push(&mut self, bytes: &[u8], emit: &mut Emit) -> io::Result<bool> {
        self.characters.push(bytes, &mut self.held);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            self.say(at, emit)?;
            return Ok(true);
        }
        let n_open = self
            .stops
            .iter()
            .map(|stop| n_begun(&self.held, stop))
            .max()
            .unwrap_or(0);
        self.say(self.held.len() - n_open, emit)?;
        Ok(false)
    }

    /// Lets out what is left.
    pub fn finish(&mut self, emit: &mut Emit) -> io::Result<()> {
        self.characters.flush(&mut self.held);
        self.say(self.held.len(), emit)
    }

    /// Lets out the first `n` bytes of what is held.
    fn say(&mut self, n: usize, emit: &mut Emit) -> io::Result<()> {
        if n > 0 {
            emit(&self.held[..n])?;
            self.text.push_str(&self.held[..n]);
            self.held.drain(..n);
        }
        Ok(())
    }
}

/// Bytes at the end of a text with which a stop text begins.
pub fn n_begun(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    let is_begun = |n: &usize| stop.is_char_boundary(*n) && text.ends_with(&stop[..*n]);
    (1..=most).rev().find(is_begun).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut said = Vec::new();
        let mut output = Output::new(stops.iter().map(ToString::to_string).collect());
        let mut emit = |text: &str| {
            said.push(text.to_owned());
            Ok(())
        };
        let stopped = pieces
            .iter()
            .any(|piece| output.push(piece.as_bytes(), &mut emit).unwrap());
        if !stopped {
            output.finish(&mut emit).unwrap();
        }
        assert_eq!(output.text, said.concat());
        (said, stopped)
    }

    #[test]
    fn a_stop_text_ends_what_comes_and_is_not_shown() {
        assert_eq!(run(&[], &["a", "b"]), (vec!["a".into(), "b".into()], false));
        assert_eq!(
            run(&["\n\n"], &["a\n", "b\n", "\nc"]),
            (vec!["a".into(), "\nb".into()], true)
        );
        assert_eq!(run(&["User:", "er"], &["Us", "er", ": x"]), (vec!["Us".into()], true));
        assert_eq!(run(&["é!"], &["aé", "?"]), (vec!["a".into(), "é?".into()], false));
        assert_eq!(run(&["abab"], &["aba", "bab"]).0, Vec::<String>::new());
        assert_eq!(run(&["abc"], &["ab"]), (vec!["ab".into()], false));
    }
}
