//! Decodes syntax trees to kernels. Names become registers and addresses, and opcodes become operations.
//!
//! Called functions are inlined. An unknown opcode, modifier, type, or directive is an error that names it.

mod arithmetic;
mod bulk;
mod control;
mod memory;
mod moves;
mod opcode;
mod target;
mod warp;

use crate::exec::inst::{Action, Class, Inst, Kernel, Matrix, Special};
use crate::exec::lanes::{self, AluFn, Args, FIRST, SINK, Slot, TRUE};
use crate::exec::scalar::Scalar;
use crate::exec::timing::Timing;
use crate::ptx::{Function, Item, Module, Operand, PtxError, Space, Statement, Variable};
use opcode::Opcode;
use std::collections::HashMap;

type Result<T> = std::result::Result<T, PtxError>;

/// Maximum depth of nested calls.
const MAX_CALL_DEPTH: usize = 16;

/// Decodes a kernel. `globals` contains the addresses of global and constant variables.
pub fn decode(module: &Module, function: &Function, globals: &HashMap<String, u64>) -> Result<Kernel> {
    if !lanes::is_supported() {
        return Err(PtxError::new(
            function.line,
            "the emulated device requires a CPU with AVX2, FMA, BMI2, LZCNT, and POPCNT",
        ));
    }
    let mut decoder = Decoder::new(module, globals);
    decoder.assign_shared(function)?;
    let kernel_scope = decoder.bind_params(function);
    decoder.scopes.push(kernel_scope);
    decoder.items(&function.body)?;
    decoder.guard = (TRUE, 0);
    decoder.emit(Class::Control, Action::Exit);
    decoder.resolve_labels()?;
    Ok(decoder.finish(function))
}

/// The meaning of a name in a scope.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Binding {
    /// Index of a register in `Decoder::registers`.
    Register(usize),
    /// A variable, with its address in a state space.
    Variable(Space, u64),
    /// Index of a label in `Decoder::labels`.
    Label(usize),
}

/// A declared register.
struct Register {
    /// Size in bytes, or 0 for a predicate.
    bytes: u32,
    /// Slot in the register file, assigned on first use.
    slot: Option<Slot>,
}

struct Decoder<'a> {
    module: &'a Module,
    globals: &'a HashMap<String, u64>,
    scopes: Vec<HashMap<String, Binding>>,
    /// Offsets of the module's shared variables, including dynamic ones.
    shared: HashMap<String, u64>,
    registers: Vec<Register>,
    code: Vec<Inst>,
    /// For each label, the index of the instruction that follows it.
    labels: Vec<Option<u32>>,
    tables: HashMap<String, Vec<String>>,
    constants: HashMap<(u64, u32), Slot>,
    specials: Vec<(Special, Slot)>,
    file_bytes: u32,
    /// Slot of the next predicate. Predicates share 64-byte blocks.
    next_predicate: Slot,
    shared_bytes: u32,
    local_bytes: u32,
    params: Vec<(u32, u32)>,
    param_bytes: u32,
    line: u32,
    guard: (Slot, u32),
    /// Functions that are being inlined, each with the label after its call.
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
            timings: self.code.iter().map(Timing::new).collect(),
            has_products: (self.code.iter()).any(|inst| matches!(inst.action, Action::Matrix(Matrix::Group(_)))),
            has_mbarriers: (self.code.iter())
                .any(|inst| matches!(inst.action, Action::Mbarrier(_) | Action::MbarrierWait(_))),
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

/// Methods that assign addresses to variables.
impl Decoder<'_> {
    /// Assigns offsets to static shared variables. Dynamic shared variables all start after the static ones.
    fn assign_shared(&mut self, function: &Function) -> Result<()> {
        let all = self.module.variables.iter().filter(|v| v.space == Space::Shared);
        let (dynamic, fixed): (Vec<_>, Vec<_>) = all.partition(|v| v.size == 0);
        for variable in fixed {
            if mentions(&function.body, &variable.name) {
                let at = append_variable(&mut self.shared_bytes, variable);
                self.shared.insert(variable.name.clone(), at.into());
            }
        }
        let callees: Vec<_> = self.module.functions.iter().filter(|f| !f.is_entry).collect();
        for body in callees.iter().map(|f| &f.body).chain([&function.body]) {
            for variable in shared_variables(body) {
                let at = append_variable(&mut self.shared_bytes, variable);
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
            let at = append_variable(&mut self.param_bytes, param);
            self.params.push((at, param.size));
            scope.insert(param.name.clone(), Binding::Variable(Space::Param, at.into()));
        }
        scope
    }
}

/// Appends a variable at its alignment and returns its offset.
fn append_variable(end: &mut u32, variable: &Variable) -> u32 {
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

/// Methods that decode function bodies.
impl Decoder<'_> {
    /// Decodes the items of a block. Labels and target lists are visible in the whole block, other names only
    /// after their declaration.
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
            return self.error(format!("unsupported register type `{kind}`"));
        };
        // 8-bit values are stored in 16-bit registers.
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
            // `assign_shared` has already assigned the offset.
            Space::Shared => return,
            // Arguments and results of calls are stored in local memory.
            _ => (Space::Local, append_variable(&mut self.local_bytes, variable)),
        };
        self.bind(variable.name.clone(), Binding::Variable(space, at.into()));
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
        let least = target::least_capability(&statement.opcode);
        if least > self.module.target {
            let (opcode, target) = (&statement.opcode, self.module.target);
            return self.error(format!("`{opcode}` needs sm_{least}, but the target is sm_{target}"));
        }
        if target::is_specific(&statement.opcode) && !self.module.is_specific {
            let (opcode, target) = (&statement.opcode, self.module.target);
            return self.error(format!("`{opcode}` needs sm_{least}a, but the target is sm_{target}"));
        }
        let mut op = Opcode::new(statement);
        let known = self.arithmetic(&mut op)?
            || self.moves(&mut op)?
            || self.memory(&mut op)?
            || self.control(&mut op)?
            || self.warp(&mut op)?;
        if !known {
            return self.error(format!("unknown instruction `{}`", statement.opcode));
        }
        op.finish()
    }
}

/// Methods that resolve names and registers.
impl Decoder<'_> {
    fn lookup(&self, name: &str) -> Result<Binding> {
        if let Some(binding) = self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Ok(*binding);
        }
        if let Some(at) = self.shared.get(name) {
            return Ok(Binding::Variable(Space::Shared, *at));
        }
        match self.globals.get(name) {
            Some(at) => Ok(Binding::Variable(Space::Global, *at)),
            None => self.error(format!("`{name}` is not declared")),
        }
    }

    /// Allocates a register of `bytes` bytes per lane, or a predicate if `bytes` is 0.
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

    /// Returns the slot and size of a register. Special registers have 4 bytes.
    fn register(&mut self, name: &str) -> Result<(Slot, u32)> {
        if name == "_" {
            return self.error("`_` cannot be used as a source operand");
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
            _ => self.error(format!("`{name}` is not a register")),
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

    /// Returns the slot of a source operand, which must have `bytes` bytes.
    fn source(&mut self, operand: &Operand, bytes: u32) -> Result<Slot> {
        let bits = match operand {
            Operand::Name(name) if name == "WARP_SZ" => 32,
            Operand::Name(name) if self.address_of(name).is_some() => self.address_of(name).unwrap_or_default(),
            Operand::Name(name) => {
                let (slot, have) = self.register(name)?;
                if have != bytes {
                    return self.error(format!("register `{name}`: expected {bytes} bytes, found {have}"));
                }
                return Ok(slot);
            }
            Operand::Int(i) => *i as u64,
            Operand::F32(b) if bytes == 4 => u64::from(*b),
            Operand::F64(b) if bytes == 8 => *b,
            Operand::F64(b) if bytes == 4 => u64::from((f64::from_bits(*b) as f32).to_bits()),
            other => return self.error(format!("expected an operand of {bytes} bytes, found {other:?}")),
        };
        Ok(self.constant(bits, bytes))
    }

    /// Returns the address of a variable in its state space.
    fn address_of(&self, name: &str) -> Option<u64> {
        match self.lookup(name) {
            Ok(Binding::Variable(_, at)) => Some(at),
            _ => None,
        }
    }

    /// Returns the slot of a result operand, which must have `bytes` bytes.
    fn result(&mut self, operand: &Operand, bytes: u32) -> Result<Slot> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(SINK),
            Operand::Name(_) => self.source(operand, bytes),
            other => self.error(format!("expected a result register, found {other:?}")),
        }
    }

    /// Returns the slot of a predicate, and all ones if the predicate is negated.
    fn predicate(&mut self, operand: &Operand) -> Result<(Slot, u32)> {
        match operand {
            Operand::Not(inner) => self.predicate(inner).map(|(slot, negate)| (slot, !negate)),
            Operand::Int(i) => Ok((TRUE, if *i == 0 { u32::MAX } else { 0 })),
            Operand::Name(name) => match self.register(name)? {
                (slot, 0) => Ok((slot, 0)),
                _ => self.error(format!("`{name}` is not a predicate")),
            },
            other => self.error(format!("expected a predicate, found {other:?}")),
        }
    }

    /// Returns the slot of a predicate and emits an instruction that negates it if necessary.
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

    /// Returns the slot of a predicate result.
    fn predicate_result(&mut self, operand: &Operand) -> Result<Slot> {
        match operand {
            Operand::Name(name) if name == "_" => Ok(SINK),
            Operand::Name(_) => Ok(self.predicate(operand)?.0),
            other => self.error(format!("expected a predicate for the result, found {other:?}")),
        }
    }
}

/// Methods that emit instructions.
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

    /// Replaces the label indices in branches by instruction indices.
    fn resolve_labels(&mut self) -> Result<()> {
        for inst in &mut self.code {
            let targets: &mut [u32] = match &mut inst.action {
                Action::Branch(target) => std::slice::from_mut(target),
                Action::BranchIndexed(_, targets) => targets,
                _ => continue,
            };
            for target in targets {
                let label = self.labels.get(*target as usize).copied().flatten();
                *target = label.ok_or_else(|| PtxError::new(inst.line, "branch to an undefined label"))?;
            }
        }
        Ok(())
    }
}

/// Returns the special register with this name.
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
