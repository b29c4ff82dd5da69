//! Checks expressions: names, literals, operators, and conditions. An expression is either a scalar, known
//! when the graph is built, or a tensor.

use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::{BinOp, Expr, ExprIf, Lit, UnOp};

use super::{Bound, Checker, Place, facts};
use crate::builtins::{self, Builtin, Epsilon, Ty};
use crate::limits::MAX_DEPTH;
use crate::model::{Arg, Block, Kind, Named, Operation, SCALAR_FNS, Scalar, ScalarKind, ScalarOp, Value, ValueKind};
use crate::ops;
use crate::parse::{bare, plain_name};
use crate::sym::{Dim, Multiple, Shape};

/// Result of checking an expression.
pub enum Lowered {
    Scalar(Scalar),
    Tensor(Value),
}

impl Checker<'_> {
    /// Checks an expression that must be a scalar of any type.
    pub fn scalar(&mut self, expr: &Expr) -> Option<Scalar> {
        match self.expr(expr)? {
            Lowered::Scalar(s) => Some(s),
            Lowered::Tensor(_) => self.error(expr, "expected a number or condition, found a tensor"),
        }
    }

    /// Checks a scalar of type `ty`, converting integers to floats if needed.
    pub fn scalar_of(&mut self, expr: &Expr, ty: Ty) -> Option<Scalar> {
        let s = self.scalar(expr)?;
        self.convert(s, ty, expr)
    }

    pub fn convert(&mut self, s: Scalar, ty: Ty, at: &Expr) -> Option<Scalar> {
        match (s.ty, ty) {
            (a, b) if a == b => Some(s),
            (Ty::Int, Ty::Float) if drops_remainder(&s, &self.multiples) => {
                let message = format!(
                    "`{}` divides integers, which drops the remainder, before the conversion to `f32`; write `1.0 * a / b`, \
                     or bind the quotient with `let` if this is intended",
                    s.text
                );
                self.error(at, message)
            }
            (Ty::Int, Ty::Float) => Some(to_float(s)),
            (found, _) => self.error(at, format!("expected `{}`, found `{}`", ty.name(), found.name())),
        }
    }

    /// Checks an expression that must be a tensor.
    pub fn tensor(&mut self, expr: &Expr) -> Option<Value> {
        match self.expr(expr)? {
            Lowered::Tensor(v) => Some(v),
            Lowered::Scalar(_) => self.error(expr, "expected a tensor, found a number or condition"),
        }
    }

    /// Checks an expression. Names inside an invalid expression count as used, so that no further errors
    /// follow.
    pub fn expr(&mut self, expr: &Expr) -> Option<Lowered> {
        let inside = std::mem::replace(&mut self.in_expr, true);
        let lowered = self.nested(expr, |c| c.expr_inner(expr));
        self.in_expr = inside;
        // The enclosing expression is also invalid, and it contains all names.
        if lowered.is_none() && !inside {
            self.mention(expr.to_token_stream());
        }
        lowered
    }

    /// Runs `check` on a nested expression or statement, or records an error if the nesting is too deep.
    pub(super) fn nested<T>(&mut self, at: impl ToTokens, check: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= MAX_DEPTH {
            return self.error(at, "this code is nested too deeply");
        }
        self.depth += 1;
        let checked = check(self);
        self.depth -= 1;
        checked
    }

    fn expr_inner(&mut self, expr: &Expr) -> Option<Lowered> {
        match expr {
            Expr::Paren(p) => self.expr(&p.expr),
            Expr::Group(g) => self.expr(&g.expr),
            Expr::Lit(l) => self.literal(&l.lit, expr).map(Lowered::Scalar),
            Expr::Path(_) => match plain_name(expr) {
                Some(name) => self.name(&name),
                None => self.error(expr, "expected a simple name"),
            },
            Expr::Unary(u) => self.unary(u),
            Expr::Binary(b) => self.binary(&b.left, b.op, &b.right, expr),
            Expr::If(branch) => self.if_expr(branch),
            Expr::Call(call) => self.call(call),
            Expr::Index(index) => self.index(index),
            Expr::Macro(m) => self.rust(m),
            _ => self.error(expr, "unsupported expression"),
        }
    }

    fn literal(&mut self, lit: &Lit, at: &Expr) -> Option<Scalar> {
        let (kind, ty, text) = match lit {
            Lit::Int(i) => match i.base10_parse::<u64>() {
                Ok(n) if i.suffix().is_empty() => (ScalarKind::Int(n), Ty::Int, n.to_string()),
                _ => return self.error(at, "expected an integer without a suffix"),
            },
            Lit::Float(f) => match f.base10_parse::<f64>() {
                Ok(x) if f.suffix().is_empty() => (ScalarKind::Float(x), Ty::Float, f.base10_digits().to_string()),
                _ => return self.error(at, "expected a number without a suffix"),
            },
            Lit::Bool(b) => (ScalarKind::Bool(b.value), Ty::Bool, b.value.to_string()),
            Lit::Str(s) => (ScalarKind::Str(s.value()), Ty::Str, format!("{:?}", s.value())),
            _ => return self.error(at, "expected a number, condition, or string"),
        };
        let dim = if let ScalarKind::Int(n) = kind {
            Dim::constant(n)
        } else {
            Dim::default()
        };
        Some(Scalar {
            kind,
            ty,
            per_layer: false,
            text,
            dim,
        })
    }

    fn name(&mut self, name: &Ident) -> Option<Lowered> {
        let text = name.to_string();
        if self.place.is_graph()
            && let Some(id) = self.find_var(&text)
        {
            self.vars[id.0].used = true;
            self.exists(id, name)?;
            return match self.vars[id.0].bound.clone() {
                Bound::Tensor(shape) => Some(Lowered::Tensor(Value {
                    kind: ValueKind::Var(Named::new(id, name.span())),
                    shape,
                })),
                Bound::Scalar(s) => Some(Lowered::Scalar(Scalar {
                    kind: ScalarKind::Var(name.clone()),
                    text,
                    ..s
                })),
                Bound::Broken => None,
            };
        }
        if let Some(b) = builtins::builtin(&text) {
            return self.builtin(b, name).map(Lowered::Scalar);
        }
        if let Some(index) = self.find_hparam(&text) {
            return self.hparam(index, name).map(Lowered::Scalar);
        }
        if let Some(epsilon) = builtins::epsilon(&text) {
            return self.epsilon_at(epsilon, name.span()).map(Lowered::Scalar);
        }
        if self.place.is_graph()
            && let Some(index) = self.find_tensor(&text)
        {
            return self.weight_operand(index, name).map(Lowered::Tensor);
        }
        if text == "encoded" && self.place.is_graph() {
            return self.encoded(name).map(Lowered::Tensor);
        }
        if text == "hidden" && self.place.is_graph() {
            return self.hidden(name).map(Lowered::Tensor);
        }
        if text == "frames" && self.place.is_graph() {
            return self.frames(name).map(Lowered::Tensor);
        }
        if text == "patches" && self.place.is_graph() {
            return self.patches(name).map(Lowered::Tensor);
        }
        if text == "tokens" || text == "positions" {
            return self.error(
                name,
                format!("`{text}` can only index an `embed` tensor, as in `token_embd[{text}]`"),
            );
        }
        let what = if self.place.is_graph() {
            "value, tensor, or hyperparameter"
        } else {
            "hyperparameter"
        };
        self.unknown(name, what, Self::value_names)
    }

    fn builtin(&mut self, b: &'static Builtin, name: &Ident) -> Option<Scalar> {
        self.allow_in_encoder(name)?;
        if b.per_layer {
            self.allow_per_layer(name)?;
        }
        let dim = match b.ty {
            Ty::Int => Dim::symbol(b.name),
            _ => Dim::default(),
        };
        Some(Scalar {
            kind: ScalarKind::Builtin(Named::new(b, name.span())),
            ty: b.ty,
            per_layer: b.per_layer,
            text: name.to_string(),
            dim,
        })
    }

    fn hparam(&mut self, index: usize, name: &Ident) -> Option<Scalar> {
        self.use_hparam(index);
        let h = &self.hparams[index];
        let (ty, per_layer) = (h.ty?, h.per_layer);
        if ty == Ty::List {
            return self.error(
                name,
                format!(
                    "`{name}` is a list; only functions and operations of lists accept it, such as `count({name})`"
                ),
            );
        }
        let text = name.to_string();
        let dim = h.dim.clone().unwrap_or_else(|| Dim::symbol(&text));
        if per_layer {
            self.allow_per_layer(name)?;
            self.of_every_layer(name)?;
        }
        Some(Scalar {
            kind: ScalarKind::Hparam(name.clone()),
            ty,
            per_layer,
            text,
            dim,
        })
    }

    /// Returns the value of an epsilon for a use at `at`.
    pub fn epsilon_at(&mut self, epsilon: &Epsilon, at: Span) -> Option<Scalar> {
        let index = self.epsilon(epsilon);
        let name = Ident::new(&self.hparams[index].name.to_string(), at);
        self.hparam(index, &name)
    }

    fn encoded(&mut self, name: &Ident) -> Option<Value> {
        if !self.encoded {
            let message = "`encoded` is only available in `graph { … }` of a declaration with `encoder { … }`";
            return self.error(name, message);
        }
        let shape = Shape(vec![Dim::symbol("n_embd"), Dim::symbol("T_encoded")]);
        let kind = ValueKind::Encoded(name.span());
        Some(Value { kind, shape })
    }

    fn hidden(&mut self, name: &Ident) -> Option<Value> {
        if !self.in_mtp {
            let message = "`hidden` is only available in `mtp { … }`";
            return self.error(name, message);
        }
        let kind = ValueKind::Hidden(name.span());
        let shape = Shape::embeddings();
        Some(Value { kind, shape })
    }

    fn allow_per_layer(&mut self, name: &Ident) -> Option<()> {
        match self.place {
            Place::Hparams | Place::LayerTensors | Place::Loop => Some(()),
            Place::Tensors => self.error(
                name,
                format!("`{name}` differs by layer and cannot be used outside a `layer` block"),
            ),
            Place::Graph => self.error(
                name,
                format!("`{name}` differs by layer and cannot be used outside `for layer`"),
            ),
        }
    }

    /// Checks that the current group has `n_layer` layers. Files store per-layer values only for such groups.
    fn of_every_layer(&mut self, name: &Ident) -> Option<()> {
        match self.group {
            Some(g) if self.groups[g].count.is_some() => {
                let group = self.groups[g].name.clone();
                self.error(
                    name,
                    format!(
                        "`{name}` has one value for each of `n_layer` layers, but `{group}` has a different number of layers"
                    ),
                )
            }
            _ => Some(()),
        }
    }

    /// Checks a declared tensor used directly as an operand.
    fn weight_operand(&mut self, index: usize, name: &Ident) -> Option<Value> {
        self.use_tensor(index, name, false)?;
        if self.tensors[index].broken {
            return None;
        }
        let tensor = &self.tensors[index].tensor;
        let how = match *tensor.kind {
            Kind::Vector | Kind::Raw | Kind::Norm => None,
            Kind::Linear | Kind::PerHead => Some(format!("apply it with `{name}(x)`")),
            Kind::Embed => Some(format!("read its rows with `{name}[tokens]`")),
            Kind::Experts => Some("pass it to `moe`".to_string()),
        };
        let shape = Shape(tensor.dims.clone());
        let kind = tensor.kind.name();
        if let Some(how) = how {
            return self.error(name, format!("`{name}` is declared as `{kind}`; {how}"));
        }
        Some(Value {
            kind: ValueKind::Weight(Named::new(index, name.span())),
            shape,
        })
    }

    fn unary(&mut self, u: &syn::ExprUnary) -> Option<Lowered> {
        let operand = self.expr(&u.expr)?;
        match (u.op, operand) {
            (UnOp::Not(_), Lowered::Scalar(s)) => {
                let s = self.convert(s, Ty::Bool, &u.expr)?;
                let text = format!("!{}", wrapped(&s, 7));
                Some(Lowered::Scalar(derived(
                    ScalarKind::Not(Box::new(s.clone())),
                    Ty::Bool,
                    text,
                    &[&s],
                )))
            }
            (UnOp::Neg(_), Lowered::Scalar(s)) => {
                let s = self.convert(s, Ty::Float, &u.expr)?;
                let text = format!("-{}", wrapped(&s, 7));
                Some(Lowered::Scalar(derived(
                    ScalarKind::Neg(Box::new(s.clone())),
                    Ty::Float,
                    text,
                    &[&s],
                )))
            }
            (UnOp::Neg(_), Lowered::Tensor(x)) => {
                let shape = x.shape.clone();
                let neg = Operation::new(ops::find("neg")?, Span::call_site());
                let kind = ValueKind::Op(neg, vec![Arg::Tensor(x)]);
                Some(Lowered::Tensor(Value { kind, shape }))
            }
            _ => self.error(u, "unsupported unary operator"),
        }
    }

    /// Checks `left op right`, and `left op= right` with the assigned value as `at`.
    pub fn binary(&mut self, left: &Expr, op: BinOp, right: &Expr, at: &Expr) -> Option<Lowered> {
        let (a, b) = (self.expr(left), self.expr(right));
        let Some(op) = scalar_op(op) else {
            return self.error(op, "unsupported binary operator");
        };
        match (a?, b?) {
            (Lowered::Scalar(a), Lowered::Scalar(b)) => self.scalar_binary(op, a, b, left, right).map(Lowered::Scalar),
            (Lowered::Tensor(a), Lowered::Tensor(b)) => self.tensor_binary(op, a, b, at).map(Lowered::Tensor),
            (Lowered::Tensor(x), Lowered::Scalar(s)) => {
                let s = self.convert(s, Ty::Float, right)?;
                self.with_scalar(op, x, s, false, at).map(Lowered::Tensor)
            }
            (Lowered::Scalar(s), Lowered::Tensor(x)) => {
                let s = self.convert(s, Ty::Float, left)?;
                self.with_scalar(op, x, s, true, at).map(Lowered::Tensor)
            }
        }
    }

    fn scalar_binary(&mut self, op: ScalarOp, a: Scalar, b: Scalar, left: &Expr, right: &Expr) -> Option<Scalar> {
        let (a, b) = match op {
            ScalarOp::And | ScalarOp::Or => (self.convert(a, Ty::Bool, left), self.convert(b, Ty::Bool, right)),
            _ if op.is_arithmetic() || !matches!(op, ScalarOp::Eq | ScalarOp::Ne) => {
                let ty = if a.ty == Ty::Int && b.ty == Ty::Int {
                    Ty::Int
                } else {
                    Ty::Float
                };
                (self.convert(a, ty, left), self.convert(b, ty, right))
            }
            // Any two values of one type, and numbers of both types, can be compared for equality.
            _ if a.ty != b.ty && (a.ty == Ty::Int || b.ty == Ty::Int) => {
                (self.convert(a, Ty::Float, left), self.convert(b, Ty::Float, right))
            }
            _ => {
                let ty = a.ty;
                (Some(a), self.convert(b, ty, right))
            }
        };
        let (a, b) = (a?, b?);
        let ty = if op.is_arithmetic() { a.ty } else { Ty::Bool };
        let level = precedence(op);
        let text = format!("{} {} {}", wrapped(&a, level), op.symbol(), wrapped(&b, level + 1));
        let mut s = derived(ScalarKind::Bool(false), ty, text, &[&a, &b]);
        match op {
            ScalarOp::Add => s.dim = a.dim.add(&b.dim),
            ScalarOp::Sub => s.dim = a.dim.sub(&b.dim),
            ScalarOp::Mul => s.dim = a.dim.mul(&b.dim),
            ScalarOp::Div => {
                let exact = a.dim.div_known(&b.dim, &self.multiples);
                s.dim = exact.unwrap_or_else(|| a.dim.div(&b.dim));
            }
            _ => {}
        }
        let kind = ScalarKind::Binary(op, Box::new(a), Box::new(b));
        Some(Scalar { kind, ..s })
    }

    fn tensor_binary(&mut self, op: ScalarOp, a: Value, b: Value, at: &Expr) -> Option<Value> {
        if !matches!(op, ScalarOp::Add | ScalarOp::Sub | ScalarOp::Mul | ScalarOp::Div) {
            return self.error(
                at,
                format!("`{}` compares numbers and cannot be applied to tensors", op.symbol()),
            );
        }
        let commutes = matches!(op, ScalarOp::Add | ScalarOp::Mul);
        let (a, b) = if commutes && !b.shape.broadcasts_to(&a.shape) && a.shape.broadcasts_to(&b.shape) {
            (b, a)
        } else {
            (a, b)
        };
        if let Some(bank) = [&a, &b].into_iter().find(|v| v.shape.is_bank()) {
            return self.bank_operand(&bank.shape, op.symbol(), at);
        }
        if !b.shape.broadcasts_to(&a.shape) {
            let (left, right) = (&a.shape, &b.shape);
            let of_heads = left.rank() == 3 && right.rank() == 2 && left.dim(1) == right.dim(0);
            let hint = if of_heads {
                format!(
                    "; to get one number per head, use `heads(…, {0})`, which has the shape [1, {0}, T]",
                    right.dim(0)
                )
            } else {
                " (the right operand may have fewer dimensions, or dimensions of size 1)".to_owned()
            };
            let message = format!("`{}`: shapes {left} and {right} do not match{hint}", op.symbol());
            return self.error(at, message);
        }
        let shape = a.shape.clone();
        let kind = if op == ScalarOp::Mul && a.shape.same(&b.shape) {
            product(a, b)
        } else {
            ValueKind::Binary(op, Box::new(a), Box::new(b))
        };
        Some(Value { kind, shape })
    }

    /// Checks `x op s`, or `s op x` if `reversed`.
    fn with_scalar(&mut self, op: ScalarOp, x: Value, s: Scalar, reversed: bool, at: &Expr) -> Option<Value> {
        let shape = x.shape.clone();
        let x = Box::new(x);
        let kind = match (op, reversed) {
            (ScalarOp::Mul, _) => ValueKind::Scale(x, s),
            (ScalarOp::Div, false) => ValueKind::Divide(x, s),
            (ScalarOp::Add, _) => ValueKind::Shift(x, s),
            (ScalarOp::Sub, false) => {
                let text = format!("-{}", wrapped(&s, 7));
                ValueKind::Shift(x, derived(ScalarKind::Neg(Box::new(s.clone())), Ty::Float, text, &[&s]))
            }
            (ScalarOp::Sub, true) => {
                let minus_one = Scalar {
                    kind: ScalarKind::Float(-1.0),
                    ty: Ty::Float,
                    per_layer: false,
                    text: "-1.0".to_string(),
                    dim: Dim::default(),
                };
                let negated = Value {
                    kind: ValueKind::Scale(x, minus_one),
                    shape: shape.clone(),
                };
                ValueKind::Shift(Box::new(negated), s)
            }
            (ScalarOp::Div, true) => return self.error(at, "cannot divide a number by a tensor"),
            _ => {
                return self.error(
                    at,
                    format!("`{}` is not defined for a tensor and a number", op.symbol()),
                );
            }
        };
        Some(Value { kind, shape })
    }

    /// Checks a call of a numeric function such as `sqrt(n_embd)`. Returns `None` if there is no function of this
    /// name.
    pub fn scalar_call(&mut self, name: &Ident, args: &[Lowered], at: &[&Expr]) -> Option<Scalar> {
        let f = SCALAR_FNS.iter().find(|f| name == f.name)?;
        let args: Vec<Scalar> = args
            .iter()
            .filter_map(|a| {
                if let Lowered::Scalar(s) = a {
                    Some(s.clone())
                } else {
                    None
                }
            })
            .collect();
        if args.len() != f.arity {
            let message = format!(
                "`{name}` takes {} of numeric type, found {}",
                plural(f.arity, "argument"),
                args.len()
            );
            return self.error(name, message);
        }
        let ints = f.keeps_ints && args.iter().all(|a| a.ty == Ty::Int);
        let ty = if ints { Ty::Int } else { Ty::Float };
        let mut converted = Vec::new();
        for (a, at) in args.into_iter().zip(at) {
            converted.push(self.convert(a, ty, at)?);
        }
        let text = format!(
            "{name}({})",
            converted.iter().map(|a| a.text.as_str()).collect::<Vec<_>>().join(", ")
        );
        let parts: Vec<&Scalar> = converted.iter().collect();
        let template = derived(ScalarKind::Bool(false), ty, text, &parts);
        Some(Scalar {
            kind: ScalarKind::Call(Named::new(f, name.span()), converted),
            ..template
        })
    }

    fn if_expr(&mut self, branch: &ExprIf) -> Option<Lowered> {
        if let (Some(truth), Some((_, otherwise))) = (literal_truth(&branch.cond), &branch.else_branch) {
            return self.taken_branch(truth, &branch.then_branch, otherwise);
        }
        let cond = self.scalar_of(&branch.cond, Ty::Bool);
        let Some((_, otherwise)) = &branch.else_branch else {
            return self.error(
                branch.if_token,
                "`if` used as a value needs an `else` branch, except as the value of a `let`",
            );
        };
        let (yes, no) = facts::both(cond.as_ref());
        let then = self.branch(&branch.then_branch, yes);
        let other = match &**otherwise {
            Expr::Block(b) => self.branch(&b.block, no),
            nested => self.with_facts(no, |c| {
                let value = c.expr(nested)?;
                Some((Vec::new(), value))
            }),
        };
        let (cond, (then_stmts, then), (else_stmts, other)) = (cond?, then?, other?);
        match (then, other) {
            (Lowered::Scalar(a), Lowered::Scalar(b)) if then_stmts.is_empty() && else_stmts.is_empty() => {
                self.scalar_if(cond, a, b, branch).map(Lowered::Scalar)
            }
            (Lowered::Tensor(a), Lowered::Tensor(b)) => {
                if !a.shape.same(&b.shape) {
                    let message = format!("`if` and `else` have different shapes: {} and {}", a.shape, b.shape);
                    return self.error(branch.if_token, message);
                }
                let shape = a.shape.clone();
                let then = Block {
                    stmts: then_stmts,
                    result: Some(a),
                };
                let other = Block {
                    stmts: else_stmts,
                    result: Some(b),
                };
                let kind = ValueKind::If(cond, Box::new(then), Box::new(other));
                Some(Lowered::Tensor(Value { kind, shape }))
            }
            _ => self.error(
                branch.if_token,
                "`if` and `else` must both be tensors or both be plain numbers",
            ),
        }
    }

    /// Returns the taken branch of `if true { … } else { … }`, which results from substituting an option. The
    /// other branch is not checked.
    fn taken_branch(&mut self, truth: bool, then: &syn::Block, otherwise: &Expr) -> Option<Lowered> {
        self.mention(if truth {
            otherwise.to_token_stream()
        } else {
            then.to_token_stream()
        });
        let (stmts, value) = match (truth, otherwise) {
            (true, _) => self.branch(then, Vec::new())?,
            (false, Expr::Block(b)) => self.branch(&b.block, Vec::new())?,
            (false, nested) => return self.expr(nested),
        };
        Some(match value {
            Lowered::Tensor(value) => {
                let shape = value.shape.clone();
                let result = Some(value);
                let kind = ValueKind::Call(None, Vec::new(), Box::new(Block { stmts, result }));
                Lowered::Tensor(Value { kind, shape })
            }
            scalar => scalar,
        })
    }

    fn branch(&mut self, block: &syn::Block, known: Vec<facts::Fact>) -> Option<(Vec<crate::model::Stmt>, Lowered)> {
        self.in_block(block, known, Self::value_block)
    }

    fn scalar_if(&mut self, cond: Scalar, a: Scalar, b: Scalar, at: &ExprIf) -> Option<Scalar> {
        let (a, b) = match (a.ty, b.ty) {
            (Ty::Int, Ty::Float) => (to_float(a), b),
            (Ty::Float, Ty::Int) => (a, to_float(b)),
            (x, y) if x == y => (a, b),
            (x, y) => {
                return self.error(
                    at.if_token,
                    format!(
                        "`if` and `else` have different types: `{}` and `{}`",
                        x.name(),
                        y.name()
                    ),
                );
            }
        };
        let text = format!("if {} {{ {} }} else {{ {} }}", cond.text, a.text, b.text);
        let template = derived(ScalarKind::Bool(false), a.ty, text, &[&cond, &a, &b]);
        Some(Scalar {
            kind: ScalarKind::If(Box::new(cond), Box::new(a), Box::new(b)),
            ..template
        })
    }
}

/// Returns the value of a literal `true` or `false`, with or without parentheses.
pub fn literal_truth(cond: &Expr) -> Option<bool> {
    match bare(cond) {
        Expr::Lit(l) => match &l.lit {
            Lit::Bool(b) => Some(b.value),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the product of two tensors of the same shape. `act(a) * b`, a gated linear unit, becomes one
/// builder call and one kernel.
fn product(a: Value, b: Value) -> ValueKind {
    let is_act = |v: &Value| matches!(&v.kind, ValueKind::Op(op, _) if op.is_unary() && op.name != "neg");
    let (act, other) = if is_act(&b) && !is_act(&a) { (b, a) } else { (a, b) };
    let other = Box::new(other);
    match act.kind {
        ValueKind::Op(op, mut args) if op.is_unary() && op.name != "neg" => match args.pop() {
            Some(Arg::Tensor(x)) => ValueKind::Glu(op, Box::new(x), other),
            popped => {
                args.extend(popped);
                let (kind, shape) = (ValueKind::Op(op, args), act.shape);
                ValueKind::Binary(ScalarOp::Mul, Box::new(Value { kind, shape }), other)
            }
        },
        kind => ValueKind::Binary(ScalarOp::Mul, Box::new(Value { kind, shape: act.shape }), other),
    }
}

/// Returns true if an integer expression contains a division that may drop a remainder.
fn drops_remainder(s: &Scalar, multiples: &[Multiple]) -> bool {
    let drops = |part: &Scalar| drops_remainder(part, multiples);
    match &s.kind {
        ScalarKind::Binary(ScalarOp::Div, a, b) => a.dim.div_known(&b.dim, multiples).is_none(),
        ScalarKind::Binary(_, a, b) | ScalarKind::If(_, a, b) => drops(a) || drops(b),
        ScalarKind::Call(_, args) => args.iter().any(drops),
        _ => false,
    }
}

/// Converts an integer to a float; literals are converted directly.
pub fn to_float(s: Scalar) -> Scalar {
    let kind = match s.kind {
        ScalarKind::Int(n) => ScalarKind::Float(n as f64),
        _ => ScalarKind::ToFloat(Box::new(s.clone())),
    };
    Scalar {
        kind,
        ty: Ty::Float,
        dim: Dim::default(),
        ..s
    }
}

/// Returns a scalar computed from `parts`. Its size is opaque unless the caller provides one.
pub fn derived(kind: ScalarKind, ty: Ty, text: String, parts: &[&Scalar]) -> Scalar {
    let per_layer = parts.iter().any(|p| p.per_layer);
    let dim = if ty == Ty::Int {
        Dim::opaque(&text)
    } else {
        Dim::default()
    };
    Scalar {
        kind,
        ty,
        per_layer,
        text,
        dim,
    }
}

/// Formats a count with its noun: `1 argument`, `2 arguments`.
pub fn plural(n: usize, word: &str) -> String {
    if n == 1 {
        format!("1 {word}")
    } else {
        format!("{n} {word}s")
    }
}

fn precedence(op: ScalarOp) -> u8 {
    match op {
        ScalarOp::Or => 1,
        ScalarOp::And => 2,
        ScalarOp::Add | ScalarOp::Sub => 4,
        ScalarOp::Mul | ScalarOp::Div | ScalarOp::Rem => 5,
        _ => 3,
    }
}

/// Formats an operand, in parentheses if it binds less tightly than `level`.
fn wrapped(s: &Scalar, level: u8) -> String {
    let mut inner = &s.kind;
    while let ScalarKind::ToFloat(of) = inner {
        inner = &of.kind;
    }
    let own = match inner {
        ScalarKind::Binary(op, ..) => precedence(*op),
        ScalarKind::Not(_) | ScalarKind::Neg(_) => 6,
        ScalarKind::If(..) => 0,
        _ => 8,
    };
    if own < level {
        format!("({})", s.text)
    } else {
        s.text.clone()
    }
}

fn scalar_op(op: BinOp) -> Option<ScalarOp> {
    Some(match op {
        BinOp::Add(_) | BinOp::AddAssign(_) => ScalarOp::Add,
        BinOp::Sub(_) | BinOp::SubAssign(_) => ScalarOp::Sub,
        BinOp::Mul(_) | BinOp::MulAssign(_) => ScalarOp::Mul,
        BinOp::Div(_) | BinOp::DivAssign(_) => ScalarOp::Div,
        BinOp::Rem(_) => ScalarOp::Rem,
        BinOp::Eq(_) => ScalarOp::Eq,
        BinOp::Ne(_) => ScalarOp::Ne,
        BinOp::Lt(_) => ScalarOp::Lt,
        BinOp::Le(_) => ScalarOp::Le,
        BinOp::Gt(_) => ScalarOp::Gt,
        BinOp::Ge(_) => ScalarOp::Ge,
        BinOp::And(_) => ScalarOp::And,
        BinOp::Or(_) => ScalarOp::Or,
        _ => return None,
    })
}
