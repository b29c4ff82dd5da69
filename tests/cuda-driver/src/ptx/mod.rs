//! Parser for PTX. The syntax tree contains names and line numbers; `decode` resolves their meaning.

mod lexer;
mod parser;

pub use parser::parse;

/// An error in a PTX module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtxError {
    /// Line number, starting at 1.
    pub line: u32,
    /// Message, which names the instruction or directive.
    pub message: String,
}

impl PtxError {
    /// Creates an error at a line.
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

/// A state space of PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Any space, selected by the generic address.
    Generic,
    /// Global memory of the device.
    Global,
    /// Read-only memory of the device.
    Const,
    /// Shared memory of a block.
    Shared,
    /// Local memory of a thread.
    Local,
    /// Kernel parameters.
    Param,
}

/// A PTX module.
#[derive(Debug, Default)]
pub struct Module {
    /// PTX version, major and minor.
    pub version: (u32, u32),
    /// Minimum compute capability, for example 80 for `sm_80` and 90 for `sm_90a`.
    pub target: u32,
    /// True if only devices of exactly this compute capability run the module, as for `sm_90a`.
    pub is_specific: bool,
    /// Variables declared outside functions.
    pub variables: Vec<Variable>,
    /// Kernels and functions that have a body.
    pub functions: Vec<Function>,
}

/// A declared variable.
#[derive(Debug, Clone)]
pub struct Variable {
    pub name: String,
    pub space: Space,
    /// Alignment in bytes.
    pub align: u32,
    /// Size in bytes; 0 for `extern` arrays, which are sized at launch.
    pub size: u32,
    /// Initial values. The bytes after them are 0.
    pub init: Vec<u8>,
}

/// A kernel (`.entry`) or function (`.func`).
#[derive(Debug, Default)]
pub struct Function {
    pub line: u32,
    pub name: String,
    /// True for a kernel (`.entry`).
    pub is_entry: bool,
    /// Return parameters.
    pub returns: Vec<Variable>,
    pub params: Vec<Variable>,
    /// Maximum number of threads per block (`.maxntid` or `.reqntid`).
    pub max_threads: Option<u32>,
    /// True if blocks must have exactly `max_threads` threads (`.reqntid`).
    pub exact_threads: bool,
    pub body: Vec<Item>,
}

/// An element of a function body.
#[derive(Debug, Clone)]
pub enum Item {
    /// A block in braces. Its declarations are visible up to the closing brace.
    Scope(Vec<Item>),
    /// A label with its line number.
    Label(u32, String),
    /// A `.reg` declaration: type, name, and count. With a count, the registers are `name0`, `name1`, and so
    /// on.
    Registers {
        line: u32,
        kind: String,
        name: String,
        count: Option<u32>,
    },
    /// A `.shared`, `.local`, or `.param` variable.
    Variable(Variable),
    /// The targets of `brx.idx`, named by the label before `.branchtargets`.
    Targets(String, Vec<String>),
    Statement(Statement),
}

/// An instruction.
#[derive(Debug, Clone)]
pub struct Statement {
    pub line: u32,
    /// The predicate of `@p` or `@!p`, and whether it is negated.
    pub guard: Option<(String, bool)>,
    /// Opcode with all modifiers, such as `ld.global.nc.v4.f32`.
    pub opcode: String,
    /// Operands, results first.
    pub operands: Vec<Operand>,
}

/// An operand.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A register, special register, variable, function, or label.
    Name(String),
    Int(i128),
    /// The bits of an f32, written as `0f3F800000`.
    F32(u32),
    /// The bits of an f64, written as `0d3FF0000000000000` or as a decimal number.
    F64(u64),
    /// `[base + offset]`; without a base, an absolute address.
    Address(Option<String>, i64),
    /// A vector `{a, b}`.
    Vector(Vec<Operand>),
    /// A pair of results, `p|q`.
    Pair(Box<Operand>, Box<Operand>),
    /// A negated predicate `!p`.
    Not(Box<Operand>),
    /// The arguments or results of a call, `(a, b)`.
    List(Vec<Operand>),
}
