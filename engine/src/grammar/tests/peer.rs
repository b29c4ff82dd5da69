//! Grammar and schema cases from llama.cpp's tests. Strings accepted or rejected by llama.cpp must be
//! accepted or rejected here. Rows note where schemas allow more than llama.cpp's grammars.

use super::*;

/// A grammar, matching strings, and non-matching strings.
type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

const GRAMMARS: &[Row] = &[
    (
        "root ::= sum\nsum ::= part (\"+\" part)*\npart ::= digits\ndigits ::= [0-9]+",
        &["42", "1+2+3+4+5", "123+456"],
        &["+", "/ 3", "1+2+3+4+5+", "12a45"],
    ),
    (
        "root ::= sum\nsum ::= product gap ((\"+\" | \"-\") gap product)*\nproduct ::= atom gap ((\"*\" | \"/\") gap atom)*\natom ::= digits | name | \"(\" sum \")\" | call\ndigits ::= [0-9]+\nname ::= [a-zA-Z_][a-zA-Z0-9_]*\ncall ::= name gap \"(\" (sum (\",\" gap sum)*)? \")\"\ngap ::= [ \\t\\n\\r]?",
        &[
            "42",
            "1*2*3*4*5",
            "x",
            "x+10",
            "x1+y2",
            "(a+b)*(c-d)",
            "func()",
            "func(x,y+2)",
            "a*(b+c)-d/e",
            "f(g(x),h(y,z))",
            "x + 10",
            "x1 + y2",
            "(a + b) * (c - d)",
            "func(x, y + 2)",
            "a * (b + c) - d / e",
            "f(g(x), h(y, z))",
            "123*456*789-123/456+789*123",
        ],
        &[
            "+",
            "/ 3x",
            "x + + y",
            "a * / b",
            "func(,)",
            "func(x y)",
            "(a + b",
            "x + y)",
            "a + b * (c - d",
            "42 +",
            "x +",
            "func(",
            "func(x, y + 2",
            "a * (b + c) - d /",
            "f(g(x), h(y, z)",
        ],
    ),
    (
        "root ::= ... \"abc\" ...",
        &["abcabcabc", "aaaabcccc", "🔵🟠✅abc❌🟠🔵"],
        &[
            "aaabcccc",
            "aaaaabcccc",
            "aaaabccc",
            "aaaabccccc",
            "🔵🟠✅❌abc❌✅🟠🔵",
            "🔵🟠abc🟠🔵",
        ],
    ),
    (
        "root ::= \"a\"*",
        &["", "a", "aaaaa", "aaaaaaaaaaaaaaaaaa"],
        &["b", "ab", "aab", "ba"],
    ),
    (
        "root ::= \"a\"+",
        &["a", "aaaaa", "aaaaaaaaaaaaaaaaaa"],
        &["", "b", "ab", "aab", "ba"],
    ),
    ("root ::= \"a\"?", &["", "a"], &["b", "ab", "aa", "ba"]),
    (
        "root ::= hard+ soft* hard? (soft hard)*\nsoft ::= [aeiouy]\nhard ::= [bcdfghjklmnpqrstvwxyz]",
        &["yes", "no", "noyes", "crwth", "four", "bryyyy"],
        &["yess", "yesno", "forty", "catyyy"],
    ),
    ("root ::= [ab]{4}", &["aaaa", "bbbb", "abab"], &["a", "b", "aaaaa"]),
    ("root ::= [ab]{4,}", &["aaaa", "aaaaab", "bbbb", "ababab"], &["", "aba"]),
    ("root ::= [ab]{0,4}", &["", "a", "aa", "aaa", "aaab"], &["aaaaa"]),
    (
        "root ::= (\"0x\" [A-F0-9]{2} \" \"?){3,5}",
        &["0xFF 0x12 0xAB", "0xFF 0x12 0xAB 0x00 0x00"],
        &["", "0xFF", "0xFF 0x12", "0xFF 0x12 0xAB 0x00 0x00 0x00"],
    ),
    ("root ::= ( [x]* )*", &["", "x", "xx"], &["y", "yy"]),
];

/// llama.cpp rejects left recursion; this engine supports it.
const RECURSIVE: &[Row] = &[
    ("root ::= \"a\" | root \"a\"", &["a", "aaa"], &["", "b"]),
    (
        "root ::= x\nx ::= \"a\" | y \"b\"\ny ::= \"c\" | none x \"d\" | \"e\"\nnone ::= \"blah\" | ",
        &["a", "cb", "adb", "blahadb"],
        &["ad", "b"],
    ),
];

const SCHEMAS: &[Row] = &[
    // Numbers. Unlike llama.cpp, `-0` is accepted as 0, and numbers may have 17 digits.
    (
        r#"{"type": "integer", "minimum": 0}"#,
        &["0", "10", "12", "10000"],
        &["-1", "-10", "-10000", "00", "01"],
    ),
    (
        r#"{"type": "integer", "minimum": 2}"#,
        &["2", "3", "4", "10", "20", "1234567890000000"],
        &["0", "1", "-1", "-100", "01", "02"],
    ),
    (
        r#"{"type": "integer", "minimum": 456}"#,
        &["456", "4560", "457", "460", "500"],
        &["455", "356", "50", "050", "-1", "-456"],
    ),
    (
        r#"{"type": "integer", "minimum": -123}"#,
        &["-123", "-122", "-11", "-1", "0", "1", "123", "1234", "2345"],
        &["-1234", "-124"],
    ),
    (
        r#"{"type": "integer", "maximum": 9999}"#,
        &["-99999", "0", "9999"],
        &["10000", "99991"],
    ),
    (
        r#"{"type": "integer", "maximum": -9999}"#,
        &["-10000", "-9999"],
        &["-9998", "0", "9999"],
    ),
    (
        r#"{"type": "integer", "minimum": 5, "maximum": 30}"#,
        &["5", "10", "30"],
        &["05", "4", "-1", "31", "123", "0123"],
    ),
    (
        r#"{"type": "integer", "exclusiveMinimum": 0, "maximum": 900719925474091}"#,
        &["1", "2", "10", "900719925474090", "900719925474091"],
        &["0", "01", "900719925474092", "9007199254740910"],
    ),
    (
        r#"{"type": "integer", "minimum": -1, "maximum": 1}"#,
        &["-1", "0", "1"],
        &["-11", "-10", "-2", "2", "10", "11"],
    ),
    (
        r#"{"type": "integer", "minimum": -123, "maximum": 42}"#,
        &[
            "-123", "-122", "-13", "-11", "-2", "-1", "0", "1", "5", "10", "39", "40", "42",
        ],
        &["-0123", "-124", "-1123", "-200", "43", "123", "0123"],
    ),
    (
        r#"{"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10000}"#,
        &["1", "9999"],
        &["0", "01", "10000", "99999"],
    ),
    (
        r#"{"type": "integer"}"#,
        &["0", "12345", "1234567890123456"],
        &["", "01", "007"],
    ),
    // Schemas with arbitrary values, and string formats.
    (
        "{}",
        &["{}", r#"{"foo": "bar"}"#, "[]", "null", r#""""#, "true"],
        &["", r#"{"foo"}"#, "foo"],
    ),
    (
        r#"{"type": "array", "prefixItems": [{"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}, {"type": "string", "format": "date-time"}], "items": false, "minItems": 3}"#,
        &[r#"["2012-04-23", "12345678-1234-1234-1234-1234567890ab", "2012-04-23T18:25:43.511Z"]"#],
        &[r#"["foo", "bar"]"#, r#"["12345678-1234-1234-1234-1234567890ab"]"#],
    ),
    // Strings.
    (
        r#"{"type": "string"}"#,
        &[r#""foo""#, r#""bar""#, r#""""#],
        &["{}", r#""foo": "bar""#],
    ),
    (r#"{"type": "string", "minLength": 1}"#, &[r#""foo""#], &[r#""""#, "{}"]),
    (
        r#"{"type": "string", "minLength": 3}"#,
        &[r#""foo""#, r#""foobar""#],
        &[r#""""#, r#""f""#, r#""fo""#],
    ),
    (
        r#"{"type": "string", "maxLength": 3}"#,
        &[r#""foo""#, r#""""#, r#""fo""#],
        &[r#""foobar""#],
    ),
    (
        r#"{"type": "string", "minLength": 1, "maxLength": 4}"#,
        &[r#""foo""#, r#""f""#, r#""barf""#],
        &[r#""""#, r#""barfo""#, r#""foobar""#],
    ),
    (
        r#"{"type": "string", "pattern": "^[a-zA-Z0-9_-]*$"}"#,
        &[r#""""#, r#""He_llo-12""#],
        &[r#""!""#, r#""Hello World""#],
    ),
    (
        r#"{"type": "string", "pattern": "^a\\^\\$\\.\\[\\]\\(\\)\\|\\{\\}\\*\\+\\?b$"}"#,
        &[r#""a^$.[]()|{}*+?b""#],
        &[r#""ab""#],
    ),
    // Literals.
    (
        r#"{"type": "boolean"}"#,
        &["true", "false"],
        &[r#""""#, r#""true""#, "True", "FALSE"],
    ),
    (r#"{"const": "foo"}"#, &[r#""foo""#], &["foo", r#""bar""#]),
    (r#"{"const": true}"#, &["true"], &["", "foo", r#""true""#]),
    (
        r#"{"enum": ["red", "amber", "green", null, 42, ["foo"]]}"#,
        &[r#""red""#, "null", "42", r#"["foo"]"#],
        &["", "420", "true", "foo"],
    ),
    // Arrays.
    (
        r#"{"type": ["array", "null"], "items": {"type": "string"}}"#,
        &["null", "[]", r#"["123"]"#, r#"["foo", "bar"]"#],
        &["", "[123]", r#""foo""#, r#"["foo", 42]"#],
    ),
    (
        r#"{"type": "array", "items": {"type": ["number", "integer"]}, "minItems": 3, "maxItems": 5}"#,
        &["[1, 2, 3]", "[1, 2, 3, 4]", "[1, 2, 3, 4, 5]"],
        &["[1, 2]", "[1, 2, 3, 4, 5, 6]", "1"],
    ),
    // Objects: properties come in the order of the schema.
    (
        r#"{"type": "object", "properties": {"number": {"type": "number"}, "name": {"type": "string"}, "kind": {"enum": ["a", "b"]}}, "additionalProperties": false}"#,
        &[
            r#"{ "number": 1600, "name": "P", "kind":"a"}"#,
            r#"{ "name": "P" }"#,
            r#"{ "number": 1600, "kind": "b" }"#,
            "{}",
        ],
        &[
            r#"{ "number": "1600", "name": "P", "kind":"a"}"#,
            r#"{ "name": "P", "number": 1600 }"#,
            r#"{ "number": 1600, "name": "P", "kind":"a", "direction":"NW"}"#,
        ],
    ),
    (
        r#"{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "additionalProperties": true}"#,
        &[r#"{"a": 42}"#, r#"{"c": ""}"#, r#"{"a": 42, "c": ""}"#, r#"{"a_": ""}"#],
        &["", r#"{"a": ""}"#, r#"{"a": "", "b": ""}"#],
    ),
    (
        r#"{"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "string"}, "d": {"type": "string"}, "c": {"type": "string"}}, "required": ["a", "b"], "additionalProperties": false}"#,
        &[
            r#"{"b": "foo", "a": "bar"}"#,
            r#"{"b":"foo","a":"bar","d":"qux"}"#,
            r#"{"b":"foo", "a":"bar", "d":"qux", "c":"baz"}"#,
        ],
        &[
            r#"{"a": "foo", "b": "bar"}"#,
            r#"{"b": "bar"}"#,
            r#"{"a": "foo", "c": "baz"}"#,
            r#"{"a":"foo", "b":"bar", "c":"baz", "d":"qux"}"#,
        ],
    ),
];

#[test]
fn strings_match_like_llama_cpp() {
    for (text, good, bad) in GRAMMARS.iter().chain(RECURSIVE) {
        assert_takes(&gbnf(text), good, bad);
    }
    for (text, good, bad) in SCHEMAS {
        let schema = compile(Grammar::JsonSchema((*text).to_owned())).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_takes(&schema, good, bad);
    }
    for (text, expected) in [
        ("rot ::= a\na ::= \"b\"", "missing rule \"root\""),
        (
            "root ::= a\na ::= numero\nnumber ::= [0-9]+",
            "undefined rule \"numero\"",
        ),
    ] {
        let error = compile(Grammar::Gbnf(text.to_owned())).err().expect(text).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn tokens_match_like_llama_cpp() {
    // Any tokens between two special tokens, except the second.
    let start = gbnf("root ::= <[3]> inside <[1]>\ninside ::= (!<[1]>)*");
    let takes = |tokens: &[Token]| {
        let mut constraint = start.clone();
        let all = tokens
            .iter()
            .all(|&token| allows(&mut constraint, token) && constraint.accept(token).is_ok());
        all && constraint.is_complete()
    };
    let (open, close, text) = (TOOL, 1, byte(b'x'));
    assert!(takes(&[open, text, text, close]) && takes(&[open, close]));
    assert!(takes(&[open, text, open, text, close]), "includes other special tokens");
    for bad in [
        &[open, text][..],
        &[open],
        &[text, close],
        &[open, close, close],
        &[close, text, open],
    ] {
        assert!(!takes(bad), "{bad:?}");
    }
}

/// Runs the official JSON Schema test suite. It is in the directory `json` of the source of the Python package
/// `jsonschema` (4.26): `pip download jsonschema --no-deps --no-binary :all:`. The environment variable
/// `JSON_SCHEMA_SUITE` contains its path.
#[test]
#[ignore = "needs the JSON Schema test suite; set JSON_SCHEMA_SUITE to its directory"]
fn invalid_documents_of_test_suite_are_rejected() {
    let suite = std::env::var("JSON_SCHEMA_SUITE").expect("JSON_SCHEMA_SUITE should be set");
    let (mut n_kept, mut n_refused, mut n_documents, mut n_strict) = (0, 0, 0, 0);
    let mut wrong = Vec::new();
    for draft in ["draft4", "draft6", "draft7", "draft2019-09", "draft2020-12"] {
        let dir = std::path::Path::new(&suite).join("tests").join(draft);
        for file in std::fs::read_dir(&dir)
            .expect("directory of the suite should be readable")
            .flatten()
        {
            let Ok(text) = std::fs::read_to_string(file.path()) else {
                continue;
            };
            let groups: Vec<serde_json::Value> =
                serde_json::from_str(&text).expect("file should contain a list of groups");
            for group in &groups {
                let schema = match compile(Grammar::JsonSchema(group["schema"].to_string())) {
                    Ok(schema) => schema,
                    Err(e) => {
                        assert!(!e.to_string().is_empty());
                        n_refused += 1;
                        continue;
                    }
                };
                n_kept += 1;
                for test in group["tests"].as_array().expect("tests") {
                    let document = test["data"].to_string();
                    let is_taken = takes(&schema, &document);
                    n_documents += 1;
                    if test["valid"] == false && is_taken {
                        wrong.push(format!("{draft}: {} by {}", document, group["schema"]));
                    }
                    n_strict += usize::from(test["valid"] == true && !is_taken);
                }
            }
        }
    }
    eprintln!(
        "{n_kept} schemas supported, {n_refused} rejected; {n_documents} documents, {n_strict} of them valid but not accepted"
    );
    assert!(
        wrong.is_empty(),
        "{} invalid documents are accepted:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(n_kept > 300, "{n_kept}");
}
