//! Parses the statements of a graph: loops, `let`, assignments, conditions, and the result.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::parse::{ParseStream, Parser};
use syn::{BinOp, Expr, ExprIf, Token, braced};

use super::{items, plain_name, word};
use crate::ast::{BlockSyntax, For, StmtSyntax};
use crate::diag::Errors;

fn for_loop(input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<For> {
    let span = input.parse::<Token![for]>()?.span;
    let (name, end) = if input.peek(Token![_]) {
        (None, input.parse::<Token![_]>()?.span)
    } else {
        let name = word(input, "`layer`, a group of layers, or the name of a loop variable")?;
        let end = name.span();
        (Some(name), end)
    };
    let range = if input.peek(Token![in]) {
        input.parse::<Token![in]>()?;
        match input.call(Expr::parse_without_eager_brace)? {
            Expr::Range(syn::ExprRange {
                start: Some(from),
                limits: syn::RangeLimits::HalfOpen(_),
                end: Some(to),
                ..
            }) => Some((*from, *to)),
            other => return Err(syn::Error::new_spanned(other, "expected a range `a..b`")),
        }
    } else {
        None
    };
    let tokens = input.fork().parse::<proc_macro2::Group>()?.stream();
    let body = graph_block(input, errors)?;
    Ok(For {
        span: span.join(end).unwrap_or(span),
        name,
        range,
        body,
        tokens,
    })
}

pub(super) fn graph_block(input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<BlockSyntax> {
    let content;
    let brace = braced!(content in input);
    let mut block = BlockSyntax {
        stmts: Vec::new(),
        result: None,
        end: brace.span.close(),
    };
    items(&content, errors, |input, errors| {
        if let Some(result) = &block.result {
            return Err(syn::Error::new(
                syn::spanned::Spanned::span(result),
                "expected `;` after this expression",
            ));
        }
        graph_item(input, &mut block, errors)
    });
    Ok(block)
}

/// Parses statements and their result, without the enclosing braces.
pub fn statements(tokens: TokenStream, end: Span, errors: &mut Errors) -> BlockSyntax {
    let mut group = proc_macro2::Group::new(proc_macro2::Delimiter::Brace, tokens);
    group.set_span(end);
    let parser = |input: ParseStream<'_>| graph_block(input, &mut *errors);
    match parser.parse2(group.into_token_stream()) {
        Ok(block) => block,
        Err(e) => {
            errors.syntax(&e);
            BlockSyntax {
                stmts: Vec::new(),
                result: None,
                end,
            }
        }
    }
}

fn graph_item(input: ParseStream<'_>, block: &mut BlockSyntax, errors: &mut Errors) -> syn::Result<()> {
    if input.peek(Token![for]) {
        block.stmts.push(StmtSyntax::For(Box::new(for_loop(input, errors)?)));
    } else if input.peek(Token![let]) {
        input.parse::<Token![let]>()?;
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        let value = input.parse()?;
        input.parse::<Token![;]>()?;
        block.stmts.push(StmtSyntax::Let { name, value });
    } else if input.peek(Token![if]) {
        let branch: ExprIf = input.parse()?;
        if input.is_empty() && yields(&branch.then_branch) {
            block.result = Some(Expr::If(branch));
        } else {
            if input.peek(Token![;]) {
                input.parse::<Token![;]>()?;
            }
            block.stmts.push(StmtSyntax::If(branch));
        }
    } else {
        let expr: Expr = input.parse()?;
        let ended = input.peek(Token![;]);
        if ended {
            input.parse::<Token![;]>()?;
        } else if !input.is_empty() {
            return Err(input.error("expected `;`"));
        }
        push_expr(expr, ended, block)?;
    }
    Ok(())
}

/// Adds an expression to the block as an assignment or as the result.
fn push_expr(expr: Expr, ended: bool, block: &mut BlockSyntax) -> syn::Result<()> {
    let assignment = match &expr {
        Expr::Assign(a) => Some((&a.left, None, &a.right)),
        Expr::Binary(b) => match b.op {
            BinOp::AddAssign(_) | BinOp::SubAssign(_) | BinOp::MulAssign(_) | BinOp::DivAssign(_) => {
                Some((&b.left, Some(b.op), &b.right))
            }
            _ => None,
        },
        _ => None,
    };
    if let Some((left, op, value)) = assignment {
        let name = plain_name(left)
            .ok_or_else(|| syn::Error::new_spanned(left, "the left side of an assignment must be a plain name"))?;
        block.stmts.push(StmtSyntax::Assign {
            name,
            op,
            value: (**value).clone(),
        });
        return Ok(());
    }
    if ended {
        let message = "unused value; bind it with `let`, or remove the `;` if it is the result";
        return Err(syn::Error::new_spanned(&expr, message));
    }
    block.result = Some(expr);
    Ok(())
}

/// Returns true if a block ends in a value.
fn yields(block: &syn::Block) -> bool {
    match block.stmts.last() {
        Some(syn::Stmt::Expr(Expr::If(inner), None)) => yields(&inner.then_branch),
        Some(syn::Stmt::Expr(Expr::Assign(_), None)) => false,
        Some(syn::Stmt::Expr(_, None)) => true,
        Some(syn::Stmt::Macro(m)) => m.semi_token.is_none(),
        _ => false,
    }
}

/// Converts a block that `syn` parsed inside an expression to statements.
pub fn block_of(block: &syn::Block, errors: &mut Errors) -> BlockSyntax {
    let mut out = BlockSyntax {
        stmts: Vec::new(),
        result: None,
        end: block.brace_token.span.close(),
    };
    for (i, stmt) in block.stmts.iter().enumerate() {
        let last = i + 1 == block.stmts.len();
        if let Err(e) = nested_stmt(stmt, last, &mut out) {
            errors.syntax(&e);
        }
    }
    out
}

fn nested_stmt(stmt: &syn::Stmt, last: bool, out: &mut BlockSyntax) -> syn::Result<()> {
    match stmt {
        syn::Stmt::Local(local) => {
            let (syn::Pat::Ident(name), Some(init)) = (&local.pat, &local.init) else {
                return Err(syn::Error::new_spanned(&local.pat, "expected `let name = value;`"));
            };
            out.stmts.push(StmtSyntax::Let {
                name: name.ident.clone(),
                value: (*init.expr).clone(),
            });
            Ok(())
        }
        syn::Stmt::Expr(Expr::If(branch), semi) => {
            if last && semi.is_none() && yields(&branch.then_branch) {
                out.result = Some(Expr::If(branch.clone()));
            } else {
                out.stmts.push(StmtSyntax::If(branch.clone()));
            }
            Ok(())
        }
        syn::Stmt::Expr(expr, semi) => push_expr(expr.clone(), semi.is_some(), out),
        syn::Stmt::Macro(m) => {
            let expr = Expr::Macro(syn::ExprMacro {
                attrs: Vec::new(),
                mac: m.mac.clone(),
            });
            push_expr(expr, m.semi_token.is_some(), out)
        }
        syn::Stmt::Item(item) => Err(syn::Error::new_spanned(item, "Rust items are not allowed in a graph")),
    }
}
