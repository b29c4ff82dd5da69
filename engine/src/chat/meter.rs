//! Resource limits for templates.
//!
//! minijinja limits the number of instructions, but a single instruction can double a string, add a nesting
//! level, or print a self-referential list many times. Compiled instructions are therefore rewritten before
//! execution: instructions that create, compare, slice, or print values call functions of this module. They
//! charge a budget for memory and work and reject deeply nested values, whose printing, comparison, and
//! destruction recurse.

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

/// Maximum instructions per rendering, less than a second of work.
pub(super) const MAX_FUEL: u64 = 10_000_000;
/// Budget per rendering in bytes of memory and work: a constant, plus a multiple of the input size.
pub(super) const BASE_BUDGET: u64 = 64 << 20;
pub(super) const BUDGET_PER_BYTE: u64 = 256;
/// Maximum nesting depth of values. The JSON parser limits its input to 128.
pub(super) const MAX_DEPTH: usize = 160;
/// Charge for each value visited or stored, in addition to the bytes of strings.
const NODE: u64 = 32;

/// Variable with the initial budget. Template code cannot contain this name or the names below.
pub(super) const BUDGET: &str = "%budget";
const CHECK: &str = "%check";
const CHECK_TEXT: &str = "%check_text";
const CHECK_MAP: &str = "%check_map";
const CHECK_STORED: &str = "%check_stored";
pub(super) const ADD: &str = "%add";
pub(super) const MUL: &str = "%mul";
pub(super) const POW: &str = "%pow";
pub(super) const CONCAT: &str = "%concat";
pub(super) const SLICE: &str = "%slice";

/// A limit was exceeded; source of a minijinja error.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("limit exceeded: {what}, at most {limit}")]
pub(super) struct LimitReached {
    pub what: &'static str,
    pub limit: u64,
}

impl From<LimitReached> for Error {
    fn from(limit: LimitReached) -> Error {
        Error::new(ErrorKind::InvalidOperation, limit.to_string()).with_source(limit)
    }
}

/// Remaining budget, stored in the state of a rendering.
struct Meter {
    left: u64,
    budget: u64,
}

/// Charges `n` bytes to the budget. Fails if it is exhausted.
pub(super) fn spend(state: &mut State, n: u64) -> Result<(), Error> {
    if state.get_extension::<Meter>().is_none() {
        let budget = state
            .lookup(BUDGET)
            .and_then(|b| b.as_i64())
            .map_or(BASE_BUDGET, |b| b as u64);
        state.get_or_insert_extension(Meter { left: budget, budget });
    }
    let meter = state.get_or_insert_extension(Meter { left: 0, budget: 0 });
    match meter.left.checked_sub(n) {
        Some(left) => {
            meter.left = left;
            Ok(())
        }
        None => Err(LimitReached {
            what: "bytes of memory and work",
            limit: meter.budget,
        }
        .into()),
    }
}

/// Options for visiting a value.
#[derive(Clone, Copy, Default)]
pub(super) struct Visit {
    /// Also charge the bytes of strings, because the following operation reads or copies them.
    pub text: bool,
    /// Reject namespaces. They are the only mutable values and could otherwise contain themselves.
    pub no_namespace: bool,
}

/// Visits a value and its contents, and charges for each.
pub(super) fn visit(state: &mut State, value: &Value, how: Visit) -> Result<(), Error> {
    visit_at(state, value, how, 0)
}

fn visit_at(state: &mut State, value: &Value, how: Visit, depth: usize) -> Result<(), Error> {
    spend(state, NODE + if how.text { text_len(value) } else { 0 })?;
    if depth > MAX_DEPTH {
        return Err(LimitReached {
            what: "levels of nesting in a value",
            limit: MAX_DEPTH as u64,
        }
        .into());
    }
    let Some(object) = value.as_object() else { return Ok(()) };
    // The type is private in minijinja and can only be identified by name.
    if how.no_namespace && object.type_name().ends_with("::Namespace") {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "a namespace cannot be stored in a namespace",
        ));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                visit_at(state, &item, how, depth + 1)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                visit_at(state, &key, how, depth + 1)?;
                if let Ok(item) = value.get_item(&key) {
                    visit_at(state, &item, how, depth + 1)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Charges for a new value: its own bytes, and those of strings directly inside.
pub(super) fn charge_new(state: &mut State, value: &Value) -> Result<(), Error> {
    spend(state, NODE + text_len(value))?;
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        for item in value.try_iter()? {
            spend(state, NODE + text_len(&item))?;
        }
    }
    Ok(())
}

fn text_len(value: &Value) -> u64 {
    let bytes = value
        .as_str()
        .map(str::len)
        .or_else(|| value.as_bytes().map(<[u8]>::len));
    bytes.map_or(0, |n| n as u64)
}

/// Returns the checks as functions that return their argument.
pub(super) fn checks() -> [(&'static str, Value); 4] {
    fn check(how: Visit) -> Value {
        Value::from_function(move |state: &mut State, value: Value| visit(state, &value, how).map(|()| value))
    }
    fn check_map(state: &mut State, value: Value) -> Result<Value, Error> {
        let n = if value.kind() == ValueKind::Map {
            value.len().unwrap_or(1)
        } else {
            1
        };
        spend(state, NODE * n as u64)?;
        Ok(value)
    }
    [
        (CHECK, check(Visit::default())),
        (
            CHECK_TEXT,
            check(Visit {
                text: true,
                no_namespace: false,
            }),
        ),
        (
            CHECK_STORED,
            check(Visit {
                text: false,
                no_namespace: true,
            }),
        ),
        (CHECK_MAP, Value::from_function(check_map)),
    ]
}

/// Returns the program with checks inserted and jump targets adjusted.
pub(super) fn rewrite<'s>(old: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let mut new = Instructions::new(old.name(), old.source());
    let program: Vec<&Instruction<'s>> = (0..).map_while(|i| old.get(i)).collect();
    let mut moved = Vec::with_capacity(program.len() + 1);
    let mut n_new = 0;
    let mut after_const = false;
    for (i, &instruction) in program.iter().enumerate() {
        moved.push(n_new);
        let line = old.get_line(i as u32).unwrap_or(0).min(usize::from(u16::MAX)) as u16;
        let mut emit = |instruction| n_new = new.add_with_line(instruction, line) + 1;
        expand(instruction, after_const, &mut emit)?;
        after_const = matches!(instruction, Instruction::LoadConst(_));
    }
    moved.push(n_new);
    for i in 0..n_new {
        if let Some(target) = new.get_mut(i).and_then(jump_target) {
            *target = *moved
                .get(*target as usize)
                .ok_or_else(|| Error::from(ErrorKind::SyntaxError))?;
        }
    }
    Ok(new)
}

/// Appends an instruction with its checks. With `after_const`, the top of the stack is a constant of the
/// template, which needs no check.
fn expand<'s>(
    instruction: &Instruction<'s>,
    after_const: bool,
    emit: &mut impl FnMut(Instruction<'s>),
) -> Result<(), Error> {
    use Instruction as I;
    let call = |name, n_args| I::CallFunction(name, Some(n_args));
    match instruction {
        // Raw text passes through the formatter, which counts all output, including captured output.
        I::EmitRaw(text) => {
            emit(I::LoadConst(Value::from(*text)));
            emit(I::Emit);
        }
        I::Add => emit(call(ADD, 2)),
        I::Mul => emit(call(MUL, 2)),
        I::Pow => emit(call(POW, 2)),
        I::StringConcat => emit(call(CONCAT, 2)),
        I::Slice => emit(call(SLICE, 4)),
        I::BuildList(_) | I::BuildTuple(_) | I::BuildMap(_) => {
            emit(instruction.clone());
            emit(call(CHECK, 1));
        }
        // Comparisons stop at the end of the smaller operand, so checking one operand is enough.
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::CompareAndPreserve(_) | I::GetItem => {
            if !after_const {
                emit(call(CHECK_TEXT, 1));
            }
            emit(instruction.clone());
        }
        // A loop over a map copies its keys first. Items of a list are fetched one per instruction.
        I::PushLoop(_) => {
            emit(call(CHECK_MAP, 1));
            emit(instruction.clone());
        }
        I::SetAttr(_) => {
            emit(I::Swap);
            emit(call(CHECK_STORED, 1));
            emit(I::Swap);
            emit(instruction.clone());
        }
        // Compares whole values without checks; no chat template uses this method.
        I::CallMethod("changed", _) => {
            return Err(Error::new(ErrorKind::SyntaxError, "loop.changed is not supported"));
        }
        // Only one template exists; other templates would not have been checked.
        I::CallBlock(_) | I::LoadBlocks | I::Include(_) | I::ExportLocals | I::FastSuper => {
            return Err(Error::new(
                ErrorKind::SyntaxError,
                "blocks and other templates are not supported",
            ));
        }
        other => emit(other.clone()),
    }
    Ok(())
}

fn jump_target<'a>(instruction: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    use Instruction as I;
    match instruction {
        I::Iterate(target)
        | I::Jump(target)
        | I::JumpIfFalse(target)
        | I::JumpIfFalseOrPop(target)
        | I::JumpIfTrueOrPop(target)
        | I::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}
