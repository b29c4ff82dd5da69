//! Decodes loads, stores, atomics, and asynchronous copies.

use super::opcode::Opcode;
use super::{Binding, Decoder, Result};
use crate::exec::inst::{Access, Action, AsyncCopy, Atomic, AtomicOp, Class};
use crate::exec::lanes::{SINK, Slot};
use crate::exec::scalar::Scalar;
use crate::ptx::{Operand, Space};

/// Modifiers for caching and memory order. They have no effect because accesses are sequentially consistent.
const HINTS: [&str; 36] = [
    "volatile",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "weak",
    "mmio",
    "cta",
    "cluster",
    "gpu",
    "sys",
    "nc",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "unified",
    "noftz",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::evict_normal",
    "L2::evict_first",
    "L2::evict_last",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "seq_cst",
    "coherent",
    "L2::evict_unchanged",
    "cop",
];

impl Decoder<'_> {
    /// Decodes a memory instruction. Returns false for other instructions.
    pub fn memory(&mut self, op: &mut Opcode) -> Result<bool> {
        match op.name {
            "ld" | "ldu" => self.load(op)?,
            "st" => self.store(op)?,
            "atom" => self.atomic(op, true)?,
            "red" => self.atomic(op, false)?,
            "cp" => {
                if !op.take("async") {
                    return Ok(false);
                }
                self.async_copy(op)?;
            }
            "prefetch" | "prefetchu" => {
                op.ignore(&[
                    "global",
                    "local",
                    "L1",
                    "L2",
                    "tensormap",
                    "L2::evict_last",
                    "L2::evict_normal",
                ]);
                self.emit(Class::Global, Action::Nothing);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn space(&self, op: &mut Opcode) -> Space {
        match op.take_any(&[
            "global",
            "shared",
            "local",
            "param",
            "const",
            "shared::cta",
            "param::entry",
            "param::func",
        ]) {
            Some("global") => Space::Global,
            Some("shared" | "shared::cta") => Space::Shared,
            Some("local") => Space::Local,
            Some("const") => Space::Const,
            Some(_) => Space::Param,
            None => Space::Generic,
        }
    }

    /// Decodes an address. Returns the space, the register, whether the register has 64 bits, and the offset.
    /// The space of a variable overrides the space of the instruction.
    pub fn address(&mut self, operand: &Operand, space: Space) -> Result<(Space, Slot, bool, i64)> {
        let Operand::Address(base, offset) = operand else {
            return self.error(format!("expected an address, found {operand:?}"));
        };
        let Some(name) = base else {
            return Ok((space, self.constant(0, 8), true, *offset));
        };
        if let Ok(Binding::Variable(variable_space, at)) = self.lookup(name) {
            let space = match (space, variable_space) {
                (Space::Param, other) => other,
                (Space::Generic, Space::Shared | Space::Local | Space::Param) => variable_space,
                (space, _) => space,
            };
            return Ok((space, self.constant(at, 8), true, *offset));
        }
        match self.register(name)? {
            (slot, 8) => Ok((space, slot, true, *offset)),
            (slot, 4) => Ok((space, slot, false, *offset)),
            _ => self.error(format!(
                "register `{name}` cannot contain an address: expected 32 or 64 bits"
            )),
        }
    }

    /// Decodes an access to one or more elements. The registers may be wider than the element type.
    fn access(&mut self, op: &mut Opcode, address_index: usize, value: usize, writes: bool) -> Result<Access> {
        let kind = op.kind()?;
        let space = self.space(op);
        op.ignore(&HINTS);
        // The cache hint is the last operand.
        let hinted = op.take("L2::cache_hint");
        op.expect(2..=if hinted { 3 } else { 2 })?;
        let n = match op.take_any(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        };
        let values = match op.operand(value)? {
            Operand::Vector(values) => values.as_slice(),
            single => std::slice::from_ref(single),
        };
        if values.len() != n || kind.bytes() == 0 {
            return self.error(format!(
                "`{}`: the number or the type of the values is not supported",
                op.name
            ));
        }
        let register_bytes = self.width(values, kind);
        let mut registers = Vec::new();
        for value in values {
            let slot = match value {
                Operand::Name(name) if name == "_" && !writes => SINK,
                value => self.source(value, register_bytes)?,
            };
            registers.push(slot);
        }
        let (space, address, is_wide, offset) = self.address(op.operand(address_index)?, space)?;
        Ok(Access {
            space,
            address,
            is_wide,
            offset,
            kind,
            registers,
            register_bytes,
        })
    }

    /// Returns the width of the first register in bytes, at least the width of `kind`.
    fn width(&mut self, values: &[Operand], kind: Scalar) -> u32 {
        let names = values
            .iter()
            .filter_map(|v| if let Operand::Name(name) = v { Some(name) } else { None });
        let widths = names
            .filter_map(|name| self.register(name).ok())
            .map(|(_, bytes)| bytes)
            .next();
        widths.unwrap_or(0).max(kind.bytes()).max(2)
    }

    fn load(&mut self, op: &mut Opcode) -> Result<()> {
        let access = self.access(op, 1, 0, false)?;
        self.emit(class_of(access.space), Action::Load(access));
        Ok(())
    }

    fn store(&mut self, op: &mut Opcode) -> Result<()> {
        let access = self.access(op, 0, 1, true)?;
        self.emit(class_of(access.space), Action::Store(access));
        Ok(())
    }

    fn atomic(&mut self, op: &mut Opcode, has_result: bool) -> Result<()> {
        let kind = op.kind()?;
        let space = self.space(op);
        op.ignore(&HINTS);
        let names = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
        let operation = match op.take_any(&names) {
            Some("add") => AtomicOp::Add,
            Some("min") => AtomicOp::Min,
            Some("max") => AtomicOp::Max,
            Some("and") => AtomicOp::And,
            Some("or") => AtomicOp::Or,
            Some("xor") => AtomicOp::Xor,
            Some("exch") => AtomicOp::Exchange,
            Some("cas") => AtomicOp::CompareAndSwap,
            Some("inc") => AtomicOp::Increment,
            Some("dec") => AtomicOp::Decrement,
            _ => return self.error(format!("`{}`: unknown atomic operation", op.name)),
        };
        let is_add = operation == AtomicOp::Add;
        if kind.bytes() == 0 || kind.bytes() == 1 || kind.is_float() && !is_add {
            return op.with_type(None);
        }
        let first = usize::from(has_result);
        let n = if operation == AtomicOp::CompareAndSwap { 3 } else { 2 };
        op.expect(first + n..=first + n)?;
        let bytes = kind.bytes();
        let d = if has_result {
            self.result(op.operand(0)?, bytes)?
        } else {
            SINK
        };
        let (space, address, is_wide, offset) = self.address(op.operand(first)?, space)?;
        let b = self.source(op.operand(first + 1)?, bytes)?;
        let c = if n == 3 {
            self.source(op.operand(first + 2)?, bytes)?
        } else {
            b
        };
        let access = Access {
            space,
            address,
            is_wide,
            offset,
            kind,
            registers: vec![d],
            register_bytes: bytes,
        };
        self.emit(
            class_of(space),
            Action::Atomic(Atomic {
                access,
                op: operation,
                b,
                c,
            }),
        );
        Ok(())
    }

    /// Decodes an instruction that starts with `cp.async`.
    fn async_copy(&mut self, op: &mut Opcode) -> Result<()> {
        if op.take("bulk") {
            return self.bulk_copy(op);
        }
        match op.take_any(&["commit_group", "wait_group", "wait_all"]) {
            Some("commit_group") => {
                self.emit(Class::Synchronize, Action::AsyncCommit);
                return Ok(());
            }
            Some("wait_all") => {
                self.emit(Class::Synchronize, Action::AsyncWait(None));
                return Ok(());
            }
            Some(_) => {
                let Operand::Int(n @ 0..=0xffff) = op.operand(0)? else {
                    return self.error("invalid operand of `cp.async.wait_group`: expected a number");
                };
                self.emit(Class::Synchronize, Action::AsyncWait(Some(*n as u32)));
                return Ok(());
            }
            None => {}
        }
        op.ignore(&HINTS);
        let hinted = op.take("L2::cache_hint");
        if !(op.take("shared") || op.take("shared::cta")) || !op.take("global") {
            return self.error("unsupported `cp.async`: expected a copy from global to shared memory");
        }
        let Operand::Int(bytes @ (4 | 8 | 16)) = op.operand(2)? else {
            return self.error("invalid size of `cp.async`: expected 4, 8, or 16 bytes");
        };
        let bytes = *bytes as u32;
        let mut copy = AsyncCopy {
            to: self.bare_access(op.operand(0)?, Space::Shared)?,
            from: self.bare_access(op.operand(1)?, Space::Global)?,
            bytes,
            read: None,
            ignore: None,
        };
        op.expect(3..=4 + usize::from(hinted))?;
        if op.len() > 3 + usize::from(hinted) {
            match op.operand(3)? {
                Operand::Name(name) if self.register(name)?.1 == 0 => {
                    copy.ignore = Some(self.predicate(op.operand(3)?)?);
                }
                size => copy.read = Some(self.source(size, 4)?),
            }
        }
        self.emit(Class::Global, Action::AsyncCopy(copy));
        Ok(())
    }

    /// Decodes an address as an access without registers.
    pub fn bare_access(&mut self, operand: &Operand, space: Space) -> Result<Access> {
        let (space, address, is_wide, offset) = self.address(operand, space)?;
        let (kind, registers) = (Scalar::B8, Vec::new());
        Ok(Access {
            space,
            address,
            is_wide,
            offset,
            kind,
            registers,
            register_bytes: 0,
        })
    }
}

/// Returns the counter class of accesses to a state space.
fn class_of(space: Space) -> Class {
    match space {
        Space::Shared => Class::Shared,
        Space::Local => Class::Local,
        Space::Const | Space::Param => Class::Constant,
        Space::Global | Space::Generic => Class::Global,
    }
}
