//! An opcode with its modifiers, of which each must be asked for.

use super::Result;
use crate::exec::float::Modes;
use crate::exec::scalar::{Rounding, Scalar};
use crate::ptx::{Operand, PtxError, Statement};

/// An instruction while it is decoded.
pub struct Opcode<'a> {
    /// The part before the first dot.
    pub name: &'a str,
    modifiers: Vec<&'a str>,
    statement: &'a Statement,
}

impl<'a> Opcode<'a> {
    /// Of a statement.
    pub fn new(statement: &'a Statement) -> Self {
        let mut parts = statement.opcode.split('.');
        let name = parts.next().unwrap_or_default();
        Self {
            name,
            modifiers: parts.collect(),
            statement,
        }
    }

    /// Whether it has a modifier, which is now dealt with.
    pub fn take(&mut self, modifier: &str) -> bool {
        let at = self.modifiers.iter().position(|m| *m == modifier);
        at.map(|at| self.modifiers.remove(at)).is_some()
    }

    /// The first of these modifiers that it has.
    pub fn take_any(&mut self, modifiers: &[&'static str]) -> Option<&'static str> {
        modifiers.iter().copied().find(|m| self.take(m))
    }

    /// All of these modifiers that it has say nothing that matters here.
    pub fn ignore(&mut self, modifiers: &[&str]) {
        self.modifiers.retain(|m| !modifiers.contains(m));
    }

    /// The next modifier, whatever it is.
    pub fn next(&mut self) -> Option<&'a str> {
        (!self.modifiers.is_empty()).then(|| self.modifiers.remove(0))
    }

    /// The last modifier: the type.
    pub fn kind(&mut self) -> Result<Scalar> {
        let last = self.modifiers.last().copied();
        match last.and_then(Scalar::parse) {
            Some(kind) => {
                self.modifiers.pop();
                Ok(kind)
            }
            None => self.error(format!("`{}` has no type that is known", self.statement.opcode)),
        }
    }

    /// Rounding (`rn` by default), `.ftz` and `.sat`.
    pub fn modes(&mut self) -> Modes {
        let rounding = self.rounding().unwrap_or(Rounding::Nearest);
        Modes {
            rounding,
            flush: self.take("ftz"),
            saturate: self.take("sat"),
        }
    }

    /// `rn`, `rz`, `rm`, `rp` or `rna`.
    pub fn rounding(&mut self) -> Option<Rounding> {
        let name = self.take_any(&["rn", "rz", "rm", "rp", "rna"])?;
        Some(match name {
            "rn" => Rounding::Nearest,
            "rz" => Rounding::Zero,
            "rm" => Rounding::Down,
            "rp" => Rounding::Up,
            _ => Rounding::Away,
        })
    }

    /// An operand by number.
    pub fn operand(&self, i: usize) -> Result<&'a Operand> {
        match self.statement.operands.get(i) {
            Some(operand) => Ok(operand),
            None => self.error(format!("`{}` has too few operands", self.statement.opcode)),
        }
    }

    /// How many operands there are.
    pub fn len(&self) -> usize {
        self.statement.operands.len()
    }

    /// Refuses other numbers of operands.
    pub fn expect(&self, counts: std::ops::RangeInclusive<usize>) -> Result<()> {
        if counts.contains(&self.len()) {
            return Ok(());
        }
        self.error(format!("`{}` has {} operands", self.statement.opcode, self.len()))
    }

    /// The function for a type, or an error that names the instruction.
    pub fn with_type<T>(&self, found: Option<T>) -> Result<T> {
        match found {
            Some(found) => Ok(found),
            None => self.error(format!(
                "`{}`: this type or mode is not supported",
                self.statement.opcode
            )),
        }
    }

    /// Refuses modifiers that nobody asked for.
    pub fn finish(&self) -> Result<()> {
        match self.modifiers.first() {
            None => Ok(()),
            Some(m) => self.error(format!("the modifier `.{m}` of `{}` is unknown", self.statement.opcode)),
        }
    }

    /// An error at the instruction.
    pub fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(PtxError::new(self.statement.line, message))
    }
}
