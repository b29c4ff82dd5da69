//! Generates the table of `checkpoint` sections.

use proc_macro2::{Literal, TokenStream};
use quote::quote;

use crate::builtins::Ty;
use crate::model::checkpoint::{Checkpoint, NamedSource, Setting, TensorSource, Term};
use crate::paths::runtime;

/// Generates the entry of one section.
pub fn section(c: &Checkpoint) -> TokenStream {
    let ty = runtime("Checkpoint");
    let (classes, ignored) = (&c.classes, &c.ignored);
    let settings = c.settings.iter().map(setting);
    let sources = c.sources.iter().map(source);
    let checks = c.checks.iter().map(|(cond, text)| {
        let cond = term(cond);
        quote!((#cond, #text))
    });
    let mtp = match &c.mtp {
        Some([layers, mtp]) => quote!(::core::option::Option::Some([#layers, #mtp])),
        None => quote!(::core::option::Option::None),
    };
    quote! {
        #ty {
            classes: &[#(#classes),*],
            settings: &[#(#settings),*],
            checks: &[#(#checks),*],
            sources: &[#(#sources),*],
            ignored: &[#(#ignored),*],
            mtp: #mtp,
        }
    }
}

fn setting(s: &Setting) -> TokenStream {
    let (ty, types) = (runtime("CheckpointSetting"), runtime("SettingType"));
    let (symbol, key, required) = (&s.symbol, &s.key, s.required);
    let of_value = match s.ty {
        Some(Ty::Int) => quote!(#types::Int),
        Some(Ty::Float) => quote!(#types::Float),
        Some(Ty::Bool) => quote!(#types::Bool),
        Some(Ty::Str) => quote!(#types::Text),
        Some(Ty::List) | None => quote!(#types::Any),
    };
    let value = s.value.iter().map(term);
    quote!(#ty { symbol: #symbol, key: #key, ty: #of_value, required: #required, value: &[#(#value),*] })
}

fn source(s: &TensorSource) -> TokenStream {
    let ty = runtime("CheckpointSource");
    let TensorSource {
        field,
        gguf,
        part,
        kind,
        tied,
        mtp,
        ..
    } = s;
    let group = match &s.group {
        Some(group) => quote!(::core::option::Option::Some(#group)),
        None => quote!(::core::option::Option::None),
    };
    let origins = s.origins.iter().map(origin);
    quote! {
        #ty {
            field: #field, gguf: #gguf, part: #part, kind: #kind, group: #group, tied: #tied,
            mtp: #mtp, origins: &[#(#origins),*],
        }
    }
}

fn origin(o: &NamedSource) -> TokenStream {
    let ty = runtime("CheckpointOrigin");
    let (name, stack) = (&o.name, o.stack);
    let steps = o.steps.iter().map(|(word, args)| {
        let args = args.iter().map(term);
        quote!((#word, &[#(#args),*]))
    });
    let and = match o.and.as_deref().map(origin) {
        Some(next) => quote!(::core::option::Option::Some(&#next)),
        None => quote!(::core::option::Option::None),
    };
    quote!(#ty { name: #name, stack: #stack, steps: &[#(#steps),*], and: #and })
}

fn term(t: &Term) -> TokenStream {
    let ty = runtime("ConfigTerm");
    match t {
        Term::Path(path) => quote!(#ty::Path(#path)),
        Term::Int(n) => {
            let n = Literal::u64_unsuffixed(*n);
            quote!(#ty::Int(#n))
        }
        Term::Float(x) => {
            let x = Literal::f64_suffixed(*x);
            quote!(#ty::Float(#x))
        }
        Term::Bool(b) => quote!(#ty::Bool(#b)),
        Term::Text(text) => quote!(#ty::Text(#text)),
        Term::Symbol(name) => quote!(#ty::Symbol(#name)),
        Term::Call(name, args) => {
            let args = args.iter().map(term);
            quote!(#ty::Call(#name, &[#(#args),*]))
        }
    }
}
