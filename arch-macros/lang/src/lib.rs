//! Compiler of the architecture language: turns one `arch!` declaration into the code of a model.
//!
//! The stages, in order; no module depends on a later one:
//!
//! 1. [`source`], [`diag`]: tokens with their locations, and errors.
//! 2. [`parse`]: the grammar, which produces a syntax tree ([`ast`]).
//! 3. `fragment`, `options`, `limits`, `inherit`, `merge`: completion with fragments and parents from a [`library`].
//! 4. `check`: names, types, and symbolic shapes. Collects all errors and produces a typed model ([`model`]).
//! 5. `codegen`: Rust items. This stage cannot fail.
//!
//! All stages use the tokens of `proc-macro2` instead of rustc's. The compiler thus behaves identically inside and
//! outside a build: [`expand_with`] serves the macro, and [`check_file`] serves tools.
//!
//! To add a builtin symbol or an operation, extend [`builtins::BUILTINS`] or [`ops::OPS`]. Other keywords are
//! in [`words`]. [`format`] is the formatter.

pub mod ast;
mod braces;
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
mod limits;
pub mod lint;
mod merge;
pub mod model;
mod names;
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

pub use diag::{Diagnostic, Errors};
pub use flow::{FlowNode, Part as FlowPart, flow};
pub use library::{Directory, EncoderDirectory, Library, Source, declared_name, is_encoder};

use source::SourceMap;

/// Compiles the contents of one `arch!` invocation to items. For each error, emits a `compile_error!`, plus
/// an `ARCH` of the right type so that references to it cause no further errors.
///
/// If the environment variable `ARCH_MACROS_PRINT` equals the architecture's name, prints the expansion to
/// stderr.
pub fn expand(input: TokenStream) -> TokenStream {
    expand_with(input, &())
}

/// Like [`expand`], with a library of declarations and fragments.
pub fn expand_with(input: TokenStream, library: &dyn Library) -> TokenStream {
    expanded(parse::parse, input, library)
}

/// Like [`expand_with`], for the contents of one `encoder!` invocation.
pub fn expand_encoder(input: TokenStream, library: &dyn Library) -> TokenStream {
    expanded(parse::encoder, input, library)
}

fn expanded(parser: parse::DeclParser, input: TokenStream, library: &dyn Library) -> TokenStream {
    let Analyzed { name, result, sources } = analyze(parser, input, library, Errors::new(), checked);
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

/// Compiles a declaration to the checked model. Returns all errors in source order on failure.
pub fn compile(input: TokenStream) -> Result<model::Arch, Vec<Diagnostic>> {
    compile_with(input, &())
}

/// Like [`compile`], with a library of declarations and fragments.
pub fn compile_with(input: TokenStream, library: &dyn Library) -> Result<model::Arch, Vec<Diagnostic>> {
    analyze(parse::parse, input, library, Errors::new(), checked).result
}

/// Returns the checked model. This is the last stage of a compilation without code generation.
fn checked(arch: model::Arch, _: &mut Errors) -> Option<model::Arch> {
    Some(arch)
}

/// Returns every error of the declaration in a file, in source order, without generating code. `file` is the
/// name used in locations, `text` the full contents. A fragment is checked as far as possible without a
/// declaration that uses it.
pub fn check_file(file: &str, text: &str, library: &dyn Library) -> Vec<Diagnostic> {
    compile_file(file, text, library).err().unwrap_or_default()
}

/// Like [`compile_with`], for the text of a file. Locations refer to `file`. Returns `None` for a fragment or an
/// abstract parent.
pub fn compile_file(file: &str, text: &str, library: &dyn Library) -> Result<Option<model::Arch>, Vec<Diagnostic>> {
    compile_file_to(file, text, library, checked)
}

/// Like [`compile_file`], and converts the checked model. The errors of `stage` are reported like errors of the
/// compiler. A `stage` that reports no error must return a result.
pub fn compile_file_to<T>(
    file: &str,
    text: &str,
    library: &dyn Library,
    stage: impl FnOnce(model::Arch, &mut Errors) -> Option<T>,
) -> Result<Option<T>, Vec<Diagnostic>> {
    let mut errors = Errors::new();
    let tokens = errors.sources.parse_own(file, text);
    match tokens.and_then(content) {
        Ok(Some(Content::Arch(tokens))) => analyze(parse::parse, tokens, library, errors, stage).result.map(Some),
        Ok(Some(Content::Encoder(tokens))) => analyze(parse::encoder, tokens, library, errors, stage).result.map(Some),
        Ok(Some(Content::Parent(tokens))) => {
            let decl = as_architecture(parse::parse(tokens, &mut errors), file, &mut errors);
            analyze_decl(decl, library, errors, checked).result.map(|_| None)
        }
        Ok(Some(Content::Fragment)) => {
            errors.finish();
            Ok(None)
        }
        Ok(None) => {
            errors.at_span(
                proc_macro2::Span::call_site(),
                format!("{file} contains no `arch! {{ … }}` or `encoder! {{ … }}`"),
            );
            Err(errors.finish())
        }
        Err(e) => {
            errors.syntax(&e);
            Err(errors.finish())
        }
    }
}

/// The macro call in a file.
enum Content {
    Arch(TokenStream),
    Encoder(TokenStream),
    Parent(TokenStream),
    /// A fragment, whose sections have been parsed.
    Fragment,
}

fn content(file: TokenStream) -> syn::Result<Option<Content>> {
    parse::single_declaration(file.clone())?;
    if let Some(tokens) = parse::macro_tokens(file.clone(), "arch")? {
        return Ok(Some(Content::Arch(tokens)));
    }
    if let Some(tokens) = parse::macro_tokens(file.clone(), "encoder")? {
        return Ok(Some(Content::Encoder(tokens)));
    }
    if let Some(tokens) = parse::macro_tokens(file.clone(), "parent")? {
        return Ok(Some(Content::Parent(tokens)));
    }
    let Some(tokens) = parse::macro_tokens(file, "fragment")? else {
        return Ok(None);
    };
    parse::fragment(tokens)?;
    Ok(Some(Content::Fragment))
}

/// Completes an abstract parent with the sections that a child provides, so that a check needs no child.
fn as_architecture(mut decl: ast::Decl, file: &str, errors: &mut Errors) -> ast::Decl {
    let at = proc_macro2::Span::call_site();
    if let Some(name) = &decl.name {
        errors.at(
            name,
            "a `parent!` has no `name:`; children refer to it by its file name",
        );
    }
    let stem = std::path::Path::new(file).file_stem().unwrap_or_default();
    decl.name = Some(syn::LitStr::new(&stem.to_string_lossy(), at));
    let rope = || (syn::Ident::new("norm", at), None);
    decl.rope.get_or_insert_with(rope);
    decl
}

/// Result of analyzing a declaration.
struct Analyzed<T> {
    /// Name of the architecture; empty if missing.
    name: String,
    result: Result<T, Vec<Diagnostic>>,
    /// Sources that the locations refer to.
    sources: SourceMap,
}

/// Parses, completes, and checks a declaration, and runs a last stage. Each stage runs only if the previous one found
/// no errors.
fn analyze<T>(
    parser: parse::DeclParser,
    input: TokenStream,
    library: &dyn Library,
    mut errors: Errors,
    stage: impl FnOnce(model::Arch, &mut Errors) -> Option<T>,
) -> Analyzed<T> {
    let decl = parser(input, &mut errors);
    analyze_decl(decl, library, errors, stage)
}

/// Completes and checks a declaration.
fn analyze_decl<T>(
    decl: ast::Decl,
    library: &dyn Library,
    mut errors: Errors,
    stage: impl FnOnce(model::Arch, &mut Errors) -> Option<T>,
) -> Analyzed<T> {
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
        let mut arch = check::check(&decl, &mut errors)?;
        if library.inherits_checkpoints() {
            arch.checkpoints.extend(check::inherited_checkpoints(&decl, &arch));
        }
        lint::check(&arch, library, &mut errors);
        Some(model::Arch {
            ancestors,
            fragments,
            ..arch
        })
    });
    let converted = match arch {
        Some(arch) if errors.is_empty() => stage(arch, &mut errors),
        _ => None,
    };
    let (faults, sources) = errors.finish_with_sources();
    let result = match converted {
        Some(converted) if faults.is_empty() => Ok(converted),
        _ => Err(faults),
    };
    Analyzed { name, result, sources }
}

/// Human-readable summary of a declaration: a table of tensors and the values of the graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// Value of `general.architecture` in matching files.
    pub name: String,
    /// Names of the ancestors, nearest first.
    pub like: Vec<String>,
    /// Rows of field, GGUF name, kind, shape, and condition.
    pub tensors: Vec<[String; 5]>,
    /// Data flow of the graph, used to draw diagrams.
    pub flow: Vec<FlowNode>,
}

/// Returns the summary of a checked declaration.
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
