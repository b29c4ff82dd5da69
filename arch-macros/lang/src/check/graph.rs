//! Checks the statements of a graph, its scopes, the layer loop, and the result.

use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::{BinOp, Expr, ExprIf};

use super::expr::{Lowered, literal_truth};
use super::facts::{self, Fact};
use super::{Bound, Checker, Condition, Place, VarSym};
use crate::ast;
use crate::builtins::Ty;
use crate::limits::MAX_BLOCKS;
use crate::model::{Block, Head, Named, Scalar, ScalarKind, Stmt, Value, ValueKind, VarId};
use crate::parse::{bare, block_of};
use crate::sym::{Dim, Shape};

impl Checker<'_> {
    /// Checks the main graph or the encoder's graph.
    pub(super) fn graph(&mut self, graph: &ast::Graph, encoder: bool) -> Option<Block> {
        self.place = Place::Graph;
        if !self.media.is_encoder && !has_loop(&graph.body) {
            self.errors
                .at_span(graph.span, "the graph has no layer loop; add `for layer { … }`");
        }
        self.scopes.enter();
        let stmts = self.stmts(&graph.body.stmts);
        let result = match &graph.body.result {
            None => {
                self.errors.at_span(
                    graph.body.end,
                    "the graph has no result; end it with an expression without `;`",
                );
                None
            }
            Some(expr) => self.result(expr, encoder),
        };
        self.leave_scope();
        Some(Block {
            stmts: stmts?,
            result: Some(result?),
        })
    }

    /// Checks `embedding { … }`, which computes one row per pooled row.
    pub(super) fn embedding_head(&mut self, head: &ast::Graph) -> Option<Head> {
        self.head(head, "embedding", |shape| {
            (shape.rank() <= 2 && shape.dim(1) == Dim::n_tokens())
                .then_some(())
                .ok_or("[n, T]")
        })
    }

    /// Checks `rank { … }`, which computes one score per label.
    pub(super) fn rank_head(&mut self, head: &ast::Graph) -> Option<Head> {
        self.head(head, "rank", |shape| {
            let scores = Shape(vec![Dim::symbol("n_labels"), Dim::n_tokens()]);
            shape.same(&scores).then_some(()).ok_or("[n_labels, T]")
        })
    }

    /// Checks statements over `pooled`, where `T` counts sequences. Its tensors may be optional: a file
    /// without them has no head.
    fn head(
        &mut self,
        head: &ast::Graph,
        name: &str,
        expected: fn(&Shape) -> Result<(), &'static str>,
    ) -> Option<Head> {
        self.refuse_loops(head, name)?;
        self.place = Place::Graph;
        let pooled = VarId(self.vars.len());
        self.vars.push(VarSym {
            name: Ident::new("pooled", head.span),
            bound: Bound::Tensor(Shape::embeddings()),
            used: false,
            assigned: false,
            condition: None,
        });
        self.scopes.enter();
        self.scopes.bind("pooled", pooled);
        let block = self.with_facts(vec![facts::anything()], |c| c.with_result(head, name, expected));
        self.leave_scope();
        Some(Head { pooled, block: block? })
    }

    /// Checks `mtp { … }`, which computes the logits of the token after the next one in a multi-token
    /// prediction layer.
    pub(super) fn mtp(&mut self, graph: &ast::Graph) -> Option<Block> {
        self.refuse_loops(graph, "mtp")?;
        (self.place, self.group, self.in_mtp) = (Place::Loop, Some(0), true);
        self.scopes.enter();
        let block = self.with_facts(vec![facts::mtp(true)], |c| {
            c.with_result(graph, "mtp", |shape| {
                shape.same(&Shape::logits()).then_some(()).ok_or("[n_vocab, T]")
            })
        });
        self.leave_scope();
        (self.place, self.group, self.in_mtp) = (Place::Graph, None, false);
        block
    }

    fn refuse_loops(&mut self, graph: &ast::Graph, name: &str) -> Option<()> {
        let each = graph.body.stmts.iter().find_map(|s| match s {
            ast::StmtSyntax::For(each) => Some(each),
            _ => None,
        });
        match each {
            Some(each) => self.error_at(
                each.span,
                &format!("loops are not allowed in `{name}`; move the loop to `graph`"),
            ),
            None => Some(()),
        }
    }

    /// Checks statements that end in a tensor of the required shape.
    fn with_result(
        &mut self,
        graph: &ast::Graph,
        name: &str,
        expected: fn(&Shape) -> Result<(), &'static str>,
    ) -> Option<Block> {
        let stmts = self.stmts(&graph.body.stmts);
        let Some(expr) = &graph.body.result else {
            self.errors.at_span(
                graph.body.end,
                format!("`{name}` has no result; end it with an expression without `;`"),
            );
            return None;
        };
        let value = self.tensor(expr)?;
        if let Err(form) = expected(&value.shape) {
            return self.error(
                expr,
                format!("the result of `{name}` must be {form}, found {}", value.shape),
            );
        }
        Some(Block {
            stmts: stmts?,
            result: Some(value),
        })
    }

    fn result(&mut self, expr: &Expr, encoder: bool) -> Option<crate::model::Value> {
        let value = self.tensor(expr)?;
        if self.media.is_encoder {
            return self.media_rows(value, expr);
        }
        let (logits, embeddings) = (Shape::logits(), Shape::embeddings());
        if encoder && !value.shape.same(&embeddings) {
            let message = format!("the result of the encoder must be {embeddings}, found {}", value.shape);
            return self.error(expr, message);
        }
        if !value.shape.same(&logits) && !value.shape.same(&embeddings) {
            let message = format!(
                "the result must be {logits} (logits) or {embeddings} (embeddings), found {}",
                value.shape
            );
            return self.error(expr, message);
        }
        Some(value)
    }

    /// Checks all statements, even after an error.
    fn stmts(&mut self, stmts: &[ast::StmtSyntax]) -> Option<Vec<Stmt>> {
        let done: Vec<_> = stmts.iter().map(|s| self.stmt(s)).collect();
        done.into_iter().collect()
    }

    fn stmt(&mut self, stmt: &ast::StmtSyntax) -> Option<Stmt> {
        match stmt {
            ast::StmtSyntax::Let { name, value } => self.bind_let(name, value),
            ast::StmtSyntax::Assign { name, op, value } => self.assign(name, *op, value),
            ast::StmtSyntax::If(branch) => self.if_stmt(branch),
            ast::StmtSyntax::For(each) => self.nested(&each.tokens, |c| c.for_loop(each)),
        }
    }

    fn bind_let(&mut self, name: &Ident, value: &Expr) -> Option<Stmt> {
        if let Expr::If(branch) = bare(value)
            && branch.else_branch.is_none()
        {
            return self.bind_if(name, branch);
        }
        let value = self.expr(value);
        let nameable = self.can_name(name);
        let bound = match &value {
            _ if !nameable => Bound::Broken,
            Some(Lowered::Tensor(v)) => Bound::Tensor(v.shape.clone()),
            Some(Lowered::Scalar(s)) => Bound::Scalar(s.clone()),
            None => Bound::Broken,
        };
        let var = self.new_var(name, bound);
        // A second `let` with the same name shadows the first.
        self.scopes.bind(&name.to_string(), var);
        match value? {
            Lowered::Tensor(value) => Some(Stmt::Tensor {
                var: Named::new(var, name.span()),
                is_let: true,
                value,
            }),
            Lowered::Scalar(value) => Some(Stmt::Scalar { var, value }),
        }
    }

    /// Checks `let name = if condition { value };`, a tensor that exists only if the condition holds.
    fn bind_if(&mut self, name: &Ident, branch: &ExprIf) -> Option<Stmt> {
        let checked = self.nested(branch, |c| c.conditional(branch));
        let nameable = self.can_name(name);
        let bound = match &checked {
            Some((value, _)) if nameable && !matches!(value.kind, ValueKind::Absent) => {
                Bound::Tensor(value.shape.clone())
            }
            _ => Bound::Broken,
        };
        let var = self.new_var(name, bound);
        self.scopes.bind(&name.to_string(), var);
        let (value, condition) = checked?;
        self.vars[var.0].condition = condition;
        Some(Stmt::Tensor {
            var: Named::new(var, name.span()),
            is_let: true,
            value,
        })
    }

    /// Checks `if condition { value }`. Returns the value and its condition.
    fn conditional(&mut self, branch: &ExprIf) -> Option<(Value, Option<Condition>)> {
        let cond = self.scalar_of(&branch.cond, Ty::Bool);
        // An option was substituted by `false`, so the branch is not checked, and no code uses the value.
        if literal_truth(&branch.cond) == Some(false) {
            self.mention(branch.then_branch.to_token_stream());
            return Some((absent(Shape(Vec::new())), None));
        }
        let (known, _) = facts::both(cond.as_ref());
        let then = self.in_block(&branch.then_branch, known.clone(), Self::value_block);
        let (cond, (stmts, result)) = (cond?, then?);
        let Lowered::Tensor(result) = result else {
            return self.error(branch.if_token, "a number with a condition needs an `else` branch");
        };
        let shape = result.shape.clone();
        let then = Box::new(Block {
            stmts,
            result: Some(result),
        });
        if cond.truth() == Some(true) {
            let kind = ValueKind::Call(None, Vec::new(), then);
            return Some((Value { kind, shape }, None));
        }
        if cond.has_variable() {
            let message = "without an `else` branch, the condition must not depend on values of the graph";
            return self.error(&branch.cond, message);
        }
        let otherwise = Box::new(Block {
            stmts: Vec::new(),
            result: Some(absent(shape.clone())),
        });
        let condition = Condition {
            facts: known,
            text: cond.text.clone(),
        };
        let kind = ValueKind::If(cond, then, otherwise);
        Some((Value { kind, shape }, Some(condition)))
    }

    fn assign(&mut self, name: &Ident, op: Option<BinOp>, value: &Expr) -> Option<Stmt> {
        let Some(var) = self.find_var(&name.to_string()) else {
            self.expr(value);
            if self.find_tensor(&name.to_string()).is_some() {
                return self.error(name, format!("cannot assign to `{name}`: it is a tensor of the file"));
            }
            let text = name.to_string();
            if self.unknown_names.contains(&text) {
                return None;
            }
            if self.errors.nearest(&text, || self.scopes.names()).is_none() {
                self.unknown_names.insert(text);
                return self.error(
                    name,
                    format!("no value named `{name}` is in scope; declare it with `let {name} = …;`"),
                );
            }
            return self.unknown(name, "value", |c| c.scopes.names());
        };
        self.exists(var, name)?;
        // A plain assignment does not use the old value; `+=` does.
        self.vars[var.0].used |= op.is_some();
        let lowered = match op {
            None => self.expr(value),
            Some(op) => {
                let path = syn::parse_quote!(#name);
                self.binary(&path, op, value, value)
            }
        };
        let shape = match &self.vars[var.0].bound {
            Bound::Tensor(shape) => shape.clone(),
            Bound::Scalar(_) => {
                self.vars[var.0].used = true;
                return self.error(
                    name,
                    format!("cannot assign to `{name}`: it is a number; bind a new value with `let`"),
                );
            }
            Bound::Broken => return None,
        };
        let Lowered::Tensor(new) = lowered? else {
            return self.error(value, "expected a tensor, found a number or condition");
        };
        if self.single == Some([self.n_blocks, self.inside.len()]) {
            self.vars[var.0].bound = Bound::Tensor(new.shape.clone());
        } else if !new.shape.same(&shape) {
            let message = format!(
                "cannot assign to `{name}`: its shape is {shape}, found {}; use `let` for a new shape",
                new.shape
            );
            return self.error(name, message);
        }
        self.vars[var.0].assigned = true;
        if !self.assigned_in_loop.contains(&var) {
            self.assigned_in_loop.push(var);
        }
        Some(Stmt::Tensor {
            var: Named::new(var, name.span()),
            is_let: false,
            value: new,
        })
    }

    fn if_stmt(&mut self, branch: &ExprIf) -> Option<Stmt> {
        self.nested(branch, |c| c.if_stmt_inner(branch))
    }

    fn if_stmt_inner(&mut self, branch: &ExprIf) -> Option<Stmt> {
        let cond = self.scalar_of(&branch.cond, Ty::Bool);
        let (yes, no) = facts::both(cond.as_ref());
        // An option was substituted by `false`, so the branch is not checked.
        let then = if literal_truth(&branch.cond) == Some(false) {
            self.mention(branch.then_branch.to_token_stream());
            Some(Block {
                stmts: Vec::new(),
                result: None,
            })
        } else {
            self.stmt_branch(&branch.then_branch, yes)
        };
        let otherwise = match &branch.else_branch {
            None => Some(None),
            Some((_, e)) => match &**e {
                Expr::Block(b) => self.stmt_branch(&b.block, no).map(Some),
                Expr::If(nested) => self.with_facts(no, |c| c.if_stmt(nested)).map(|stmt| {
                    Some(Block {
                        stmts: vec![stmt],
                        result: None,
                    })
                }),
                other => self.error(other, "expected `else { … }` or `else if`"),
            },
        };
        Some(Stmt::If {
            cond: Box::new(cond?),
            then: Box::new(then?),
            otherwise: otherwise?.map(Box::new),
        })
    }

    fn stmt_branch(&mut self, block: &syn::Block, known: Vec<Fact>) -> Option<Block> {
        self.in_block(block, known, |c, block| {
            c.scopes.enter();
            let stmts = c.stmts(&block.stmts);
            if let Some(result) = &block.result {
                c.expr(result);
                c.errors.at(
                    result,
                    "the value of this branch is unused; assign it to a value declared before the `if`",
                );
            }
            c.leave_scope();
            Some(Block {
                stmts: stmts?,
                result: None,
            })
        })
    }

    /// Checks a block that ends in a value.
    pub(super) fn value_block(&mut self, block: &ast::BlockSyntax) -> Option<(Vec<Stmt>, Lowered)> {
        self.scopes.enter();
        let inside = std::mem::replace(&mut self.in_expr, false);
        let stmts = self.stmts(&block.stmts);
        let result = match &block.result {
            Some(expr) => self.expr(expr),
            None => {
                self.errors.at_span(
                    block.end,
                    "this branch has no value; end it with an expression without `;`",
                );
                None
            }
        };
        self.in_expr = inside;
        self.leave_scope();
        Some((stmts?, result?))
    }

    /// Checks a branch under additional facts, or records an error if the branch is nested too deeply.
    pub(super) fn in_block<T>(
        &mut self,
        block: &syn::Block,
        known: Vec<Fact>,
        check: impl FnOnce(&mut Self, &ast::BlockSyntax) -> Option<T>,
    ) -> Option<T> {
        if self.n_blocks >= MAX_BLOCKS {
            return self.error_at(block.brace_token.span.open(), "this code is nested too deeply");
        }
        self.n_blocks += 1;
        let block = block_of(block, self.errors);
        let done = self.with_facts(known, |c| check(c, &block));
        self.n_blocks -= 1;
        done
    }

    /// Runs `work` under additional facts.
    pub(super) fn with_facts<T>(&mut self, known: Vec<Fact>, work: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let before = self.facts.len();
        self.facts.extend(known);
        let done = work(self);
        self.facts.truncate(before);
        done
    }

    fn for_loop(&mut self, each: &ast::For) -> Option<Stmt> {
        let faults = self.errors.len();
        let mut end = |e: &Expr| self.scalar_of(e, Ty::Int);
        let range = each.range.as_ref().map(|(from, to)| (end(from), end(to)));
        let range = range.and_then(|(from, to)| Some((from?, to?)));
        let group = each.name.as_ref().and_then(|name| self.find_group(name));
        let stmt = match (group, range) {
            (Some(group), range) => self.layers(group, range, each),
            (None, Some(range)) => self.repeat(range, each),
            (None, None) => {
                let names = |c: &Self| c.groups.iter().map(|g| g.name.to_string()).collect();
                match &each.name {
                    // The invalid range was reported earlier.
                    _ if each.range.is_some() => None,
                    Some(name) => self.unknown(name, "group of layers", names),
                    None => self.error_at::<()>(each.span, "expected `for _ in a..b { … }`"),
                };
                // Check the body even if the range is invalid.
                self.layers(0, None, each)
            }
        };
        if self.errors.len() == faults { stmt } else { None }
    }

    /// Checks a loop over layers.
    fn layers(&mut self, group: usize, range: Option<(Scalar, Scalar)>, each: &ast::For) -> Option<Stmt> {
        let outer = self.vars.len();
        if self.place == Place::Loop {
            return self.error_at(each.span, "a layer loop cannot be nested in another layer loop");
        }
        self.place = Place::Loop;
        self.group = Some(group);
        let known = (group == 0).then(|| facts::mtp(false));
        let before = self.facts.len();
        self.facts.extend(known);
        let count = self.groups[group]
            .count
            .as_ref()
            .and_then(|count| count.dim.as_constant());
        self.single = (range.is_none() && count == Some(1)).then_some([self.n_blocks, self.inside.len()]);
        let (stmts, assigned) = self.loop_body(&each.body, None);
        self.single = None;
        self.facts.truncate(before);
        self.group = None;
        self.place = Place::Graph;
        let carried = Shape::embeddings();
        let shape_of = |v: &VarId| match &self.vars[v.0].bound {
            Bound::Tensor(s) => Some(s.clone()),
            _ => None,
        };
        // A loop may carry several values of the residual stream's width. Encoders may join columns before their
        // layers.
        let joins_columns = self.media.is_encoder;
        let has_tokens = |s: &Shape| joins_columns || (1..4).any(|i| s.dim(i) == Dim::n_tokens());
        // The layers of another group of an encoder may have a different width.
        let has_own_width = joins_columns && group != 0;
        let wide = |s: &Shape| (has_own_width || s.dim(0) == carried.dim(0)) && has_tokens(s);
        let mut hands_on = assigned
            .iter()
            .filter(|v| v.0 < outer && self.vars[v.0].condition.is_none());
        let first = hands_on
            .clone()
            .find(|v| shape_of(v).is_some_and(|s| s.same(&carried)))
            .or_else(|| hands_on.find(|v| shape_of(v).is_some_and(|s| wide(&s))));
        let first = first.copied();
        if first.is_none() && stmts.is_some() {
            let message = format!(
                "the layer loop assigns to no outer value; declare a value of shape {carried} before the loop and assign to it"
            );
            self.errors.at_span(each.span, message);
        }
        let at = each.name.as_ref().map_or(each.span, Ident::span);
        Some(Stmt::Layers {
            group: Named::new(group, at),
            range,
            body: Block {
                stmts: stmts?,
                result: None,
            },
            carried: first?,
        })
    }

    /// Checks a loop over integers.
    fn repeat(&mut self, range: (Scalar, Scalar), each: &ast::For) -> Option<Stmt> {
        let var = each.name.as_ref().map(|name| {
            let bound = if self.can_name(name) {
                let text = name.to_string();
                Bound::Scalar(Scalar {
                    kind: ScalarKind::Var(name.clone()),
                    ty: Ty::Int,
                    per_layer: false,
                    dim: Dim::symbol(&text),
                    text,
                })
            } else {
                Bound::Broken
            };
            self.new_var(name, bound)
        });
        let single = self.single.take();
        let (stmts, _) = self.loop_body(&each.body, var);
        self.single = single;
        Some(Stmt::Repeat {
            var,
            range,
            body: Block {
                stmts: stmts?,
                result: None,
            },
        })
    }

    /// Checks the statements of a loop and returns the variables that they assign to. The next iteration
    /// reads those declared before the loop.
    fn loop_body(&mut self, body: &ast::BlockSyntax, var: Option<VarId>) -> (Option<Vec<Stmt>>, Vec<VarId>) {
        let outer = self.vars.len();
        let before = std::mem::take(&mut self.assigned_in_loop);
        self.scopes.enter();
        if let Some(var) = var {
            self.scopes.bind(&self.vars[var.0].name.to_string(), var);
        }
        let stmts = self.stmts(&body.stmts);
        if let Some(result) = &body.result {
            self.expr(result);
            self.errors.at(
                result,
                "a loop has no value; assign it to a value declared before the loop",
            );
        }
        let assigned = std::mem::replace(&mut self.assigned_in_loop, before);
        for id in assigned.iter().filter(|v| v.0 < outer) {
            self.vars[id.0].used = true;
            if !self.assigned_in_loop.contains(id) {
                self.assigned_in_loop.push(*id);
            }
        }
        self.leave_scope();
        (stmts, assigned)
    }

    fn error_at<T>(&mut self, span: Span, message: &str) -> Option<T> {
        self.errors.at_span(span, message);
        None
    }

    fn new_var(&mut self, name: &Ident, bound: Bound) -> VarId {
        self.vars.push(VarSym {
            name: name.clone(),
            bound,
            used: false,
            assigned: false,
            condition: None,
        });
        VarId(self.vars.len() - 1)
    }

    pub(super) fn leave_scope(&mut self) {
        for (_, id) in self.scopes.leave() {
            let var = &self.vars[id.0];
            if !var.used && !matches!(var.bound, Bound::Broken) {
                let message = format!("`{}` is never used", var.name);
                self.errors.at(&self.vars[id.0].name, message);
            }
        }
    }
}

fn absent(shape: Shape) -> Value {
    let kind = ValueKind::Absent;
    Value { kind, shape }
}

fn has_loop(block: &ast::BlockSyntax) -> bool {
    block.stmts.iter().any(|s| matches!(s, ast::StmtSyntax::For(_)))
}
