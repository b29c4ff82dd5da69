use super::*;

/// What a terminal of this width shows, the same whether text comes whole or by characters.
#[track_caller]
fn shown(width: usize, text: &str) -> String {
    let run = |pieces: &mut dyn Iterator<Item = &str>| {
        let mut markdown = Markdown::new(width);
        let mut out: String = pieces.map(|piece| markdown.push(piece)).collect();
        out += &markdown.finish();
        out
    };
    let whole = run(&mut std::iter::once(text));
    assert_eq!(
        plain(&run(&mut text.split("").filter(|c| !c.is_empty()))),
        plain(&whole)
    );
    whole
}

/// The same without styles.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\x1b') {
        out += before;
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    out + rest
}

#[test]
fn emphasis_and_code_have_styles() {
    assert_eq!(shown(80, "a **b c** d"), "a \x1b[1mb c\x1b[0m d");
    assert_eq!(shown(80, "*a* and `b*c*`"), "\x1b[3ma\x1b[0m and \x1b[36mb*c*\x1b[0m");
    assert_eq!(shown(80, "***a***"), "\x1b[1;3ma\x1b[0m");
    assert_eq!(shown(80, "``a ` b``"), "\x1b[36ma ` b\x1b[0m");
    let heading = shown(80, "# Of **this** *kind*\n");
    assert_eq!(plain(&heading), "Of this kind\n");
    assert!(
        heading.starts_with("\x1b[1;35mOf") && heading.contains("\x1b[3;35mkind"),
        "{heading:?}"
    );
}

#[test]
fn what_is_no_markdown_is_not_lost() {
    for text in [
        "2 * 3 * 4 = 24",
        "snake_case_name and a_b",
        "an *open mark",
        "an `open mark",
        "a ** b ** c",
        "#hashtag",
        "1.5 litres",
        "-5 degrees",
        "**",
        "a\n\nb\n",
        "12345678901234567890",
        "~5",
        "x_",
    ] {
        assert_eq!(shown(80, text), text);
    }
    assert_eq!(shown(80, r"\*a\* \n"), r"*a* \n");
}

#[test]
fn lines_are_what_they_begin_with() {
    assert_eq!(
        plain(&shown(80, "## Title\n- one\n  * two\n1. three\n> said\n---\n")),
        "Title\n• one\n  • two\n1. three\n│ said\n---\n"
    );
    let code = "```rust\nlet a = *b; // **c**\n\n```\n*d*\n";
    assert_eq!(plain(&shown(20, code)), "```rust\nlet a = *b; // **c**\n\n```\nd\n");
    assert!(shown(80, code).contains("\x1b[36mlet a = *b; // **c**\x1b[0m"));
    let nested = "````\n```\na\n```\n````\nb";
    assert_eq!(plain(&shown(80, nested)), nested);
    assert_eq!(
        shown(20, "| a | **b** | a long cell |\n"),
        "| a | **b** | a long cell |\n"
    );
}

#[test]
fn words_are_wrapped_and_items_hang() {
    assert_eq!(shown(20, "one two three four five six"), "one two three four\nfive six");
    assert_eq!(
        plain(&shown(20, "- one two three four five")),
        "• one two three four\n  five"
    );
    assert_eq!(shown(20, &"x".repeat(45)), format!("{0}\n{0}\nxxxxx", "x".repeat(20)));
    assert_eq!(
        shown(20, "one two three fou **five**"),
        "one two three fou\n\x1b[1mfive\x1b[0m"
    );
    // Wide characters take two columns, and lines end between any two of them.
    assert_eq!(shown(20, &"語".repeat(12)), format!("{}\n語語", "語".repeat(10)));
    assert_eq!(shown(20, "a\n\n\nb"), "a\n\n\nb");
}

#[test]
fn an_answer_cannot_move_the_cursor() {
    assert_eq!(shown(80, "a\x1b[2Jb\r\x07"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}");
    assert_eq!(plain(&shown(80, "`\x1b`")), "\u{fffd}");
}

#[test]
fn what_is_told_is_shown_at_once() {
    let mut markdown = Markdown::new(80);
    assert_eq!(markdown.push("one two"), "one");
    assert_eq!(markdown.push(" three *f"), " two three");
    assert_eq!(markdown.push("our* "), " \x1b[3mfour\x1b[0m");
    assert_eq!(markdown.push("\n"), " \n");
    assert_eq!(markdown.finish(), "");
}
