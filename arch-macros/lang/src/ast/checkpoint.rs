//! Syntax of `checkpoint` sections.

use proc_macro2::Span;
use syn::{Expr, Ident, LitStr};

/// `checkpoint "Qwen3ForCausalLM" { … }`: source of the keys and tensors in a published checkpoint.
#[derive(Clone)]
pub struct CheckpointDecl {
    /// Span of the keyword.
    pub span: Span,
    /// Values of `architectures` in `config.json`. A section without classes has items for all sections.
    pub classes: Vec<LitStr>,
    /// Class whose section provides the remaining items.
    pub like: Option<LitStr>,
    /// Items of the section.
    pub items: Vec<CheckpointItem>,
}

/// An item of a `checkpoint` section.
#[derive(Clone)]
pub enum CheckpointItem {
    /// `n_embd = "hidden_size" or 64;`
    Setting {
        name: SettingName,
        /// Alternatives; the first that the configuration has is the value.
        value: Vec<Expr>,
    },
    /// `check cond, "text";`
    Check { cond: Expr, text: LitStr },
    /// `wq <- ".self_attn.q_proj";` or `up_exps.bias <- "…";`
    Source(SourceDecl),
    /// `without rope_freqs "the class has none";`
    Without {
        names: Vec<Ident>,
        /// Reason that the author gives.
        reason: LitStr,
    },
    /// `ignore ".rotary_emb.inv_freq";`
    Ignore(Vec<LitStr>),
    /// `layer enc "encoder.layer.{}" { … }` or `mtp "mtp.layers.{}" { … }`: prefix of the names that begin with a dot.
    Prefix {
        /// Name of the group of layers; `layer` if omitted, `mtp` for layers of multi-token prediction.
        group: String,
        prefix: LitStr,
    },
}

/// Name of a setting.
#[derive(Clone)]
pub enum SettingName {
    /// A symbol of the declaration.
    Symbol(Ident),
    /// A key that the declaration does not read, without the prefix of the architecture.
    Key(LitStr),
}

/// Source of a tensor.
#[derive(Clone)]
pub struct SourceDecl {
    /// Name of the declared tensor.
    pub target: Ident,
    /// `bias` or `scale` after a dot.
    pub suffix: Option<Ident>,
    /// Alternatives; the first that the checkpoint has is the source.
    pub origins: Vec<OriginDecl>,
    /// Written in `mtp { … }`.
    pub of_mtp: bool,
}

/// Name of a source, with the steps that change its data.
#[derive(Clone)]
pub struct OriginDecl {
    /// Written `stack`: the last `{}` of the name counts the matrices of a stack.
    pub stack: bool,
    /// Name in the checkpoint, without `.weight`.
    pub name: LitStr,
    /// Changes of the data, in order.
    pub steps: Vec<StepDecl>,
    /// Source of the rows that follow, written after `and`.
    pub and: Option<Box<OriginDecl>>,
}

/// A change of a tensor's data, written after its name.
#[derive(Clone)]
pub struct StepDecl {
    /// Word that names the step.
    pub word: Ident,
    /// Operands of the step.
    pub args: Vec<Expr>,
}
