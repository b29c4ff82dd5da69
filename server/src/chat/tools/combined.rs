//! Grammars of whole outputs: reasoning in Harmony messages, then tool calls or a document.

use engine::grammar::Grammar;
use engine::vocab::Vocab;

use super::definition::Tools;
use super::format::{CallSyntax, ToolFormat};
use super::grammar::{Rules, SPACE};
use super::lazy::{call_starts, calls};

/// Reference to the document in a [`Grammar::Around`].
const DOCUMENT: &str = "@document";

impl Tools {
    /// Returns a grammar of output that is either calls or a document. `can_be_kept` reports whether a schema can
    /// be compiled. With `thinks`, Harmony output starts with reasoning; in other formats, reasoning is not part of
    /// the grammar. `None` if the calls cannot be part of a grammar.
    pub fn calls_or_document(
        &self,
        format: &ToolFormat,
        vocab: &Vocab,
        can_be_kept: &dyn Fn(&Grammar) -> bool,
        document: &Grammar,
        thinks: bool,
    ) -> Option<Grammar> {
        let functions = self.kept_functions(can_be_kept);
        let mut rules = Rules::loose(vocab);
        let calls = calls(&functions, format, &mut rules)?;
        let starts: Vec<String> = call_starts(format)
            .iter()
            .map(|begin| begin.rule(&rules, format, self.parallel))
            .collect();
        let is_harmony = format.form == CallSyntax::Harmony;
        let start = if is_harmony {
            let answer = rules.harmony_answer(DOCUMENT);
            // A call ends the output.
            format!("{} (WS? one | {answer})", rules.harmony_thought(thinks))
        } else {
            let more = if self.parallel { " (WS? one)*" } else { "" };
            let close = match format.close.trim() {
                "" => String::new(),
                close => format!(" (WS? {})?", rules.literal(close)),
            };
            format!("one{more}{close} | {DOCUMENT}")
        };
        let tail = rules.literal(&format.tail);
        let text = format!(
            "start: {start}\none: {}\ncall: ({}) {tail}\n{SPACE}{}",
            starts.join(" | "),
            calls.join(" | "),
            rules.text()
        );
        Some(around(text, document))
    }
}

/// Returns the grammar of a Harmony output: reasoning, and a document in the final message.
pub fn harmony_document(vocab: &Vocab, document: &Grammar) -> Grammar {
    let mut rules = Rules::loose(vocab);
    let (thought, answer) = (rules.harmony_thought(true), rules.harmony_answer(DOCUMENT));
    around(format!("start: {thought} {answer}\n{SPACE}{}", rules.text()), document)
}

fn around(text: String, document: &Grammar) -> Grammar {
    Grammar::Around {
        text: format!("%llguidance {{}}\n{text}"),
        document: Box::new(document.clone()),
    }
}

impl Rules<'_> {
    /// Returns a rule for the final Harmony message with this content.
    fn harmony_answer(&mut self, content: &str) -> String {
        let [channel, constrain, message] =
            ["<|channel|>", "<|constrain|>", "<|message|>"].map(|mark| self.literal(mark));
        let head = format!("{channel} WS? \"final\" (WS? {constrain} WS? \"json\" | WS \"json\")? WS? {message}");
        self.rule("", &format!("{head} {content}"))
    }
}
