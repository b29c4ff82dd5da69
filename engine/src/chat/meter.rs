//! Limits on what a template may do.
//!
//! minijinja counts instructions, but one instruction can double a string, nest a list once more, or print a list
//! that holds itself a million times over. So the compiled instructions are rewritten before they run: whatever
//! builds, compares, slices or prints values goes through functions of this crate, which charge a budget for the
//! memory and the work, and refuse values nested too deeply (printing, comparing and dropping them would recurse).

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

/// Instructions per rendering: below a second of work.
pub(super) const MAX_FUEL: u64 = 10_000_000;
/// Bytes of memory and work per rendering that any input gets, and per byte of input.
pub(super) const BASE_BUDGET: u64 = 64 << 20;
pub(super) const BUDGET_PER_BYTE: u64 = 256;
/// Levels of lists in lists. JSON text is limited to 128 by its parser.
pub(super) const MAX_DEPTH: usize = 160;
/// Charged for each value visited or stored, besides the bytes of strings.
const NODE: u64 = 32;

/// Variable that holds the budget at the start. No template can name it, like all the names below.
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

/// A limit was reached; the source of a minijinja error.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("limit reached: {what}, at most {limit}")]
pub(super) struct LimitReached {
    pub what: &'static str,
    pub limit: u64,
}

impl From<LimitReached> for Error {
    fn from(limit: LimitReached) -> Error {
        Error::new(ErrorKind::InvalidOperation, limit.to_string()).with_source(limit)
    }
}

/// What is left of the budget; lives in the state of a rendering.
struct Meter {
    left: u64,
    budget: u64,
}

/// Takes `n` bytes off the budget.
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

/// What a visit of a value charges and refuses.
#[derive(Clone, Copy, Default)]
pub(super) struct Visit {
    /// Charge the bytes of strings too: what follows will read or copy them.
    pub text: bool,
    /// Refuse namespaces, which alone can be changed and so could be made to contain themselves.
    pub no_namespace: bool,
}

/// Visits a value and all it contains, charging for each.
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
    // The type is private to minijinja; its name is all there is to know it by.
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

/// Charges for a value just made: its own bytes, and those of the strings directly in it.
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

/// The checks as functions of one value that return it.
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

/// The same program with the checks built in. Jumps are moved to where their targets went.
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

/// One instruction with its checks. `after_const`: the top of the stack is a constant of the template, which needs none.
fn expand<'s>(
    instruction: &Instruction<'s>,
    after_const: bool,
    emit: &mut impl FnMut(Instruction<'s>),
) -> Result<(), Error> {
    use Instruction as I;
    let call = |name, n_args| I::CallFunction(name, Some(n_args));
    match instruction {
        // Through the formatter, which counts what is written, also what is captured into a variable.
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
        // Comparing goes no further than the smaller side, so looking at one is enough.
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::CompareAndPreserve(_) | I::GetItem => {
            if !after_const {
                emit(call(CHECK_TEXT, 1));
            }
            emit(instruction.clone());
        }
        // A loop copies the keys of a map first. The items of a list come one by one, each for an instruction.
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
        // Compares whole values, unseen by the checks; no chat template uses it.
        I::CallMethod("changed", _) => {
            return Err(Error::new(ErrorKind::SyntaxError, "loop.changed is not supported"));
        }
        // There is only one template, and nothing that has been checked beside it.
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
