//! Compilation: replaces the operators of a parsed template by filters with Python's semantics, which also
//! charge for their work.
//!
//! minijinja's own operators evaluate constants at compile time, have the semantics of Rust's types, and are
//! not limited. The names of the replacements contain `%`, so that template code cannot contain them.

use super::literal::unescaped;
use super::method_names::is_method;
use minijinja::machinery::{CodeGenerator, Instructions, Span, Token, Tokenizer, ast, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind, Value};

use ast::{BinOpKind, CallArg, CompareOpKind, Expr, Spanned, Stmt};

/// Name of the template and its thread.
pub(super) const NAME: &str = "chat_template";
/// Maximum depth of an expression or statement, because compilation recurses.
const MAX_NESTING: usize = 1000;
/// Maximum number of operators, calls, and lookups in a tag. Chains such as `a.b.c` become trees of that depth, which
/// the parser and the destructor of the tree walk by recursion.
const MAX_OPERATORS: usize = 5000;
/// Maximum length of a chain such as `a < b < c`, because calls count their arguments with 16 bits.
const MAX_COMPARISONS: usize = 1000;

/// Filters that replace operators.
pub(super) const ADD: &str = "%add";
pub(super) const SUB: &str = "%sub";
pub(super) const MUL: &str = "%mul";
pub(super) const DIV: &str = "%div";
pub(super) const FLOOR_DIV: &str = "%floordiv";
pub(super) const REM: &str = "%rem";
pub(super) const POW: &str = "%pow";
pub(super) const NEG: &str = "%neg";
pub(super) const CONCAT: &str = "%concat";
pub(super) const COMPARE: &str = "%compare";
pub(super) const ITEM: &str = "%item";
pub(super) const SLICE: &str = "%slice";
/// Looks up an attribute that may be a method.
pub(super) const ATTRIBUTE: &str = "%attribute";
/// Copies a literal.
pub(super) const FRESH: &str = "%fresh";
/// Checks a value that is iterated, spread, stored in a namespace, or read as a whole.
pub(super) const ITERATED: &str = "%iterated";
pub(super) const SPREAD: &str = "%spread";
pub(super) const STORED: &str = "%stored";
pub(super) const READ: &str = "%read";

/// Compiles a template.
pub(super) fn program(source: &str) -> Result<Instructions<'_>, Error> {
    // `transformers` uses these settings for chat templates.
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    check_depth(source, syntax.clone())?;
    let tree = parse(source, NAME, syntax)?;
    let mut lower = Lower {
        source,
        depth: 0,
        n_macros: 0,
        params: Vec::new(),
    };
    let lowered = lower.stmt(&tree)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&lowered);
    Ok(generator.finish().0)
}

/// Checks the depths of the syntax tree that the parser does not limit. Invalid tokens are left to the parser.
fn check_depth(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    let mut tokens = Tokenizer::new(source, NAME, false, syntax);
    let (mut n_operators, mut n_alternatives) = (0, 0);
    while let Ok(Some((token, _))) = tokens.next_token() {
        match token {
            Token::VariableStart | Token::BlockStart => n_operators = 0,
            Token::Ident("elif") => n_alternatives += 1,
            Token::Ident(word) => n_operators += usize::from(WORDS.contains(&word)),
            Token::Plus | Token::Minus | Token::Mul | Token::Div | Token::FloorDiv | Token::Mod | Token::Pow => {
                n_operators += 1
            }
            Token::Eq | Token::Ne | Token::Gt | Token::Gte | Token::Lt | Token::Lte => n_operators += 1,
            Token::Dot | Token::Tilde | Token::Pipe => n_operators += 1,
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => n_operators += 1,
            _ => {}
        }
        if n_operators > MAX_OPERATORS || n_alternatives > MAX_NESTING {
            return Err(too_deep());
        }
    }
    Ok(())
}

/// Operators that are words.
const WORDS: [&str; 6] = ["and", "if", "in", "is", "not", "or"];

fn too_deep() -> Error {
    Error::new(ErrorKind::SyntaxError, "the template is nested too deeply")
}

struct Lower<'s> {
    source: &'s str,
    depth: usize,
    /// Number of macros around the current expression.
    n_macros: usize,
    /// Parameters of these macros.
    params: Vec<&'s str>,
}

/// Applies a filter to expressions.
fn apply<'s>(name: &'static str, value: Expr<'s>, args: Vec<Expr<'s>>, span: Span) -> Expr<'s> {
    let filter = ast::Filter {
        name,
        expr: Some(value),
        args: args.into_iter().map(CallArg::Pos).collect(),
    };
    Expr::Filter(Spanned::new(filter, span))
}

fn constant(value: impl Into<Value>, span: Span) -> Expr<'static> {
    Expr::Const(Spanned::new(ast::Const { value: value.into() }, span))
}

fn unsupported(what: &'static str) -> Error {
    Error::new(ErrorKind::SyntaxError, format!("{what} are not supported"))
}

impl<'s> Lower<'s> {
    fn nested<T>(&mut self, lower: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.depth >= MAX_NESTING {
            return Err(too_deep());
        }
        self.depth += 1;
        let lowered = lower(self);
        self.depth -= 1;
        lowered
    }

    fn body(&mut self, body: &[Stmt<'s>]) -> Result<Vec<Stmt<'s>>, Error> {
        body.iter().map(|stmt| self.nested(|lower| lower.stmt(stmt))).collect()
    }

    fn stmt(&mut self, stmt: &Stmt<'s>) -> Result<Stmt<'s>, Error> {
        Ok(match stmt {
            Stmt::Template(s) => {
                let children = self.body(&s.children)?;
                Stmt::Template(Spanned::new(ast::Template { children }, s.span()))
            }
            Stmt::EmitExpr(s) => {
                let expr = self.expr(&s.expr)?;
                Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, s.span()))
            }
            // The formatter counts all output, including captured output.
            Stmt::EmitRaw(s) => {
                let expr = constant(s.raw, s.span());
                Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, s.span()))
            }
            Stmt::ForLoop(s) => Stmt::ForLoop(Spanned::new(self.for_loop(s)?, s.span())),
            Stmt::IfCond(s) => Stmt::IfCond(Spanned::new(self.if_cond(s)?, s.span())),
            Stmt::WithBlock(s) => {
                let assign = |(target, value): &(Expr<'s>, Expr<'s>)| Ok((target_of(target)?, self.expr(value)?));
                let assignments = s.assignments.iter().map(assign).collect::<Result<_, Error>>()?;
                let body = self.body(&s.body)?;
                Stmt::WithBlock(Spanned::new(ast::WithBlock { assignments, body }, s.span()))
            }
            Stmt::Set(s) => {
                let mut expr = self.expr(&s.expr)?;
                if matches!(s.target, Expr::GetAttr(_)) {
                    expr = apply(STORED, expr, Vec::new(), s.span());
                }
                let target = target_of(&s.target)?;
                Stmt::Set(Spanned::new(ast::Set { target, expr }, s.span()))
            }
            Stmt::SetBlock(s) => {
                let set = ast::SetBlock {
                    target: target_of(&s.target)?,
                    filter: s.filter.as_ref().map(|filter| self.expr(filter)).transpose()?,
                    body: self.body(&s.body)?,
                };
                Stmt::SetBlock(Spanned::new(set, s.span()))
            }
            Stmt::AutoEscape(s) => {
                let (enabled, body) = (self.expr(&s.enabled)?, self.body(&s.body)?);
                Stmt::AutoEscape(Spanned::new(ast::AutoEscape { enabled, body }, s.span()))
            }
            Stmt::FilterBlock(s) => {
                let (filter, body) = (self.expr(&s.filter)?, self.body(&s.body)?);
                Stmt::FilterBlock(Spanned::new(ast::FilterBlock { filter, body }, s.span()))
            }
            // No other template can replace the block, so only its scope remains.
            Stmt::Block(s) => {
                let (assignments, body) = (Vec::new(), self.body(&s.body)?);
                Stmt::WithBlock(Spanned::new(ast::WithBlock { assignments, body }, s.span()))
            }
            Stmt::Macro(s) => Stmt::Macro(Spanned::new(self.macro_decl(s)?, s.span())),
            Stmt::CallBlock(s) => {
                let call = Spanned::new(self.call(&s.call)?, s.call.span());
                let macro_decl = Spanned::new(self.macro_decl(&s.macro_decl)?, s.macro_decl.span());
                Stmt::CallBlock(Spanned::new(ast::CallBlock { call, macro_decl }, s.span()))
            }
            Stmt::Continue(s) => Stmt::Continue(Spanned::new(ast::Continue, s.span())),
            Stmt::Break(s) => Stmt::Break(Spanned::new(ast::Break, s.span())),
            Stmt::Do(s) => {
                let call = Spanned::new(self.call(&s.call)?, s.call.span());
                Stmt::Do(Spanned::new(ast::Do { call }, s.span()))
            }
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
                return Err(unsupported("other templates"));
            }
        })
    }

    fn for_loop(&mut self, s: &Spanned<ast::ForLoop<'s>>) -> Result<ast::ForLoop<'s>, Error> {
        Ok(ast::ForLoop {
            target: target_of(&s.target)?,
            iter: apply(ITERATED, self.expr(&s.iter)?, Vec::new(), s.iter.span()),
            filter_expr: s.filter_expr.as_ref().map(|filter| self.expr(filter)).transpose()?,
            recursive: s.recursive,
            body: self.body(&s.body)?,
            else_body: self.body(&s.else_body)?,
        })
    }

    fn if_cond(&mut self, s: &Spanned<ast::IfCond<'s>>) -> Result<ast::IfCond<'s>, Error> {
        Ok(ast::IfCond {
            expr: self.expr(&s.expr)?,
            true_body: self.body(&s.true_body)?,
            false_body: self.body(&s.false_body)?,
        })
    }

    fn chain(&mut self, e: &Spanned<ast::Compare<'s>>) -> Result<Expr<'s>, Error> {
        if e.ops.len() > MAX_COMPARISONS {
            return Err(Error::new(ErrorKind::SyntaxError, "too many chained comparisons"));
        }
        let mut args = Vec::with_capacity(2 * e.ops.len());
        for op in &e.ops {
            args.push(constant(operator(op.op), e.span()));
            args.push(self.expr(&op.expr)?);
        }
        Ok(apply(COMPARE, self.expr(&e.expr)?, args, e.span()))
    }

    /// Moves the defaults of parameters into the body, where they can refer to preceding parameters.
    fn macro_decl(&mut self, s: &Spanned<ast::Macro<'s>>) -> Result<ast::Macro<'s>, Error> {
        let args = s.args.iter().map(target_of).collect::<Result<Vec<_>, _>>()?;
        let n_params = self.params.len();
        self.n_macros += 1;
        self.params.extend(s.args.iter().filter_map(|arg| match arg {
            Expr::Var(var) => Some(var.id),
            _ => None,
        }));
        let n_required = s.args.len().saturating_sub(s.defaults.len());
        let mut body = Vec::with_capacity(s.body.len() + s.defaults.len());
        for (arg, default) in s.args[n_required..].iter().zip(&s.defaults) {
            let span = default.span();
            let test = ast::Test {
                name: "undefined",
                expr: target_of(arg)?,
                args: Vec::new(),
            };
            let set = ast::Set {
                target: target_of(arg)?,
                expr: self.expr(default)?,
            };
            let cond = ast::IfCond {
                expr: Expr::Test(Spanned::new(test, span)),
                true_body: vec![Stmt::Set(Spanned::new(set, span))],
                false_body: Vec::new(),
            };
            body.push(Stmt::IfCond(Spanned::new(cond, span)));
        }
        body.extend(self.body(&s.body)?);
        self.params.truncate(n_params);
        self.n_macros -= 1;
        Ok(ast::Macro {
            name: s.name,
            args,
            defaults: Vec::new(),
            body,
        })
    }

    fn optional(&mut self, expr: Option<&Expr<'s>>, span: Span) -> Result<Expr<'s>, Error> {
        expr.map_or_else(|| Ok(constant((), span)), |expr| self.expr(expr))
    }

    fn expr(&mut self, expr: &Expr<'s>) -> Result<Expr<'s>, Error> {
        self.nested(|lower| lower.expr_of(expr))
    }

    fn expr_of(&mut self, expr: &Expr<'s>) -> Result<Expr<'s>, Error> {
        let span = expr.span();
        Ok(match expr {
            Expr::Var(e) if self.n_macros > 0 && is_rest(e.id) && !self.params.contains(&e.id) => {
                return Err(unsupported("`varargs` and `kwargs` of macros"));
            }
            Expr::Var(e) => Expr::Var(Spanned::new(ast::Var { id: e.id }, span)),
            Expr::Const(e) => constant(self.value(&e.value, span)?, span),
            Expr::Slice(e) => {
                let bounds = [&e.start, &e.stop, &e.step];
                let bounds = bounds.map(|bound| self.optional(bound.as_ref(), span));
                let bounds = bounds.into_iter().collect::<Result<_, _>>()?;
                apply(SLICE, self.expr(&e.expr)?, bounds, span)
            }
            Expr::UnaryOp(e) => self.unary(e)?,
            Expr::BinOp(e) => self.binary(e)?,
            Expr::Compare(e) => self.chain(e)?,
            Expr::IfExpr(e) => {
                let cond = ast::IfExpr {
                    test_expr: self.expr(&e.test_expr)?,
                    true_expr: self.expr(&e.true_expr)?,
                    false_expr: e.false_expr.as_ref().map(|other| self.expr(other)).transpose()?,
                };
                Expr::IfExpr(Spanned::new(cond, span))
            }
            Expr::Filter(e) => {
                let filter = ast::Filter {
                    name: e.name,
                    expr: e.expr.as_ref().map(|value| self.expr(value)).transpose()?,
                    args: self.args(&e.args)?,
                };
                Expr::Filter(Spanned::new(filter, span))
            }
            Expr::Test(e) => {
                let (expr, args) = (self.expr(&e.expr)?, self.args(&e.args)?);
                let name = e.name;
                Expr::Test(Spanned::new(ast::Test { name, expr, args }, span))
            }
            Expr::GetAttr(e) if is_method(e.name) => {
                apply(ATTRIBUTE, self.expr(&e.expr)?, vec![constant(e.name, span)], span)
            }
            Expr::GetAttr(e) => {
                let (expr, name) = (self.expr(&e.expr)?, e.name);
                Expr::GetAttr(Spanned::new(ast::GetAttr { expr, name }, span))
            }
            Expr::GetItem(e) => {
                let key = self.expr(&e.subscript_expr)?;
                apply(ITEM, self.expr(&e.expr)?, vec![key], span)
            }
            Expr::Call(e) => Expr::Call(Spanned::new(self.call(e)?, span)),
            Expr::List(e) => {
                let items = self.exprs(&e.items)?;
                let list = Expr::List(Spanned::new(ast::List { items }, span));
                apply(FRESH, list, Vec::new(), span)
            }
            Expr::Tuple(e) => {
                let items = self.exprs(&e.items)?;
                let tuple = Expr::Tuple(Spanned::new(ast::Tuple { items }, span));
                apply(READ, tuple, Vec::new(), span)
            }
            Expr::Map(e) => {
                let (keys, values) = (self.exprs(&e.keys)?, self.exprs(&e.values)?);
                let map = Expr::Map(Spanned::new(ast::Map { keys, values }, span));
                apply(FRESH, map, Vec::new(), span)
            }
        })
    }

    fn exprs(&mut self, exprs: &[Expr<'s>]) -> Result<Vec<Expr<'s>>, Error> {
        // Calls and lists count their items with 16 bits.
        if exprs.len() > usize::from(u16::MAX) {
            return Err(Error::new(ErrorKind::SyntaxError, "too many items in a literal"));
        }
        exprs.iter().map(|expr| self.expr(expr)).collect()
    }

    /// Returns the value of a constant, with Python's escape sequences in strings.
    fn value(&self, value: &Value, span: Span) -> Result<Value, Error> {
        let raw = self.source.get(span.start_offset as usize..span.end_offset as usize);
        match (value.as_str(), raw) {
            (Some(_), Some(raw)) if raw.contains('\\') => unescaped(raw).map(Value::from),
            _ => Ok(value.clone()),
        }
    }

    fn unary(&mut self, e: &Spanned<ast::UnaryOp<'s>>) -> Result<Expr<'s>, Error> {
        let (expr, span) = (self.expr(&e.expr)?, e.span());
        Ok(match e.op {
            ast::UnaryOpKind::Neg => apply(NEG, expr, Vec::new(), span),
            ast::UnaryOpKind::Not => {
                let op = ast::UnaryOpKind::Not;
                Expr::UnaryOp(Spanned::new(ast::UnaryOp { op, expr }, span))
            }
        })
    }

    fn binary(&mut self, e: &Spanned<ast::BinOp<'s>>) -> Result<Expr<'s>, Error> {
        let (left, right, span) = (self.expr(&e.left)?, self.expr(&e.right)?, e.span());
        let compare = |op, left, right| apply(COMPARE, left, vec![constant(operator(op), span), right], span);
        let name = match e.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                let op = e.op;
                return Ok(Expr::BinOp(Spanned::new(ast::BinOp { op, left, right }, span)));
            }
            BinOpKind::Eq => return Ok(compare(CompareOpKind::Eq, left, right)),
            BinOpKind::Ne => return Ok(compare(CompareOpKind::Ne, left, right)),
            BinOpKind::Lt => return Ok(compare(CompareOpKind::Lt, left, right)),
            BinOpKind::Lte => return Ok(compare(CompareOpKind::Lte, left, right)),
            BinOpKind::Gt => return Ok(compare(CompareOpKind::Gt, left, right)),
            BinOpKind::Gte => return Ok(compare(CompareOpKind::Gte, left, right)),
            BinOpKind::In => return Ok(compare(CompareOpKind::In, left, right)),
            BinOpKind::Add => ADD,
            BinOpKind::Sub => SUB,
            BinOpKind::Mul => MUL,
            BinOpKind::Div => DIV,
            BinOpKind::FloorDiv => FLOOR_DIV,
            BinOpKind::Rem => REM,
            BinOpKind::Pow => POW,
            BinOpKind::Concat => CONCAT,
        };
        Ok(apply(name, left, vec![right], span))
    }

    fn call(&mut self, e: &Spanned<ast::Call<'s>>) -> Result<ast::Call<'s>, Error> {
        let span = e.span();
        let mut args = self.args(&e.args)?;
        let check = |arg: CallArg<'s>, name| match arg {
            CallArg::Pos(value) => CallArg::Pos(apply(name, value, Vec::new(), span)),
            other => other,
        };
        let expr = match &e.expr {
            // Arguments of a recursive loop and of `loop.changed` go to minijinja without another call.
            Expr::Var(var) if var.id == "loop" => {
                args = args.into_iter().map(|arg| check(arg, ITERATED)).collect();
                self.expr(&e.expr)?
            }
            Expr::GetAttr(attr) => {
                if matches!(&attr.expr, Expr::Var(var) if var.id == "self") {
                    return Err(unsupported("calls of blocks"));
                }
                if matches!(&attr.expr, Expr::Var(var) if var.id == "loop") {
                    args = args.into_iter().map(|arg| check(arg, READ)).collect();
                }
                // A call of a method needs no lookup of the method.
                let (expr, name) = (self.expr(&attr.expr)?, attr.name);
                Expr::GetAttr(Spanned::new(ast::GetAttr { expr, name }, attr.span()))
            }
            Expr::Var(var) if var.id == "super" => return Err(unsupported("calls of blocks")),
            other => self.expr(other)?,
        };
        Ok(ast::Call { expr, args })
    }

    fn args(&mut self, args: &[CallArg<'s>]) -> Result<Vec<CallArg<'s>>, Error> {
        let mut lower = |arg: &CallArg<'s>| {
            Ok(match arg {
                CallArg::Pos(value) => CallArg::Pos(self.expr(value)?),
                CallArg::Kwarg(name, value) => CallArg::Kwarg(name, self.expr(value)?),
                CallArg::PosSplat(value) => {
                    CallArg::PosSplat(apply(SPREAD, self.expr(value)?, Vec::new(), value.span()))
                }
                CallArg::KwargSplat(value) => {
                    CallArg::KwargSplat(apply(SPREAD, self.expr(value)?, Vec::new(), value.span()))
                }
            })
        };
        args.iter().map(&mut lower).collect()
    }
}

/// Returns true for the names of further arguments in Jinja's macros.
fn is_rest(name: &str) -> bool {
    matches!(name, "varargs" | "kwargs")
}

/// Copies the target of an assignment.
fn target_of<'s>(target: &Expr<'s>) -> Result<Expr<'s>, Error> {
    let span = target.span();
    Ok(match target {
        Expr::Var(e) => Expr::Var(Spanned::new(ast::Var { id: e.id }, span)),
        Expr::GetAttr(e) => {
            let (expr, name) = (target_of(&e.expr)?, e.name);
            Expr::GetAttr(Spanned::new(ast::GetAttr { expr, name }, span))
        }
        Expr::List(e) => {
            let items = e.items.iter().map(target_of).collect::<Result<_, _>>()?;
            Expr::List(Spanned::new(ast::List { items }, span))
        }
        _ => return Err(unsupported("assignments to expressions")),
    })
}

/// Returns the symbol of a comparison.
fn operator(op: CompareOpKind) -> &'static str {
    match op {
        CompareOpKind::Eq => "==",
        CompareOpKind::Ne => "!=",
        CompareOpKind::Lt => "<",
        CompareOpKind::Lte => "<=",
        CompareOpKind::Gt => ">",
        CompareOpKind::Gte => ">=",
        CompareOpKind::In => "in",
        CompareOpKind::NotIn => "not in",
    }
}
