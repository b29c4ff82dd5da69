//! The syntax tree of one declaration. Every node keeps its tokens; expressions are `syn`'s.

use proc_macro2::{Span, TokenStream};
use syn::{BinOp, Expr, ExprIf, Ident, LitStr};

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
    /// `allow: no_residual;`: lints that are answered.
    pub allowed: Vec<Ident>,
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
    /// `test { … }`
    pub test: Option<Test>,
    /// `fn name(x) { … }`, own ones before those of fragments.
    pub functions: Vec<Function>,
    /// The fragments whose tensors stand among `tensors`.
    pub fragments: Vec<Used>,
    /// What the fragments expect to be declared.
    pub needs: Vec<Need>,
    /// Hyper-parameters that a fragment reads or derives: the graph need not use them all.
    pub given_hparams: Vec<String>,
}

/// `fn name(x, scale?, width = n_ff, ..) { … }`
#[derive(Clone)]
pub struct Function {
    /// What it is called by.
    pub name: Ident,
    /// Values given by position.
    pub params: Vec<Ident>,
    /// Expressions given by name.
    pub options: Vec<Opt>,
    /// Written `..`: takes what the calls that end in `..` take.
    pub forwards: bool,
    /// What stands in the braces: read at every call, with the call's options put in.
    pub body: TokenStream,
    /// Of a fragment or a parent, and so not necessarily called.
    pub inherited: bool,
}

/// What may be given by name.
#[derive(Clone)]
pub struct Opt {
    /// Its name.
    pub name: Ident,
    /// What stands for it when it is not given; `None`: nothing.
    pub default: Option<TokenStream>,
}

/// A fragment that a declaration uses.
#[derive(Clone)]
pub struct Used {
    /// Its name, where it is used.
    pub name: Ident,
    /// Its file, relative to the manifest of the crate.
    pub file: String,
}

/// A fragment's file, read as far as its parts: what is in them is parsed when options have been put in.
#[derive(Default)]
pub struct Fragment {
    /// Options of `use`.
    pub options: Vec<Opt>,
    /// `needs(…)`, without its parentheses.
    pub needs: TokenStream,
    /// `hparams`, with its braces.
    pub hparams: TokenStream,
    /// `tensors`, with its braces.
    pub tensors: TokenStream,
    /// `fn name(x) { … }`
    pub functions: Vec<Function>,
}

/// What a fragment expects of the declaration that uses it.
#[derive(Clone)]
pub struct Need {
    /// The fragment, where it is used.
    pub by: Ident,
    /// What must be declared under which name.
    pub name: Ident,
    /// What it must be.
    pub what: Needed,
}

/// Forms of [`Need`].
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
    /// The fragment.
    pub name: Ident,
    /// Options and what is given for them.
    pub args: Vec<(Ident, TokenStream)>,
}

/// `graph { … }`, `encoder { … }` or `mtp { … }`
pub struct Graph {
    /// Its first word.
    pub span: Span,
    /// Its statements.
    pub body: Block,
}

/// `rank(mean) { … }`
pub struct RankHead {
    /// The word in parentheses: how rows are pooled where a file does not say.
    pub pooling: Option<Ident>,
    /// What becomes of the pooled rows.
    pub graph: Graph,
}

/// `test { n_embd: 256, … }`
pub struct Test {
    /// The word `test`.
    pub span: Span,
    /// Symbols and their sizes.
    pub sizes: Vec<(Ident, syn::Lit)>,
}

/// One line of `hparams`.
pub enum HparamItem {
    /// `eps: f32 = "attention.layer_norm_rms_epsilon" or 1e-5;`
    Key {
        /// The symbol.
        name: Ident,
        /// `usize`, `f32`, `bool`, `string`, `pattern` or `late_pattern`.
        ty: Ident,
        /// Written `[ty]`: one value per layer.
        list: bool,
        /// Written `[ty; n..]`: a list of its own with at least so many values.
        at_least: Option<Box<Expr>>,
        /// Key without the architecture's prefix.
        key: LitStr,
        /// After `or`.
        default: Option<Expr>,
    },
    /// `let kq_scale = …;`
    Let {
        /// The symbol.
        name: Ident,
        /// What it is computed from.
        value: Expr,
    },
    /// `check cond, "text";`
    Check {
        /// Must hold for the file's values.
        cond: Expr,
        /// Says what is wrong when it does not.
        text: LitStr,
    },
    /// `without n_swa, …;`: not inherited.
    Without(Vec<Ident>),
}

impl HparamItem {
    /// The symbol it defines.
    pub fn name(&self) -> Option<&Ident> {
        match self {
            HparamItem::Key { name, .. } | HparamItem::Let { name, .. } => Some(name),
            HparamItem::Check { .. } | HparamItem::Without(_) => None,
        }
    }
}

/// One item of `tensors`.
pub enum TensorItem {
    /// `wq: linear "attn_q" [n_embd -> n_head * head_dim];`
    Tensor(Box<TensorDecl>),
    /// `layer { … }` or `layer enc "enc.blk" n_layer { … }`
    Layer {
        /// The word `layer`.
        span: Span,
        /// Name, prefix and count of a group of its own.
        group: Option<Box<GroupDecl>>,
        /// What each layer holds.
        items: Vec<TensorItem>,
    },
    /// `if cond { … } else { … }`
    If {
        /// Condition over hyper-parameters.
        cond: Box<Expr>,
        /// Present when it holds.
        then: Vec<TensorItem>,
        /// Present when it does not.
        otherwise: Vec<TensorItem>,
    },
    /// `ignore "cls.output", …;`
    Ignore(Vec<LitStr>),
    /// `without q_norm, …;`: not inherited.
    Without(Vec<Ident>),
    /// `use swiglu;`: a fragment's tensors, until they take its place.
    Use(Use),
}

impl TensorItem {
    /// The name of a tensor without a condition.
    pub fn name(&self) -> Option<&Ident> {
        match self {
            TensorItem::Tensor(t) => Some(&t.name),
            _ => None,
        }
    }
}

/// Names of tensors, in all blocks.
pub fn tensor_names<'a>(items: impl IntoIterator<Item = &'a TensorItem>) -> Vec<&'a Ident> {
    let names = items.into_iter().map(|item| match item {
        TensorItem::Tensor(t) => vec![&t.name],
        TensorItem::Layer { items, .. } => tensor_names(items),
        TensorItem::If { then, otherwise, .. } => [tensor_names(then), tensor_names(otherwise)].concat(),
        TensorItem::Ignore(_) | TensorItem::Without(_) | TensorItem::Use(_) => Vec::new(),
    });
    names.flatten().collect()
}

/// What a named group of layers is called, here and in files, and how many there are.
#[derive(Clone)]
pub struct GroupDecl {
    /// Name of its loop.
    pub name: Ident,
    /// GGUF prefix before the layer's number.
    pub prefix: LitStr,
    /// Number of layers.
    pub count: Expr,
}

/// One tensor.
pub struct TensorDecl {
    /// Field name.
    pub name: Ident,
    /// Written `override name`: in the place of one that a fragment gives.
    pub overrides: bool,
    /// Written `name?`.
    pub optional: bool,
    /// `embed`, `vector`, `norm`, `linear`, `experts` or `raw`.
    pub kind: Ident,
    /// GGUF name without layer prefix and suffix.
    pub gguf: LitStr,
    /// Sizes in brackets.
    pub dims: Dims,
    /// After `or`: what is used instead when this one is absent.
    pub instead: Option<Instead>,
}

/// What stands in for an absent tensor.
#[derive(Clone)]
pub enum Instead {
    /// `or token_embd`: another declared tensor.
    Tensor(Ident),
    /// `or "post_ffw_norm"`: a tensor of another GGUF name.
    Name(LitStr),
}

/// Sizes of a tensor.
#[derive(Clone)]
pub struct Dims {
    /// The brackets.
    pub span: Span,
    /// `a, b, …`, or the input before an arrow.
    pub first: Vec<Expr>,
    /// After `->`.
    pub output: Option<Expr>,
    /// After `;`: number of experts.
    pub count: Option<Expr>,
    /// Written `n..`: files may have more of the last.
    pub or_more: bool,
}

/// Statements and the value they end in.
pub struct Block {
    /// In order.
    pub stmts: Vec<Stmt>,
    /// The expression without a semicolon at the end.
    pub result: Option<Expr>,
    /// The closing brace.
    pub end: Span,
}

/// One statement of a graph.
pub enum Stmt {
    /// `let name = value;`
    Let {
        /// The new name.
        name: Ident,
        /// Its value.
        value: Expr,
    },
    /// `name = value;` or `name += value;`
    Assign {
        /// An existing name.
        name: Ident,
        /// The operator before `=`.
        op: Option<BinOp>,
        /// The right side.
        value: Expr,
    },
    /// `if cond { … } else { … }` for its assignments.
    If(ExprIf),
    /// `for layer { … }`, `for layer in a..b { … }` or `for i in a..b { … }`
    For(Box<For>),
}

/// A loop: over a group of layers if its name is that of one, else over numbers.
pub struct For {
    /// The words `for layer`.
    pub span: Span,
    /// What it is over; `None` for `_`.
    pub name: Option<Ident>,
    /// `a..b`
    pub range: Option<(Expr, Expr)>,
    /// Done once per layer or number.
    pub body: Block,
    /// The same as it stands there, without braces.
    pub tokens: TokenStream,
}
