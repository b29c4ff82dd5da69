//! Tests of interactive chats on a pseudo-terminal.

#![cfg(unix)]

use crate::common::Home;
use crate::common::terminal::Terminal;

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
const PROMPT: &str = "> ";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

fn chat(home: &Home, template: Option<&str>, args: &[&str]) -> Terminal {
    let model = home.model("llama-dense", template);
    let mut terminal = Terminal::start(home.llama(&[&["run", &model, "--temp", "0"], args].concat()));
    terminal.wait_for("Type /help for commands");
    terminal.wait_for(PROMPT);
    terminal
}

/// Types a line and waits for the expected output.
fn say(terminal: &mut Terminal, text: &str, answer: &str) -> String {
    terminal.press(text);
    terminal.press("\r");
    let seen = terminal.wait_for(answer);
    terminal.wait_for(PROMPT);
    seen
}

#[test]
fn chat_reuses_context_between_turns() {
    let home = Home::new();
    let mut t = chat(&home, Some(TEMPLATE), &["-n", "4"]);
    let first = say(&mut t, "hello", "generated 4 tokens");
    assert!(!first.contains(" cached)"), "{first}");
    let second = say(&mut t, "and on", "generated 4 tokens");
    assert!(second.contains(" cached)"), "{second}");
    let other = say(&mut t, "/regen", "generated 4 tokens");
    assert!(other.contains(" cached)"), "{other}");
    say(&mut t, "/clear", "");
    say(&mut t, "/regen", "There is no response yet");
    say(&mut t, "/set top-k 5", "");
    say(&mut t, "/set top-k", " 5 ");
    say(&mut t, "/set top-p 7", "0 to 1");
    say(&mut t, "/no", "Unknown command /no");
    say(&mut t, "/help", "/regen");
    say(&mut t, "/etc/hosts is a file", "generated 4 tokens");
    t.press("/exit\r");
    assert!(t.end().success());
    let history = std::fs::read_to_string(home.path(".local/state/llama/chat_history")).unwrap();
    assert!(history.contains("and on\n/regen"), "{history}");
}

#[test]
fn chat_resumes_from_prompt_cache() {
    let home = Home::new();
    let file = home.path("session");
    let args = ["-n", "4", "--prompt-cache", file.to_str().unwrap()];
    let mut t = chat(&home, Some(TEMPLATE), &args);
    say(&mut t, "hello", "generated 4 tokens");
    t.press("/exit\r");
    assert!(t.end().success());
    let model = home.model("llama-dense", Some(TEMPLATE));
    let mut t = Terminal::start(home.llama(&[&["run", &model, "--temp", "0"], &args[..]].concat()));
    t.wait_for("Resuming the conversation after 2 messages");
    t.wait_for(PROMPT);
    let second = say(&mut t, "and on", "generated 4 tokens");
    assert!(second.contains(" cached)"), "{second}");
    t.press("/exit\r");
    assert!(t.end().success());
    let messages = std::fs::read_to_string(home.path("session.messages.json")).unwrap();
    assert_eq!(messages.matches("\"user\"").count(), 2, "{messages}");
    std::fs::write(home.path("session.messages.json"), "[{}").unwrap();
    let mut t = Terminal::start(home.llama(&[&["run", &model], &args[..]].concat()));
    t.wait_for("session.messages.json: ");
    assert!(!t.end().success());
}

#[test]
fn chat_shift_command_drops_older_half() {
    let home = Home::new();
    let mut t = chat(&home, Some(TEMPLATE), &["-n", "6", "-c", "48"]);
    let mut turns = (0..8).map(|i| {
        t.press(&format!("question {i}\r"));
        t.wait_for(PROMPT)
    });
    let full = turns.find(|turn| turn.contains("/shift"));
    assert!(full.is_some(), "the message suggests /shift");
    drop(turns);
    say(&mut t, "/shift", "will be dropped");
    t.press("one more question\r");
    let went_on = t.wait_for(PROMPT);
    assert!(
        went_on.contains("generated 6 tokens") && went_on.contains(" dropped"),
        "{went_on}"
    );
    t.press("/exit\r");
    assert!(t.end().success());
}

#[test]
fn chat_with_context_shift_continues_when_full() {
    let home = Home::new();
    let mut t = chat(
        &home,
        Some(TEMPLATE),
        &["-n", "6", "-c", "48", "--context-shift", "--keep", "4"],
    );
    let turns: Vec<String> = (0..8)
        .map(|i| {
            t.press(&format!("question {i}\r"));
            let answer = t.wait_for("generated ");
            answer + &t.wait_for(PROMPT)
        })
        .collect();
    assert!(turns.iter().any(|turn| turn.contains(" dropped")), "{turns:?}");
    assert!(turns.iter().all(|turn| !turn.contains("error")), "{turns:?}");
    let last = turns.last().unwrap();
    assert!(last.contains(" cached)"), "the remaining context is reused: {last}");
    t.press("/exit\r");
    assert!(t.end().success());
}

#[test]
fn ctrl_c_stops_response_but_not_chat() {
    let home = Home::new();
    let mut t = chat(&home, None, &["-c", "100000", "-n", "-1"]);
    t.press("go on and on\r");
    t.wait_for("tok_");
    t.press(CTRL_C);
    t.wait_for("generated ");
    t.wait_for(PROMPT);
    t.press(CTRL_C);
    t.wait_for(PROMPT);
    t.press(CTRL_C);
    t.wait_for("Press Ctrl-D or type /exit to leave");
    t.wait_for(PROMPT);
    t.press(CTRL_D);
    assert!(t.end().success());
}

#[test]
fn multi_line_input_is_one_message() {
    let home = Home::new();
    let mut t = chat(&home, Some(TEMPLATE), &["-n", "2"]);
    t.press("\"\"\"one\r");
    t.press("two\"\"\"\r");
    let fenced = t.wait_for("generated 2 tokens");
    t.wait_for(PROMPT);
    t.press("one\\\rtwo\r");
    let continued = t.wait_for("generated 2 tokens");
    t.wait_for(PROMPT);
    for seen in [fenced, continued] {
        assert_eq!(seen.matches("| generated").count(), 1, "{seen}");
    }
    t.press(CTRL_D);
    assert!(t.end().success());
}

#[test]
fn chat_continues_after_error() {
    let home = Home::new();
    let mut t = chat(&home, None, &["-c", "24", "-n", "2"]);
    say(&mut t, &"word ".repeat(100), "but the context only 24");
    say(&mut t, "/system be brief", "chat template");
    say(&mut t, "abc", "generated 2 tokens");
    t.press("/bye\r");
    assert!(t.end().success());
}

#[test]
fn interrupted_prompt_exits_with_status_130() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let mut t = Terminal::start(home.llama(&["run", &model, "go on and on", "-c", "100000", "-n", "-1"]));
    t.wait_for("tok_");
    t.press(CTRL_C);
    t.wait_for("generated ");
    assert_eq!(t.end().code(), Some(130), "exit status of SIGINT");
}
