//! Converts numbers and conditions.

use arch_lang::builtins::Ty;
use arch_lang::model::{ListFn, Scalar as LangScalar, ScalarKind, ScalarOp};
use engine::declared::{BinaryOp, Builtin, Expr, Function, ListFunction, Scalar};

use super::program::Lowering;
use super::statics::text;

/// Message about Rust code in a declaration.
const NO_RUST: &str = "`rust!` needs a compiler and is not available at run time; use operations of the language, or \
                       add the declaration to `archs/` and build the project";

impl Lowering<'_, '_> {
    /// Converts an expression. Records an error and returns `None` if it cannot be interpreted.
    pub fn expr(&mut self, s: &LangScalar) -> Option<Expr> {
        let boxed = |e: Expr| Box::new(e);
        Some(match &s.kind {
            ScalarKind::Int(n) => Expr::Const(Scalar::Int(usize::try_from(*n).unwrap_or(usize::MAX))),
            ScalarKind::Float(x) => Expr::Const(Scalar::Float(float(*x))),
            ScalarKind::Bool(b) => Expr::Const(Scalar::Bool(*b)),
            ScalarKind::Str(t) => Expr::Const(Scalar::Text(t.as_str().into())),
            ScalarKind::Builtin(b) if b.name == "il" => Expr::Layer,
            ScalarKind::Builtin(b) => match Builtin::named(b.name) {
                Some(builtin) => Expr::Builtin(builtin),
                None => return self.fail(b.at, format!("`{}` is not available at run time", b.name)),
            },
            ScalarKind::Hparam(name) => Expr::Hparam(self.item(name)?),
            ScalarKind::Var(name) => Expr::Var(self.scalar_var(name)?),
            ScalarKind::ToFloat(a) => Expr::ToFloat(boxed(self.expr(a)?)),
            ScalarKind::Neg(a) => Expr::Neg(boxed(self.expr(a)?)),
            ScalarKind::Not(a) => Expr::Not(boxed(self.expr(a)?)),
            ScalarKind::Binary(op, a, b) => {
                let (lowered_a, lowered_b) = (self.expr(a)?, self.expr(b)?);
                self.same_type(a, b)?;
                Expr::Binary(binary(*op), boxed(lowered_a), boxed(lowered_b))
            }
            ScalarKind::Call(f, args) => {
                let lowered = args.iter().map(|a| self.expr(a)).collect::<Option<Vec<_>>>()?;
                match Function::of_method(f.method) {
                    Some(function) => Expr::Call(function, lowered),
                    None => return self.fail(f.at, format!("`{}` is not available at run time", f.name)),
                }
            }
            ScalarKind::If(c, a, b) => {
                self.same_type(a, b)?;
                Expr::If(Box::new([self.expr(c)?, self.expr(a)?, self.expr(b)?]))
            }
            ScalarKind::Layers(cond) => Expr::Layers(boxed(self.expr(cond)?)),
            ScalarKind::OfLists(f, lists, n) => {
                let items = lists.iter().map(|list| self.item(list)).collect::<Option<_>>()?;
                let n = self.optional(n.as_deref())?;
                Expr::OfLists(list_function(f.it), items, n.map(boxed))
            }
            ScalarKind::Has(name) => Expr::Has(self.tensor_named(name, s.per_layer)?),
            ScalarKind::Model(cond) => self.expr(cond)?,
            ScalarKind::Given(key) => Expr::Given(text(key)),
            ScalarKind::FileRows(name) => {
                self.file_rows.push(text(name));
                Expr::FileRows(self.file_rows.len() - 1)
            }
            ScalarKind::Rust(tokens) => {
                self.errors.at(tokens, NO_RUST);
                return None;
            }
        })
    }

    /// Records an error for Rust code that computes a tensor.
    pub fn no_rust<T>(&mut self, tokens: &proc_macro2::TokenStream) -> Option<T> {
        self.errors.at(tokens, NO_RUST);
        None
    }

    /// Checks an invariant of the checked model that the interpreter relies on.
    fn same_type(&mut self, a: &LangScalar, b: &LangScalar) -> Option<()> {
        if a.ty == b.ty && a.ty != Ty::List {
            return Some(());
        }
        let at = self.arch.name_span;
        self.fail(
            at,
            format!("internal error: `{}` and `{}` have different types", a.text, b.text),
        )
    }
}

fn list_function(f: ListFn) -> ListFunction {
    match f {
        ListFn::Count => ListFunction::Count,
        ListFn::First => ListFunction::First,
        ListFn::MaxSum => ListFunction::MaxSum,
    }
}

/// Rounds a literal to the nearest finite `f32`.
fn float(x: f64) -> f32 {
    let rounded = x as f32;
    if rounded.is_finite() {
        rounded
    } else {
        f32::MAX.copysign(rounded)
    }
}

fn binary(op: ScalarOp) -> BinaryOp {
    match op {
        ScalarOp::Add => BinaryOp::Add,
        ScalarOp::Sub => BinaryOp::Sub,
        ScalarOp::Mul => BinaryOp::Mul,
        ScalarOp::Div => BinaryOp::Div,
        ScalarOp::Rem => BinaryOp::Rem,
        ScalarOp::Eq => BinaryOp::Eq,
        ScalarOp::Ne => BinaryOp::Ne,
        ScalarOp::Lt => BinaryOp::Lt,
        ScalarOp::Le => BinaryOp::Le,
        ScalarOp::Gt => BinaryOp::Gt,
        ScalarOp::Ge => BinaryOp::Ge,
        ScalarOp::And => BinaryOp::And,
        ScalarOp::Or => BinaryOp::Or,
    }
}
