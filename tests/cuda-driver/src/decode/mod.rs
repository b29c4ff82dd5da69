//! Syntax trees to kernels: names to registers and places, opcodes to what they do.
//!
//! Functions that a kernel calls are written into it at every call. An opcode, modifier, type or directive that is not known is an error that
//! names it.

mod arithmetic;
mod control;
mod memory;
mod moves;
mod opcode;
mod warp;

use crate::exec::inst::{Action, Class, Inst, Kernel, Special};
use crate::exec::lanes::{self, AluFn, Args, FIRST, SINK, Slot, TRUE};
use crate::exec::scalar::Scalar;
use crate::ptx::{Function, Item, Module, Operand, PtxError, Space, Statement, Variable};
use opcode::Opcode;
use std::collections::HashMap;

type Result<T> = std::result::Result<T, PtxError>;

/// Deepest nesting of calls.
const CALLS_MAX: usize = 16;

/// A kernel of a module. `globals` are the addresses of the module's global and constant variables.
pub fn decode(module: &Module, function: &Function, globals: &HashMap<String, u64>) -> Result<Kernel> {
    if !lanes::is_supported() {
        return Err(PtxError::new(
            function.line,
            "the emulated device needs a CPU with AVX2, FMA, BMI2 and LZCNT",
        ));
    }
    let mut decoder = Decoder::new(module, globals);
    decoder.place_shared(function)?;
    let kernel_scope = decoder.bind_params(function);
    decoder.scopes.push(kernel_scope);
    decoder.items(&function.body)?;
    decoder.guard = (TRUE, 0);
    decoder.emit(Class::Control, Action::Exit);
    decoder.resolve_labels()?;
    Ok(decoder.finish(function))
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Binding {
    /// By number.
    Register(usize),
    /// A place in a space.
    Place(Space, u64),
    /// By number.
    Label(usize),
}

/// A declared register.
struct Register {
    /// 0: a predicate.
    bytes: u32,
    /// Given at its first use.
    slot: Option<Slot>,
}

struct Decoder<'a> {
    module: &'a Module,
    globals: &'a HashMap<String, u64>,
    scopes: Vec<HashMap<String, Binding>>,
    /// Names of module-level shared variables, and dynamic ones.
    shared: HashMap<String, u64>,
    registers: Vec<Register>,
    code: Vec<Inst>,
    /// The instruction that each label stands before.
    labels: Vec<Option<u32>>,
    tables: HashMap<String, Vec<String>>,
    constants: HashMap<(u64, u32), Slot>,
    specials: Vec<(Special, Slot)>,
    file_bytes: u32,
    /// Where the next predicate goes, in a word of 64 bytes.
    next_predicate: Slot,
    shared_bytes: u32,
    local_bytes: u32,
    params: Vec<(u32, u32)>,
    param_bytes: u32,
    line: u32,
    guard: (Slot, u32),
    /// For each function that is being written: the label after its call.
    calls: Vec<(String, usize)>,
}

impl<'a> Decoder<'a> {
    fn new(module: &'a Module, globals: &'a HashMap<String, u64>) -> Self {
        Self {
            module,
            globals,
            scopes: Vec::new(),
            shared: HashMap::new(),
            registers: Vec::new(),
            code: Vec::new(),
            labels: Vec::new(),
            tables: HashMap::new(),
            constants: HashMap::new(),
            specials: Vec::new(),
            file_bytes: FIRST,
            next_predicate: 0,
            shared_bytes: 0,
            local_bytes: 0,
            params: Vec::new(),
            param_bytes: 0,
            line: function_line(module),
            guard: (TRUE, 0),
            calls: Vec::new(),
        }
    }

    fn finish(self, function: &Function) -> Kernel {
        let constants = self
            .constants
            .iter()
            .map(|((bits, bytes), slot)| (*slot, *bits, *bytes));
        let mut constants: Vec<_> = constants.collect();
        constants.sort_unstable();
        Kernel {
            name: function.name.clone(),
            code: self.code,
            file_bytes: self.file_bytes.next_multiple_of(64) + 256,
            constants,
            specials: self.specials,
            shared_bytes: self.shared_bytes,
            local_bytes: self.local_bytes,
            param_bytes: self.param_bytes,
            params: self.params,
            max_threads: function.max_threads,
            exact_threads: function.exact_threads,
        }
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(PtxError::new(self.line, message))
    }
}

fn function_line(module: &Module) -> u32 {
    module.functions.first().map_or(1, |f| f.line)
}

/// Places of variables.
impl Decoder<'_> {
    /// Shared variables of the module and of all functions, then the dynamic ones, which all begin behind them.
    fn place_shared(&mut self, function: &Function) -> Result<()> {
        let all = self.module.variables.iter().filter(|v| v.space == Space::Shared);
        let (dynamic, fixed): (Vec<_>, Vec<_>) = all.partition(|v| v.size == 0);
        for variable in fixed {
            if mentions(&function.body, &variable.name) {
                let at = place(&mut self.shared_bytes, variable);
                self.shared.insert(variable.name.clone(), at.into());
            }
        }
        let callees: Vec<_> = self.module.functions.iter().filter(|f| !f.is_entry).collect();
        for body in callees.iter().map(|f| &f.body).chain([&function.body]) {
            for variable in shared_variables(body) {
                let at = place(&mut self.shared_bytes, variable);
                self.shared.insert(variable.name.clone(), at.into());
            }
        }
        let align = dynamic.iter().map(|v| v.align).max().unwrap_or(1);
        let end = self.shared_bytes.next_multiple_of(align);
        self.shared.extend(dynamic.iter().map(|v| (v.name.clone(), end.into())));
        if dynamic.iter().any(|v| mentions(&function.body, &v.name)) {
            self.shared_bytes = end;
        }
        Ok(())
    }

    fn bind_params(&mut self, function: &Function) -> HashMap<String, Binding> {
        let mut scope = HashMap::new();
        for param in &function.params {
            let at = place(&mut self.param_bytes, param);
            self.params.push((at, param.size));
            scope.insert(param.name.clone(), Binding::Place(Space::Param, at.into()));
        }
        scope
    }
}

/// Adds a variable behind others.
fn place(end: &mut u32, variable: &Variable) -> u32 {
    let at = end.next_multiple_of(variable.align.max(1));
    *end = at + variable.size;
    at
}

fn shared_variables(items: &[Item]) -> Vec<&Variable> {
    let mut found = Vec::new();
    for item in items {
        match item {
            Item::Scope(items) => found.extend(shared_variables(items)),
            Item::Variable(v) if v.space == Space::Shared => found.push(v),
            _ => {}
        }
    }
    found
}

fn mentions(items: &[Item], name: &str) -> bool {
    fn in_operand(operand: &Operand, name: &str) -> bool {
        match operand {
            Operand::Name(n) => n == name,
            Operand::Address(base, _) => base.as_deref() == Some(name),
            Operand::Vector(v) | Operand::List(v) => v.iter().any(|o| in_operand(o, name)),
            _ => false,
        }
    }
    items.iter().any(|item| match item {
        Item::Scope(items) => mentions(items, name),
        Item::Statement(s) => s.operands.iter().any(|o| in_operand(o, name)),
        _ => false,
    })
}

/// Bodies.
impl Decoder<'_> {
    /// Labels and tables of jumps are known in all of their braces, the rest from its declaration on.
    fn items(&mut self, items: &[Item]) -> Result<()> {
        let mut scope = HashMap::new();
        for item in items {
            match item {
                Item::Label(_, name) => {
                    scope.insert(name.clone(), Binding::Label(self.new_label()));
                }
                Item::Targets(name, targets) => {
                    self.tables.insert(name.clone(), targets.clone());
                }
                _ => {}
            }
        }
        self.scopes.push(scope);
        for item in items {
            self.item(item)?;
        }
        self.scopes.pop();
        Ok(())
    }

    fn item(&mut self, item: &Item) -> Result<()> {
        match item {
            Item::Scope(items) => self.items(items)?,
            Item::Label(line, name) => {
                self.line = *line;
                if let Binding::Label(label) = self.lookup(name)? {
                    self.labels[label] = Some(self.code.len() as u32);
                }
            }
            Item::Registers {
                line,
                kind,
                name,
                count,
            } => self.declare_registers(*line, kind, name, *count)?,
            Item::Variable(variable) => self.declare(variable),
            Item::Targets(..) => {}
            Item::Statement(statement) => self.statement(statement)?,
        }
        Ok(())
    }

    fn declare_registers(&mut self, line: u32, kind: &str, name: &str, count: Option<u32>) -> Result<()> {
        self.line = line;
        let scalar = kind.strip_prefix('.').and_then(Scalar::parse);
        let Some(scalar) = scalar else {
            return self.error(format!("registers of type `{kind}` are not supported"));
        };
        // Bytes live in registers of 16 bits.
        let bytes = if scalar == Scalar::Pred {
            0
        } else {
            scalar.bytes().max(2)
        };
        let names: Vec<String> = match count {
            None => vec![name.to_owned()],
            Some(n) => (0..n).map(|i| format!("{name}{i}")).collect(),
        };
        for name in names {
            let number = self.registers.len();
            self.registers.push(Register { bytes, slot: None });
            self.bind(name, Binding::Register(number));
        }
        Ok(())
    }

    fn declare(&mut self, variable: &Variable) {
        let (space, at) = match variable.space {
            // Placed before, wherever they stand.
            Space::Shared => return,
            // Arguments and results of calls lie in local memory.
            _ => (Space::Local, place(&mut self.local_bytes, variable)),
        };
        self.bind(variable.name.clone(), Binding::Place(space, at.into()));
    }

    fn bind(&mut self, name: String, binding: Binding) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, binding);
        }
    }

    fn statement(&mut self, statement: &Statement) -> Result<()> {
        self.line = statement.line;
        self.guard = match &statement.guard {
            None => (TRUE, 0),
            Some((name, negated)) => {
                let (slot, negate) = self.predicate(&Operand::Name(name.clone()))?;
                (slot, if *negated { !negate } else { negate })
            }
        };
        let mut op = Opcode::new(statement);
        let known = self.arithmetic(&mut op)?
            || self.moves(&mut op)?
            || self.memory(&mut op)?
            || self.control(&mut op)?
            || self.warp(&mut op)?;
        if !known {
            return self.error(format!("the instruction `{}` is unknown", statement.opcode));
        }
        op.finish()
    }
}

/// Names and registers.
impl Decoder<'_> {
    fn lookup(&self, name: &str) -> Result<Binding> {
        if let Some(binding) = self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Ok(*binding);
        }
        if let Some(at) = self.shared.get(name) {
            return Ok(Binding::Place(Space::Shared, *at));
        }
        match self.globals.get(name) {
            Some(at) => Ok(Binding::Place(Space::Global, *at)),
            None => self.error(format!("`{name}` is not declared")),
        }
    }

    /// Room for a register of so many bytes in each lane; 0: a predicate.
    fn new_slot(&mut self, bytes: u32) -> Slot {
        if bytes == 0 {
            if self.next_predicate.is_multiple_of(64) {
                self.next_predicate = self.new_slot(2);
            }
            self.next_predicate += 4;
            return self.next_predicate - 4;
        }
        let slot = self.file_bytes;
        self.file_bytes += bytes * 32;
        slot
    }

    /// A register's place and bytes; a special register has 4 bytes.
    fn register(&mut self, name: &str) -> Result<(Slot, u32)> {
        if name == "_" {
            return self.error("`_` cannot be read");
        }
        if let Some(special) = special(name) {
            return Ok((self.special(special), 4));
        }
        match self.lookup(name)? {
            Binding::Register(number) => {
                let bytes = self.registers[number].bytes;
                if let Some(slot) = self.registers[number].slot {
                    return Ok((slot, bytes));
                }
                let slot = self.new_slot(bytes);
                self.registers[number].slot = Some(slot);
                Ok((slot, bytes))
            }
            _ => self.error(format!("`{name}` is no register")),
        }
    }

    fn special(&mut self, special: Special) -> Slot {
        if let Some((_, slot)) = self.specials.iter().find(|(s, _)| *s == special) {
            return *slot;
        }
        let slot = self.new_slot(4);
        self.specials.push((special, slot));
        slot
    }

    fn constant(&mut self, bits: u64, bytes: u32) -> Slot {
        let bits = if bytes == 8 {
            bits
        } else {
            bits & ((1 << (8 * bytes)) - 1)
        };
        if let Some(slot) = self.constants.get(&(bits, bytes)) {
            return *slot;
        }
        let slot = self.new_slot(bytes);
        self.constants.insert((bits, bytes), slot);
        slot
    }

    /// A source of exactly so many bytes.
    fn source(&mut self, operand: &Operand, bytes: u32) -> Result<Slot> {
        let bits = match operand {
            Operand::Name(name) if name == "WARP_SZ" => 32,
            Operand::Name(name) if self.place_of(name).is_some() => self.place_of(name).unwrap_or_default(),
            Operand::Name(name) => {
                let (slot, have) = self.register(name)?;
                if have != bytes {
                    return self.error(format!("`{name}` has {have} bytes where {bytes} are expected"));
                }
                return Ok(slot);
            }
            Operand::Int(i) => *i as u64,
            Operand::F32(b) if bytes == 4 => u64::from(*b),
            Operand::F64(b) if bytes == 8 => *b,
            Operand::F64(b) if bytes == 4 => u64::from((f64::from_bits(*b) as f32).to_bits()),
            other => return self.error(format!("{other:?} is no operand of {bytes} bytes")),
        };
        Ok(self.constant(bits, bytes))
    }

    /// The address of a variable, in its space.
    fn place_of(&self, name: &str) -> Option<u64> {
        match self.lookup(name) {
            Ok(Binding::Place(_, at)) => Some(at),
            _ => None,
        }
    }

    /// A register for a result of exactly so many bytes.
    fn result(&mut self, operand: &Operand, bytes: u32) -> Result<Slot> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(SINK),
            Operand::Name(_) => self.source(operand, bytes),
            other => self.error(format!("{other:?} cannot take a result")),
        }
    }

    /// A predicate to read, and all ones if it is negated.
    fn predicate(&mut self, operand: &Operand) -> Result<(Slot, u32)> {
        match operand {
            Operand::Not(inner) => self.predicate(inner).map(|(slot, negate)| (slot, !negate)),
            Operand::Int(i) => Ok((TRUE, if *i == 0 { u32::MAX } else { 0 })),
            Operand::Name(name) => match self.register(name)? {
                (slot, 0) => Ok((slot, 0)),
                _ => self.error(format!("`{name}` is no predicate")),
            },
            other => self.error(format!("{other:?} is no predicate")),
        }
    }

    /// A predicate to read that is not negated.
    fn plain_predicate(&mut self, operand: &Operand) -> Result<Slot> {
        let (slot, negate) = self.predicate(operand)?;
        if negate == 0 {
            return Ok(slot);
        }
        let d = self.new_slot(0);
        self.alu(
            Class::Integer,
            moves::NOT,
            Args {
                d,
                a: slot,
                ..Args::default()
            },
        );
        Ok(d)
    }

    /// A predicate for a result.
    fn predicate_result(&mut self, operand: &Operand) -> Result<Slot> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(SINK),
            Operand::Name(_) => Ok(self.predicate(operand)?.0),
            other => self.error(format!("{other:?} cannot take a predicate")),
        }
    }
}

/// Instructions.
impl Decoder<'_> {
    fn emit(&mut self, class: Class, action: Action) {
        let (guard, negate) = self.guard;
        self.code.push(Inst {
            line: self.line,
            guard,
            negate,
            class,
            action,
        });
    }

    fn alu(&mut self, class: Class, run: AluFn, args: Args) {
        self.emit(class, Action::Alu(run, args));
    }

    fn new_label(&mut self) -> usize {
        self.labels.push(None);
        self.labels.len() - 1
    }

    /// Jumps hold numbers of labels until all of these are placed.
    fn resolve_labels(&mut self) -> Result<()> {
        for inst in &mut self.code {
            let targets: &mut [u32] = match &mut inst.action {
                Action::Branch(target) => std::slice::from_mut(target),
                Action::BranchIndexed(_, targets) => targets,
                _ => continue,
            };
            for target in targets {
                let label = self.labels.get(*target as usize).copied().flatten();
                *target = label.ok_or_else(|| PtxError::new(inst.line, "a jump to a label that stands nowhere"))?;
            }
        }
        Ok(())
    }
}

/// A special register by name.
fn special(name: &str) -> Option<Special> {
    let of_dimension = |base: &str, make: fn(usize) -> Special| {
        let dimension = name.strip_prefix(base)?.strip_prefix('.')?;
        ["x", "y", "z"].iter().position(|d| *d == dimension).map(make)
    };
    let by_dimension = of_dimension("%tid", Special::Thread)
        .or_else(|| of_dimension("%ntid", Special::Threads))
        .or_else(|| of_dimension("%ctaid", Special::Block))
        .or_else(|| of_dimension("%nctaid", Special::Blocks));
    by_dimension.or(match name {
        "%laneid" => Some(Special::Lane),
        "%warpid" => Some(Special::Warp),
        "%nwarpid" => Some(Special::Warps),
        "%smid" => Some(Special::Processor),
        "%nsmid" => Some(Special::Processors),
        "%gridid" => Some(Special::Grid),
        "%total_smem_size" => Some(Special::SharedBytes),
        "%dynamic_smem_size" => Some(Special::DynamicSharedBytes),
        "%lanemask_eq" => Some(Special::LaneMask([false, true, false])),
        "%lanemask_lt" => Some(Special::LaneMask([true, false, false])),
        "%lanemask_le" => Some(Special::LaneMask([true, true, false])),
        "%lanemask_gt" => Some(Special::LaneMask([false, false, true])),
        "%lanemask_ge" => Some(Special::LaneMask([false, true, true])),
        _ => None,
    })
}
