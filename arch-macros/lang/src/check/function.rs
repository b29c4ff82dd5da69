//! Calls of functions of the declaration or a fragment. The body is checked at every call, with the shapes of
//! the arguments.

use std::collections::HashSet;

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{Expr, ExprIf};

use super::expr::{Lowered, plural};
use super::scopes::Scopes;
use super::{Bound, Checker, VarSym};
use crate::ast::{self, Function, Opt, Parameter};
use crate::diag::Errors;
use crate::forward;
use crate::limits::{MAX_NESTING, MAX_TOKENS, n_substituted};
use crate::model::{self, Block, Callee, Operand, SCALAR_FNS, Stmt, Value, ValueKind, VarId};
use crate::names::Names;
use crate::ops;
use crate::options;
use crate::parse::{block_of, plain_name, statements};
use crate::source::Range;

/// Parameters of a function with their arguments.
type Params = Vec<(VarId, Operand)>;

/// A call of a graph function.
struct Call<'a> {
    f: &'a Function,
    /// Name of the function at the call site.
    name: &'a Ident,
    /// Body of the function after the options are substituted.
    body: &'a ast::BlockSyntax,
    /// Values of the caller that the options refer to.
    visible: &'a [(String, VarId)],
}

/// The functions that a declaration can call, in order.
#[derive(Default)]
pub(super) struct FunctionList {
    functions: Vec<Function>,
    names: Names,
}

impl FunctionList {
    fn push(&mut self, function: Function) {
        self.names.add(&function.name.to_string(), self.functions.len());
        self.functions.push(function);
    }

    /// Returns the first function with a name.
    pub(super) fn find(&self, name: &str) -> Option<&Function> {
        self.names.first(name).map(|at| &self.functions[at])
    }

    /// Iterates over all functions.
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Function> {
        self.functions.iter()
    }
}

impl Checker<'_> {
    /// Registers the functions, except those whose names are already taken.
    pub(super) fn declare_functions(&mut self, functions: &[Function]) {
        for f in functions {
            let text = f.name.to_string();
            if ops::find(&text).is_some() {
                self.errors.at(&f.name, format!("`{text}` is the name of an operation"));
            } else if self.functions.find(&text).is_some() {
                self.errors
                    .at(&f.name, format!("`{text}` is already the name of a function"));
            } else if self.can_name(&f.name) {
                self.functions.push(f.clone());
            }
        }
    }

    /// Adds the function `layer(x)` for `mtp { … }`. It computes one iteration of the graph's layer loop.
    /// Graphs with several layer loops, or with several loop-carried values, have no such function.
    pub(super) fn layer_function(&mut self, decl: &ast::Decl) {
        let (Some(_), Some(graph)) = (&decl.mtp, &decl.graph) else {
            return;
        };
        let mut loops = graph.body.stmts.iter().filter_map(|stmt| match stmt {
            ast::StmtSyntax::For(each) if each.name.as_ref().is_some_and(|name| name == "layer") => Some(each),
            _ => None,
        });
        let (Some(each), None) = (loops.next(), loops.next()) else {
            return;
        };
        let mut carried = Vec::new();
        assigned(&each.body.stmts, &mut carried, self.errors);
        let [x] = &carried[..] else { return };
        let tokens = &each.tokens;
        self.functions.push(Function {
            name: Ident::new("layer", each.span),
            params: vec![Parameter {
                name: x.clone(),
                shape: None,
            }],
            options: Vec::new(),
            forwards: false,
            body: quote!(#tokens #x),
            inherited: true,
        });
    }

    /// Checks a call such as `swiglu(h, act = gelu)`.
    pub(super) fn function_call(&mut self, f: Function, name: &Ident, args: &[&Expr]) -> Option<Value> {
        let body = f.body.clone();
        let value = self.inline(f, name, args);
        if value.is_none() && self.mentioned.insert(name.to_string()) {
            // Do not also report the names in the body as unused.
            self.mention(body);
        }
        value
    }

    fn inline(&mut self, f: Function, name: &Ident, args: &[&Expr]) -> Option<Value> {
        let text = name.to_string();
        self.called.insert(text.clone());
        if self.inside.contains(&text) {
            return self.error(name, format!("recursive call of `{text}`"));
        }
        if self.inside.len() >= MAX_NESTING {
            return self.error(name, "functions are nested too deeply");
        }
        let (by_name, by_position): (Vec<&Expr>, Vec<&Expr>) = args.iter().partition(|e| matches!(e, Expr::Assign(_)));
        let operands: Vec<_> = by_position.iter().map(|e| self.expr(e)).collect();
        if operands.len() != f.params.len() {
            let wanted: Vec<String> = f.params.iter().map(|p| format!("`{}`", p.name)).collect();
            let (n, list) = (plural(f.params.len(), "argument"), wanted.join(", "));
            return self.error(name, format!("`{text}` takes {n} ({list}), found {}", operands.len()));
        }
        let mut options = Vec::new();
        for arg in by_name {
            let Expr::Assign(pair) = arg else { continue };
            let Some(key) = plain_name(&pair.left) else {
                return self.error(&pair.left, "expected `name = value`");
            };
            options.push((key, pair.right.to_token_stream()));
        }
        let given = self.bound_options(&f, &options)?;
        self.admit(&f.body, &given, name)?;
        let body = self.with_options(&f, &options, &given);
        let operands: Vec<Lowered> = operands.into_iter().collect::<Option<_>>()?;
        let body = statements(body, f.name.span(), self.errors);
        let visible = self.visible_to(&options);
        self.shadows_nothing(&f, &visible, &by_position, name)?;
        self.shapes_fit(&f, &given, &visible, &operands, &by_position)?;
        let call = Call {
            f: &f,
            name,
            body: &body,
            visible: &visible,
        };
        let (params, stmts, result) = self.body(&call, operands)?;
        let shape = result.shape.clone();
        let block = Block {
            stmts,
            result: Some(result),
        };
        let is_own = |key: &Ident| f.options.iter().any(|o| o.name == *key);
        let callee = Callee {
            called: name.clone(),
            options: options.into_iter().map(|(key, _)| key).filter(is_own).collect(),
            elsewhere: f.inherited.then(|| f.name.span()),
        };
        let kind = ValueKind::Call(Some(callee), params, Box::new(block));
        Some(Value { kind, shape })
    }

    /// Reports values and parameters of a function that would shadow values in its options.
    fn shadows_nothing(
        &mut self,
        f: &Function,
        visible: &[(String, VarId)],
        by_position: &[&Expr],
        name: &Ident,
    ) -> Option<()> {
        let mut bound = HashSet::new();
        if !visible.is_empty() {
            bindings(f.body.clone(), &mut bound);
        }
        for (hidden, _) in visible {
            if bound.contains(hidden) {
                let message =
                    format!("`{name}` defines a value `{hidden}`, which would shadow yours; rename your value");
                return self.error(name, message);
            }
        }
        let hidden: HashSet<&str> = visible.iter().map(|(name, _)| name.as_str()).collect();
        for (Parameter { name: p, .. }, given) in f.params.iter().zip(by_position) {
            if hidden.contains(p.to_string().as_str()) && plain_name(given).as_ref() != Some(p) {
                let message =
                    format!("`{name}` has a parameter `{p}`, which would shadow your value; rename your value");
                return self.error(name, message);
            }
        }
        Some(())
    }

    /// Counts the tokens of an inlined body, so that calls of calls cannot grow without a bound.
    pub(super) fn admit(&mut self, body: &TokenStream, given: &options::Bindings, at: &Ident) -> Option<()> {
        let n = n_substituted(body, given).unwrap_or(usize::MAX);
        self.n_inlined = self.n_inlined.saturating_add(n);
        if self.n_inlined > MAX_TOKENS {
            return self.error(
                at,
                format!("the calls of functions expand to more than {MAX_TOKENS} tokens"),
            );
        }
        Some(())
    }

    /// Checks the body of a function with its parameters bound to `operands`.
    fn body(&mut self, call: &Call<'_>, operands: Vec<Lowered>) -> Option<(Params, Vec<Stmt>, Value)> {
        let outer = std::mem::replace(&mut self.scopes, Scopes::of(call.visible));
        self.scopes.enter();
        let params: Params = call
            .f
            .params
            .iter()
            .zip(operands)
            .map(|(p, o)| self.bind_param(&p.name, o))
            .collect();
        self.enter(call.name);
        let n_blocks = std::mem::take(&mut self.n_blocks);
        let done = self.value_block(call.body);
        self.n_blocks = n_blocks;
        self.leave();
        if call.f.inherited {
            self.allow_unused(&params);
        }
        self.leave_scope();
        self.scopes = outer;
        let (stmts, result) = done?;
        match result {
            Lowered::Tensor(result) => Some((params, stmts, result)),
            Lowered::Scalar(_) => self.error(call.name, format!("function `{}` must return a tensor", call.name)),
        }
    }

    /// Enters the function `name`: later errors are reported relative to this call.
    fn enter(&mut self, name: &Ident) {
        self.inside.push(name.to_string());
        self.errors.enter_call(Range::of(name));
    }

    fn leave(&mut self) {
        self.inside.pop();
        self.errors.leave_call();
    }

    /// Binds the arguments of a call to the function's options, followed by the options that it forwards.
    fn bound_options(&mut self, f: &Function, args: &[(Ident, TokenStream)]) -> Option<options::Bindings> {
        let mut known = f.options.clone();
        if f.forwards {
            let passed_on = self.passed_on(f, &mut Vec::new());
            known.extend(passed_on.iter().map(|name| Opt {
                name: Ident::new(name, f.name.span()),
                default: None,
            }));
        }
        options::bind(&f.name.to_string(), &known, args, self.errors)
    }

    /// Returns the body with the call's options substituted.
    fn with_options(&self, f: &Function, args: &[(Ident, TokenStream)], given: &options::Bindings) -> TokenStream {
        if !f.forwards {
            return self.put_in(f.body.clone(), given.clone());
        }
        let (own, passed_on) = given.split_at(f.options.len());
        let given_as = |(name, _): &(String, _)| args.iter().find(|(key, _)| key == name).cloned();
        let rest: Vec<(Ident, TokenStream)> = passed_on.iter().filter_map(given_as).collect();
        let body = forward::fill(f.body.clone(), &rest, &|callee| self.taken_by(callee, &mut Vec::new()));
        self.put_in(body, [own, &forward::placeholders(&rest)].concat())
    }

    /// Substitutes options in the body. An option that computes a tensor and is used more than once is bound once
    /// before the body. Otherwise, `attention` would store its keys and values twice.
    fn put_in(&self, body: TokenStream, mut given: options::Bindings) -> TokenStream {
        let mut first = TokenStream::new();
        let counts = options::counts(&body);
        for (name, value) in &mut given {
            let is_repeated = counts.get(name).is_some_and(|&n| n > 1);
            let Some(tokens) = value.take_if(|v| is_repeated && self.computes(v.clone())) else {
                continue;
            };
            let at = Range::of(&tokens).start;
            let once = Ident::new(&format!("{}_given", name.trim_start_matches('_')), at);
            first.extend(quote!(let #once = #tokens;));
            *value = Some(once.to_token_stream());
        }
        let body = options::substitute(body, &given);
        quote!(#first #body)
    }

    /// Returns true if the expression calls an operation, a function, or a tensor.
    fn computes(&self, value: TokenStream) -> bool {
        if matches!(syn::parse2(value.clone()), Ok(Expr::If(branch)) if branch.else_branch.is_none()) {
            return false;
        }
        let tokens: Vec<TokenTree> = value.into_iter().collect();
        let calls = tokens.windows(2).any(|pair| match pair {
            [TokenTree::Ident(name), TokenTree::Group(g)] if g.delimiter() == Delimiter::Parenthesis => {
                let text = name.to_string();
                let of_numbers = SCALAR_FNS.iter().any(|f| f.name == text);
                let is_function = || self.functions.find(&text).is_some();
                !of_numbers && (ops::find(&text).is_some() || is_function() || self.find_tensor(&text).is_some())
            }
            _ => false,
        });
        let inner = |t: &TokenTree| matches!(t, TokenTree::Group(g) if self.computes(g.stream()));
        calls || tokens.iter().any(inner)
    }

    /// Returns the options that a function with `..` forwards: the options of its calls with `..`, except its own
    /// parameters.
    fn passed_on(&self, f: &Function, inside: &mut Vec<String>) -> Vec<String> {
        let mut names = forward::names(&f.body, &mut |callee| self.taken_by(callee, inside));
        names.retain(|n| !f.options.iter().any(|o| o.name == n));
        names
    }

    /// Returns the named parameters of an operation or function. `inside` lists the functions being visited.
    fn taken_by(&self, callee: &str, inside: &mut Vec<String>) -> Vec<String> {
        if let Some(names) = self.taken.borrow().get(callee) {
            return names.clone();
        }
        if let Some(f) = self.functions.find(callee) {
            let mut names: Vec<String> = f.options.iter().map(|o| o.name.to_string()).collect();
            if f.forwards && !inside.iter().any(|n| n == callee) {
                inside.push(callee.to_owned());
                names.extend(self.passed_on(f, inside));
                inside.pop();
                // Without this memo, nested calls would visit a function many times.
                self.taken.borrow_mut().insert(callee.to_owned(), names.clone());
            }
            return names;
        }
        let by_name = |p: &&ops::Param| matches!(p.given, ops::Given::Keyword | ops::Given::OptionalKeyword);
        let params = ops::find(callee).map_or(&[][..], |op| op.params);
        params.iter().filter(by_name).map(|p| p.name.to_owned()).collect()
    }

    /// Marks the parameters as used: a replacement of an inherited function may ignore some of them.
    fn allow_unused(&mut self, params: &[(VarId, Operand)]) {
        for (VarId(id), _) in params {
            let var = &mut self.vars[*id];
            if !var.used {
                var.used = true;
                var.name = Ident::new(&format!("_{}", var.name), var.name.span());
            }
        }
    }

    fn bind_param(&mut self, name: &Ident, operand: Lowered) -> (VarId, Operand) {
        let var = VarId(self.vars.len());
        let (bound, operand) = match operand {
            Lowered::Tensor(v) => (Bound::Tensor(v.shape.clone()), Operand::Tensor(v)),
            Lowered::Scalar(s) => (Bound::Scalar(s.clone()), Operand::Scalar(s)),
        };
        self.vars.push(VarSym {
            name: name.clone(),
            bound,
            used: false,
            assigned: false,
            condition: None,
        });
        self.scopes.bind(&name.to_string(), var);
        (var, operand)
    }

    /// Returns the names of all functions.
    pub(super) fn function_names(&self) -> Vec<model::FunctionNames> {
        let names = |f: &Function| {
            let options: Vec<Ident> = f.options.iter().map(|o| o.name.clone()).collect();
            let uses = if f.inherited {
                Vec::new()
            } else {
                options::uses(&f.body, &|word| options.contains(word))
            };
            model::FunctionNames {
                name: f.name.clone(),
                options,
                uses,
            }
        };
        self.functions.iter().map(names).collect()
    }

    /// Returns the caller's values that the options refer to. A function cannot access other values of its caller.
    fn visible_to(&self, options: &[(Ident, TokenStream)]) -> Vec<(String, VarId)> {
        let mut names = Vec::new();
        options.iter().for_each(|(_, value)| words(value.clone(), &mut names));
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        let found = names.into_iter().filter_map(|n| self.find_var(&n).map(|id| (n, id)));
        found.collect()
    }
}

/// Collects the names that statements assign to without binding them.
fn assigned(stmts: &[ast::StmtSyntax], names: &mut Vec<Ident>, errors: &mut Errors) {
    let mut bound: Vec<&Ident> = Vec::new();
    for stmt in stmts {
        match stmt {
            ast::StmtSyntax::Let { name, .. } => bound.push(name),
            ast::StmtSyntax::Assign { name, .. } if !bound.contains(&name) && !names.contains(name) => {
                names.push(name.clone());
            }
            ast::StmtSyntax::Assign { .. } => {}
            ast::StmtSyntax::If(branch) => {
                let mut inner = Vec::new();
                assigned_in_if(branch, &mut inner, errors);
                inner.retain(|name| !bound.contains(&name) && !names.contains(name));
                names.extend(inner);
            }
            ast::StmtSyntax::For(each) => assigned(&each.body.stmts, names, errors),
        }
    }
}

fn assigned_in_if(branch: &ExprIf, names: &mut Vec<Ident>, errors: &mut Errors) {
    assigned(&block_of(&branch.then_branch, errors).stmts, names, errors);
    match branch.else_branch.as_ref().map(|(_, e)| &**e) {
        Some(Expr::Block(b)) => assigned(&block_of(&b.block, errors).stmts, names, errors),
        Some(Expr::If(nested)) => assigned_in_if(nested, names, errors),
        _ => {}
    }
}

/// Collects the names of all statements `let name = …`.
fn bindings(tokens: TokenStream, names: &mut HashSet<String>) {
    let mut after_let = false;
    for token in tokens {
        match token {
            TokenTree::Group(g) => bindings(g.stream(), names),
            TokenTree::Ident(word) => {
                if after_let {
                    names.insert(word.to_string());
                }
                after_let = word == "let";
            }
            _ => {}
        }
    }
}

/// Collects all identifiers among the tokens.
fn words(tokens: TokenStream, out: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(g) => words(g.stream(), out),
            TokenTree::Ident(name) => out.push(name.to_string()),
            _ => {}
        }
    }
}
