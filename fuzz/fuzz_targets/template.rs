//! Fuzzes chat templates: any input must compile and render, or return an error, within the limits on time,
//! depth, and memory.

#![no_main]

use engine::chat::{ChatTemplate, Message};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str, bool)| {
    let (source, content, generate) = input;
    let template = match ChatTemplate::new(source, "<s>", "</s>") {
        Ok(template) => template,
        Err(e) => return assert!(!e.to_string().is_empty()),
    };
    let messages = [
        Message::system("Be brief."),
        Message::user(content),
        Message::assistant("Yes."),
    ];
    for messages in [&messages[..], &messages[1..2], &[]] {
        if let Err(e) = template.render(messages, generate, &Default::default()) {
            assert!(!e.to_string().is_empty());
        }
    }
});
