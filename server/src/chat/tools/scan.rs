//! Finds the end of a JSON value that arrives in pieces.

/// Incremental scanner for the end of a JSON value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    /// Bytes scanned.
    n: usize,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Scan {
    /// Creates a scanner for the rest of an object or list.
    pub fn inside() -> Scan {
        Scan {
            depth: 1,
            ..Scan::default()
        }
    }

    /// Returns the number of bytes scanned, which the caller removes from the start of the text.
    pub fn take(&mut self) -> usize {
        std::mem::take(&mut self.n)
    }

    /// Returns the end of the object or list at the start of the text. Resumes where the previous call
    /// stopped.
    pub fn end(&mut self, text: &str) -> Option<usize> {
        while let Some(&byte) = text.as_bytes().get(self.n) {
            self.n += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_string => self.is_escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.n);
                    }
                }
                _ => {}
            }
        }
        None
    }
}
