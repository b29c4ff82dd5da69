//! Models that write reasoning, content, and tool calls as separate messages, each with a header.

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    Reasoning,
    /// Content, and tool calls whose format has its own markers.
    Content,
    /// Tool calls whose first marker ends the header.
    Calls,
}

/// Control tokens around the messages of a model.
#[derive(Debug, PartialEq, Eq)]
pub struct MessageMarks {
    /// Header of a response to the user, after the prompt.
    pub answer: &'static str,
    /// Header of a tool call, around the name of the function; `None` if the markers of the call are the header.
    pub call: Option<(&'static str, &'static str)>,
    /// Ends of headers: a token, a text in front of the token that identifies the kind, and the kind.
    headers: &'static [(&'static str, &'static str, MessageKind)],
    /// Tokens that end a message.
    pub ends: &'static [&'static str],
}

/// Known formats.
static FORMATS: [MessageMarks; 2] = [
    // Solar Open
    MessageMarks {
        answer: "<|content|>",
        call: None,
        headers: &[
            ("<|think|>", "", MessageKind::Reasoning),
            ("<|content|>", "", MessageKind::Content),
            ("<|tool_calls|>", "", MessageKind::Calls),
        ],
        ends: &["<|end|>", "<|calls|>", "<|flush|>", "<|begin|>"],
    },
    // Muse Glimmer
    MessageMarks {
        answer: " to=user<|message|>",
        call: Some((" to=", "<|message|>")),
        headers: &[
            ("<|message|>", "to=self", MessageKind::Reasoning),
            ("<|message|>", "", MessageKind::Content),
        ],
        ends: &["<|eom|>", "<|eot|>", "<|start|>"],
    },
];

impl MessageMarks {
    /// Returns the format of a template that renders `before` in front of an answer.
    pub fn of(before: &str) -> Option<&'static MessageMarks> {
        let role = ["<|begin|>assistant", "<|start|>assistant"];
        FORMATS.iter().find(|format| {
            let header = before.strip_suffix(format.answer);
            header.is_some_and(|header| role.iter().any(|role| header.ends_with(role)))
        })
    }

    /// Returns all control tokens, concatenated.
    pub fn marks(&self) -> String {
        let headers = self.headers.iter().map(|(mark, ..)| *mark);
        headers.chain(self.ends.iter().copied()).collect()
    }

    /// Returns the end of the first header in a text and the kind of its message; `None` if no header is complete.
    pub fn header(&self, text: &str) -> Option<(usize, MessageKind)> {
        let found = self.headers.iter().filter_map(|(mark, part, kind)| {
            let at = text.find(mark)?;
            let end = if *kind == MessageKind::Calls {
                at
            } else {
                at + mark.len()
            };
            text[..at].contains(part).then_some((at, end, *kind))
        });
        // If positions are equal, the first entry is used.
        found.min_by_key(|(at, ..)| *at).map(|(_, end, kind)| (end, kind))
    }

    /// Returns the position and the length of the first token that ends a message.
    pub fn end(&self, text: &str) -> Option<(usize, usize)> {
        self.ends
            .iter()
            .filter_map(|end| Some((text.find(end)?, end.len())))
            .min()
    }

    /// Returns the content of messages without headers and reasoning.
    pub fn contents(&self, mut text: &str) -> String {
        let mut contents = String::new();
        while let Some((n, kind)) = self.header(text) {
            let body = &text[n..];
            let (at, len) = self.end(body).unwrap_or((body.len(), 0));
            if kind != MessageKind::Reasoning {
                contents += &body[..at];
            }
            text = &body[at + len..];
        }
        contents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_found_without_headers() {
        let next = |recipient: &str| format!("<|eom|><|start|>assistant to={recipient}<|message|>");
        let text = format!("f<|message|>a{}b{}c<|eot|>", next("self"), next("g"));
        assert_eq!(FORMATS[1].contents(&text), "ac");
        assert_eq!(
            MessageMarks::of("x<|start|>assistant to=user<|message|>"),
            Some(&FORMATS[1])
        );
        assert_eq!(MessageMarks::of("x<|content|>"), None);
    }
}
