//! Generates the graph as builder calls, one per line. Nested calls are bound to variables first.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote};

use super::scalar::{self, Scope, emit};
use super::{own, shared};
use crate::model::{
    Arch, Arg, Block, Callee, Head, Kind, Named, Operand, Operation, RowsBy, Scalar, Stmt, Value, ValueKind, VarId,
};
use crate::ops::{self, Emit, Given, OpSpec, Param, ParamKind};
use crate::paths::{runtime, runtime_at};
use crate::spans;

/// Generates `impl BuildGraph for Model`.
pub fn implementation(arch: &Arch) -> TokenStream {
    let (b, m) = (shared("b"), shared("m"));
    let (build_ty, builder_ty, id_ty) = (runtime("BuildGraph"), runtime("Builder"), runtime("TensorId"));
    let emitter = || Emitter {
        arch,
        next: 0,
        repeats: false,
        out: Vec::new(),
    };
    let encoder = arch.encoder.as_ref().map(|graph| {
        let result = emitter().block(graph);
        quote! {
            fn encode(&self, #b: &mut #builder_ty<'_>) -> ::core::option::Option<#id_ty> {
                let #m = self;
                ::core::option::Option::Some({ #result })
            }
        }
    });
    let result = emitter().block(&arch.graph);
    let mtp = arch.mtp.as_ref().map(|graph| {
        let (l, il, result) = (shared("l"), shared("il"), emitter().block(graph));
        quote! {
            fn mtp(&self, #b: &mut #builder_ty<'_>) -> ::core::option::Option<#id_ty> {
                let #m = self;
                let #il = #m.base.n_layer();
                let #l = #m.w.layers.get(#il)?;
                #b.begin_layer(#il);
                ::core::option::Option::Some({ #result })
            }
        }
    });
    let head = |name: &str, head: &Option<Head>| {
        let head = head.as_ref()?;
        let (pooled, block) = (&arch.vars[head.pooled.0].name, emitter().block(&head.block));
        let mutable = arch.vars[head.pooled.0].assigned.then(|| quote!(mut));
        let name = shared(name);
        Some(quote! {
            fn #name(&self, #b: &mut #builder_ty<'_>, #mutable #pooled: #id_ty) -> ::core::option::Option<#id_ty> {
                let #m = self;
                ::core::option::Option::Some({ #block })
            }
        })
    };
    let (embedding, rank) = (head("embedding", &arch.embedding), head("rank", &arch.rank));
    let image = arch.media.as_ref().and_then(super::media::rules);
    let audio = arch.audio.as_ref().map(super::audio::rules);
    quote! {
        impl #build_ty for Model {
            #encoder
            fn build(&self, #b: &mut #builder_ty<'_>) -> #id_ty {
                let #m = self;
                #result
            }
            #mtp
            #embedding
            #rank
            #image
            #audio
        }
    }
}

struct Emitter<'a> {
    arch: &'a Arch,
    next: usize,
    /// True inside a loop over integers.
    repeats: bool,
    out: Vec<TokenStream>,
}

impl Emitter<'_> {
    /// Generates the statements and the result of a block.
    fn block(&mut self, block: &Block) -> TokenStream {
        let outer = std::mem::take(&mut self.out);
        for stmt in &block.stmts {
            self.stmt(stmt);
        }
        let result = block.result.as_ref().map(|v| self.call(v));
        let stmts = std::mem::replace(&mut self.out, outer);
        quote!(#(#stmts)* #result)
    }

    fn var(&self, var: VarId) -> &Ident {
        &self.arch.vars[var.0].name
    }

    /// Returns a value's name with the span of its use.
    fn var_at(&self, var: &Named<VarId>) -> Ident {
        Ident::new(&self.var(var.it).to_string(), var.at)
    }

    fn stmt(&mut self, stmt: &Stmt) {
        let b = shared("b");
        match stmt {
            Stmt::Tensor { var, is_let, value } => {
                let call = self.call(value);
                let (name, text) = (self.var_at(var), self.var(var.it).to_string());
                let assigned = self.arch.vars[var.0].assigned;
                let again = shared(&text);
                let head = match (is_let, assigned) {
                    (true, true) => quote!(let mut #name = #call;),
                    (true, false) => quote!(let #name = #call;),
                    (false, _) => quote!(#name = #call;),
                };
                self.out.push(quote!(#head #b.name(#again, #text);));
            }
            Stmt::Scalar { var, value } => {
                let (name, ty, value) = (
                    self.var(*var).clone(),
                    scalar::rust_type(value.ty, false),
                    self.scalar(value),
                );
                self.out.push(quote!(let #name: #ty = #value;));
            }
            Stmt::If { cond, then, otherwise } if cond.truth().is_some() => {
                let taken = if cond.truth() == Some(true) {
                    Some(then)
                } else {
                    otherwise.as_ref()
                };
                let taken = taken.map(|block| self.block(block));
                self.out.extend(taken.map(|block| quote!({ #block })));
            }
            Stmt::If { cond, then, otherwise } => {
                let (cond, then) = (self.scalar(cond), self.block(then));
                let otherwise = otherwise.as_ref().map(|block| {
                    let block = self.block(block);
                    quote!(else { #block })
                });
                self.out.push(quote!(if #cond { #then } #otherwise));
            }
            Stmt::Layers {
                group,
                range,
                body,
                carried,
            } => self.layers(group, range.as_ref(), body, *carried),
            Stmt::Repeat { var, range, body } => {
                let (from, to) = (self.scalar(&range.0), self.scalar(&range.1));
                let outer = std::mem::replace(&mut self.repeats, true);
                let body = self.block(body);
                self.repeats = outer;
                let name = var.map_or_else(|| quote!(_), |var| self.var(var).to_token_stream());
                self.out.push(quote!(for #name in #b.rounds(#from, #to) { #body }));
            }
        }
    }

    fn layers(&mut self, group: &Named<usize>, range: Option<&(Scalar, Scalar)>, body: &Block, carried: VarId) {
        let (b, m, l, il) = (shared("b"), shared("m"), shared("l"), shared("il"));
        let body = self.block(body);
        let x = shared(&self.var(carried).to_string());
        let (list, _) = super::group_names(self.arch, group.it);
        let list = Ident::new(&list.to_string(), group.at);
        let has_tensors = super::layer_tensors(self.arch, group.it).next().is_some();
        let weights = has_tensors.then(|| quote!(let #l = &#m.w.#list[#il];));
        let count = match &self.arch.groups[group.it].count {
            Some(_) if has_tensors => quote!(#m.w.#list.len()),
            _ => quote!(#m.base.n_layer()),
        };
        let layers = match range {
            // Repeated layer loops are counted, so that a file cannot make the graph unbounded.
            None if self.repeats => quote!(#b.layers(0, #count, #count)),
            None => quote!(0..#count),
            Some((from, to)) => {
                let (from, to) = (self.scalar(from), self.scalar(to));
                quote!(#b.layers(#from, #to, #count))
            }
        };
        self.out.push(quote! {
            for #il in #layers {
                #weights
                #b.begin_layer(#il);
                #body
                #x = #b.end_layer(#x);
            }
        });
    }

    /// Binds a call's result to a variable, because the builder cannot be borrowed twice in one expression.
    fn bind(&mut self, call: TokenStream) -> TokenStream {
        let t = own(&format!("t{}", self.next));
        self.next += 1;
        self.out.push(quote!(let #t = #call;));
        quote!(#t)
    }

    /// Generates an operand: always a name.
    fn operand(&mut self, value: &Value) -> TokenStream {
        if let ValueKind::Var(var) = &value.kind {
            let name = self.var_at(var);
            return quote!(#name);
        }
        let call = self.call(value);
        self.bind(call)
    }

    /// Generates the field access of a declared tensor.
    fn field(&self, tensor: &Named<usize>) -> TokenStream {
        let t = &self.arch.tensors[tensor.it];
        let name = Ident::new(&t.name.to_string(), tensor.at);
        let (m, l) = (shared("m"), shared("l"));
        if t.group.is_some() {
            quote!(#l.#name)
        } else {
            quote!(#m.w.#name)
        }
    }

    /// Generates the handle of a layer tensor in the first layer, where it is required.
    fn handle_of_first_layer(&mut self, tensor: &Named<usize>) -> TokenStream {
        let t = &self.arch.tensors[tensor.it];
        let Some(group) = t.group else {
            return self.handle(tensor);
        };
        let (list, _) = super::group_names(self.arch, group);
        let (b, m, name) = (shared("b"), shared("m"), Ident::new(&t.name.to_string(), tensor.at));
        let (field, gguf) = (quote!(#m.w.#list[0].#name), &t.gguf);
        if !t.may_be_absent() {
            return field;
        }
        self.bind(quote!(#b.present(&#field, #gguf)))
    }

    /// Generates the handle of a tensor that is known to be present.
    fn handle(&mut self, tensor: &Named<usize>) -> TokenStream {
        let field = self.field(tensor);
        if !self.arch.tensors[tensor.it].may_be_absent() {
            return field;
        }
        let b = shared("b");
        let gguf = &self.arch.tensors[tensor.it].gguf;
        self.bind(quote!(#b.present(&#field, #gguf)))
    }

    /// Generates one builder call for a value, after binding its operands.
    fn call(&mut self, value: &Value) -> TokenStream {
        let b = shared("b");
        match &value.kind {
            ValueKind::Var(var) => {
                let name = self.var_at(var);
                quote!(#name)
            }
            ValueKind::Embed(w, by, skipped) => {
                let w = self.handle(w);
                match by.it {
                    RowsBy::Tokens => {
                        let method = Ident::new("embed", by.at);
                        quote!(#b.#method(#w))
                    }
                    RowsBy::Positions => {
                        let method = Ident::new("embed_positions", by.at);
                        let skipped = skipped.as_ref().map_or(quote!(0), |s| self.scalar(s));
                        quote!(#b.#method(#w, #skipped))
                    }
                }
            }
            ValueKind::Linear(w, x) => {
                let x = self.operand(x);
                let method = match *self.arch.tensors[w.it].kind {
                    Kind::PerHead => shared("per_head"),
                    Kind::Embed => shared("tied"),
                    _ => shared("linear"),
                };
                let w = self.handle(w);
                quote!(#b.#method(#w, #x))
            }
            ValueKind::Encoded(at) => {
                let method = Ident::new("encoded", *at);
                quote!(#b.#method())
            }
            ValueKind::Hidden(at) => {
                let method = Ident::new("hidden_rows", *at);
                quote!(#b.#method())
            }
            ValueKind::Patches(at, width) => self.medium("patches", *at, width),
            ValueKind::Frames(at, width) => self.medium("frames", *at, width),
            ValueKind::Weight(w) => {
                let w = self.handle(w);
                quote!(#b.weight(#w))
            }
            ValueKind::Op(op, args) => self.op(op, args),
            ValueKind::Binary(op, x, y) => {
                let (x, y) = (self.operand(x), self.operand(y));
                let method = shared(crate::flow::binary_name(*op));
                quote!(#b.#method(#x, #y))
            }
            ValueKind::Scale(x, s) | ValueKind::Divide(x, s) | ValueKind::Shift(x, s) => self.by_number(value, x, s),
            ValueKind::Glu(act, gate, up) => {
                let (gate, up) = (self.operand(gate), self.operand(up));
                let act = unary(act);
                quote!(#b.glu(#act, #gate, #up))
            }
            ValueKind::Slice(x, from, to) => self.slice(x, from.as_ref(), to.as_ref()),
            ValueKind::If(cond, then, otherwise) => {
                let (cond, then, otherwise) = (self.scalar(cond), self.block(then), self.block(otherwise));
                quote!(if #cond { #then } else { #otherwise })
            }
            ValueKind::Absent => quote!(#b.absent()),
            ValueKind::Rust(tokens) => quote!({ #tokens }),
            ValueKind::Call(callee, params, body) => self.inlined(callee.as_ref(), params, body),
        }
    }

    /// Generates the columns that an encoder reads, of `width` values each.
    fn medium(&mut self, method: &str, at: Span, width: &Scalar) -> TokenStream {
        let (b, method, width) = (shared("b"), Ident::new(method, at), self.scalar(width));
        quote!(#b.#method(#width))
    }

    /// Generates `x * s`, `x / s`, or `x + s`, as given by `value`.
    fn by_number(&mut self, value: &Value, x: &Value, s: &Scalar) -> TokenStream {
        let (b, x) = (shared("b"), self.operand(x));
        match value.kind {
            ValueKind::Divide(..) => {
                let s = scalar::atom(s, Scope::Build);
                quote!(#b.scale(#x, 1.0 / #s))
            }
            ValueKind::Shift(..) => {
                let s = self.scalar(s);
                quote!(#b.shift(#x, #s))
            }
            _ => {
                let s = self.scalar(s);
                quote!(#b.scale(#x, #s))
            }
        }
    }

    /// Generates `x[from..to]`.
    fn slice(&mut self, x: &Value, from: Option<&Scalar>, to: Option<&Scalar>) -> TokenStream {
        let (b, x) = (shared("b"), self.operand(x));
        let from = from.map_or_else(|| quote!(0), |s| self.scalar(s));
        let to = match to {
            Some(s) => self.scalar(s),
            None => self.bind(quote!(#b.graph().tensor(#x).ne[0])),
        };
        quote!(#b.slice(#x, #from, #to))
    }

    /// Inlines a function's body at its call. The names of the function and its options link the call to the
    /// definition for editors. All parameters are bound in one statement, because an argument may refer to a
    /// variable with a parameter's name.
    fn inlined(&mut self, callee: Option<&Callee>, params: &[(VarId, Operand)], body: &Block) -> TokenStream {
        let (mut names, mut args) = (Vec::new(), Vec::new());
        for (var, operand) in params {
            let (name, assigned) = (self.var(*var).clone(), self.arch.vars[var.0].assigned);
            names.push(if assigned { quote!(mut #name) } else { quote!(#name) });
            args.push(match operand {
                Operand::Tensor(value) => self.operand(value),
                Operand::Scalar(s) => self.scalar(s),
            });
        }
        let body = self.block(body);
        let params = match (&names[..], &args[..]) {
            ([name], [arg]) => quote!(let #name = #arg;),
            _ => quote!(let (#(#names,)*) = (#(#args,)*);),
        };
        let Some(Callee {
            called,
            options,
            elsewhere,
        }) = callee
        else {
            return quote!({ #params #body });
        };
        let (functions, of_function) = (own("functions"), shared(&called.to_string()));
        let inlined = quote!({
            let _ = #functions::#called;
            #(let _ = #functions::#of_function::#options;)*
            #params
            #body
        });
        // rustc has no spans for tokens of other files.
        let (Some(elsewhere), here) = (elsewhere, called.span()) else {
            return inlined;
        };
        let file = elsewhere.file();
        spans::moved(inlined, &|span| (span.file() == file).then_some(here))
    }

    fn op(&mut self, op: &Operation, args: &[Arg]) -> TokenStream {
        let b = shared("b");
        let mut values: Vec<Option<TokenStream>> = Vec::new();
        for (param, arg) in op.params.iter().zip(args) {
            values.push(self.argument(param, arg));
        }
        let none = || quote!(::core::option::Option::None);
        let by_position = |p: &Param| matches!(p.given, Given::Position | Given::OptionalPosition);
        let positional: Vec<TokenStream> = op
            .params
            .iter()
            .zip(&values)
            .filter(|(p, _)| by_position(p))
            .map(|(_, v)| v.clone().unwrap_or_else(none))
            .collect();
        let keywords = || op.params.iter().zip(&values).filter(|(p, _)| !by_position(p));
        match op.emit {
            Emit::Method(method) => {
                let method = Ident::new(method, op.at);
                quote!(#b.#method(#(#positional),*))
            }
            Emit::Bare(method) => {
                let method = Ident::new(method, op.at);
                quote!(#b.#method())
            }
            Emit::Dim0(method) => {
                let method = Ident::new(method, op.at);
                quote!(#b.#method(#(#positional),*, 0))
            }
            Emit::Unary(_) => {
                let f = unary(op);
                quote!(#b.unary(#f, #(#positional),*))
            }
            Emit::Struct(method, ty) => {
                let (method, ty) = (Ident::new(method, op.at), runtime(ty));
                let given: Vec<_> = keywords()
                    .filter_map(|(p, v)| v.as_ref().map(|v| (key(op, p), v)))
                    .collect();
                let (names, given_values): (Vec<_>, Vec<_>) = given.into_iter().unzip();
                let rest = (names.len() < n_fields(op.emit)).then(|| quote!(..::core::default::Default::default()));
                quote!(#b.#method(#(#positional),*, #ty { #(#names: #given_values,)* #rest }))
            }
            Emit::FullStruct(method, ty) => {
                let (method, ty) = (Ident::new(method, op.at), runtime(ty));
                let fields = keywords().map(|(p, v)| {
                    let (name, value) = (key(op, p), v.clone().unwrap_or_else(|| absent(p)));
                    quote!(#name: #value)
                });
                quote!(#b.#method(#(#positional),*, #ty { #(#fields),* }))
            }
        }
    }

    /// Generates an argument in the engine's form; `None` if it was omitted.
    fn argument(&mut self, param: &Param, arg: &Arg) -> Option<TokenStream> {
        let value = match arg {
            Arg::Default => return None,
            Arg::Tensor(v) => self.operand(v),
            Arg::Scalar(s) => match param.kind {
                ParamKind::Word(ty, _) => {
                    let (ty, code) = (runtime(ty), self.scalar(s));
                    quote!(#ty::from_code(#code))
                }
                ParamKind::List => {
                    let list = self.scalar(s);
                    quote!(&#list)
                }
                _ => self.scalar(s),
            },
            Arg::Activation(op) => unary(op),
            Arg::Word(variant) => {
                let ParamKind::Word(ty, _) = param.kind else {
                    return None;
                };
                let (ty, variant) = (runtime(ty), Ident::new(variant.it, variant.at));
                quote!(#ty::#variant)
            }
            Arg::Window(kind, n, cond) => {
                let (kind, n) = (runtime_at(kind.it, kind.at), self.scalar(n));
                let cond = cond.as_ref().map_or_else(|| quote!(true), |c| self.scalar(c));
                quote!(#kind(#n, #cond))
            }
            Arg::Weight(index) => return Some(self.weight_argument(param, index)),
            Arg::If(cond, given) => {
                let outer = std::mem::take(&mut self.out);
                let value = self.argument(param, given);
                let stmts = std::mem::replace(&mut self.out, outer);
                let cond = self.scalar(cond);
                return Some(self.bind(quote!(if #cond { #(#stmts)* #value } else { ::core::option::Option::None })));
            }
        };
        Some(if param.some {
            quote!(::core::option::Option::Some(#value))
        } else {
            value
        })
    }

    fn weight_argument(&mut self, param: &Param, index: &Named<usize>) -> TokenStream {
        let t = &self.arch.tensors[index.it];
        let converts = match param.kind {
            ParamKind::RmsWeight => *t.kind == Kind::Norm,
            ParamKind::NormWeight => *t.kind == Kind::Vector,
            _ => false,
        };
        let content_with_none = param.some && param.given == Given::OptionalKeyword;
        if content_with_none && t.may_be_absent() {
            return self.field(index);
        }
        let handle = match param.kind {
            ParamKind::OfFirstLayer => self.handle_of_first_layer(index),
            _ => self.handle(index),
        };
        let handle = if converts { quote!(#handle.into()) } else { handle };
        if param.some {
            quote!(::core::option::Option::Some(#handle))
        } else {
            handle
        }
    }

    /// Generates a number or condition inside the graph builder.
    fn scalar(&self, s: &Scalar) -> TokenStream {
        emit(s, Scope::Build)
    }
}

/// Returns the number of fields of an argument struct. Several operations may share a struct and set some of
/// its fields.
fn n_fields(emit: Emit) -> usize {
    let Emit::Struct(_, ty) = emit else { return 0 };
    let of_struct = ops::all().filter(|o| matches!(o.emit, Emit::Struct(_, other) if other == ty));
    let keywords = |o: &OpSpec| {
        o.params
            .iter()
            .filter(|p| matches!(p.given, Given::Keyword | Given::OptionalKeyword))
            .count()
    };
    of_struct.map(keywords).max().unwrap_or(0)
}

/// Returns the value of an omitted argument whose struct has no default.
fn absent(param: &Param) -> TokenStream {
    match param.kind {
        ParamKind::Float if !param.some => quote!(1.0),
        _ => quote!(::core::option::Option::None),
    }
}

/// Returns the field of an argument struct, with the span of the argument's name in the call.
fn key(op: &Operation, param: &Param) -> Ident {
    op.key(param.name)
        .map_or_else(|| shared(param.name), |at| Ident::new(param.name, at))
}

fn unary(op: &Operation) -> TokenStream {
    let ty = runtime("Unary");
    let variant = match op.emit {
        Emit::Unary(variant) => variant,
        _ => "Neg",
    };
    let variant = Ident::new(variant, op.at);
    quote!(#ty::#variant)
}
