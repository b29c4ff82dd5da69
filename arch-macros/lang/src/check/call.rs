//! Calls of projections, table operations, and `has`; row lookups, and slices.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{BinOp, Expr, ExprCall, ExprIf, ExprIndex};

use super::expr::{Lowered, derived, plural};
use super::{Bound, Checker, Place, facts};
use crate::builtins::{self, Ty};
use crate::diag::{did_you_mean, nearest};
use crate::model::{
    Arg, Kind, ListFn, Named, Operation, RopeKind, RowsBy, SCALAR_FNS, Scalar, ScalarKind, Tensor, Value, ValueKind,
};
use crate::ops::{self, Call, Given, OPS, OpOperand, OpSpec, Param, ParamKind, WINDOWS};
use crate::parse::{bare, plain_name};
use crate::source::Range;
use crate::sym::{Dim, Shape};

impl Checker<'_> {
    pub(super) fn call(&mut self, call: &ExprCall) -> Option<Lowered> {
        let Some(name) = plain_name(&call.func) else {
            return self.error(&call.func, "expected the name of a tensor or operation");
        };
        let args: Vec<&Expr> = call.args.iter().collect();
        if name == "has" {
            return self.has(&name, &args).map(Lowered::Scalar);
        }
        if name == "given" {
            return self.given(&name, &args).map(Lowered::Scalar);
        }
        if name == "file_rows" {
            return self.file_rows(&name, &args).map(Lowered::Scalar);
        }
        if name == "model_is" {
            return self.model_is(&name, &args).map(Lowered::Scalar);
        }
        if !self.place.is_graph()
            && let Some(f) = ListFn::named(&name.to_string())
        {
            return self.unbound_list_call(f, &name);
        }
        if SCALAR_FNS.iter().any(|f| name == f.name)
            && (ops::find(&name.to_string()).is_none() || !self.place.is_graph())
        {
            return self.number_function(&name, &args);
        }
        if !self.place.is_graph() {
            let names = |_: &Self| SCALAR_FNS.iter().map(|f| f.name.to_string()).collect();
            return self.unknown(&name, "numeric function", names);
        }
        // A tensor that has an operation's name was reported earlier.
        if let Some(index) = self.find_tensor(&name.to_string())
            && ops::find(&name.to_string()).is_none()
        {
            return self.apply(index, &name, &args).map(Lowered::Tensor);
        }
        if let Some(function) = self.functions.find(&name.to_string()) {
            return self.function_call(function.clone(), &name, &args).map(Lowered::Tensor);
        }
        let Some(op) = ops::find(&name.to_string()) else {
            return self.unknown_call(&name, &args);
        };
        // `sqrt` and `exp` are both numeric functions and tensor operations.
        if SCALAR_FNS.iter().any(|f| name == f.name)
            && let [arg] = args[..]
        {
            return match self.expr(arg)? {
                Lowered::Scalar(s) => self
                    .scalar_call(&name, &[Lowered::Scalar(s)], &args)
                    .map(Lowered::Scalar),
                Lowered::Tensor(x) => {
                    let shape = x.shape.clone();
                    Some(Lowered::Tensor(Value {
                        kind: ValueKind::Op(Operation::new(op, name.span()), vec![Arg::Tensor(x)]),
                        shape,
                    }))
                }
            };
        }
        self.op_call(op, &name, &args).map(Lowered::Tensor)
    }

    fn number_function(&mut self, name: &Ident, args: &[&Expr]) -> Option<Lowered> {
        let lowered: Vec<_> = args.iter().map(|a| self.scalar(a).map(Lowered::Scalar)).collect();
        let lowered = lowered.into_iter().collect::<Option<Vec<_>>>()?;
        self.scalar_call(name, &lowered, args).map(Lowered::Scalar)
    }

    /// Reports a call of an undeclared name.
    fn unknown_call(&mut self, name: &Ident, args: &[&Expr]) -> Option<Lowered> {
        self.look_into(args);
        if let Some(f) = ListFn::named(&name.to_string()) {
            return self.unbound_list_call(f, name);
        }
        if self.find_var(&name.to_string()).is_some() {
            return self.error(
                name,
                format!(
                    "`{name}` is a computed value, not a tensor or operation; only tensors and operations can be called"
                ),
            );
        }
        self.unknown_callee = true;
        let near = self.errors.nearest(&name.to_string(), || self.callees());
        if let Some(near) = near {
            self.mention(Ident::new(&near, name.span()).to_token_stream());
        }
        self.unknown(name, "operation or tensor", Self::callees)
    }

    /// Returns all names that can be called.
    fn callees(&self) -> Vec<String> {
        let mut names: Vec<String> = ops::all().map(|o| o.name.to_string()).collect();
        names.extend(SCALAR_FNS.iter().map(|f| f.name.to_string()));
        names.extend(self.tensors.iter().map(|t| t.tensor.name.to_string()));
        names.extend(self.functions.iter().map(|f| f.name.to_string()));
        names
    }

    /// Returns the names of the tensors that match.
    pub(super) fn tensors_named(&self, is: impl Fn(&Tensor) -> bool) -> Vec<String> {
        let tensors = self.tensors.iter().map(|t| &t.tensor).filter(|t| is(t));
        tensors.map(|t| t.name.to_string()).collect()
    }

    /// Checks the calls inside the arguments of an unknown callee.
    fn look_into(&mut self, args: &[&Expr]) {
        for arg in args {
            if matches!(arg, Expr::Call(_) | Expr::Binary(_) | Expr::Index(_) | Expr::Paren(_)) {
                self.expr(arg);
            }
        }
    }

    /// Marks every known name among the tokens as used.
    pub(super) fn mention(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(g) => self.mention(g.stream()),
                TokenTree::Ident(name) => {
                    let name = name.to_string();
                    if let Some(id) = self.find_var(&name) {
                        self.vars[id.0].used = true;
                    } else if let Some(i) = self.find_tensor(&name) {
                        self.tensors[i].used = true;
                    } else if let Some(i) = self.find_hparam(&name) {
                        self.use_hparam(i);
                    } else if let Some(epsilon) = builtins::epsilon(&name) {
                        let i = self.epsilon(epsilon);
                        self.use_hparam(i);
                    } else if !self.called.contains(&name)
                        && let Some(f) = self.functions.find(&name)
                    {
                        let body = f.body.clone();
                        self.called.insert(name);
                        self.mention(body);
                    }
                }
                _ => {}
            }
        }
    }

    fn has(&mut self, at: &Ident, args: &[&Expr]) -> Option<crate::model::Scalar> {
        if self.place == Place::Hparams {
            return self.error(
                at,
                "`has` is not available in `hparams`: the tensors of the file are not known yet",
            );
        }
        let [arg] = args else {
            return self.error(at, "`has` takes exactly one optional tensor");
        };
        let Some(name) = plain_name(arg) else {
            return self.error(arg, "`has` takes the name of an optional tensor");
        };
        let Some(index) = self.find_tensor(&name.to_string()) else {
            return self.unknown(&name, "tensor", |c| c.tensors_named(Tensor::may_be_absent));
        };
        let tensor = &self.tensors[index].tensor;
        if !tensor.may_be_absent() {
            return self.error(
                &name,
                format!("`{name}` is always present; declare it as `{name}?:` if files may lack it"),
            );
        }
        let group = tensor.group;
        if self.place.is_graph() {
            self.allow_group(group, &name)?;
        } else if group.is_some() && group != self.group {
            return self.error(&name, format!("`{name}` belongs to another group of layers"));
        }
        let mut s = derived(ScalarKind::Has(name.clone()), Ty::Bool, format!("has({name})"), &[]);
        s.per_layer = group.is_some();
        Some(s)
    }

    /// Checks the projection `w(x)`.
    fn apply(&mut self, index: usize, name: &Ident, args: &[&Expr]) -> Option<Value> {
        if args.len() != 1 {
            self.look_into(args);
        }
        let x = match args {
            [x] => self.tensor(x),
            _ => self.error(
                name,
                format!(
                    "`{name}` is applied to 1 tensor, found {}",
                    plural(args.len(), "argument")
                ),
            ),
        };
        let present = self.use_tensor(index, name, false);
        let sym = &self.tensors[index];
        if sym.broken {
            return None;
        }
        let kind = *sym.tensor.kind;
        let how = match kind {
            Kind::Linear | Kind::PerHead => None,
            Kind::Embed if sym.tensor.or_more => Some("its number of rows depends on the file".to_owned()),
            Kind::Embed => None,
            Kind::Experts => Some("pass it to `moe`".to_string()),
            Kind::Norm | Kind::Vector => Some(format!(
                "use it as an operand (`x * {name}`) or as the weight of a norm (`rms_norm(x, {name})`)"
            )),
            Kind::Raw => Some(format!("use it as an operand: `x * {name}`")),
        };
        if let Some(how) = how {
            return self.error(
                name,
                format!("`{name}` is declared as `{}`, not as a projection; {how}", kind.name()),
            );
        }
        let (x, ()) = (x?, present?);
        let (input, output) = (sym.tensor.dims[0].clone(), sym.tensor.dims[1].clone());
        let shape = sym.tensor.shape_text.clone();
        if x.shape.dim(0) != input {
            let joined = x.shape.rank() == 3 && x.shape.dim(0).mul(&x.shape.dim(1)) == input;
            let hint = if joined {
                "; join the heads with `merge(…)`"
            } else {
                ""
            };
            let message = format!(
                "`{name}` expects input size {input}, found {} (declared as {shape}, applied to {}){hint}",
                x.shape.dim(0),
                x.shape
            );
            return self.error(name, message);
        }
        if let Some(n_head) = sym.tensor.dims.get(2)
            && (x.shape.rank() != 3 || x.shape.dim(1) != *n_head)
        {
            let message = format!("`{name}` expects [{input}, {n_head}, T], found {}", x.shape);
            return self.error(name, message);
        }
        let shape = x.shape.with_dim0(output);
        Some(Value {
            kind: ValueKind::Linear(Named::new(index, name.span()), Box::new(x)),
            shape,
        })
    }

    /// Checks a call of a table operation: binds the arguments to parameters, then applies the shape rule.
    fn op_call(&mut self, op: &'static OpSpec, name: &Ident, args: &[&Expr]) -> Option<Value> {
        let bound = self.bind(op, name, args);
        if bound.is_none() {
            self.look_into(args);
        }
        let mut given = Vec::new();
        let mut operands = Vec::new();
        let mut complete = bound.is_some();
        for (param, expr) in op.params.iter().zip(bound.unwrap_or_default()) {
            let (arg, mut operand) = match expr {
                None => (self.omitted(param, name.span()), OpOperand::default()),
                Some(expr) => match self.argument(op, param, expr) {
                    Some((arg, operand)) => (Some(arg), operand),
                    None => (None, OpOperand::default()),
                },
            };
            operand.at = expr.map_or_else(TokenStream::new, ToTokens::to_token_stream);
            complete &= arg.is_some();
            given.extend(arg);
            operands.push(operand);
        }
        if op.in_layer && self.place != Place::Loop {
            return self.error(
                name,
                format!(
                    "`{}` writes to the KV cache or state of a layer; call it inside `for layer`",
                    op.name
                ),
            );
        }
        let needs_pairing = op.rotates && !["rope_grid", "rope_time"].contains(&op.name);
        if needs_pairing && self.rope == Some(RopeKind::None) {
            // Report each operation only once.
            if !self.unknown_names.insert(op.name.to_owned()) {
                return None;
            }
            return self.error(
                name,
                format!(
                    "`{}` needs a pairing of dimensions; declare `rope: norm;` or `rope: neox;`",
                    op.name
                ),
            );
        }
        if !complete {
            return None;
        }
        self.without_bank(op, &operands, name)?;
        self.note_media_use(op, &given, name)?;
        let faults = self.errors.len();
        let mut call = Call {
            op,
            operands,
            at: name.to_token_stream(),
            multiples: &self.multiples,
            errors: self.errors,
        };
        let shape = (op.shape)(&mut call)?;
        if self.errors.len() > faults {
            return None;
        }
        let operation = Operation {
            keys: keys(op, args),
            ..Operation::new(op, name.span())
        };
        Some(Value {
            kind: ValueKind::Op(operation, given),
            shape,
        })
    }

    /// Returns the value of an omitted argument.
    fn omitted(&mut self, param: &Param, at: Span) -> Option<Arg> {
        match param.kind {
            ParamKind::Epsilon(name) => self.epsilon_at(builtins::epsilon(name)?, at).map(Arg::Scalar),
            _ => Some(Arg::Default),
        }
    }

    /// Returns one expression per parameter, in order; `None` for omitted parameters.
    fn bind<'a>(&mut self, op: &OpSpec, name: &Ident, args: &[&'a Expr]) -> Option<Vec<Option<&'a Expr>>> {
        let mut slots: Vec<Option<&Expr>> = vec![None; op.params.len()];
        let is_keyword = |e: &Expr| matches!(e, Expr::Assign(_));
        let positional: Vec<&Expr> = args.iter().copied().take_while(|e| !is_keyword(e)).collect();
        if let Some(late) = args[positional.len()..].iter().find(|e| !is_keyword(e)) {
            return self.error(late, "positional arguments must come before named arguments");
        }
        let takers: Vec<usize> = (0..op.params.len()).filter(|&i| !op.params[i].is_by_name()).collect();
        let all = takers.len();
        let required = op.params.iter().filter(|p| p.given == Given::Position).count();
        let mut ok = (required..=all).contains(&positional.len());
        if !ok {
            let signature = op.signature();
            let wanted = match all - required {
                0 => plural(all, "argument"),
                1 => format!("{required} or {}", plural(all, "argument")),
                _ => format!("{required} to {}", plural(all, "argument")),
            };
            let by_name = op
                .params
                .iter()
                .filter(|p| p.is_by_name())
                .map(|p| format!("`{}`", p.name));
            let by_name = by_name.collect::<Vec<_>>().join(", ");
            let rest = if by_name.is_empty() {
                String::new()
            } else {
                format!(" (named: {by_name})")
            };
            let (op, given) = (op.name, positional.len());
            let message = format!("`{op}` takes {wanted}, found {given}: `{signature}`{rest}");
            self.errors.at(name, message);
            return None;
        }
        // `rms_norm(x, 1e-6)` omits the weight.
        let is_epsilon = |i: usize| matches!(op.params[i].kind, ParamKind::Epsilon(_));
        let is_without_weight = takers.last().is_some_and(|&i| is_epsilon(i))
            && positional.len() + 1 == all
            && positional.last().is_some_and(|e| self.is_number(e));
        for (place, expr) in positional.iter().enumerate() {
            let is_moved = is_without_weight && place + 1 == positional.len();
            slots[takers[place + usize::from(is_moved)]] = Some(*expr);
        }
        for arg in &args[positional.len()..] {
            ok &= self.bind_keyword(op, arg, &mut slots).is_some();
        }
        for (param, slot) in op.params.iter().zip(&slots) {
            if param.given == Given::Keyword && slot.is_none() {
                let message = format!("`{}` needs `{} = …`: {}", op.name, param.name, param.kind.describe());
                self.errors.at(name, message);
                ok = false;
            }
        }
        ok.then_some(slots)
    }

    /// Returns true unless the expression is a name that does not denote a number.
    fn is_number(&self, expr: &Expr) -> bool {
        let Some(name) = plain_name(expr) else { return true };
        let text = name.to_string();
        match self.find_var(&text) {
            Some(id) => matches!(self.vars[id.0].bound, Bound::Scalar(_)),
            None => {
                self.find_hparam(&text).is_some()
                    || builtins::builtin(&text).is_some()
                    || builtins::epsilon(&text).is_some()
            }
        }
    }

    fn bind_keyword<'a>(&mut self, op: &OpSpec, arg: &'a Expr, slots: &mut [Option<&'a Expr>]) -> Option<()> {
        let Expr::Assign(assign) = arg else { return None };
        let Some(key) = plain_name(&assign.left) else {
            return self.error(&assign.left, "expected `name = value`");
        };
        let keywords = || {
            op.params
                .iter()
                .filter(|p| matches!(p.given, Given::Keyword | Given::OptionalKeyword))
        };
        let Some(i) = op
            .params
            .iter()
            .position(|p| key == p.name && keywords().any(|k| k.name == p.name))
        else {
            let hint = did_you_mean(&key.to_string(), keywords().map(|p| p.name));
            let names: Vec<_> = keywords().map(|p| format!("`{}`", p.name)).collect();
            let known = if names.is_empty() {
                "none".to_string()
            } else {
                names.join(", ")
            };
            let message = format!("`{}` has no argument `{key}`{hint} (named arguments: {known})", op.name);
            return self.error(&key, message);
        };
        if slots[i].is_some() {
            return self.error(&key, format!("argument `{key}` is given twice"));
        }
        slots[i] = Some(&assign.right);
        Some(())
    }

    /// Checks a numeric or boolean argument. A tensor in its position usually means that an earlier argument
    /// is missing.
    fn number(&mut self, op: &OpSpec, param: &Param, expr: &Expr, ty: Ty) -> Option<Scalar> {
        match self.expr(expr)? {
            Lowered::Scalar(s) => self.convert(s, ty, expr),
            Lowered::Tensor(_) => {
                let (what, signature) = (param.kind.describe(), op.signature());
                let message = format!(
                    "`{}` expects {what} for `{}`, found a tensor: `{signature}`",
                    op.name, param.name
                );
                self.error(expr, message)
            }
        }
    }

    /// Checks one argument against its parameter.
    fn argument(&mut self, op: &OpSpec, param: &Param, expr: &Expr) -> Option<(Arg, OpOperand)> {
        if let Expr::If(branch) = bare(expr)
            && branch.else_branch.is_none()
        {
            return self.argument_if(op, param, branch);
        }
        let mut operand = OpOperand::default();
        let arg = match param.kind {
            ParamKind::Tensor => {
                let value = self.tensor(expr)?;
                operand.shape = Some(value.shape.clone());
                Arg::Tensor(value)
            }
            ParamKind::Int => {
                let s = self.number(op, param, expr, Ty::Int)?;
                operand.dim = Some(s.dim.clone());
                Arg::Scalar(s)
            }
            ParamKind::Float | ParamKind::Epsilon(_) => Arg::Scalar(self.number(op, param, expr, Ty::Float)?),
            ParamKind::Bool => Arg::Scalar(self.number(op, param, expr, Ty::Bool)?),
            ParamKind::RmsWeight => {
                self.without_bias(op, expr)?;
                self.declared(op, param, expr, &[Kind::Vector], false, &mut operand)?
            }
            ParamKind::NormWeight => {
                self.declared(op, param, expr, &[Kind::Norm, Kind::Vector], false, &mut operand)?
            }
            ParamKind::Vector => {
                self.declared(op, param, expr, &[Kind::Vector, Kind::Raw], param.some, &mut operand)?
            }
            ParamKind::Linear => self.declared(op, param, expr, &[Kind::Linear], false, &mut operand)?,
            ParamKind::Embed => self.declared(op, param, expr, &[Kind::Embed], false, &mut operand)?,
            ParamKind::List => Arg::Scalar(self.list(expr)?),
            ParamKind::OfFirstLayer => self.declared(op, param, expr, &[Kind::Vector], true, &mut operand)?,
            ParamKind::Experts => self.declared(op, param, expr, &[Kind::Experts], param.some, &mut operand)?,
            ParamKind::Activation => Arg::Activation(Operation::new(self.activation(expr)?, Range::of(expr).start)),
            ParamKind::Word(ty, words) => {
                if self.code(expr) {
                    Arg::Scalar(self.scalar_of(expr, Ty::Int)?)
                } else {
                    Arg::Word(Named::new(self.word(param, ty, words, expr)?, Range::of(expr).start))
                }
            }
            ParamKind::Window => self.window(expr)?,
        };
        Some((arg, operand))
    }

    /// Reports a `norm`, whose bias the operation would drop.
    fn without_bias(&mut self, op: &OpSpec, expr: &Expr) -> Option<()> {
        let tensor = plain_name(expr).and_then(|name| self.find_tensor(&name.to_string()));
        match tensor.map(|i| (i, *self.tensors[i].tensor.kind)) {
            Some((i, Kind::Norm)) => {
                self.tensors[i].used = true;
                let message = format!(
                    "`{}` has no bias, but `{}` is declared as `norm`, which has one; use `layer_norm`, or declare a \
                     `vector`",
                    op.name,
                    expr.to_token_stream()
                );
                self.error(expr, message)
            }
            _ => Some(()),
        }
    }

    /// Checks `if cond { value }`, an argument that is passed only if a condition holds.
    fn argument_if(&mut self, op: &OpSpec, param: &Param, branch: &ExprIf) -> Option<(Arg, OpOperand)> {
        let cond = self.scalar_of(&branch.cond, Ty::Bool);
        let [syn::Stmt::Expr(value, None)] = &branch.then_branch.stmts[..] else {
            return self.error(
                &branch.then_branch,
                "expected one value, as in `if condition { value }`",
            );
        };
        let (given, _) = facts::both(cond.as_ref());
        let given = self.with_facts(given, |c| c.argument(op, param, value));
        if !param.some {
            let message = format!("`{}` of `{}` is required; add an `else` branch", param.name, op.name);
            return self.error(branch.if_token, message);
        }
        let (arg, operand) = given?;
        Some((Arg::If(cond?, Box::new(arg)), operand))
    }

    /// Resolves an argument that must be a declared tensor of one of `kinds`.
    fn declared(
        &mut self,
        op: &OpSpec,
        param: &Param,
        expr: &Expr,
        kinds: &[Kind],
        or_absent: bool,
        operand: &mut OpOperand,
    ) -> Option<Arg> {
        let wanted = format!("`{}` takes {} as `{}`", op.name, param.kind.describe(), param.name);
        let Some(name) = plain_name(expr) else {
            return self.error(expr, wanted);
        };
        let Some(index) = self.find_tensor(&name.to_string()) else {
            let known = self.find_var(&name.to_string()).is_some() || self.find_hparam(&name.to_string()).is_some();
            if known || builtins::builtin(&name.to_string()).is_some() {
                return self.error(&name, wanted);
            }
            return self.unknown(&name, "tensor", |c| c.tensors_named(|t| kinds.contains(&*t.kind)));
        };
        let present = self.use_tensor(index, &name, or_absent);
        if self.tensors[index].broken {
            return None;
        }
        let kind = *self.tensors[index].tensor.kind;
        if !kinds.contains(&kind) {
            return self.error(
                &name,
                format!("{wanted}, but `{name}` is declared as `{}`", kind.name()),
            );
        }
        present?;
        operand.shape = Some(Shape(self.tensors[index].tensor.dims.clone()));
        Some(Arg::Weight(Named::new(index, name.span())))
    }

    fn activation(&mut self, expr: &Expr) -> Option<&'static OpSpec> {
        let name = plain_name(expr).map(|n| n.to_string()).unwrap_or_default();
        match ops::find(&name).filter(|o| o.is_unary()) {
            Some(op) => Some(op),
            None => {
                let hint = did_you_mean(&name, OPS.iter().filter(|o| o.is_unary()).map(|o| o.name));
                self.error(expr, format!("expected an activation such as `silu` or `gelu`{hint}"))
            }
        }
    }

    /// Returns true if the expression is a numeric code rather than a keyword: an hparam or a compound
    /// expression.
    fn code(&self, expr: &Expr) -> bool {
        plain_name(expr).is_none_or(|name| self.find_hparam(&name.to_string()).is_some())
    }

    fn word(
        &mut self,
        param: &Param,
        ty: &str,
        words: &[(&'static str, &'static str)],
        expr: &Expr,
    ) -> Option<&'static str> {
        let name = plain_name(expr).map(|n| n.to_string()).unwrap_or_default();
        match words.iter().find(|(w, _)| *w == name) {
            Some(&(_, variant)) => Some(variant),
            None => {
                let list: Vec<_> = words.iter().map(|(w, _)| format!("`{w}`")).collect();
                let hint = nearest(&name, words.iter().map(|(w, _)| *w))
                    .map_or(String::new(), |w| format!("; did you mean `{w}`?"));
                let what = ty.to_lowercase();
                self.error(
                    expr,
                    format!("`{}` expects a {what}: {}{hint}", param.name, list.join(", ")),
                )
            }
        }
    }

    fn window(&mut self, expr: &Expr) -> Option<Arg> {
        let form = "expected a window: `sliding(n, condition)`, `chunked(n, condition)`, or `symmetric(n, condition)`";
        let Expr::Call(call) = expr else {
            return self.error(expr, form);
        };
        let kind = plain_name(&call.func).and_then(|n| WINDOWS.iter().find(|w| n == **w).copied());
        let args: Vec<&Expr> = call.args.iter().collect();
        let (Some(kind), [n, cond @ ..]) = (kind, &args[..]) else {
            return self.error(&call.func, form);
        };
        let n = self.scalar_of(n, Ty::Int);
        let cond = match cond {
            [] => None,
            [cond] => Some(self.scalar_of(cond, Ty::Bool)?),
            _ => return self.error(&call.func, form),
        };
        Some(Arg::Window(Named::new(kind, Range::of(&call.func).start), n?, cond))
    }

    /// Checks `w[tokens]` and `x[a..b]`.
    pub(super) fn index(&mut self, index: &ExprIndex) -> Option<Lowered> {
        if !self.place.is_graph() {
            return self.error(index, "indexing is not supported here");
        }
        if let Expr::Range(range) = &*index.index {
            return self.slice(&index.expr, range).map(Lowered::Tensor);
        }
        let (ids, skipped) = match &*index.index {
            Expr::Binary(sum) if matches!(sum.op, BinOp::Add(_)) => (&*sum.left, Some(&*sum.right)),
            ids => (ids, None),
        };
        let name = plain_name(ids).map(|i| i.to_string());
        let Some(by) = [RowsBy::Tokens, RowsBy::Positions]
            .into_iter()
            .find(|by| name.as_deref() == Some(by.name()) && (skipped.is_none() || *by == RowsBy::Positions))
        else {
            return self.error(
                &index.index,
                "expected `tokens`, `positions`, `positions + n`, or a range such as `a..b`",
            );
        };
        if by == RowsBy::Tokens {
            self.allow_in_encoder(&Ident::new("tokens", Range::of(ids).start))?;
        }
        let at = Range::of(ids).start;
        let skipped = match skipped {
            Some(n) => Some(self.scalar_of(n, Ty::Int)?),
            None => None,
        };
        let Some(name) = plain_name(&index.expr) else {
            return self.error(&index.expr, "expected the name of an `embed` tensor");
        };
        let Some(i) = self.find_tensor(&name.to_string()) else {
            return self.unknown(&name, "tensor", |c| c.tensors_named(|t| *t.kind == Kind::Embed));
        };
        self.use_tensor(i, &name, false)?;
        let sym = &self.tensors[i];
        if sym.broken {
            return None;
        }
        if *sym.tensor.kind != Kind::Embed {
            let kind = sym.tensor.kind.name();
            return self.error(
                &name,
                format!("only an `embed` tensor can be indexed by row, but `{name}` is declared as `{kind}`"),
            );
        }
        let shape = Shape(vec![sym.tensor.dims[0].clone(), Dim::n_tokens()]);
        Some(Lowered::Tensor(Value {
            kind: ValueKind::Embed(Named::new(i, name.span()), Named::new(by, at), skipped),
            shape,
        }))
    }

    fn slice(&mut self, x: &Expr, range: &syn::ExprRange) -> Option<Value> {
        let value = self.tensor(x);
        let mut end = |e: &Option<Box<Expr>>| e.as_ref().map(|e| self.scalar_of(e, Ty::Int));
        let (from, to) = (end(&range.start), end(&range.end));
        if matches!(range.limits, syn::RangeLimits::Closed(_)) {
            return self.error(range, "inclusive ranges are not supported in slices; use `a..b`");
        }
        let (value, from, to) = (
            value?,
            from.map_or(Some(None), |s| s.map(Some))?,
            to.map_or(Some(None), |s| s.map(Some))?,
        );
        let start = from.as_ref().map_or_else(|| Dim::constant(0), |s| s.dim.clone());
        let stop = to.as_ref().map_or_else(|| value.shape.dim(0), |s| s.dim.clone());
        let is_zero = |symbol: &str| self.facts.contains(&(format!("{symbol} == 0"), true));
        let beyond = |a: &Dim, b: &Dim| a.exceeds(b, is_zero);
        if beyond(&start, &stop) || beyond(&stop, &value.shape.dim(0)) || start == stop {
            return self.error(
                range,
                format!("slice {start}..{stop} is out of bounds of {}", value.shape),
            );
        }
        let shape = value.shape.with_dim0(stop.sub(&start));
        Some(Value {
            kind: ValueKind::Slice(Box::new(value), from, to),
            shape,
        })
    }
}

/// Returns the spans of the names of named arguments.
fn keys(op: &OpSpec, args: &[&Expr]) -> Vec<(&'static str, Span)> {
    let key = |arg: &&Expr| {
        let Expr::Assign(assign) = arg else { return None };
        let key = plain_name(&assign.left)?;
        let param = op.params.iter().find(|p| key == p.name)?;
        Some((param.name, key.span()))
    };
    args.iter().filter_map(key).collect()
}
