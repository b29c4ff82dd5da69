//! The architecture language: a small compiler from one `arch!` declaration to the code of a model.
//!
//! In the order of the modules' layers: text becomes tokens with places ([`source`], [`diag`]); those are parsed ([`parse`], where the
//! grammar stands) to a syntax tree ([`ast`]), which is completed from the [`library`] by fragments (`fragment`, with their `options`)
//! and what it is `like` (`inherit`, `merge`), checked (`check`: names, types, symbolic shapes, all faults collected with the tokens they
//! stand under) into a typed model ([`model`]), and turned into items (`codegen`, which cannot fail). No module looks at a later one.
//!
//! Everything works on `proc-macro2`'s own tokens, never on rustc's, so the compiler is one and the same in a build and in any other
//! program: [`expand_with`] for the macro, [`check_file`] for tools.
//!
//! The tables that a new builtin symbol or operation is added to are [`builtins::BUILTINS`] and [`ops::OPS`]; other words stand in [`words`].
//! [`format`] lays files out.

pub mod ast;
pub mod builtins;
mod check;
mod codegen;
pub mod diag;
mod flow;
pub mod format;
mod forward;
mod fragment;
mod inherit;
mod library;
pub mod lint;
mod merge;
pub mod model;
pub mod ops;
mod options;
pub mod parse;
mod paths;
mod report;
pub mod source;
mod spans;
pub mod sym;
pub mod words;

use proc_macro2::TokenStream;

pub use diag::Diagnostic;
pub use flow::FlowNode;
pub use library::{Folder, Library, Source};

use diag::Errors;
use source::SourceMap;

/// Compiles the contents of one `arch!` invocation to items. With faults: a `compile_error!` for each, and an `ARCH` of the
/// right type, so that what refers to it gives no further errors.
///
/// The environment variable `ARCH_MACROS_PRINT=NAME` makes it print the expansion of the architecture NAME to the standard error
/// stream.
pub fn expand(input: TokenStream) -> TokenStream {
    expand_with(input, &())
}

/// [`expand`] with the declarations and fragments that it may name.
pub fn expand_with(input: TokenStream, library: &dyn Library) -> TokenStream {
    let Analyzed { name, result, sources } = analyze(input, library, Errors::new());
    let items = match result {
        Ok(arch) => spans::moved(codegen::items(&arch), &|span| sources.own_place(span)),
        Err(faults) => {
            let is_faulty = |name: &str| {
                let source = library.find(name);
                source.is_some_and(|s| compile_file(&s.file, &s.text, library).is_err())
            };
            let messages = report::for_build(&name, &faults, is_faulty);
            let messages = messages.iter().map(|(at, text)| diag::compile_error(*at, text));
            let skeleton = codegen::skeleton(&name);
            quote::quote!(#(#messages)* #skeleton)
        }
    };
    if std::env::var("ARCH_MACROS_PRINT").is_ok_and(|wanted| wanted == name) {
        eprintln!("{items}");
    }
    items
}

/// Compiles a declaration as far as the checked model, or to all its faults in the order of the source.
pub fn compile(input: TokenStream) -> Result<model::Arch, Vec<Diagnostic>> {
    compile_with(input, &())
}

/// [`compile`] with the declarations and fragments that it may name.
pub fn compile_with(input: TokenStream, library: &dyn Library) -> Result<model::Arch, Vec<Diagnostic>> {
    analyze(input, library, Errors::new()).result
}

/// Every fault of the declaration in a file, without building anything, in the order of the file. `file` is what its places are called;
/// `text` is all of it, description and `arch! { … }`. A file of a fragment is checked as far as that goes without one that uses it.
pub fn check_file(file: &str, text: &str, library: &dyn Library) -> Vec<Diagnostic> {
    compile_file(file, text, library).err().unwrap_or_default()
}

/// [`compile_with`] for the text of a file: places have its name.
pub fn compile_file(file: &str, text: &str, library: &dyn Library) -> Result<Option<model::Arch>, Vec<Diagnostic>> {
    let mut errors = Errors::new();
    let tokens = errors.sources.parse_own(file, text).map_err(syn::Error::from);
    let found = tokens.and_then(|tokens| {
        let arch = parse::macro_tokens(tokens.clone(), "arch")?;
        let fragment = parse::macro_tokens(tokens, "fragment")?;
        fragment.map(parse::fragment).transpose()?;
        Ok(arch)
    });
    match found {
        Ok(Some(tokens)) => analyze(tokens, library, errors).result.map(Some),
        Ok(None) if text.contains("fragment!") => {
            errors.finish();
            Ok(None)
        }
        Ok(None) => {
            errors.at_span(
                proc_macro2::Span::call_site(),
                format!("{file} holds no `arch! {{ … }}`"),
            );
            Err(errors.finish())
        }
        Err(e) => {
            errors.syntax(&e);
            Err(errors.finish())
        }
    }
}

/// What has become of a declaration.
struct Analyzed {
    /// Empty if it has none.
    name: String,
    result: Result<model::Arch, Vec<Diagnostic>>,
    /// The texts that its places are in.
    sources: SourceMap,
}

/// Parses, completes and checks, each if the step before found no fault.
fn analyze(input: TokenStream, library: &dyn Library, mut errors: Errors) -> Analyzed {
    let decl = parse::parse(input, &mut errors);
    let name = decl.name.as_ref().map_or_else(String::new, syn::LitStr::value);
    let resolved = if errors.is_empty() {
        inherit::resolve(decl, library, &mut errors)
    } else {
        None
    };
    let arch = resolved.and_then(|(decl, ancestors)| {
        let mut fragments: Vec<String> = decl.fragments.iter().map(|f| f.file.clone()).collect();
        fragments.sort();
        fragments.dedup();
        let arch = check::check(&decl, &mut errors)?;
        lint::check(&arch, &decl.allowed, library, &mut errors);
        Some(model::Arch {
            ancestors,
            fragments,
            ..arch
        })
    });
    let (faults, sources) = errors.finish_with_sources();
    let result = arch.filter(|_| faults.is_empty()).ok_or(faults);
    Analyzed { name, result, sources }
}

/// What a declaration says, for people: the tensors as a table and the graph's values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// `general.architecture` of its files.
    pub name: String,
    /// Names of what it is `like`, nearest first.
    pub like: Vec<String>,
    /// Rows: field, GGUF name, kind, shape, and when it is there.
    pub tensors: Vec<[String; 5]>,
    /// The graph, from which drawings are made.
    pub flow: Vec<FlowNode>,
}

/// Describes a checked declaration.
pub fn describe(arch: &model::Arch) -> Description {
    let row = |t: &model::Tensor| {
        let prefix = t
            .group
            .map_or_else(String::new, |g| format!("{}.N.", arch.groups[g].prefix));
        let presence = match (t.condition_text(), t.tie) {
            (Some(c), _) if t.optional => format!("optional, if {c}"),
            (Some(c), _) => format!("if {c}"),
            (None, Some(tie)) => format!("or {}", arch.tensors[tie].name),
            (None, None) if let Some(other) = &t.other_name => format!("or \"{other}\""),
            (None, None) if t.optional => "optional".to_string(),
            (None, None) => String::new(),
        };
        [
            t.name.to_string(),
            format!("{prefix}{}", t.gguf),
            t.kind.name().to_string(),
            t.shape_text.clone(),
            presence,
        ]
    };
    Description {
        name: arch.name.clone(),
        like: arch.ancestors.iter().map(|a| a.name.clone()).collect(),
        tensors: arch.tensors.iter().map(row).collect(),
        flow: flow::flow(arch),
    }
}
