//! Checks `checkpoint` sections: each tensor has a source or a reason, and each required key a setting.

use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::{BinOp, Expr, Lit, UnOp};

use crate::ast::Decl;
use crate::ast::checkpoint::{CheckpointDecl, CheckpointItem, OriginDecl, SettingName, SourceDecl};
use crate::builtins::{self, Ty};
use crate::diag::{Errors, one_of};
use crate::limits::MAX_SECTIONS;
use crate::model::checkpoint::{Checkpoint, NamedSource, Setting, TensorSource, Term};
use crate::model::{Arch, Hparam, Read, Tensor};
use crate::names;
use crate::parse;
use crate::words::{FRACTION_STEPS, MTP, NUMBER_STEPS, PLAIN_STEPS};

/// Settings that most configurations share. A section replaces them by name.
const COMMON: &str = r#"
    n_ctx_train = "max_position_embeddings";
    n_embd = "hidden_size";
    n_layer = "num_hidden_layers";
    n_head = "num_attention_heads";
    n_head_kv = "num_key_value_heads" or n_head;
    n_ff = "intermediate_size";
    head_dim = "head_dim" or n_embd / n_head;
    head_dim_v = head_dim;
    n_expert = "num_local_experts" or "num_experts" or "n_routed_experts";
    n_expert_used = "num_experts_per_tok";
    n_rot = int(head_dim * first("rope_parameters.partial_rotary_factor", "partial_rotary_factor"));
    rope_freq_base = "rope_parameters.rope_theta" or "rope_theta";
    rms_norm_eps = "rms_norm_eps";
    layer_norm_eps = "layer_norm_eps" or "layer_norm_epsilon";
    layer "model.layers.{}" {}
    ignore ".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias",
        ".position_ids";
"#;

/// Keys without which no file loads. The engine has defaults for all other keys.
const REQUIRED: [&str; 3] = ["n_embd", "n_layer", "n_ctx_train"];

/// Symbols of the engine that a section can set although the language computes them: name and key.
const SETTABLE: [(&str, &str); 1] = [("rope_freq_base", "rope.freq_base")];

/// Functions of setting expressions, with the least and the greatest number of operands.
const FUNCTIONS: [(&str, usize, usize); 12] = [
    ("text", 1, 1),
    ("first", 1, 8),
    ("given", 1, 1),
    ("length", 1, 1),
    ("int", 1, 1),
    ("min", 2, 2),
    ("max", 2, 2),
    ("sqrt", 1, 1),
    ("ln", 1, 1),
    ("at", 2, 2),
    ("contains", 2, 2),
    ("each_layer", 1, 1),
];

/// Checks all sections of a declaration.
pub fn checkpoints(decl: &Decl, arch: &Arch, errors: &mut Errors) -> Vec<Checkpoint> {
    if decl.checkpoints.is_empty() {
        return Vec::new();
    }
    let Some(common) = common(errors) else {
        return Vec::new();
    };
    if decl.checkpoints.len() + decl.inherited_checkpoints.len() > MAX_SECTIONS {
        let message = format!("a declaration and its ancestors have at most {MAX_SECTIONS} sections `checkpoint`");
        errors.at_span(decl.checkpoints[0].span, message);
        return Vec::new();
    }
    let mut seen = HashSet::new();
    for class in decl.checkpoints.iter().flat_map(|section| &section.classes) {
        if !seen.insert(class.value()) {
            errors.at(class, format!("class {:?} has two sections", class.value()));
        }
    }
    let section = |section: &CheckpointDecl| {
        let bases = bases(section, decl, errors)?;
        let given = decl.given_mappings.iter().chain(&common);
        let inherited: Vec<&CheckpointItem> = bases.into_iter().flat_map(|b| &b.items).chain(given).collect();
        Some(Sections::new(arch, errors, &section.items, inherited).section(section))
    };
    decl.checkpoints.iter().filter_map(section).collect()
}

/// Returns the sections of the ancestors for classes without a section of the declaration. Omits sections that lack a
/// source or a setting of the declaration.
pub fn inherited(decl: &Decl, arch: &Arch) -> Vec<Checkpoint> {
    let mut errors = Errors::new();
    let common = common(&mut errors);
    errors.discard();
    let n_sections = decl.checkpoints.len() + decl.inherited_checkpoints.len();
    let Some(common) = common else {
        return Vec::new();
    };
    if n_sections > MAX_SECTIONS {
        return Vec::new();
    }
    let mut found: Vec<Checkpoint> = Vec::new();
    for section in &decl.inherited_checkpoints {
        let is_new = |class: &String| {
            let own = decl.checkpoints.iter().any(|s| is_of(s, class));
            !own && !found.iter().any(|s| s.classes.contains(class))
        };
        let mut classes: Vec<String> = section.classes.iter().map(syn::LitStr::value).collect();
        classes.retain(is_new);
        let mut errors = Errors::new();
        let checked = bases(section, decl, &mut errors).map(|bases| {
            let items = section.items.iter().chain(bases.into_iter().flat_map(|b| &b.items));
            let items = items.chain(&decl.given_mappings).chain(&common).collect();
            Sections::new(arch, &mut errors, &[], items).section(section)
        });
        let fits = errors.discard();
        if let (Some(checked), true, false) = (checked, fits, classes.is_empty()) {
            found.push(Checkpoint { classes, ..checked });
        }
    }
    found
}

/// Parses the items of all sections.
fn common(errors: &mut Errors) -> Option<Vec<CheckpointItem>> {
    let tokens = TokenStream::from_str(COMMON).ok()?;
    let items = parse::mapping_items(tokens, errors);
    items.map_err(|e| errors.syntax(&e)).ok()
}

/// Returns true if a section is for this class.
fn is_of(section: &CheckpointDecl, class: &str) -> bool {
    section.classes.iter().any(|c| c.value() == class)
}

/// Returns the sections that `like` names, nearest first. A section like its own class continues the ancestor's
/// section.
fn bases<'a>(section: &'a CheckpointDecl, decl: &'a Decl, errors: &mut Errors) -> Option<Vec<&'a CheckpointDecl>> {
    let all = || decl.checkpoints.iter().chain(&decl.inherited_checkpoints);
    let mut bases: Vec<&CheckpointDecl> = Vec::new();
    let mut current = section;
    while let Some(like) = &current.like {
        let name = like.value();
        let continues = is_of(current, &name);
        let base = if continues {
            let inherited = &decl.inherited_checkpoints;
            let start = inherited.iter().position(|s| std::ptr::eq(s, current));
            inherited[start.map_or(0, |i| i + 1)..].iter().find(|s| is_of(s, &name))
        } else {
            all().find(|s| is_of(s, &name))
        };
        let is_cycle = base.map_or(continues, |base| {
            bases.len() > all().count() || std::ptr::eq(base, section)
        });
        if is_cycle {
            errors.at(like, format!("the section for {name:?} inherits from itself"));
            return None;
        }
        let Some(base) = base else {
            let names = || all().flat_map(|s| &s.classes).map(syn::LitStr::value).collect();
            let hint = errors.hint(&name, names);
            errors.at(like, format!("no checkpoint section for {name:?}{hint}"));
            return None;
        };
        bases.push(base);
        current = base;
    }
    Some(bases)
}

/// Names of the tensors of layers in a checkpoint.
struct Names {
    /// Prefix of names that begin with a dot.
    prefix: Option<String>,
    /// A name without the prefix has no number: all layers of multi-token prediction share the tensor.
    is_single: bool,
}

/// Checks one section.
struct Sections<'a> {
    arch: &'a Arch,
    errors: &'a mut Errors,
    own: &'a [CheckpointItem],
    /// Items of the sections that this one is like, of fragments, and of all sections, nearest first.
    inherited: Vec<&'a CheckpointItem>,
    /// Sources, and items `without`, of each tensor.
    of_tensor: HashMap<&'a Ident, Vec<&'a CheckpointItem>>,
    /// Prefix of the names of each group of layers that begin with a dot.
    prefixes: HashMap<&'a str, String>,
    /// Hyperparameters with a key, by name.
    keys: HashMap<&'a Ident, &'a Hparam>,
}

impl<'a> Sections<'a> {
    fn new(
        arch: &'a Arch,
        errors: &'a mut Errors,
        own: &'a [CheckpointItem],
        inherited: Vec<&'a CheckpointItem>,
    ) -> Sections<'a> {
        let mut of_tensor: HashMap<&Ident, Vec<&CheckpointItem>> = HashMap::new();
        let mut prefixes = HashMap::new();
        for item in own.iter().chain(inherited.iter().copied()) {
            match item {
                CheckpointItem::Source(s) => of_tensor.entry(&s.target).or_default().push(item),
                CheckpointItem::Without { names, .. } => {
                    names
                        .iter()
                        .for_each(|name| of_tensor.entry(name).or_default().push(item));
                }
                CheckpointItem::Prefix { group, prefix } => {
                    prefixes.entry(group.as_str()).or_insert_with(|| prefix.value());
                }
                _ => {}
            }
        }
        let mut keys = HashMap::new();
        for h in &arch.hparams {
            if let Hparam::Key { name, .. } = h {
                keys.entry(name).or_insert(h);
            }
        }
        Sections {
            arch,
            errors,
            own,
            inherited,
            of_tensor,
            prefixes,
            keys,
        }
    }

    fn items(&self) -> Vec<&'a CheckpointItem> {
        self.own.iter().chain(self.inherited.iter().copied()).collect()
    }

    fn section(&mut self, section: &CheckpointDecl) -> Checkpoint {
        self.targets();
        let settings = self.settings(section);
        let checks = self.checks();
        let sources = self.sources(section);
        let ignored = self.items().into_iter().filter_map(|item| match item {
            CheckpointItem::Ignore(names) => Some(names),
            _ => None,
        });
        Checkpoint {
            classes: section.classes.iter().map(syn::LitStr::value).collect(),
            settings,
            checks,
            sources,
            ignored: ignored.flatten().map(syn::LitStr::value).collect(),
            mtp: self.prefix(MTP).and_then(|mtp| Some([self.prefix("layer")?, mtp])),
        }
    }

    /// Reports own items with an unknown target, and duplicates.
    fn targets(&mut self) {
        let tensors = names::set(self.arch.tensors.iter().map(|t| &t.name));
        let mut seen = HashSet::new();
        for item in self.own {
            let names: Vec<(&Ident, String)> = match item {
                CheckpointItem::Source(s) => vec![(&s.target, source_name(s))],
                CheckpointItem::Without { names, .. } => names.iter().map(|n| (n, n.to_string())).collect(),
                CheckpointItem::Setting {
                    name: SettingName::Symbol(name),
                    ..
                } => {
                    if !seen.insert(format!("{name} =")) {
                        self.errors.at(name, format!("`{name}` has two settings"));
                    }
                    continue;
                }
                _ => continue,
            };
            for (name, full) in names {
                if !tensors.contains(name) {
                    let names = || tensors.iter().map(Ident::to_string).collect();
                    let hint = self.errors.hint(&name.to_string(), names);
                    self.errors.at(name, format!("no tensor named `{name}`{hint}"));
                } else if seen.contains(&full) {
                    self.errors.at(name, format!("`{full}` has two sources"));
                }
                seen.insert(full);
            }
        }
    }

    /// Returns the value of each key: of the symbols that files have, and of the keys that sections add.
    fn settings(&mut self, section: &CheckpointDecl) -> Vec<Setting> {
        let mut settings: Vec<Setting> = Vec::new();
        let mut set = HashSet::new();
        let n_own = self.own.len();
        for (i, item) in self.items().into_iter().enumerate() {
            let CheckpointItem::Setting { name, value } = item else {
                continue;
            };
            let found = match name {
                SettingName::Key(key) => Some((String::new(), key.value(), None, false)),
                SettingName::Symbol(name) => self.key_of(name),
            };
            let Some((symbol, key, ty, required)) = found else {
                if let (SettingName::Symbol(name), true) = (name, i < n_own) {
                    self.unknown_symbol(name);
                }
                continue;
            };
            if !set.insert(key.clone()) {
                continue;
            }
            let value = value.iter().filter_map(|e| self.term(e)).collect();
            settings.push(Setting {
                symbol,
                key,
                ty,
                required,
                value,
            });
        }
        let lacking = self.arch.hparams.iter().filter_map(|h| match h {
            Hparam::Key {
                name,
                key,
                default: None,
                at_least: None,
                ..
            } if !set.contains(key) => Some(format!("`{name}`")),
            _ => None,
        });
        let lacking: Vec<String> = lacking.collect();
        if let (Some(class), false) = (section.classes.first(), lacking.is_empty()) {
            let message = format!(
                "{} no setting in this section; write `name = \"path.in.config.json\";` or a constant",
                have(&lacking)
            );
            self.errors.at(class, message);
        }
        settings
    }

    /// Returns the name, key, type, and necessity of a symbol that the declaration reads from files.
    fn key_of(&self, name: &Ident) -> Option<(String, String, Option<Ty>, bool)> {
        let text = name.to_string();
        if let Some(Hparam::Key {
            key,
            read,
            default,
            at_least,
            ..
        }) = self.keys.get(name)
        {
            let ty = match read {
                Read::One(ty) | Read::PerLayer(ty) => Some(*ty),
                Read::List => Some(Ty::Int),
                Read::Pattern | Read::DenseFirst | Read::Listed => None,
            };
            let required = default.is_none() && at_least.is_none();
            return Some((text, key.clone(), ty, required));
        }
        if let Some((_, key)) = SETTABLE.iter().find(|(n, _)| *n == text) {
            return Some((text, (*key).to_owned(), Some(Ty::Float), false));
        }
        let builtin = builtins::builtin(&text)?;
        let required = REQUIRED.contains(&builtin.name);
        Some((text, builtin.key?.to_owned(), Some(builtin.ty), required))
    }

    fn unknown_symbol(&mut self, name: &Ident) {
        let builtins = builtins::BUILTINS.iter().filter(|b| b.key.is_some());
        let builtins = builtins.map(|b| b.name.to_owned());
        let names = || self.keys.keys().map(|n| n.to_string()).chain(builtins).collect();
        let hint = self.errors.hint(&name.to_string(), names);
        self.errors
            .at(name, format!("no hyperparameter with a key is named `{name}`{hint}"));
    }

    fn checks(&mut self) -> Vec<(Term, String)> {
        let checks = self.items().into_iter().filter_map(|item| match item {
            CheckpointItem::Check { cond, text } => Some((cond, text)),
            _ => None,
        });
        let checks: Vec<_> = checks.collect();
        let term = |(cond, text): (&Expr, &syn::LitStr)| Some((self.term(cond)?, text.value()));
        checks.into_iter().filter_map(term).collect()
    }

    /// Returns the source of each tensor, and reports the tensors that have none.
    fn sources(&mut self, section: &CheckpointDecl) -> Vec<TensorSource> {
        let (mut sources, mut lacking) = (Vec::new(), Vec::new());
        let mut lacks = HashSet::new();
        for tensor in &self.arch.tensors {
            let mut decided = false;
            let mut parts: HashSet<String> = HashSet::new();
            for item in self.of_tensor.get(&tensor.name).cloned().unwrap_or_default() {
                match item {
                    CheckpointItem::Without { .. } if parts.is_empty() => {
                        decided = true;
                        break;
                    }
                    CheckpointItem::Source(s) => {
                        let part = s.suffix.as_ref().map_or_else(String::new, ToString::to_string);
                        if parts.insert(part.clone()) {
                            sources.push(self.source(tensor, part, s));
                        }
                    }
                    _ => {}
                }
            }
            // Tensors of one name have a source together.
            if !decided && !parts.contains("") && lacks.insert(&tensor.name) {
                lacking.push(format!("`{}`", tensor.name));
            }
        }
        if let (Some(class), false) = (section.classes.first(), lacking.is_empty()) {
            let message = format!(
                "{} no source in this section; write `name <- \"name.in.the.checkpoint\";` or `without name \"reason\";`",
                have(&lacking)
            );
            self.errors.at(class, message);
        }
        sources
    }

    fn source(&mut self, tensor: &Tensor, part: String, s: &SourceDecl) -> TensorSource {
        if let Some(suffix) = &s.suffix
            && suffix != "bias"
            && suffix != "scale"
        {
            self.errors.at(suffix, "expected `bias` or `scale` after the dot");
        }
        let is_mtp = tensor.conditions.iter().any(|(c, truth)| *truth && c.text == "is_mtp");
        if s.of_mtp && !is_mtp {
            let message = format!(
                "`{}` also exists outside multi-token prediction layers; sources in `mtp` must exist only in these layers",
                s.target
            );
            self.errors.at(&s.target, message);
        }
        let group = tensor.group.map(|g| &self.arch.groups[g]);
        let names = group.map(|g| Names {
            prefix: match self.prefix(MTP) {
                Some(prefix) if s.of_mtp => Some(prefix),
                _ => self.prefix(&g.name.to_string()),
            },
            is_single: s.of_mtp,
        });
        let origins = s.origins.iter().map(|o| self.origin(o, names.as_ref())).collect();
        TensorSource {
            field: tensor.name.to_string(),
            gguf: tensor.gguf.clone(),
            part,
            kind: tensor.kind.name(),
            group: group.map(|g| g.prefix.clone()),
            tied: tensor.tie.is_some(),
            mtp: is_mtp,
            origins,
        }
    }

    /// Returns the prefix of the names that begin with a dot.
    fn prefix(&self, group: &str) -> Option<String> {
        self.prefixes.get(group).cloned()
    }

    /// Returns a source. `names` are the names of its layers.
    fn origin(&mut self, o: &OriginDecl, names: Option<&Names>) -> NamedSource {
        let mut name = o.name.value();
        let mut is_single = names.is_some_and(|names| names.is_single);
        if name.starts_with('.') {
            is_single = false;
            match names {
                Some(names) => name.insert_str(0, names.prefix.as_deref().unwrap_or_default()),
                None => self
                    .errors
                    .at(&o.name, "a name that begins with a dot belongs to a layer"),
            }
        }
        let holes = name.matches("{}").count();
        let expected = usize::from(names.is_some() && !is_single) + usize::from(o.stack);
        if holes != expected {
            let message =
                format!("{name:?} has {holes} `{{}}`, expected {expected}: one for the layer, and one for a stack");
            self.errors.at(&o.name, message);
        }
        let steps = o.steps.iter().filter_map(|s| {
            let text = s.word.to_string();
            let words = FRACTION_STEPS
                .iter()
                .chain(&NUMBER_STEPS)
                .chain(&PLAIN_STEPS)
                .chain(&["rows"]);
            let word = words.copied().find(|w| *w == text)?;
            let args: Vec<Term> = s.args.iter().filter_map(|e| self.term(e)).collect();
            if let (true, [Term::Int(part), Term::Int(parts)]) = (FRACTION_STEPS.contains(&word), &args[..])
                && part >= parts
            {
                let message = format!("parts are counted from 0, so part {part} of {parts} does not exist");
                self.errors.at(&s.word, message);
            }
            Some((word, args))
        });
        let steps = steps.collect();
        let and = o.and.as_deref().map(|next| Box::new(self.origin(next, names)));
        NamedSource {
            name,
            stack: o.stack,
            steps,
            and,
        }
    }

    /// Checks an expression over the configuration.
    fn term(&mut self, expr: &Expr) -> Option<Term> {
        match parse::bare(expr) {
            Expr::Lit(lit) => self.literal(&lit.lit),
            Expr::Unary(u) => {
                let op = match u.op {
                    UnOp::Neg(_) => "neg",
                    UnOp::Not(_) => "not",
                    _ => return self.fault(expr, "expected `-` or `!`"),
                };
                Some(Term::Call(op, vec![self.term(&u.expr)?]))
            }
            Expr::Binary(b) => {
                let Some(op) = operator(&b.op) else {
                    return self.fault(b.op, "this operator does not exist here");
                };
                let (left, right) = (self.term(&b.left), self.term(&b.right));
                Some(Term::Call(op, vec![left?, right?]))
            }
            Expr::If(e) => self.conditional(e),
            Expr::Call(call) => self.call(call),
            other => match parse::plain_name(other) {
                Some(name) if name == "il" => Some(Term::Call("il", Vec::new())),
                Some(name) if self.key_of(&name).is_some() => Some(Term::Symbol(name.to_string())),
                Some(name) => {
                    self.unknown_symbol(&name);
                    None
                }
                None => self.fault(
                    other,
                    "expected a path of `config.json` in quotes, a number, or a setting",
                ),
            },
        }
    }

    fn literal(&mut self, lit: &Lit) -> Option<Term> {
        match lit {
            Lit::Str(s) => Some(Term::Path(s.value())),
            Lit::Int(n) => n.base10_parse().map(Term::Int).ok(),
            Lit::Float(x) => x.base10_parse().map(Term::Float).ok(),
            Lit::Bool(b) => Some(Term::Bool(b.value)),
            other => self.fault(other, "expected a path of `config.json` in quotes, or a number"),
        }
    }

    fn conditional(&mut self, e: &syn::ExprIf) -> Option<Term> {
        let result = |block: &syn::Block| match &block.stmts[..] {
            [syn::Stmt::Expr(e, None)] => Some(e.clone()),
            _ => None,
        };
        let Some((then, otherwise)) = result(&e.then_branch).zip(e.else_branch.as_ref()) else {
            return self.fault(e, "a condition needs one value in each branch");
        };
        let otherwise = match &*otherwise.1 {
            Expr::Block(b) => result(&b.block),
            other => Some(other.clone()),
        };
        let Some(otherwise) = otherwise else {
            return self.fault(e, "a condition needs one value in each branch");
        };
        let parts = [self.term(&e.cond), self.term(&then), self.term(&otherwise)];
        let parts: Option<Vec<Term>> = parts.into_iter().collect();
        Some(Term::Call("if", parts?))
    }

    fn call(&mut self, call: &syn::ExprCall) -> Option<Term> {
        let name = parse::plain_name(&call.func).map(|n| n.to_string()).unwrap_or_default();
        let Some(&(name, least, most)) = FUNCTIONS.iter().find(|(n, ..)| *n == name) else {
            let message = format!("expected a function: {}", one_of(FUNCTIONS.iter().map(|&(n, ..)| n)));
            return self.fault(&call.func, &message);
        };
        if call.args.len() < least || call.args.len() > most {
            let message = format!("`{name}` takes {least} to {most} operands, found {}", call.args.len());
            return self.fault(call, &message);
        }
        if name == "text" {
            return match call.args.first() {
                Some(Expr::Lit(syn::ExprLit { lit: Lit::Str(s), .. })) => Some(Term::Text(s.value())),
                _ => self.fault(call, "`text` takes a string"),
            };
        }
        let args: Option<Vec<Term>> = call.args.iter().map(|e| self.term(e)).collect();
        Some(Term::Call(name, args?))
    }

    fn fault<T>(&mut self, at: impl ToTokens, message: &str) -> Option<T> {
        self.errors.at(at, message);
        None
    }
}

/// Returns "`a` has" or "`a`, `b` have".
fn have(names: &[String]) -> String {
    let verb = if names.len() == 1 { "has" } else { "have" };
    format!("{} {verb}", names.join(", "))
}

fn source_name(s: &SourceDecl) -> String {
    match &s.suffix {
        Some(suffix) => format!("{}.{suffix}", s.target),
        None => s.target.to_string(),
    }
}

fn operator(op: &BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::Add(_) => "+",
        BinOp::Sub(_) => "-",
        BinOp::Mul(_) => "*",
        BinOp::Div(_) => "/",
        BinOp::Rem(_) => "%",
        BinOp::Eq(_) => "==",
        BinOp::Ne(_) => "!=",
        BinOp::Lt(_) => "<",
        BinOp::Le(_) => "<=",
        BinOp::Gt(_) => ">",
        BinOp::Ge(_) => ">=",
        BinOp::And(_) => "&&",
        BinOp::Or(_) => "||",
        _ => return None,
    })
}
