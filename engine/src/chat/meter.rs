//! Resource limits for templates.
//!
//! minijinja limits the number of instructions, but a single instruction can double a string, add a nesting
//! level, or print a list many times. The operations of this module's siblings therefore charge a budget for
//! memory and work, and reject deeply nested values, whose printing, comparison, and destruction recurse.

use minijinja::{Error, ErrorKind, State};

/// Maximum instructions per rendering, less than a second of work.
pub(super) const MAX_FUEL: u64 = 10_000_000;
/// Budget per rendering in bytes of memory and work: a constant, plus a multiple of the input size.
pub(super) const BASE_BUDGET: u64 = 64 << 20;
pub(super) const BUDGET_PER_BYTE: u64 = 256;
/// Maximum nesting depth of values. The JSON parser limits its input to 128.
pub(super) const MAX_DEPTH: usize = 160;
/// Charge for each value visited or stored, in addition to the bytes of strings.
pub(super) const NODE: u64 = 32;

/// Variable with the initial budget. Template code cannot contain this name.
pub(super) const BUDGET: &str = "%budget";

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
