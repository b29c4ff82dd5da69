//! An opcode whose modifiers are consumed one by one. Modifiers that remain are errors.

use super::Result;
use crate::exec::float::Modes;
use crate::exec::scalar::{Rounding, Scalar};
use crate::ptx::{Operand, PtxError, Statement};

/// An instruction that is being decoded.
pub struct Opcode<'a> {
    /// The part of the opcode before the first dot.
    pub name: &'a str,
    modifiers: Vec<&'a str>,
    statement: &'a Statement,
}

impl<'a> Opcode<'a> {
    /// Splits the opcode of a statement into its name and modifiers.
    pub fn new(statement: &'a Statement) -> Self {
        let mut parts = statement.opcode.split('.');
        let name = parts.next().unwrap_or_default();
        Self {
            name,
            modifiers: parts.collect(),
            statement,
        }
    }

    /// Consumes a modifier and returns whether the opcode has it.
    pub fn take(&mut self, modifier: &str) -> bool {
        let at = self.modifiers.iter().position(|m| *m == modifier);
        at.map(|at| self.modifiers.remove(at)).is_some()
    }

    /// Consumes and returns the first of the given modifiers that the opcode has.
    pub fn take_any(&mut self, modifiers: &[&'static str]) -> Option<&'static str> {
        modifiers.iter().copied().find(|m| self.take(m))
    }

    /// Discards modifiers that have no effect in the emulator.
    pub fn ignore(&mut self, modifiers: &[&str]) {
        self.modifiers.retain(|m| !modifiers.contains(m));
    }

    /// Consumes and returns the next modifier.
    pub fn next(&mut self) -> Option<&'a str> {
        (!self.modifiers.is_empty()).then(|| self.modifiers.remove(0))
    }

    /// Consumes the last modifier as the operand type.
    pub fn kind(&mut self) -> Result<Scalar> {
        let last = self.modifiers.last().copied();
        match last.and_then(Scalar::parse) {
            Some(kind) => {
                self.modifiers.pop();
                Ok(kind)
            }
            None => self.error(format!("`{}` does not end with a known type", self.statement.opcode)),
        }
    }

    /// Consumes the rounding mode (default `rn`), `.ftz`, and `.sat`.
    pub fn modes(&mut self) -> Modes {
        let rounding = self.rounding().unwrap_or(Rounding::Nearest);
        Modes {
            rounding,
            flush: self.take("ftz"),
            saturate: self.take("sat"),
        }
    }

    /// Consumes a rounding mode: `rn`, `rz`, `rm`, `rp`, or `rna`.
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

    /// Returns the operand with the given index.
    pub fn operand(&self, i: usize) -> Result<&'a Operand> {
        match self.statement.operands.get(i) {
            Some(operand) => Ok(operand),
            None => self.error(format!("`{}` has too few operands", self.statement.opcode)),
        }
    }

    /// Returns the number of operands.
    pub fn len(&self) -> usize {
        self.statement.operands.len()
    }

    /// Returns an error unless the number of operands is in `counts`.
    pub fn expect(&self, counts: std::ops::RangeInclusive<usize>) -> Result<()> {
        if counts.contains(&self.len()) {
            return Ok(());
        }
        let (min, max) = (counts.start(), counts.end());
        let expected = if min == max {
            min.to_string()
        } else {
            format!("{min} to {max}")
        };
        self.error(format!(
            "`{}`: expected {expected} operands, found {}",
            self.statement.opcode,
            self.len()
        ))
    }

    /// Returns the lane loop for a type, or an error if it is `None`.
    pub fn with_type<T>(&self, found: Option<T>) -> Result<T> {
        match found {
            Some(found) => Ok(found),
            None => self.error(format!(
                "`{}`: the type or mode is not supported",
                self.statement.opcode
            )),
        }
    }

    /// Returns an error if unconsumed modifiers remain.
    pub fn finish(&self) -> Result<()> {
        match self.modifiers.first() {
            None => Ok(()),
            Some(m) => self.error(format!("unknown modifier `.{m}` of `{}`", self.statement.opcode)),
        }
    }

    /// Returns an error at the line of the instruction.
    pub fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(PtxError::new(self.statement.line, message))
    }
}
