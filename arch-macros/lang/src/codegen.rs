//! Generates Rust items from the checked model: structs of tensor handles, a loader, a graph builder, and the
//! static `ARCH`.
//!
//! Names of the declaration keep their spans, so that rustc's errors and editors point to them. Generated names start
//! with two underscores, except `b`, `m`, `l`, and `il`, which `rust!` expressions can use.

mod audio;
mod build;
mod checkpoint;
mod media;
mod scalar;
mod tiles;

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;

use crate::builtins::{BUILTINS, OWN_PREFIX};
use crate::model::{Arch, Hparam, HparamText, Kind, Presence, Read, RopeKind, Tensor};
use crate::paths::runtime;
use scalar::{Scope, emit};

/// Returns a generated name that cannot clash with names of the declaration.
fn own(name: &str) -> Ident {
    Ident::new(&format!("{OWN_PREFIX}{name}"), Span::call_site())
}

/// Returns a generated name that `rust!` expressions can use.
fn shared(name: &str) -> Ident {
    Ident::new(name, Span::call_site())
}

/// Generates all items of a declaration.
pub fn items(arch: &Arch) -> TokenStream {
    let structs = structs(arch);
    let load = load(arch);
    let build = build::implementation(arch);
    let arch_static = arch_static(arch);
    let functions = functions(arch);
    let tracked = tracked_files(arch);
    quote! { #structs #load #build #functions #arch_static #tracked }
}

/// Generates items for the names of functions and their options. Calls are inlined, but refer to these items
/// for editors.
fn functions(arch: &Arch) -> TokenStream {
    if arch.functions.is_empty() {
        return TokenStream::new();
    }
    let names = arch.functions.iter().map(|f| {
        let (name, options, uses) = (&f.name, &f.options, &f.uses);
        let of_function = shared(&name.to_string());
        let options = (!options.is_empty()).then(|| quote!(pub mod #of_function { #(pub fn #options() {})* }));
        quote!(pub fn #name() { #(let _ = #of_function::#uses;)* } #options)
    });
    let module = own("functions");
    quote! {
        #[allow(dead_code)]
        mod #module {
            #(#names)*
        }
    }
}

/// Registers the files that were read with rustc, so that a change of a file rebuilds the declaration.
fn tracked_files(arch: &Arch) -> TokenStream {
    let files = arch.ancestors.iter().map(|a| &a.file).chain(&arch.fragments);
    let paths = files.map(|file| format!("/{file}"));
    quote!(#(const _: &::core::primitive::str =
        ::core::include_str!(::core::concat!(::core::env!("CARGO_MANIFEST_DIR"), #paths));)*)
}

/// Generates an `ARCH` that loads nothing, as a placeholder for an invalid declaration.
pub fn skeleton(name: &str) -> TokenStream {
    let (ty, media_use, loader) = (runtime("Architecture"), runtime("MediaUse"), runtime("Loader"));
    quote! {
        /// A declaration with errors.
        pub static ARCH: #ty = #ty {
            name: #name,
            like: &[],
            rope: ::core::option::Option::None,
            rope_with_sections: ::core::option::Option::None,
            bidirectional: false,
            encoder: false,
            mtp: false,
            embeddings: false,
            projects: true,
            rank_pooling: ::core::option::Option::None,
            models: &[],
            hparams: &[],
            symbols: &[],
            tensors: &[],
            checkpoints: &[],
            test: &[],
            media: ::core::option::Option::None,
            media_use: #media_use::None,
            load: #loader::Code(|_, _| ::core::option::Option::None),
        };
    }
}

/// Generates the fields of the `Hparams` struct: the values that the graph reads.
fn kept_fields(arch: &Arch) -> Vec<(&Ident, TokenStream)> {
    let field = |h| match h {
        &Hparam::Key {
            ref name,
            read,
            kept: true,
            ..
        } => Some((
            name,
            scalar::rust_type(read.ty(), !matches!(read, Read::One(_) | Read::List)),
        )),
        Hparam::Let {
            name,
            value,
            kept: true,
        } => Some((name, scalar::rust_type(value.ty, value.per_layer))),
        _ => None,
    };
    arch.hparams.iter().filter_map(field).collect()
}

fn layer_tensors(arch: &Arch, group: usize) -> impl Iterator<Item = &Tensor> + Clone {
    arch.tensors.iter().filter(move |t| t.group == Some(group))
}

/// Returns the groups of layers that have tensors.
fn used_groups(arch: &Arch) -> impl Iterator<Item = usize> + Clone {
    (0..arch.groups.len()).filter(|&g| layer_tensors(arch, g).next().is_some())
}

/// Returns the field and struct name of a group of layers: `layers` and `Layer` for the main group, `enc` and
/// `EncLayer` for a group `enc`.
fn group_names(arch: &Arch, group: usize) -> (Ident, Ident) {
    let name = &arch.groups[group].name;
    if group == 0 {
        return (shared("layers"), shared("Layer"));
    }
    let words = name.to_string();
    let pascal = words.split('_').flat_map(|word| {
        let mut letters = word.chars();
        letters
            .next()
            .map(|c| c.to_ascii_uppercase())
            .into_iter()
            .chain(letters)
    });
    let ty = Ident::new(&format!("{}Layer", pascal.collect::<String>()), name.span());
    (name.clone(), ty)
}

fn model_tensors(arch: &Arch) -> impl Iterator<Item = &Tensor> + Clone {
    arch.tensors.iter().filter(|t| t.group.is_none())
}

fn structs(arch: &Arch) -> TokenStream {
    let field = |t: &Tensor| {
        let (name, ty) = (&t.name, handle_type(*t.kind));
        if t.may_be_absent() {
            quote!(#name: ::core::option::Option<#ty>)
        } else {
            quote!(#name: #ty)
        }
    };
    let base = runtime("Base");
    let kept = kept_fields(arch);
    let (names, types): (Vec<_>, Vec<_>) = kept.into_iter().unzip();
    let (hparams, hp) = if names.is_empty() {
        (quote!(), quote!())
    } else {
        (quote!(struct Hparams { #(#names: #types),* }), quote!(hp: Hparams,))
    };
    let weights = model_tensors(arch).map(field);
    let of_group = |g| {
        let fields = layer_tensors(arch, g).map(field);
        let (list, ty) = group_names(arch, g);
        (
            quote!(struct #ty { #(#fields),* }),
            quote!(#list: ::std::vec::Vec<#ty>,),
        )
    };
    let (layer, layers): (Vec<_>, Vec<_>) = used_groups(arch).map(of_group).unzip();
    quote! {
        #hparams
        struct Weights { #(#weights,)* #(#layers)* }
        #(#layer)*
        struct Model { base: #base, #hp w: Weights }
    }
}

fn handle_type(kind: Kind) -> TokenStream {
    runtime(match kind {
        Kind::Embed => "Embed",
        Kind::Vector | Kind::Raw => "Vector",
        Kind::Norm => "Norm",
        Kind::Linear => "Linear",
        Kind::Experts => "Experts",
        Kind::PerHead => "PerHead",
    })
}

fn load(arch: &Arch) -> TokenStream {
    let (reader_ty, table_ty, build_ty) = (runtime("HparamReader"), runtime("TensorTable"), runtime("BuildGraph"));
    let (r, t, base, w) = (own("r"), own("t"), own("base"), own("w"));
    let hparams = arch.hparams.iter().map(|h| read_hparam(arch, h, &r));
    let kept: Vec<_> = kept_fields(arch).into_iter().map(|(name, _)| name).collect();
    let hp = if kept.is_empty() {
        quote!()
    } else {
        quote!(hp: Hparams { #(#kept),* },)
    };
    let weights = weights(arch, &t);
    quote! {
        // The checker reports unused values. Fragments may read values that a graph does not use.
        #[allow(unused_variables)]
        fn load(
            #r: &mut #reader_ty<'_>,
            #t: &mut #table_ty<'_>,
        ) -> ::core::option::Option<::std::boxed::Box<dyn #build_ty>> {
            let #base = #r.base();
            #(#hparams)*
            if #r.failed() {
                return ::core::option::Option::None;
            }
            let #w = #weights;
            ::core::option::Option::Some(::std::boxed::Box::new(Model { base: #base, #hp w: #w }))
        }
    }
}

fn read_hparam(arch: &Arch, h: &Hparam, r: &Ident) -> TokenStream {
    let (il, base) = (shared("il"), own("base"));
    match h {
        Hparam::Key {
            name,
            read,
            key,
            default,
            at_least,
            ..
        } => {
            let method = scalar::reader(*read);
            if let Some(n) = at_least {
                let (method, n) = (shared(method), emit(n, Scope::Load));
                return quote!(let #name = #r.#method(#key, #n););
            }
            match default {
                Some(d) if d.per_layer => {
                    let (method, value) = (shared(&format!("{method}_with")), emit(d, Scope::Load));
                    quote!(let #name = #r.#method(#key, |#il| #value);)
                }
                Some(d) => {
                    let (method, value) = (shared(method), scalar::default_value(d));
                    quote!(let #name = #r.#method(#key, ::core::option::Option::Some(#value));)
                }
                None => {
                    let method = shared(method);
                    quote!(let #name = #r.#method(#key, ::core::option::Option::None);)
                }
            }
        }
        Hparam::Let { name, value, .. } => {
            let expr = emit(value, Scope::Load);
            let ty = scalar::rust_type(value.ty, value.per_layer);
            if value.per_layer {
                quote!(let #name: #ty = (0..#base.n_layer_loaded()).map(|#il| #expr).collect();)
            } else {
                quote!(let #name: #ty = #expr;)
            }
        }
        Hparam::Check {
            cond,
            text,
            only_warns: true,
        } => {
            let expr = emit(cond, Scope::Load);
            if cond.per_layer {
                quote!(let #il = (0..#base.n_layer_loaded()).all(|#il| #expr); #r.warn(#il, #text);)
            } else {
                quote!(#r.warn(#expr, #text);)
            }
        }
        Hparam::Check { cond, text, .. } => {
            let expr = emit(cond, Scope::Load);
            let found = arch.found_values(cond).into_iter().map(|(key, value)| {
                let value = emit(value, Scope::Load);
                quote!((#key, &#value))
            });
            let check = quote!(#r.check(#expr, #text, &[#(#found),*]));
            if cond.per_layer {
                quote!((0..#base.n_layer_loaded()).all(|#il| #check);)
            } else {
                quote!(#check;)
            }
        }
    }
}

fn weights(arch: &Arch, t: &Ident) -> TokenStream {
    let (il, base) = (shared("il"), own("base"));
    // Tensors that other tensors fall back to or depend on are bound to local variables.
    let is_early = |o: &Tensor| arch.is_loaded_early(o);
    let early = |o: &Tensor| {
        let (name, call) = (&o.name, declare(arch, o, t));
        let decides = o.optional.then(|| {
            let gguf = &o.gguf;
            quote!(#t.decides(#gguf, #name.is_some());)
        });
        quote!(let #name = #call; #decides)
    };
    let field = |o: &Tensor| {
        let name = &o.name;
        if is_early(o) {
            return quote!(#name,);
        }
        let call = declare(arch, o, t);
        quote!(#name: #call,)
    };
    let ignored = arch.ignored.iter().map(|(name, _)| quote!(#t.ignore(#name);));
    let early_globals = model_tensors(arch).filter(|o| is_early(o)).map(early);
    let fields = model_tensors(arch).map(field);
    let layers = used_groups(arch).map(|g| {
        let early = layer_tensors(arch, g).filter(|o| is_early(o)).map(early);
        let fields = layer_tensors(arch, g).map(field);
        let ((list, ty), group) = (group_names(arch, g), &arch.groups[g]);
        let prefix = &group.prefix;
        let count = match &group.count {
            None => quote!(#base.n_layer_loaded()),
            Some(count) => {
                let count = emit(count, Scope::Load);
                quote!(#t.n_layers(#count))
            }
        };
        quote! {
            #list: (0..#count)
                .map(|#il| {
                    #t.layer(#prefix, #il);
                    #(#early)*
                    #ty { #(#fields)* }
                })
                .collect(),
        }
    });
    quote!({ #(#ignored)* #(#early_globals)* Weights { #(#fields)* #(#layers)* } })
}

/// Generates the tensor table entry of one tensor.
fn declare(arch: &Arch, o: &Tensor, t: &Ident) -> TokenStream {
    let (name, found) = (&o.gguf, own("gguf"));
    let gguf = match &o.other_name {
        Some(_) => quote!(#found),
        None => quote!(#name),
    };
    let sizes: Vec<_> = o.sizes.iter().map(|s| emit(s, Scope::Load)).collect();
    let args = match *o.kind {
        Kind::Linear | Kind::Experts | Kind::PerHead => quote!(#gguf, #(#sizes),*),
        _ => quote!(#gguf, &[#(#sizes),*]),
    };
    let call = |suffix: &str| {
        let method = Ident::new(&format!("{}{suffix}", o.kind.name()), o.kind.at);
        quote!(#t.#method(#args))
    };
    let call = match arch.presence(o) {
        Presence::Tied(tie) => {
            let tied = &arch.tensors[tie].name;
            quote!(#t.linear_tied(#args, #tied))
        }
        Presence::OrMore => call("_or_more"),
        Presence::Form => call("_form"),
        Presence::Optional => call("_opt"),
        Presence::Required => call(""),
    };
    let call = match &o.other_name {
        Some(other) => quote!({ let #found = #t.named(#name, #other); #call }),
        None => call,
    };
    if o.conditions.is_empty() {
        return call;
    }
    let conditions = o.conditions.iter().map(|(c, truth)| {
        let c = scalar::atom(c, Scope::Load);
        if *truth { c } else { quote!(!#c) }
    });
    let conditions = and(conditions.collect());
    let some = if o.optional {
        call
    } else {
        quote!(::core::option::Option::Some(#call))
    };
    quote!(if #conditions { #some } else { ::core::option::Option::None })
}

/// Combines the conditions with `&&`.
fn and(list: Vec<TokenStream>) -> TokenStream {
    let mut list = list.into_iter();
    let first = list.next().unwrap_or_else(|| quote!(true));
    list.fold(first, |all, c| quote!(#all && #c))
}

fn arch_static(arch: &Arch) -> TokenStream {
    let (ty, loader) = (runtime("Architecture"), runtime("Loader"));
    let name = &arch.name;
    let (bidirectional, embeddings) = (arch.bidirectional, arch.embeddings);
    let projects = arch.projects();
    let rank_pooling = match arch.rank_pooling {
        None => quote!(::core::option::Option::None),
        Some(variant) => {
            let (ty, variant) = (runtime("Pooling"), shared(variant));
            quote!(::core::option::Option::Some(#ty::#variant))
        }
    };
    let rope = rope_kind(Some(arch.rope));
    let rope_with_sections = rope_kind(arch.rope_with_sections);
    let like = arch.ancestors.iter().map(|a| &a.name);
    let (encoder, mtp) = (arch.encoder.is_some(), arch.mtp.is_some());
    let models = arch.models.iter().map(|(name, cond)| {
        let cond = &cond.text;
        quote!((#name, #cond))
    });
    let hparams = arch.hparams.iter().filter_map(hparam_decl);
    let symbols = BUILTINS.iter().filter_map(|b| {
        let (name, key) = (b.name, b.key?);
        Some(quote!((#name, #key)))
    });
    let tensors = arch.tensors.iter().map(|t| tensor_decl(arch, t));
    let checkpoints = arch.checkpoints.iter().map(checkpoint::section);
    let test = arch.test.iter().map(|(name, size)| {
        let n = proc_macro2::Literal::f64_unsuffixed(size.number());
        quote!((#name, #n))
    });
    let (media, media_use) = (media::declared(arch.media.as_ref()), media::media_use(arch.media_use));
    let doc = format!("The `{name}` architecture.");
    quote! {
        #[doc = #doc]
        pub static ARCH: #ty = #ty {
            name: #name,
            like: &[#(#like),*],
            rope: #rope,
            rope_with_sections: #rope_with_sections,
            bidirectional: #bidirectional,
            encoder: #encoder,
            mtp: #mtp,
            embeddings: #embeddings,
            projects: #projects,
            rank_pooling: #rank_pooling,
            models: &[#(#models),*],
            hparams: &[#(#hparams),*],
            symbols: &[#(#symbols),*],
            tensors: &[#(#tensors),*],
            checkpoints: &[#(#checkpoints),*],
            test: &[#(#test),*],
            media: #media,
            media_use: #media_use,
            load: #loader::Code(load),
        };
    }
}

/// Returns the engine's variant of the RoPE kind; `None` without rotary positions.
fn rope_kind(kind: Option<RopeKind>) -> TokenStream {
    let variant = match kind {
        None | Some(RopeKind::None) => return quote!(::core::option::Option::None),
        Some(RopeKind::Norm) => "Norm",
        Some(RopeKind::Neox) => "Neox",
        Some(RopeKind::Mrope) => "Mrope",
        Some(RopeKind::Imrope) => "Imrope",
    };
    let (ty, variant) = (runtime("RopeKind"), shared(variant));
    quote!(::core::option::Option::Some(#ty::#variant))
}

fn hparam_decl(h: &Hparam) -> Option<TokenStream> {
    let HparamText { name, key, ty, default } = h.text()?;
    let (decl, default) = (runtime("HparamDecl"), option(default));
    Some(quote!(#decl { name: #name, key: #key, ty: #ty, default: #default }))
}

fn tensor_decl(arch: &Arch, t: &Tensor) -> TokenStream {
    let decl = runtime("TensorDecl");
    let (field, gguf, kind, shape) = (t.name.to_string(), &t.gguf, t.kind.name(), &t.shape_text);
    let (group, optional) = (option(t.group.map(|g| arch.groups[g].prefix.clone())), t.optional);
    let tied = option(t.tie.map(|i| arch.tensors[i].name.to_string()));
    let other_name = option(t.other_name.clone());
    let condition = option(t.condition_text());
    quote! {
        #decl {
            field: #field,
            gguf: #gguf,
            kind: #kind,
            shape: #shape,
            group: #group,
            optional: #optional,
            tied: #tied,
            other_name: #other_name,
            condition: #condition
        }
    }
}

fn option(text: Option<String>) -> TokenStream {
    match text {
        Some(text) => quote!(::core::option::Option::Some(#text)),
        None => quote!(::core::option::Option::None),
    }
}
