//! Hard cases in `drafts/`: each must parse, and a snapshot lists the errors that the compiler still reports.

use std::path::Path;
use std::str::FromStr;

use arch_lang::diag::Errors;
use proc_macro2::TokenStream;

#[test]
fn drafts_parse_and_report_missing_features() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("drafts");
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .collect();
    files.sort();
    let archs = arch_lang::Directory(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archs"));
    assert!(!files.is_empty());
    let mut report = String::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let code = text
            .lines()
            .filter(|l| !l.trim().is_empty() && !l.trim_start().starts_with("//"))
            .count();
        let budget = 80;
        assert!(code <= budget, "{name} has {code} lines of code");

        // In a finished file the description is outside of `arch!`.
        let tokens = TokenStream::from_str(&text.replacen("//!", "//", 1)).unwrap();
        let mut errors = Errors::new();
        arch_lang::parse::parse(tokens.clone(), &mut errors);
        for d in errors.finish() {
            let later = d.message.ends_with("are not supported");
            assert!(later, "{name}:{}: {}", d.line_column().0, d.message);
        }
        report += &format!("{name}: {code} lines\n");
        for d in arch_lang::compile_with(tokens, &archs).err().unwrap_or_default() {
            report += &format!("    {}: {}\n", d.line_column().0, d.message);
        }
    }
    insta::assert_snapshot!(report);
}
