use super::*;

/// Returns the rendered text, and asserts that it does not depend on how the input is split.
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

/// Removes escape sequences.
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
fn markdown_styles_emphasis_and_code() {
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
fn invalid_markdown_is_printed_verbatim() {
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
fn lines_are_classified_by_prefix() {
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
fn wrap_breaks_words_and_indents_items() {
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
    // CJK characters take two columns, and lines may break between any two.
    assert_eq!(shown(20, &"語".repeat(12)), format!("{}\n語語", "語".repeat(10)));
    assert_eq!(shown(20, "a\n\n\nb"), "a\n\n\nb");
}

#[test]
fn control_characters_are_replaced() {
    assert_eq!(shown(80, "a\x1b[2Jb\r\x07"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}");
    assert_eq!(plain(&shown(80, "`\x1b`")), "\u{fffd}");
}

#[test]
fn complete_output_is_rendered_immediately() {
    let mut markdown = Markdown::new(80);
    assert_eq!(markdown.push("one two"), "one");
    assert_eq!(markdown.push(" three *f"), " two three");
    assert_eq!(markdown.push("our* "), " \x1b[3mfour\x1b[0m");
    assert_eq!(markdown.push("\n"), " \n");
    assert_eq!(markdown.finish(), "");
}
