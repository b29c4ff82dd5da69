//! Rust expressions: `rust!`.

use proc_macro2::Ident;
use quote::ToTokens;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, ExprMacro, Token, bracketed};

use super::Checker;
use super::expr::{Lowered, derived};
use crate::builtins::Ty;
use crate::model::{Scalar, ScalarKind, Value, ValueKind};
use crate::parse::plain_name;
use crate::sym::{Dim, Shape};

impl Checker<'_> {
    /// Checks `rust!(usize => expression)` in `hparams`.
    fn rust_number(&mut self, m: &ExprMacro) -> Option<Scalar> {
        let parser = |input: ParseStream<'_>| {
            let ty = input.parse::<Ident>()?;
            input.parse::<Token![=>]>()?;
            Ok((ty, input.parse::<Expr>()?))
        };
        let (ty, body) = match parser.parse2(m.mac.tokens.clone()) {
            Ok(parsed) => parsed,
            Err(e) => return self.error(m, format!("expected `rust!(usize => expression)`: {e}")),
        };
        if ty != "usize" {
            return self.error(
                &ty,
                "`rust!` in `hparams` must be `usize` or `f32`: `rust!(usize => expression)`",
            );
        }
        let body = body.to_token_stream();
        self.mention(body.clone());
        let text = format!("rust!({body})");
        Some(derived(ScalarKind::Rust(body), Ty::Int, text, &[]))
    }

    /// Checks `rust!([dims] => expression)`.
    pub(super) fn rust(&mut self, m: &ExprMacro) -> Option<Lowered> {
        if !m.mac.path.is_ident("rust") {
            return self.error(
                &m.mac.path,
                "unknown macro; only `rust!([dims] => expression)` is supported",
            );
        }
        if !self.place.is_graph() {
            return self.rust_number(m).map(Lowered::Scalar);
        }
        let parser = |input: ParseStream<'_>| {
            let content;
            bracketed!(content in input);
            let dims = content.parse_terminated(|c: ParseStream<'_>| c.parse::<Expr>(), Token![,])?;
            input.parse::<Token![=>]>()?;
            Ok((dims, input.parse::<Expr>()?))
        };
        let (dims, body) = match parser.parse2(m.mac.tokens.clone()) {
            Ok(parsed) => parsed,
            Err(e) => {
                return self.error(m, format!("expected `rust!([dims] => expression)`: {e}"));
            }
        };
        self.mention(body.to_token_stream());
        let mut shape = Vec::new();
        for d in &dims {
            let is_t = plain_name(d).is_some_and(|n| n == "T");
            shape.push(if is_t {
                Dim::n_tokens()
            } else {
                self.scalar_of(d, Ty::Int)?.dim
            });
        }
        Some(Lowered::Tensor(Value {
            kind: ValueKind::Rust(body.to_token_stream()),
            shape: Shape(shape),
        }))
    }
}
