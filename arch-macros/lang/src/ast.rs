//! Syntax tree of one `arch!` declaration. Every node keeps its tokens; expressions are `syn` expressions.

pub mod audio;
pub mod checkpoint;
pub mod media;
pub mod tiles;

use proc_macro2::{Span, TokenStream};
use syn::{BinOp, Expr, ExprIf, Ident, LitStr};

use checkpoint::{CheckpointDecl, CheckpointItem};

/// The contents of one `arch! { … }`.
#[derive(Default)]
pub struct Decl {
    /// `name: "qwen3";`
    pub name: Option<LitStr>,
    /// `like: "qwen2";`
    pub like: Option<LitStr>,
    /// `rope: neox;` or `rope: neox or mrope;`
    pub rope: Option<(Ident, Option<Ident>)>,
    /// `attention: bidirectional;`
    pub attention: Option<Ident>,
    /// `result: embeddings;`
    pub result: Option<Ident>,
    /// Items of `models { … }`.
    pub models: Vec<ModelDecl>,
    /// Items of `hparams { … }`.
    pub hparams: Vec<HparamItem>,
    /// Items of `tensors { … }`.
    pub tensors: Vec<TensorItem>,
    /// `encoder { … }`
    pub encoder: Option<Graph>,
    /// `graph { … }`
    pub graph: Option<Graph>,
    /// `mtp { … }`
    pub mtp: Option<Graph>,
    /// `embedding { … }`
    pub embedding: Option<Graph>,
    /// `rank { … }`
    pub rank: Option<RankHead>,
    /// `checkpoint "Qwen3ForCausalLM" { … }`
    pub checkpoints: Vec<CheckpointDecl>,
    /// Sections of the ancestors, nearest first, which `like` can name.
    pub inherited_checkpoints: Vec<CheckpointDecl>,
    /// Items of fragments and of sections without classes. Earlier items take precedence.
    pub given_mappings: Vec<CheckpointItem>,
    /// `test { … }`
    pub test: Option<Test>,
    /// `fn name(x) { … }`: the functions of the declaration, followed by the functions of its fragments.
    pub functions: Vec<Function>,
    /// Fragments whose tensors have been merged into `tensors`.
    pub fragments: Vec<Used>,
    /// Items that the fragments require from the declaration.
    pub needs: Vec<Need>,
    /// Hyperparameters that a fragment reads or derives. The graph may leave them unused.
    pub given_hparams: Vec<String>,
    /// `audio { … }`
    pub audio: Option<audio::AudioSyntax>,
    /// Parts of an `encoder!`; `None` for an architecture.
    pub media: Option<media::MediaSyntax>,
}

/// `fn name(x: [n_embd, T], scale?, width = n_ff, ..) { … }`
#[derive(Clone)]
pub struct Function {
    pub name: Ident,
    /// Positional parameters.
    pub params: Vec<Parameter>,
    /// Named parameters.
    pub options: Vec<Opt>,
    /// Written `..`: forwards the named arguments of all calls in the body that end in `..`.
    pub forwards: bool,
    /// Tokens between the braces. They are parsed at every call, after the call's options are substituted.
    pub body: TokenStream,
    /// Inherited from a fragment or parent, so an unused function is not an error.
    pub inherited: bool,
}

/// `"27B": n_layer == 62;`: a published model that its sizes identify.
pub struct ModelDecl {
    pub name: LitStr,
    pub cond: Expr,
    /// Inherited from a parent, so an unused model is not an error.
    pub inherited: bool,
}

/// A positional parameter.
#[derive(Clone)]
pub struct Parameter {
    pub name: Ident,
    /// Required shape: the sizes between the brackets. `_` matches any size.
    pub shape: Option<TokenStream>,
}

/// A parameter with a name.
#[derive(Clone)]
pub struct Opt {
    pub name: Ident,
    /// Tokens used when the argument is omitted; `None` if the parameter has no default.
    pub default: Option<TokenStream>,
}

/// A fragment that a declaration uses.
#[derive(Clone)]
pub struct Used {
    /// Name of the fragment, with the span of its `use`.
    pub name: Ident,
    /// Path of the fragment's file, relative to the crate's manifest.
    pub file: String,
}

/// A fragment's file, split into sections. Each section is parsed after its options are substituted.
#[derive(Default)]
pub struct Fragment {
    /// Options that the fragment accepts.
    pub options: Vec<Opt>,
    /// Contents of `needs(…)` without the parentheses.
    pub needs: TokenStream,
    /// The `hparams` section, including its braces.
    pub hparams: TokenStream,
    /// The `tensors` section, including its braces.
    pub tensors: TokenStream,
    /// Contents of the `checkpoint` section, without the braces.
    pub checkpoint: TokenStream,
    /// `fn name(x) { … }`
    pub functions: Vec<Function>,
}

/// A requirement of a fragment on the declaration that uses it.
#[derive(Clone)]
pub struct Need {
    /// Name of the fragment, with the span of its `use`.
    pub by: Ident,
    /// Name that the using declaration must define.
    pub name: Ident,
    /// Kind of item that the name must refer to.
    pub what: Needed,
}

/// Kinds of [`Need`].
#[derive(Clone)]
pub enum Needed {
    /// `eps: f32`
    Hparam(Ident),
    /// `router: linear [n_embd -> n_expert]`
    Tensor(Ident, Box<Dims>),
    /// `limited_glu(gate, up)`
    Function(Vec<Ident>),
}

/// `use swiglu(width = n_ff_exp);`
pub struct Use {
    pub name: Ident,
    /// Options of the `use`, with the tokens given for them.
    pub args: Vec<(Ident, TokenStream)>,
}

/// `graph { … }`, `encoder { … }`, or `mtp { … }`
pub struct Graph {
    /// Span of the `use` keyword.
    pub span: Span,
    pub body: BlockSyntax,
}

/// `rank(mean) { … }`
pub struct RankHead {
    /// Pooling in parentheses, used when the file does not specify the pooling.
    pub pooling: Option<Ident>,
    /// Graph that is computed on the pooled rows.
    pub graph: Graph,
}

/// `test { n_embd: 256, … }`
pub struct Test {
    /// Span of the keyword `test`.
    pub span: Span,
    /// Symbols of the test and their values.
    pub sizes: Vec<(Ident, syn::Lit)>,
}

/// An item of the `hparams` section.
pub enum HparamItem {
    /// `eps: f32 = "attention.layer_norm_rms_epsilon" or 1e-5;`
    Key {
        name: Ident,
        /// `usize`, `f32`, `bool`, `string`, `pattern`, `dense_first`, or `listed`.
        ty: Ident,
        /// Written `[ty]`: the value differs by layer.
        list: bool,
        /// Written `[ty; n..]`: a list with at least `n` values, independent of the layers.
        at_least: Option<Box<Expr>>,
        /// GGUF key of the value without the architecture prefix.
        key: LitStr,
        /// Default value, written after `or`.
        default: Option<Expr>,
    },
    /// `let kq_scale = …;`
    Let { name: Ident, value: Expr },
    /// `check cond, "text";`
    Check {
        /// Condition that the values in the file must satisfy.
        cond: Expr,
        /// Error message shown when the condition is false.
        text: LitStr,
        /// Written `warn` instead of `check`: files that violate the condition load with a warning.
        only_warns: bool,
    },
    /// `without n_swa, …;`: hyperparameters that are not inherited.
    Without(Vec<Ident>),
    /// `without check "text";`: the inherited check with this message is dropped.
    WithoutCheck(LitStr),
}

impl HparamItem {
    /// Returns the symbol that the item defines.
    pub fn name(&self) -> Option<&Ident> {
        match self {
            HparamItem::Key { name, .. } | HparamItem::Let { name, .. } => Some(name),
            HparamItem::Check { .. } | HparamItem::Without(_) | HparamItem::WithoutCheck(_) => None,
        }
    }
}

/// An item of the `tensors` section.
pub enum TensorItem {
    /// `wq: linear "attn_q" [n_embd -> n_head * head_dim];`
    Tensor(Box<TensorDecl>),
    /// `layer { … }` or `layer enc "enc.blk" n_layer { … }`
    Layer {
        /// Span of the keyword `layer`.
        span: Span,
        /// Name, prefix, and count of a named group.
        group: Option<Box<GroupDecl>>,
        /// Tensors of each layer.
        items: Vec<TensorItem>,
    },
    /// `if cond { … } else { … }`
    If {
        /// Condition on hyperparameters.
        cond: Box<Expr>,
        /// Tensors that exist if the condition holds.
        then: Vec<TensorItem>,
        /// Tensors that exist otherwise.
        otherwise: Vec<TensorItem>,
    },
    /// `ignore "cls.output", …;`
    Ignore(Vec<LitStr>),
    /// `without q_norm, …;`: tensors that are not inherited.
    Without(Vec<Ident>),
    /// `use swiglu;`: a fragment, until its tensors replace the item.
    Use(Use),
}

impl TensorItem {
    /// Returns the name of an unconditional tensor.
    pub fn name(&self) -> Option<&Ident> {
        match self {
            TensorItem::Tensor(t) => Some(&t.name),
            _ => None,
        }
    }
}

/// Returns the names of all tensors, including nested blocks.
pub fn tensor_names<'a>(items: impl IntoIterator<Item = &'a TensorItem>) -> Vec<&'a Ident> {
    let names = items.into_iter().map(|item| match item {
        TensorItem::Tensor(t) => vec![&t.name],
        TensorItem::Layer { items, .. } => tensor_names(items),
        TensorItem::If { then, otherwise, .. } => [tensor_names(then), tensor_names(otherwise)].concat(),
        TensorItem::Ignore(_) | TensorItem::Without(_) | TensorItem::Use(_) => Vec::new(),
    });
    names.flatten().collect()
}

/// A named group of layers.
#[derive(Clone)]
pub struct GroupDecl {
    /// Name of the group in `for` loops.
    pub name: Ident,
    /// GGUF prefix of the group, before the layer number.
    pub prefix: LitStr,
    /// Number of layers in the group.
    pub count: Expr,
}

/// Declaration of a tensor.
pub struct TensorDecl {
    /// Name of the tensor in the graph.
    pub name: Ident,
    /// Written `override name`: replaces a tensor of a fragment.
    pub overrides: bool,
    /// Written `name?`: files may lack the tensor.
    pub optional: bool,
    /// `embed`, `vector`, `norm`, `linear`, `experts`, or `raw`.
    pub kind: Ident,
    /// GGUF name without the layer prefix and the suffix.
    pub gguf: LitStr,
    /// Sizes of the tensor, innermost dimension first.
    pub dims: Dims,
    /// Replacement after `or`, used when the tensor is absent.
    pub instead: Option<Instead>,
}

/// Replacement for an absent tensor.
#[derive(Clone)]
pub enum Instead {
    /// `or token_embd`: another declared tensor.
    Tensor(Ident),
    /// `or "post_ffw_norm"`: the tensor under another GGUF name.
    Name(LitStr),
}

/// Sizes of a tensor.
#[derive(Clone)]
pub struct Dims {
    /// Span of the brackets around the sizes.
    pub span: Span,
    /// `a, b, …`, or the input size before `->`.
    pub first: Vec<Expr>,
    /// Output size of a matrix, written after `->`.
    pub output: Option<Expr>,
    /// Number of experts or heads after `;`.
    pub count: Option<Expr>,
    /// Written `n..`: the last dimension may be larger in files.
    pub or_more: bool,
}

/// Statements, followed by an optional result.
pub struct BlockSyntax {
    pub stmts: Vec<StmtSyntax>,
    /// Final expression, written without a semicolon.
    pub result: Option<Expr>,
    /// Span of the block's closing brace.
    pub end: Span,
}

/// A statement of a graph.
pub enum StmtSyntax {
    /// `let name = value;`
    Let { name: Ident, value: Expr },
    /// `name = value;` or `name += value;`
    Assign {
        /// Name of the value that is assigned.
        name: Ident,
        /// Operator before `=`, such as `+` in `+=`.
        op: Option<BinOp>,
        value: Expr,
    },
    /// `if cond { … } else { … }`, executed for its assignments.
    If(ExprIf),
    /// `for layer { … }`, `for layer in a..b { … }`, or `for i in a..b { … }`
    For(Box<For>),
}

/// A loop over a group of layers or over a range of integers.
pub struct For {
    /// Span of `for` and the loop variable.
    pub span: Span,
    /// Loop variable or group of layers; `None` for `_`.
    pub name: Option<Ident>,
    /// `a..b`
    pub range: Option<(Expr, Expr)>,
    /// Parsed body.
    pub body: BlockSyntax,
    /// Tokens of the loop body, without the braces.
    pub tokens: TokenStream,
}
