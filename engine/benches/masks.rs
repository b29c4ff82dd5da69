//! Benchmarks grammar masks over whole vocabularies: `cargo bench -p llama-engine --bench masks --
//! MODEL.gguf...`.
//!
//! For each vocabulary, prints the preparation time and, for several grammars, the nanoseconds per mask and
//! per accepted token over the tokens of a document. One mask is computed per generated token.

use std::time::{Duration, Instant};

use engine::gguf::Gguf;
use engine::grammar::{Compiler, Constraint, Grammar};
use engine::vocab::{Token, Vocab};

/// JSON as a llama.cpp grammar, with strings of any length.
const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"#;

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"type": "string"}, "country": {"type": "string", "maxLength": 60}, "population": {"type": "integer"},
    "districts": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "area": {"type": "number"}}, "required": ["name", "area"]}},
    "notes": {"type": "string"}}, "required": ["name", "country", "population", "districts", "notes"]}"#;

/// A document that all grammars accept.
const DOCUMENT: &str = r#"{"name": "Paris", "country": "France", "population": 2102650, "districts": [{"name": "Louvre", "area": 1.826}, {"name": "Montmartre and Pigalle", "area": 6.005}], "notes": "The city lies on the Seine; its \"islands\" are the oldest part, and more than thirty bridges cross the river there."}"#;

const ROUNDS: usize = 20;

fn main() {
    let files: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if files.is_empty() {
        println!("usage: cargo bench -p llama-engine --bench masks -- MODEL.gguf...");
    }
    for file in files {
        let header = Gguf::open_header(&file).unwrap_or_else(|e| panic!("{e}"));
        let vocab = Vocab::load(&header).unwrap_or_else(|e| panic!("{file}: {e}"));
        measure(&file, &vocab);
    }
}

fn measure(file: &str, vocab: &Vocab) {
    let n = vocab.n_tokens() as usize;
    let start = Instant::now();
    let unsliced = Compiler::unsliced(vocab, n).expect("the vocabulary supports grammars");
    let quick = start.elapsed();
    let sliced = unsliced.sliced().expect("the vocabulary supports grammars");
    let (quick, whole) = (quick.as_secs_f64(), start.elapsed().as_secs_f64());
    println!("{file}: {n} tokens, ready in {quick:.3} s without slices, in {whole:.3} s with them");
    println!(
        "{:>8} {:>9} {:>10} {:>10} {:>10} {:>10}",
        "grammar", "compiled", "mask ns", "median", "longest", "token ns"
    );
    let grammars = [
        ("gbnf", Grammar::Gbnf(JSON.to_owned())),
        ("any", Grammar::JsonSchema("{}".to_owned())),
        ("schema", Grammar::JsonSchema(SCHEMA.to_owned())),
    ];
    let tokens = vocab.tokenize(DOCUMENT, false, false);
    for (name, grammar) in grammars {
        let start = Instant::now();
        let constraint = sliced
            .compile(&grammar, vocab)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let compiled = start.elapsed();
        let (mut masks, mut taken) = (Vec::new(), Duration::ZERO);
        for _ in 0..ROUNDS {
            walk(constraint.clone(), &tokens, &mut masks, &mut taken);
        }
        masks.sort_unstable();
        let mean = masks.iter().sum::<Duration>().as_nanos() / masks.len() as u128;
        println!(
            "{name:>8} {:>6.1} ms {mean:>10} {:>10} {:>10} {:>10}",
            compiled.as_secs_f64() * 1e3,
            masks[masks.len() / 2].as_nanos(),
            masks[masks.len() - 1].as_nanos(),
            taken.as_nanos() / masks.len() as u128
        );
    }
}

/// Feeds the document to the constraint and records the time of each mask.
fn walk(mut constraint: Constraint, tokens: &[Token], masks: &mut Vec<Duration>, taken: &mut Duration) {
    for &token in tokens {
        let start = Instant::now();
        let allowed = constraint.allowed();
        masks.push(start.elapsed());
        let is_allowed = allowed.is_ok_and(|allowed| allowed.has(token));
        assert!(is_allowed, "the grammar accepts the document");
        let start = Instant::now();
        constraint.accept(token).expect("the mask allowed the token");
        *taken += start.elapsed();
    }
}
