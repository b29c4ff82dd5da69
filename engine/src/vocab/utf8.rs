//! Text from tokens that arrive one at a time and may end in the middle of a character.

/// Turns a stream of bytes into text. What could be the beginning of a character waits for its end; what is not UTF-8
/// becomes U+FFFD.
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    /// At most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends to `out` all complete characters of what waited and `bytes`.
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

    /// The text of `bytes` and what waited before them.
    pub fn push_to_string(&mut self, bytes: &[u8]) -> String {
        let mut out = String::new();
        self.push(bytes, &mut out);
        out
    }

    /// True if the beginning of a character waits for its end.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the stream: appends U+FFFD for a character that never ended.
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
    fn characters_wait_for_their_end() {
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
        fn any_bytes_in_any_parts_are_the_lossy_text(bytes: Vec<u8>, cuts in prop::collection::vec(0..8_usize, 0..40)) {
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
