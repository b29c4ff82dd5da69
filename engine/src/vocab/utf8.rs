//! Incremental UTF-8 decoding of tokens that may end inside a character.

/// Incremental UTF-8 decoder. Incomplete characters are buffered; invalid bytes become U+FFFD.
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    /// Bytes of an incomplete character, at most three.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Creates an empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes the buffered bytes followed by `bytes` and appends all complete characters to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        let joined;
        let mut rest = bytes;
        if !self.pending.is_empty() {
            self.pending.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.pending);
            rest = &joined;
        }
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => return out.push_str(text),
                Err(error) => {
                    let (valid, tail) = rest.split_at(error.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(valid));
                    let Some(len) = error.error_len() else {
                        return self.pending.extend_from_slice(tail);
                    };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &tail[len..];
                }
            }
        }
    }

    /// Like [`push`](Self::push), but returns the decoded text.
    pub fn push_to_string(&mut self, bytes: &[u8]) -> String {
        let mut out = String::new();
        self.push(bytes, &mut out);
        out
    }

    /// Returns true if an incomplete character is buffered.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the stream: replaces an incomplete character with U+FFFD.
    pub fn flush(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn incomplete_characters_are_buffered() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push_to_string(b"a\xf0\x9f"), "a");
        assert!(stream.is_pending());
        assert_eq!(stream.push_to_string(b"\x98"), "");
        assert_eq!(stream.push_to_string(b"\x80b\xff\xc3"), "😀b\u{fffd}");
        let mut out = String::new();
        stream.flush(&mut out);
        stream.flush(&mut out);
        assert_eq!(out, "\u{fffd}");
        assert_eq!(stream.push_to_string(b"\xa4"), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn any_chunking_equals_lossy_decoding(bytes: Vec<u8>, cuts in prop::collection::vec(0..8_usize, 0..40)) {
            let (mut stream, mut out, mut rest) = (Utf8Stream::new(), String::new(), &bytes[..]);
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                stream.push(head, &mut out);
                rest = tail;
            }
            stream.push(rest, &mut out);
            stream.flush(&mut out);
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes));
        }
    }
}
