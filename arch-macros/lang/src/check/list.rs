//! Lists: their functions in `hparams`, and banks, whose number of values grows during the computation.

use proc_macro2::Ident;
use quote::ToTokens;
use syn::Expr;

use super::Checker;
use super::expr::derived;
use crate::builtins::Ty;
use crate::model::{ListFn, Named, Scalar, ScalarKind};
use crate::ops::{OpOperand, OpSpec};
use crate::parse::{bare, plain_name};
use crate::sym::{Dim, Shape};

impl Checker<'_> {
    /// Checks the value of a `let` in `hparams`. Only there, functions of lists are available: their work grows with
    /// the file, so each is evaluated once.
    pub(super) fn let_value(&mut self, expr: &Expr) -> Option<Scalar> {
        if let Expr::Call(call) = bare(expr)
            && let Some(name) = plain_name(&call.func)
            && let Some(f) = ListFn::named(&name.to_string())
        {
            let args: Vec<&Expr> = call.args.iter().collect();
            return self.list_call(f, &name, &args);
        }
        self.scalar(expr)
    }

    fn list_call(&mut self, f: ListFn, name: &Ident, args: &[&Expr]) -> Option<Scalar> {
        let takes_number = f == ListFn::MaxSum;
        if args.len() != f.n_lists() + usize::from(takes_number) {
            args.iter().for_each(|arg| self.mention(arg.to_token_stream()));
            return self.error(name, format!("expected `{}`", f.form()));
        }
        if let ([cond], ListFn::Count) = (args, f)
            && !self.is_list(cond)
        {
            return self.count_of_layers(name, cond);
        }
        let (lists, rest) = args.split_at(f.n_lists());
        let lists: Option<Vec<Scalar>> = lists.iter().map(|e| self.list(e)).collect();
        let n = match rest {
            [n] => Some(Box::new(self.scalar_of(n, Ty::Int)?)),
            _ => None,
        };
        let lists = lists?;
        if n.as_ref().is_some_and(|n| n.per_layer) {
            return self.error(
                rest[0],
                format!("the last argument of `{name}` must not differ by layer"),
            );
        }
        let texts = lists.iter().chain(n.as_deref()).map(|s| s.text.as_str());
        let text = format!("{name}({})", texts.collect::<Vec<_>>().join(", "));
        let names = lists.iter().filter_map(|list| match &list.kind {
            ScalarKind::Hparam(name) => Some(name.clone()),
            _ => None,
        });
        let kind = ScalarKind::OfLists(Named::new(f, name.span()), names.collect(), n);
        Some(derived(kind, Ty::Int, text, &[]))
    }

    /// Checks `count(condition)`.
    fn count_of_layers(&mut self, name: &Ident, cond: &Expr) -> Option<Scalar> {
        let s = self.scalar_of(cond, Ty::Bool)?;
        if !s.per_layer {
            return self.error(
                cond,
                format!("`count` counts layers, but `{}` does not differ by layer", s.text),
            );
        }
        let text = format!("{name}({})", s.text);
        Some(derived(ScalarKind::Layers(Box::new(s)), Ty::Int, text, &[]))
    }

    fn is_list(&self, expr: &Expr) -> bool {
        let index = plain_name(expr).and_then(|name| self.find_hparam(&name.to_string()));
        index.is_some_and(|i| self.hparams[i].ty == Some(Ty::List))
    }

    /// Checks a list, which is the name of a hyperparameter.
    pub(super) fn list(&mut self, expr: &Expr) -> Option<Scalar> {
        let form = "expected a list of `hparams`, such as `sizes: [usize; 2..]`";
        let Some(name) = plain_name(expr) else {
            return self.error(expr, form);
        };
        let text = name.to_string();
        let Some(index) = self.find_hparam(&text) else {
            return self.unknown(&name, "list", |c| {
                let lists = c.hparams.iter().filter(|h| h.ty == Some(Ty::List));
                lists.map(|h| h.name.to_string()).collect()
            });
        };
        self.use_hparam(index);
        match self.hparams[index].ty? {
            Ty::List => Some(Scalar {
                kind: ScalarKind::Hparam(name),
                ty: Ty::List,
                per_layer: false,
                text,
                dim: Dim::default(),
            }),
            other => self.error(&name, format!("{form}, but `{name}` is `{}`", other.name())),
        }
    }

    /// Reports a function of lists that is not the value of a `let` in `hparams`.
    pub(super) fn unbound_list_call<T>(&mut self, f: ListFn, name: &Ident) -> Option<T> {
        let message = format!("`{}` must be the value of a `let` in `hparams`", f.form());
        self.error(name, message)
    }

    /// Reports a bank among the operands of an operation that does not accept banks.
    pub(super) fn without_bank(&mut self, op: &OpSpec, operands: &[OpOperand], at: &Ident) -> Option<()> {
        let mut shapes = operands.iter().filter_map(|o| o.shape.as_ref());
        match shapes.find(|shape| shape.is_bank()) {
            Some(bank) if !op.takes_bank() => self.bank_operand(bank, op.name, at),
            _ => Some(()),
        }
    }

    /// Reports an operation that does not accept a bank.
    pub(super) fn bank_operand<T>(&mut self, bank: &Shape, operation: &str, at: impl ToTokens) -> Option<T> {
        let message = format!("`{operation}` does not accept a bank, whose shape is {bank}; pass it to `recall`");
        self.error(at, message)
    }
}
