//! A response while it is generated.

use std::fmt;
use std::ops::Deref;

use engine::chat::{Message, ReasoningSplit, Segment};

use crate::session::{Generation, Session};
use crate::stats::{Finish, Stats};
use crate::{CancelHandle, Result};

/// Maximum length in bytes of a piece that is stored without heap memory.
const INLINE: usize = 30;

/// A piece of a response: one or more whole characters. [`Display`](fmt::Display) writes the text.
#[derive(Clone)]
pub struct Piece {
    text: PieceText,
    is_reasoning: bool,
}

/// Text of a piece. Most pieces are short, so that generation allocates no memory for them.
#[derive(Clone)]
enum PieceText {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<str>),
}

impl Piece {
    fn new(text: &str, is_reasoning: bool) -> Piece {
        let mut bytes = [0; INLINE];
        let text = match bytes.get_mut(..text.len()) {
            Some(start) => {
                start.copy_from_slice(text.as_bytes());
                PieceText::Inline {
                    len: text.len() as u8,
                    bytes,
                }
            }
            None => PieceText::Heap(text.into()),
        };
        Piece { text, is_reasoning }
    }

    /// Returns the text of the response.
    pub fn text(&self) -> &str {
        match &self.text {
            PieceText::Inline { len, bytes } => {
                std::str::from_utf8(&bytes[..usize::from(*len)]).expect("Piece::new copied a string")
            }
            PieceText::Heap(text) => text,
        }
    }

    /// Returns true if the piece is part of the reasoning, and false if it is part of the answer.
    pub fn is_reasoning(&self) -> bool {
        self.is_reasoning
    }
}

impl Deref for Piece {
    type Target = str;

    fn deref(&self) -> &str {
        self.text()
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece")
            .field("text", &self.text())
            .field("is_reasoning", &self.is_reasoning)
            .finish()
    }
}

/// A response while it is generated: an iterator over its pieces.
///
/// A chat adds the response to its messages when the iterator is dropped, even if the response is incomplete.
/// If nothing was generated because of an error or a cancellation, the chat also removes the question.
pub struct Response<'a> {
    session: &'a mut Session,
    /// Messages of the chat; `None` for completions.
    messages: Option<&'a mut Vec<Message>>,
    cancel: CancelHandle,
    generation: Generation,
    split: ReasoningSplit,
    yields_reasoning: bool,
    /// Text of the current token.
    new: String,
    new_reasoning: String,
    new_answer: String,
    /// Whole output, with reasoning and its tags.
    output: String,
    reasoning: String,
    answer: String,
    is_done: bool,
    has_failed: bool,
}

/// Initial capacity for the text of a response in bytes.
const CAPACITY: usize = 1 << 14;
/// Initial capacity for the text of a token in bytes.
const TOKEN_CAPACITY: usize = 256;

/// Parts of a response that depend on its kind.
pub(crate) struct ResponseParts<'a> {
    pub messages: Option<&'a mut Vec<Message>>,
    pub cancel: CancelHandle,
    pub split: ReasoningSplit,
    pub yields_reasoning: bool,
}

impl<'a> Response<'a> {
    pub(crate) fn new(session: &'a mut Session, generation: Generation, parts: ResponseParts<'a>) -> Response<'a> {
        Response {
            session,
            messages: parts.messages,
            cancel: parts.cancel,
            generation,
            split: parts.split,
            yields_reasoning: parts.yields_reasoning,
            new: String::with_capacity(TOKEN_CAPACITY),
            new_reasoning: String::with_capacity(TOKEN_CAPACITY),
            new_answer: String::with_capacity(TOKEN_CAPACITY),
            output: String::with_capacity(CAPACITY),
            reasoning: String::with_capacity(CAPACITY),
            answer: String::with_capacity(CAPACITY),
            is_done: false,
            has_failed: false,
        }
    }

    /// Generates the rest of the response and returns the whole answer.
    ///
    /// # Errors
    /// Returns an [`Error`](crate::Error) if no token can be sampled or the model cannot be computed.
    pub fn text(mut self) -> Result<String> {
        self.complete()?;
        Ok(std::mem::take(&mut self.answer))
    }

    /// Generates the rest of the response.
    ///
    /// # Errors
    /// Returns an [`Error`](crate::Error) if no token can be sampled or the model cannot be computed.
    pub fn complete(&mut self) -> Result<()> {
        self.try_for_each(|piece| piece.map(drop))
    }

    /// Returns the generated part of the answer.
    pub fn answer(&self) -> &str {
        &self.answer
    }

    /// Returns the generated reasoning, without tags.
    pub fn reasoning(&self) -> &str {
        &self.reasoning
    }

    /// Returns why the response ended; `None` while it continues.
    pub fn finish(&self) -> Option<Finish> {
        self.generation.finish()
    }

    /// Returns the current statistics.
    pub fn stats(&self) -> Stats {
        self.generation.stats()
    }

    /// Returns a handle that cancels the response from any thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Generates the next token and splits its text.
    fn step(&mut self) -> Result<()> {
        self.new.clear();
        self.is_done = !self.session.advance(&mut self.generation, &mut self.new)?;
        self.output.push_str(&self.new);
        let (reasoning, answer) = (&mut self.new_reasoning, &mut self.new_answer);
        let mut take = |segment: Segment, text: &str| -> Result<()> {
            match segment {
                Segment::Reasoning => reasoning.push_str(text),
                Segment::Answer => answer.push_str(text),
                Segment::Tag | Segment::Gap => {}
            }
            Ok(())
        };
        self.split.push(&self.new, &mut take)?;
        if self.is_done {
            self.split.finish(&mut take)?;
        }
        self.reasoning.push_str(&self.new_reasoning);
        self.answer.push_str(&self.new_answer);
        if !self.yields_reasoning {
            self.new_reasoning.clear();
        }
        Ok(())
    }
}

impl Iterator for Response<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        loop {
            for (text, is_reasoning) in [(&mut self.new_reasoning, true), (&mut self.new_answer, false)] {
                if !text.is_empty() {
                    let piece = Piece::new(text, is_reasoning);
                    text.clear();
                    return Some(Ok(piece));
                }
            }
            if self.is_done {
                return None;
            }
            if let Err(error) = self.step() {
                (self.is_done, self.has_failed) = (true, true);
                return Some(Err(error));
            }
        }
    }
}

impl fmt::Debug for Response<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("answer", &self.answer)
            .field("finish", &self.finish())
            .finish_non_exhaustive()
    }
}

impl Drop for Response<'_> {
    fn drop(&mut self) {
        let Some(messages) = &mut self.messages else { return };
        let is_whole = matches!(self.generation.finish(), Some(finish) if finish != Finish::Cancelled);
        if self.has_failed || (self.output.is_empty() && !is_whole) {
            messages.pop_if(|message| message.role == "user");
        } else {
            messages.push(Message::assistant(std::mem::take(&mut self.output)));
        }
    }
}
