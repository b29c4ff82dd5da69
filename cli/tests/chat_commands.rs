//! Tests of slash commands and terminal rendering in chats.

#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;

use crate::common::terminal::Terminal;
use crate::common::{Home, ended, ended_with_input};

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
const PROMPT: &str = "> ";

/// A response that uses every supported Markdown element.
const ANSWER: &str = r##"# One **two**

It is *so* or `let a = *b;` or 2 * 3.

- a long item of a list that has so many words that they do not fit on one line of this screen and go on below on another
  1. and more

```
a * b
```
"##;

/// Starts a chat whose responses are forced to `answer` by a grammar.
fn chat(home: &Home, answer: &str, args: &[&str]) -> Terminal {
    let model = home.model_with_text("llama", Some(TEMPLATE));
    let mut terminal = Terminal::start(home.llama(&[&["run", &model], &grammar_args(answer)[..], args].concat()));
    terminal.wait_for("Type /help for commands");
    terminal.wait_for(PROMPT);
    terminal
}

fn grammar_args(answer: &str) -> [&'static str; 5] {
    let text = answer.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let grammar: &'static str = Box::leak(format!("root ::= \"{text}\"").into_boxed_str());
    ["--grammar", grammar, "--temp", "0", "--no-loop-detection"]
}

fn say(terminal: &mut Terminal, text: &str, answer: &str) -> String {
    terminal.press(text);
    terminal.press("\r");
    let seen = terminal.wait_for(answer);
    terminal.wait_for(PROMPT);
    seen
}

fn leave(mut terminal: Terminal) {
    terminal.press("/exit\r");
    assert!(terminal.end().success());
}

#[test]
fn markdown_is_rendered_on_terminals() {
    let home = Home::new();
    let model = home.model_with_text("llama", Some(TEMPLATE));
    let args = [&["run", &model, "hello", "--no-stats"], &grammar_args(ANSWER)[..]].concat();
    let mut terminal = Terminal::start(home.llama(&args));
    terminal.wait_for("and more");
    terminal.wait_for("```");
    terminal.wait_for("```\x1b[0m\r\n");
    let shown = terminal.screen();
    let expected = "\
«bm:One» «bm:two»

It is «i:so» or «c:let a = *b;» or 2 * 3.

«d:• »a long item of a list that has so many words that they do not fit on one line of this screen and go on below on
  another
  «d:1. »and more

«d:```»
«c:a * b»
«d:```»";
    assert_eq!(shown, expected);
    assert!(terminal.end().success());
    for (name, value, flag) in [
        ("NO_COLOR", "1", "--no-stats"),
        ("X", "", "--no-markdown"),
        ("X", "", "--simple-io"),
    ] {
        let mut command = home.llama(&[&args[..], &[flag, "-p", "hello"][..1]].concat());
        command.env(name, value);
        let mut terminal = Terminal::start(command);
        terminal.wait_for("# One **two**");
        terminal.wait_for("a * b");
        assert!(terminal.end().success());
    }
    let piped = ended(home.llama(&args));
    assert_eq!(piped.succeeds(), ANSWER, "output to a pipe is not rendered");
    let colored = ended(home.llama(&[&args[..], &["--color", "on"]].concat()));
    assert!(colored.succeeds().contains("\x1b[3mso\x1b[0m or"));
}

#[test]
fn read_and_edit_commands_build_messages() {
    let home = Home::new();
    let (notes, editor) = (home.path("notes.txt"), home.path("editor.sh"));
    std::fs::write(&notes, "one two\n").unwrap();
    std::fs::write(&editor, "#!/bin/sh\nprintf ' and more' >> \"$2\"\n").unwrap();
    std::fs::set_permissions(&editor, PermissionsExt::from_mode(0o700)).unwrap();
    let model = home.model_with_text("llama", Some(TEMPLATE));
    let mut command = home.llama(&[&["run", &model, "--display-prompt"], &grammar_args("yes")[..]].concat());
    command
        .env("EDITOR", format!("{} -x", editor.display()))
        .env_remove("VISUAL");
    let mut t = Terminal::start(command);
    t.wait_for(PROMPT);
    say(
        &mut t,
        &format!("/read {}", notes.display()),
        "7 characters will be prepended",
    );
    say(&mut t, "what is it?", "<user>one two\r\n\r\nwhat is it?<assistant>");
    say(&mut t, "/edit one", "<user>one and more<assistant>");
    say(&mut t, "/edit", "<user>one and more and more<assistant>");
    say(&mut t, "/read", "/read requires a file name");
    say(&mut t, "/read /no/such", "error: /no/such: ");
    leave(t);
    let mut command = home.llama(&[&["run", &model], &grammar_args("yes")[..]].concat());
    command.env("EDITOR", "false").env_remove("VISUAL");
    let mut t = Terminal::start(command);
    t.wait_for(PROMPT);
    say(&mut t, "/edit one", "cannot run the editor \"false\"");
    leave(t);
}

#[test]
fn conversations_are_saved_and_loaded() {
    let home = Home::new();
    let file = home.path("kept.json");
    let file = file.to_str().unwrap();
    let mut t = chat(&home, "yes", &["--display-prompt"]);
    say(&mut t, "/resume", "there is no conversation saved");
    say(&mut t, "/load /no/such", "error: /no/such: ");
    say(&mut t, "one", "generated");
    say(&mut t, &format!("/save {file}"), "Saved the conversation to ");
    say(&mut t, "/save", "state/llama/conversation.json");
    say(&mut t, "/clear", "");
    say(&mut t, "/tokens", "The conversation has 0 tokens");
    say(
        &mut t,
        &format!("/load {file}"),
        "Resuming the conversation after 2 messages",
    );
    say(&mut t, "two", "<user>one<assistant>yes<user>two<assistant>");
    say(&mut t, "/resume", "Resuming the conversation after 2 messages");
    leave(t);
    std::fs::write(file, "[{}").unwrap();
    let mut t = chat(&home, "yes", &["--display-prompt"]);
    say(&mut t, "three", "generated");
    say(&mut t, &format!("/load {file}"), "error: ");
    say(&mut t, "four", "<user>three<assistant>yes<user>four<assistant>");
    say(&mut t, "/resume", "Resuming the conversation after 2 messages");
    leave(t);
}

#[test]
fn set_command_confirms_and_completes() {
    let home = Home::new();
    let mut t = chat(&home, "yes", &[]);
    say(&mut t, "/set top-k 5", "top-k is now 5; it was 40.");
    say(&mut t, "/set --top-p 7", "0 to 1");
    say(&mut t, "/set topk", "Similar names: top-k");
    t.press("/se\t");
    t.wait_for("/set");
    t.press(" top-n\t");
    t.wait_for("top-n-sigma");
    t.press(" 2\r");
    t.wait_for("top-n-sigma is now 2; it was -1.");
    t.wait_for(PROMPT);
    std::fs::write(home.path("only one.txt"), "abc").unwrap();
    t.press(&format!(
        "/read {}/only\t\r",
        home.path("").display().to_string().trim_end_matches('/')
    ));
    t.wait_for("3 characters will be prepended");
    t.wait_for(PROMPT);
    let tokens = say(&mut t, "/tokens abc", "1 token");
    assert!(tokens.contains("\"abc\""), "{tokens}");
    leave(t);
}

#[test]
fn copy_command_copies_last_response() {
    let home = Home::new();
    let model = home.model_with_text("llama", Some(TEMPLATE));
    let mut command = home.llama(&[&["run", &model], &grammar_args("yes no")[..]].concat());
    command
        .env("PATH", "")
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY");
    let mut t = Terminal::start(command);
    t.wait_for(PROMPT);
    say(&mut t, "/copy", "There is no response yet.");
    say(&mut t, "hello", "generated");
    // OSC 52 with "yes no" in base64.
    say(&mut t, "/copy", "\x1b]52;c;eWVzIG5v\x07");
    leave(t);
}

#[test]
fn model_command_continues_conversation() {
    let home = Home::new();
    let other = home.model("llama-dense", Some(TEMPLATE));
    let mut t = chat(&home, "yes", &["--display-prompt", "-n", "3"]);
    say(&mut t, "/model", "llama-text.gguf");
    say(&mut t, "/model /no/such.gguf", "error: /no/such.gguf");
    say(&mut t, "one", "generated");
    let refused = say(&mut t, &format!("/model {other}"), "error: ");
    assert!(
        !refused.contains("Resuming"),
        "the other model's tokens cannot match the grammar: {refused}"
    );
    leave(t);
    let model = home.model_with_text("gpt2", Some(TEMPLATE));
    let mut t = chat(&home, "yes", &["--display-prompt", "-n", "3"]);
    say(&mut t, "one", "generated");
    say(&mut t, &format!("/model {model}"), "goes on.");
    say(&mut t, "two", "<user>one<assistant>yes<user>two<assistant>");
    leave(t);
    let session = home.path("session");
    let mut t = chat(&home, "yes", &["--prompt-cache", session.to_str().unwrap()]);
    say(&mut t, &format!("/model {model}"), "--prompt-cache");
    leave(t);
}

#[test]
fn simple_io_chat_reads_plain_lines() {
    let home = Home::new();
    let model = home.model_with_text("llama", Some(TEMPLATE));
    let args = [&["run", &model, "--simple-io", "--no-stats"], &grammar_args("yes")[..]].concat();
    let chat = ended_with_input(
        home.llama(&args),
        "hello\n/tokens abc\n\"\"\"one\ntwo\"\"\"\n/exit\nno more\n",
    );
    assert_eq!(chat.succeeds(), "> yes\n> > yes\n> ");
    assert!(chat.err.contains("1 token"), "{}", chat.err);
    assert_eq!(
        ended_with_input(home.llama(&args), "a\nb").succeeds(),
        "> yes\n> yes\n> "
    );
}

#[test]
fn long_prompt_shows_progress() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let long = "word ".repeat(700);
    let args = ["run", &model, &long, "-n", "1", "-ub", "16", "-c", "8192", "--raw"];
    let mut t = Terminal::start(home.llama(&args));
    t.wait_for("reading [");
    let rest = t.wait_for("generated 1 token");
    assert!(rest.contains("%"), "{rest}");
    assert!(
        !t.screen().contains("reading"),
        "the progress bar is cleared: {}",
        t.screen()
    );
    assert!(t.end().success());
    let piped = ended(home.llama(&args));
    assert!(piped.status == 0 && !piped.err.contains("reading"), "{}", piped.err);
}
