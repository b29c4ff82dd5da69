//! The architecture language: a small compiler from one `arch!` declaration to the code of a model.
//!
//! Tokens are parsed ([`parse`], where the grammar stands), completed by fragments (`fragment`) and what they are `like` (`inherit`), checked ([`check`]: names, types, symbolic shapes, all faults
//! collected with the tokens they stand under) into a typed model ([`model`]), and turned into items ([`codegen`], which cannot
//! fail). Everything works on `proc-macro2` tokens, so the compiler runs inside rustc and inside any other program alike.
//!
//! The tables that a new builtin symbol or operation is added to are [`builtins::BUILTINS`] and [`ops::OPS`].

pub mod ast;
pub mod builtins;
mod check;
mod codegen;
pub mod diag;
mod flow;
mod forward;
mod fragment;
mod inherit;
mod library;
pub mod model;
pub mod ops;
pub mod parse;
mod paths;
pub mod sym;

use proc_macro2::TokenStream;

pub use diag::Diagnostic;
pub use flow::FlowNode;
pub use library::{Folder, Library, Source};

use diag::Errors;

/// Compiles the contents of one `arch!` invocation to items. With faults: a `compile_error!` for each, and an `ARCH` of the
/// right type, so that what refers to it gives no further errors.
///
/// The environment variable `ARCH_MACROS_PRINT` makes it print the expansion to the standard error stream.
pub fn expand(input: TokenStream) -> TokenStream {
    expand_with(input, &())
}

/// [`expand`] with the declarations that `like: "…";` may name.
pub fn expand_with(input: TokenStream, library: &dyn Library) -> TokenStream {
    let (name, analyzed) = analyze(input, library);
    let items = match analyzed {
        Ok(arch) => codegen::items(&arch),
        Err(faults) => {
            let messages = faults.iter().map(Diagnostic::to_compile_error);
            let skeleton = codegen::skeleton(&name);
            quote::quote!(#(#messages)* #skeleton)
        }
    };
    if std::env::var_os("ARCH_MACROS_PRINT").is_some_and(|v| v != "0") {
        eprintln!("{items}");
    }
    items
}

/// Compiles a declaration as far as the checked model, or to all its faults in the order of the source.
pub fn compile(input: TokenStream) -> Result<model::Arch, Vec<Diagnostic>> {
    compile_with(input, &())
}

/// [`compile`] with the declarations that `like: "…";` may name.
pub fn compile_with(input: TokenStream, library: &dyn Library) -> Result<model::Arch, Vec<Diagnostic>> {
    analyze(input, library).1
}

/// Parses, completes and checks, each if the step before found no fault; the name is that of the declaration, if it has one.
fn analyze(input: TokenStream, library: &dyn Library) -> (String, Result<model::Arch, Vec<Diagnostic>>) {
    let mut errors = Errors::new();
    let decl = parse::parse(input, &mut errors);
    let name = decl.name.as_ref().map_or_else(String::new, syn::LitStr::value);
    let like = decl.like.clone();
    let resolved = if errors.is_empty() {
        inherit::resolve(decl, library, &mut errors)
    } else {
        None
    };
    let mut used = Vec::new();
    let merged = resolved.is_some();
    let arch = resolved.and_then(|(decl, ancestors)| {
        used = decl.fragments.clone();
        let arch = check::check(&decl, &mut errors)?;
        let mut fragments: Vec<String> = used.iter().map(|f| f.file.clone()).collect();
        fragments.sort();
        fragments.dedup();
        Some(model::Arch {
            ancestors,
            fragments,
            ..arch
        })
    });
    let mut faults = errors.finish();
    if let Some(like) = like.filter(|_| merged) {
        // Nothing of the child's own is checked at this place: what stands here is inherited.
        let at = Diagnostic::new(&like, "").line_column();
        for d in faults.iter_mut().filter(|d| d.line_column() == at) {
            d.message = format!("inherited from `{}`: {}", like.value(), d.message);
        }
        used.retain(|f| Diagnostic::new(&f.name, "").line_column() != at);
    }
    let place = |f: &fragment::Used| Diagnostic::new(&f.name, "").line_column();
    // What a fragment uses stands at the place of its own name, behind it.
    used.dedup_by_key(|f| place(f));
    for f in used {
        let at = place(&f);
        for d in faults.iter_mut().filter(|d| d.line_column() == at) {
            d.message = format!("in the fragment `{}`: {}", f.name, d.message);
        }
    }
    (name, arch.ok_or(faults))
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
