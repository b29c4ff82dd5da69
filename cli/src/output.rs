//! Text on its way out of a model, and a copy of all of it.

use std::io;

use engine::vocab::TextStream;

/// Where text goes.
pub type Emit<'a> = dyn FnMut(&str) -> io::Result<()> + 'a;

/// Bytes of tokens on their way to text.
pub struct Output {
    stream: TextStream,
    /// All that has gone out.
    pub text: String,
}

impl Output {
    /// Nothing yet; each of `stops` ends the text before it.
    pub fn new(stops: Vec<String>) -> Output {
        Output {
            stream: TextStream::new(stops),
            text: String::new(),
        }
    }

    /// Takes a token's bytes. True if a stop text has come.
    pub fn push(&mut self, bytes: &[u8], emit: &mut Emit) -> io::Result<bool> {
        let before = self.text.len();
        let is_stopped = self.stream.push(bytes, &mut self.text).is_some();
        self.say(before, emit)?;
        Ok(is_stopped)
    }

    /// Lets out what is left.
    pub fn finish(&mut self, emit: &mut Emit) -> io::Result<()> {
        let before = self.text.len();
        self.stream.finish(&mut self.text);
        self.say(before, emit)
    }

    fn say(&self, from: usize, emit: &mut Emit) -> io::Result<()> {
        match &self.text[from..] {
            "" => Ok(()),
            new => emit(new),
        }
    }
}
