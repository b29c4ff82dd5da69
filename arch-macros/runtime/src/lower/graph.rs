//! Converts the statements of a graph.

use arch_lang::model::{
    Arg as LangArg, Block as LangBlock, Named, Operand as LangOperand, Operation as LangOperation, RowsBy, Scalar,
    ScalarKind, ScalarOp, Stmt as LangStmt, Value as LangValue, ValueKind, VarId,
};
use arch_lang::ops::{Emit, Given, Param, ParamKind};
use engine::arch::Unary;
use engine::declared::operations::{self, Operation};
use engine::declared::{Arg, Arithmetic, Block, Operand, Stmt, TensorExpr, WeightUse};
use proc_macro2::Ident;

use super::program::Lowering;
use super::statics::text;

impl<'a> Lowering<'a, '_> {
    /// Converts a block, which is a separate scope.
    pub fn block(&mut self, block: &'a LangBlock) -> Option<Block> {
        self.scopes.push(Vec::new());
        let stmts = self.each(&block.stmts, Lowering::stmt);
        let result = match &block.result {
            Some(value) => self.value(value).map(Some),
            None => Some(None),
        };
        self.scopes.pop();
        Some(Block {
            stmts: stmts?,
            result: result?,
        })
    }

    /// Binds a scalar variable in the innermost scope.
    fn bind(&mut self, var: VarId) {
        let name = self.arch.vars[var.0].name.to_string();
        if let Some(scope) = self.scopes.last_mut() {
            scope.push((name, var.0));
        }
    }

    /// Returns the scalar variable with this name.
    pub fn scalar_var(&mut self, name: &Ident) -> Option<usize> {
        let mut in_scope = self.scopes.iter().rev().flat_map(|scope| scope.iter().rev());
        match in_scope.find(|(known, _)| name == known) {
            Some(&(_, var)) => Some(var),
            None => self.fail(name.span(), format!("internal error: `{name}` is not in scope")),
        }
    }

    fn stmt(&mut self, stmt: &'a LangStmt) -> Option<Stmt> {
        Some(match stmt {
            LangStmt::Tensor { var, value, .. } => Stmt::Tensor {
                var: var.0,
                name: text(&self.arch.vars[var.0].name.to_string()),
                value: self.value(value)?,
            },
            LangStmt::Scalar { var, value } => {
                let value = self.expr(value);
                self.bind(*var);
                Stmt::Scalar {
                    var: var.0,
                    value: value?,
                }
            }
            LangStmt::If { cond, then, otherwise } => Stmt::If {
                cond: self.expr(cond)?,
                // A branch that is never taken may be incomplete.
                then: if cond.truth() == Some(false) {
                    Block::default()
                } else {
                    self.block(then)?
                },
                otherwise: match otherwise {
                    Some(block) if cond.truth() != Some(true) => Some(self.block(block)?),
                    _ => None,
                },
            },
            LangStmt::Layers {
                group,
                range,
                body,
                carried,
            } => {
                let range = match range {
                    Some((from, to)) => Some((self.expr(from)?, self.expr(to)?)),
                    None => None,
                };
                self.group = Some(group.it);
                let body = self.block(body);
                self.group = None;
                Stmt::Layers {
                    group: group.it,
                    range,
                    nested: self.repeats,
                    body: body?,
                    carried: carried.0,
                }
            }
            LangStmt::Repeat { var, range, body } => {
                let range = (self.expr(&range.0)?, self.expr(&range.1)?);
                self.scopes.push(Vec::new());
                var.iter().for_each(|var| self.bind(*var));
                let outer = std::mem::replace(&mut self.repeats, true);
                let body = self.block(body);
                self.repeats = outer;
                self.scopes.pop();
                Stmt::Repeat {
                    var: var.map(|var| var.0),
                    range,
                    body: body?,
                }
            }
        })
    }

    fn boxed(&mut self, value: &'a LangValue) -> Option<Box<TensorExpr>> {
        self.value(value).map(Box::new)
    }

    fn value(&mut self, value: &'a LangValue) -> Option<TensorExpr> {
        Some(match &value.kind {
            ValueKind::Var(var) => TensorExpr::Var(var.0),
            ValueKind::Embed(table, by, skipped) => match by.it {
                RowsBy::Tokens => TensorExpr::Embed(table.it),
                RowsBy::Positions => TensorExpr::EmbedPositions(table.it, self.optional(skipped.as_ref())?),
            },
            ValueKind::Encoded(_) => TensorExpr::Encoded,
            ValueKind::Hidden(_) => TensorExpr::Hidden,
            ValueKind::Absent => TensorExpr::Absent,
            ValueKind::Frames(_, width) => TensorExpr::Frames(self.expr(width)?),
            ValueKind::Patches(_, width) => TensorExpr::Patches(self.expr(width)?),
            ValueKind::Linear(w, x) => TensorExpr::Linear(w.it, self.boxed(x)?),
            ValueKind::Weight(w) => TensorExpr::Weight(w.it),
            ValueKind::Op(op, args) => self.op(op, args)?,
            ValueKind::Binary(op, x, y) => TensorExpr::Binary(arithmetic(*op), self.boxed(x)?, self.boxed(y)?),
            ValueKind::Scale(x, s) => TensorExpr::Scale(self.boxed(x)?, self.expr(s)?),
            ValueKind::Divide(x, s) => TensorExpr::Divide(self.boxed(x)?, self.expr(s)?),
            ValueKind::Shift(x, s) => TensorExpr::Shift(self.boxed(x)?, self.expr(s)?),
            ValueKind::Glu(act, gate, up) => TensorExpr::Glu(self.unary(act)?, self.boxed(gate)?, self.boxed(up)?),
            ValueKind::Slice(x, from, to) => TensorExpr::Slice(
                self.boxed(x)?,
                self.optional(from.as_ref())?,
                self.optional(to.as_ref())?,
            ),
            ValueKind::If(cond, then, otherwise) => TensorExpr::If(
                self.expr(cond)?,
                Box::new(self.block(then)?),
                Box::new(self.block(otherwise)?),
            ),
            ValueKind::Rust(tokens) => return self.no_rust(tokens),
            ValueKind::Call(_, params, body) => self.call(params, body)?,
        })
    }

    /// Converts an inlined call. The arguments do not see the parameters.
    fn call(&mut self, params: &'a [(VarId, LangOperand)], body: &'a LangBlock) -> Option<TensorExpr> {
        let operands = self.each(params, |l, (var, operand)| {
            let operand = match operand {
                LangOperand::Tensor(value) => Operand::Tensor(l.value(value)?),
                LangOperand::Scalar(s) => Operand::Scalar(l.expr(s)?),
            };
            Some((var.0, operand))
        });
        self.scopes.push(Vec::new());
        for (var, operand) in params {
            if matches!(operand, LangOperand::Scalar(_)) {
                self.bind(*var);
            }
        }
        let body = self.block(body);
        self.scopes.pop();
        Some(TensorExpr::Call(operands?, Box::new(body?)))
    }

    /// Returns the engine's operation, or records an error if the engine has no operation of this name and parameters.
    fn operation(&mut self, op: &LangOperation) -> Option<&'static Operation> {
        let is_equal = |found: &&Operation| found.params.iter().copied().eq(op.params.iter().map(|p| p.name));
        match operations::find(op.name).filter(is_equal) {
            Some(found) => Some(found),
            None => self.fail(
                op.at,
                format!(
                    "`{}` is not available at run time; add the declaration to `archs/` and build the project",
                    op.name
                ),
            ),
        }
    }

    fn unary(&mut self, op: &LangOperation) -> Option<Unary> {
        match self.operation(op)?.unary {
            Some(f) => Some(f),
            None => self.fail(op.at, format!("internal error: `{}` is not an activation", op.name)),
        }
    }

    fn op(&mut self, op: &'a LangOperation, args: &'a [LangArg]) -> Option<TensorExpr> {
        let found = self.operation(op)?;
        let mut converted = Vec::with_capacity(args.len());
        for (param, arg) in op.params.iter().zip(args) {
            converted.push(self.argument(op, param, arg)?);
        }
        // The arguments of such an operation only determine its shape.
        if matches!(op.emit, Emit::Bare(_)) {
            converted.clear();
        }
        Some(TensorExpr::Op(found, converted))
    }

    fn argument(&mut self, op: &LangOperation, param: &Param, arg: &'a LangArg) -> Option<Arg> {
        Some(match arg {
            LangArg::Default => Arg::Omitted,
            LangArg::Tensor(value) => Arg::Tensor(self.value(value)?),
            LangArg::Weight(tensor) => Arg::Weight(tensor.it, self.weight_use(param, tensor)),
            LangArg::Scalar(s) => match &s.kind {
                ScalarKind::Hparam(name) if param.kind == ParamKind::List => Arg::List(self.item(name)?),
                _ => Arg::Scalar(self.expr(s)?),
            },
            LangArg::Activation(f) => Arg::Activation(self.unary(f)?),
            LangArg::Word(variant) => self.word(op, param, variant)?,
            LangArg::Window(kind, n, cond) => self.window(kind, n, cond.as_ref())?,
            LangArg::If(cond, given) => Arg::If(self.expr(cond)?, Box::new(self.argument(op, param, given)?)),
        })
    }

    fn weight_use(&self, param: &Param, tensor: &Named<usize>) -> WeightUse {
        let accepts_absent = param.some && param.given == Given::OptionalKeyword;
        if param.kind == ParamKind::OfFirstLayer && self.arch.tensors[tensor.it].group.is_some() {
            WeightUse::OfFirstLayer
        } else if accepts_absent && self.arch.tensors[tensor.it].may_be_absent() {
            WeightUse::Optional
        } else {
            WeightUse::Required
        }
    }

    fn word(&mut self, op: &LangOperation, param: &Param, variant: &Named<&'static str>) -> Option<Arg> {
        match param.kind {
            ParamKind::Word(ty, _) if operations::is_word(ty, variant.it) => Some(Arg::Word(variant.it)),
            _ => self.fail(
                variant.at,
                format!("this `{}` of `{}` is not available at run time", param.name, op.name),
            ),
        }
    }

    fn window(&mut self, kind: &Named<&'static str>, n: &Scalar, cond: Option<&Scalar>) -> Option<Arg> {
        match operations::window(kind.it) {
            Some(window) => Some(Arg::Window(window, self.expr(n)?, self.optional(cond)?)),
            None => self.fail(kind.at, format!("`{}` is not available at run time", kind.it)),
        }
    }
}

fn arithmetic(op: ScalarOp) -> Arithmetic {
    match op {
        ScalarOp::Sub => Arithmetic::Sub,
        ScalarOp::Mul => Arithmetic::Mul,
        ScalarOp::Div => Arithmetic::Div,
        _ => Arithmetic::Add,
    }
}
