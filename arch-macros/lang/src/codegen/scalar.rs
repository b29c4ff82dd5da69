//! Generates Rust expressions for numbers and conditions. Integers come from files, so their arithmetic
//! saturates and never panics.

use proc_macro2::{Ident, Literal, TokenStream};
use quote::quote;

use super::{own, shared};
use crate::builtins::{Builtin, Ty};
use crate::model::{ListFn, Named, Read, Scalar, ScalarFn, ScalarKind, ScalarOp};
use crate::paths::runtime_at;

/// Function that contains an expression. It determines how hyperparameters are accessed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The loader, where hyperparameters are local variables.
    Load,
    /// The graph builder, where hyperparameters are fields of the model `m`.
    Build,
}

/// Returns the Rust type of a hyperparameter.
pub fn rust_type(ty: Ty, per_layer: bool) -> TokenStream {
    let one = match ty {
        Ty::Int => quote!(usize),
        Ty::Float => quote!(f32),
        Ty::Bool => quote!(bool),
        Ty::Str => quote!(::std::string::String),
        Ty::List => quote!(::std::vec::Vec<usize>),
    };
    if per_layer { quote!(::std::vec::Vec<#one>) } else { one }
}

/// Returns the reader method for a key.
pub fn reader(read: Read) -> &'static str {
    match read {
        Read::One(Ty::Int) => "usize",
        Read::One(Ty::Float) => "f32",
        Read::One(Ty::Bool) => "bool",
        Read::One(Ty::Str) | Read::PerLayer(Ty::Str) => "string",
        Read::PerLayer(Ty::Int) => "usizes",
        Read::PerLayer(Ty::Float) => "f32s",
        Read::PerLayer(Ty::Bool) => "bools",
        Read::One(Ty::List) | Read::PerLayer(Ty::List) | Read::List => "list",
        Read::Pattern => "pattern",
        Read::DenseFirst => "dense_first",
        Read::Listed => "listed",
    }
}

/// Generates a default value. The reader takes strings by reference.
pub fn default_value(s: &Scalar) -> TokenStream {
    let value = emit(s, Scope::Load);
    match s.kind {
        ScalarKind::Hparam(_) if s.ty == Ty::Str => quote!(&#value),
        _ => value,
    }
}

/// Generates a scalar expression.
pub fn emit(s: &Scalar, place: Scope) -> TokenStream {
    match &s.kind {
        ScalarKind::Int(n) => {
            let n = Literal::u64_unsuffixed(*n);
            quote!(#n)
        }
        ScalarKind::Float(x) => {
            // A literal that rounds to infinity is not a valid literal. The checker's text keeps the
            // original.
            let x = *x as f32;
            let lit = Literal::f32_suffixed(if x.is_finite() { x.abs() } else { f32::MAX });
            if x < 0.0 { quote!(-#lit) } else { quote!(#lit) }
        }
        ScalarKind::Bool(b) => quote!(#b),
        ScalarKind::Str(t) => quote!(#t),
        ScalarKind::Builtin(b) => builtin(b, place),
        ScalarKind::Hparam(name) => {
            let (m, il) = (shared("m"), shared("il"));
            let path = if place == Scope::Load {
                quote!(#name)
            } else {
                quote!(#m.hp.#name)
            };
            if s.per_layer { quote!(#path[#il]) } else { path }
        }
        ScalarKind::Var(name) => quote!(#name),
        ScalarKind::ToFloat(a) => {
            let a = atom(a, place);
            quote!(#a as f32)
        }
        ScalarKind::Neg(a) => {
            let a = atom(a, place);
            quote!(-#a)
        }
        ScalarKind::Not(a) => {
            let a = atom(a, place);
            quote!(!#a)
        }
        ScalarKind::Binary(op, a, b) => binary(*op, a, b, place),
        ScalarKind::Call(f, args) => call(f, args, place),
        ScalarKind::If(c, a, b) => {
            let (c, a, b) = (emit(c, place), emit(a, place), emit(b, place));
            quote!(if #c { #a } else { #b })
        }
        ScalarKind::Layers(cond) => n_layers(cond, place),
        ScalarKind::OfLists(f, lists, n) => of_lists(f, lists, n.as_deref(), place),
        ScalarKind::Rust(body) => quote!((#body)),
        ScalarKind::FileRows(name) => {
            let t = own("t");
            quote!(#t.file_rows(#name))
        }
        ScalarKind::Given(key) => {
            let r = own("r");
            quote!(#r.has(#key))
        }
        ScalarKind::Model(cond) => {
            let cond = emit(cond, place);
            quote!((#cond))
        }
        // Tensors that others depend on are local variables of the loader.
        ScalarKind::Has(name) if place == Scope::Load => quote!(#name.is_some()),
        ScalarKind::Has(name) => has(name, s.per_layer),
    }
}

/// Generates the test for a tensor inside the graph builder.
fn has(name: &Ident, in_layer: bool) -> TokenStream {
    let (m, l) = (shared("m"), shared("l"));
    if in_layer {
        quote!(#l.#name.is_some())
    } else {
        quote!(#m.w.#name.is_some())
    }
}

/// Generates the number of layers with a true condition, which is a value of the loader.
fn n_layers(cond: &Scalar, place: Scope) -> TokenStream {
    let (base, il, cond) = (own("base"), shared("il"), emit(cond, place));
    quote!((0..#base.n_layer_loaded()).filter(|&#il| #cond).count())
}

/// Generates a builtin symbol, read from the model's `base`.
fn builtin(b: &Named<&'static Builtin>, place: Scope) -> TokenStream {
    let name = Ident::new(b.name, b.at);
    if b.name == "il" {
        return quote!(#name);
    }
    let base = match place {
        Scope::Load => {
            let base = own("base");
            quote!(#base)
        }
        Scope::Build => {
            let m = shared("m");
            quote!(#m.base)
        }
    };
    if b.per_layer {
        let il = shared("il");
        quote!(#base.#name(#il))
    } else {
        quote!(#base.#name())
    }
}

/// Generates a function of lists, which is a value of the loader.
fn of_lists(f: &Named<ListFn>, lists: &[Ident], n: Option<&Scalar>, place: Scope) -> TokenStream {
    match f.it {
        ListFn::Count => quote!(#(#lists)*.len()),
        ListFn::First => quote!(#(#lists)*.first().copied().unwrap_or(0)),
        ListFn::MaxSum => {
            let (function, n) = (runtime_at("max_sum", f.at), n.map(|n| emit(n, place)));
            quote!(#function(#(&#lists),*, #n))
        }
    }
}

/// Generates a numeric function as a method call on its first argument.
fn call(f: &Named<&'static ScalarFn>, args: &[Scalar], place: Scope) -> TokenStream {
    let (method, receiver) = (Ident::new(f.method, f.at), receiver(&args[0], place));
    let rest = args[1..].iter().map(|a| emit(a, place));
    quote!(#receiver.#method(#(#rest),*))
}

/// Generates the receiver of a method call. Its literals have a suffix, because rustc resolves no methods of literals
/// without a type. In a condition, the first branch determines the type.
fn receiver(s: &Scalar, place: Scope) -> TokenStream {
    match &s.kind {
        ScalarKind::Int(n) => {
            let n = Literal::usize_suffixed(usize::try_from(*n).unwrap_or(usize::MAX));
            quote!(#n)
        }
        ScalarKind::If(c, a, b) => {
            let (c, a, b) = (emit(c, place), receiver(a, place), emit(b, place));
            quote!((if #c { #a } else { #b }))
        }
        _ => atom(s, place),
    }
}

/// Generates a scalar expression, parenthesized where an adjacent operator or method call would change its
/// meaning.
pub fn atom(s: &Scalar, place: Scope) -> TokenStream {
    let inner = emit(s, place);
    let compound = match &s.kind {
        ScalarKind::ToFloat(_) | ScalarKind::Neg(_) | ScalarKind::Not(_) | ScalarKind::If(..) => true,
        ScalarKind::Float(x) => *x < 0.0,
        // Codegen emits integer arithmetic as method calls.
        ScalarKind::Binary(op, a, _) => !(op.is_arithmetic() && a.ty == Ty::Int && *op != ScalarOp::Rem),
        _ => false,
    };
    if compound { quote!((#inner)) } else { inner }
}

fn binary(op: ScalarOp, a: &Scalar, b: &Scalar, place: Scope) -> TokenStream {
    if op.is_arithmetic() && a.ty == Ty::Int {
        return int_arithmetic(op, a, b, place);
    }
    let (a, b) = (atom(a, place), atom(b, place));
    match op {
        ScalarOp::Add => quote!(#a + #b),
        ScalarOp::Sub => quote!(#a - #b),
        ScalarOp::Mul => quote!(#a * #b),
        ScalarOp::Div => quote!(#a / #b),
        ScalarOp::Rem => quote!(#a % #b),
        ScalarOp::Eq => quote!(#a == #b),
        ScalarOp::Ne => quote!(#a != #b),
        ScalarOp::Lt => quote!(#a < #b),
        ScalarOp::Le => quote!(#a <= #b),
        ScalarOp::Gt => quote!(#a > #b),
        ScalarOp::Ge => quote!(#a >= #b),
        ScalarOp::And => quote!(#a && #b),
        ScalarOp::Or => quote!(#a || #b),
    }
}

fn int_arithmetic(op: ScalarOp, a: &Scalar, b: &Scalar, place: Scope) -> TokenStream {
    let receiver = receiver(a, place);
    let nonzero = matches!(b.kind, ScalarKind::Int(n) if n > 0);
    let b = emit(b, place);
    match op {
        ScalarOp::Add => quote!(#receiver.saturating_add(#b)),
        ScalarOp::Sub => quote!(#receiver.saturating_sub(#b)),
        ScalarOp::Mul => quote!(#receiver.saturating_mul(#b)),
        // A zero divisor from a file yields size 0, which the tensor table then reports as a shape mismatch.
        ScalarOp::Div if nonzero => quote!((#receiver / #b)),
        ScalarOp::Div => quote!(#receiver.checked_div(#b).unwrap_or(0)),
        _ if nonzero => quote!(#receiver % #b),
        _ => quote!(#receiver.checked_rem(#b).unwrap_or(0)),
    }
}
