//! PTX text as a syntax tree: what stands there, with its lines, and nothing of what it means.

mod lexer;
mod parser;

pub use parser::parse;

/// What is wrong with a module, at which of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtxError {
    /// Counted from 1.
    pub line: u32,
    /// A sentence that names the instruction or directive.
    pub message: String,
}

impl PtxError {
    /// An error at a line.
    pub fn new(line: u32, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { line, message }
    }
}

impl std::fmt::Display for PtxError {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

/// Where a variable or an access lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Any of the others, by address.
    Generic,
    /// Memory of the device.
    Global,
    /// Memory of the device that kernels only read.
    Const,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Arguments.
    Param,
}

/// A module: one text given to the driver.
#[derive(Debug, Default)]
pub struct Module {
    /// Of the PTX language, major and minor.
    pub version: (u32, u32),
    /// The least compute capability: 80 of `sm_80`, 90 of `sm_90a`.
    pub target: u32,
    /// Variables outside of functions.
    pub variables: Vec<Variable>,
    /// Kernels and functions that have bodies.
    pub functions: Vec<Function>,
}

/// A declared variable.
#[derive(Debug, Clone)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Where it lies.
    pub space: Space,
    /// Alignment in bytes.
    pub align: u32,
    /// Size in bytes; 0 for `extern` arrays, whose size is given at launch.
    pub size: u32,
    /// Its first bytes; what lies behind them is 0.
    pub init: Vec<u8>,
}

/// A kernel (`.entry`) or function (`.func`).
#[derive(Debug, Default)]
pub struct Function {
    /// Where it begins.
    pub line: u32,
    /// Its name.
    pub name: String,
    /// Whether it is a kernel.
    pub is_entry: bool,
    /// What it returns.
    pub returns: Vec<Variable>,
    /// Its parameters, in order.
    pub params: Vec<Variable>,
    /// Most threads in a block (`.maxntid`, `.reqntid`).
    pub max_threads: Option<u32>,
    /// Whether blocks have exactly that many (`.reqntid`).
    pub exact_threads: bool,
    /// Its body.
    pub body: Vec<Item>,
}

/// What a body consists of.
#[derive(Debug, Clone)]
pub enum Item {
    /// Declarations in braces are known up to the closing one.
    Scope(Vec<Item>),
    /// A place to jump to.
    Label(u32, String),
    /// `.reg`: type, name, and how many of `name0`, `name1`, ... there are (`None`: one, of this very name).
    Registers {
        line: u32,
        kind: String,
        name: String,
        count: Option<u32>,
    },
    /// `.shared`, `.local` and `.param` variables of a body.
    Variable(Variable),
    /// The targets of `brx.idx`, under the name of the label before them.
    Targets(String, Vec<String>),
    /// An instruction.
    Statement(Statement),
}

/// An instruction as it stands there.
#[derive(Debug, Clone)]
pub struct Statement {
    /// Where it stands.
    pub line: u32,
    /// `@p` or `@!p`: the predicate, and whether it is negated.
    pub guard: Option<(String, bool)>,
    /// With all modifiers: `ld.global.nc.v4.f32`.
    pub opcode: String,
    /// Results first.
    pub operands: Vec<Operand>,
}

/// An operand as it stands there.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A register, special register, variable, function or label.
    Name(String),
    /// An integer.
    Int(i128),
    /// `0f3F800000`: the bits of a f32.
    F32(u32),
    /// `0d3FF0000000000000` or a decimal number: the bits of a f64.
    F64(u64),
    /// `[base + offset]`; without a base, an absolute address.
    Address(Option<String>, i64),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `p|q`: two results.
    Pair(Box<Operand>, Box<Operand>),
    /// `!p`.
    Not(Box<Operand>),
    /// `(a, b)`: arguments or results of a call.
    List(Vec<Operand>),
}
