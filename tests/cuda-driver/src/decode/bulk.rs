//! Decodes instructions of warps with different roles: `mbarrier`, bulk copies, and `setmaxnreg`.

use super::opcode::Opcode;
use super::{Decoder, Result};
use crate::exec::inst::{Action, BulkCopy, Class, MbarrierOp, PhaseOperation, PhaseWait};
use crate::exec::lanes::SINK;
use crate::exec::scalar::Scalar::{self, B64};
use crate::ptx::{Operand, Space};

impl Decoder<'_> {
    /// Decodes an `mbarrier` instruction on an object in shared memory of the block. Arrivals have no result.
    pub fn mbarrier(&mut self, op: &mut Opcode) -> Result<()> {
        let name = op.take_any(&["init", "inval", "arrive", "expect_tx", "try_wait"]);
        let is_expecting = op.take("expect_tx");
        let has_parity = op.take("parity");
        op.ignore(&["release", "acquire", "relaxed", "cta", "cluster"]);
        let is_shared = op.take("shared") || op.take("shared::cta");
        if !is_shared || op.kind()? != B64 {
            return op.with_type(None);
        }
        if name == Some("try_wait") {
            op.expect(3..=4)?;
            if !has_parity {
                return op.with_type(None);
            }
            let wait = PhaseWait {
                done: self.predicate_result(op.operand(0)?)?,
                object: self.bare_access(op.operand(1)?, Space::Shared)?,
                parity: self.source(op.operand(2)?, 4)?,
            };
            self.emit(Class::Synchronize, Action::MbarrierWait(wait));
            return Ok(());
        }
        let operation = match name {
            Some("init") => PhaseOperation::Init,
            Some("inval") => PhaseOperation::Invalidate,
            Some("arrive") if is_expecting => PhaseOperation::ArriveAndExpect,
            Some("arrive") => PhaseOperation::Arrive,
            Some("expect_tx") => PhaseOperation::Expect,
            _ => return op.with_type(None),
        };
        let first = usize::from(matches!(name, Some("arrive")));
        if first == 1 && self.result(op.operand(0)?, 8)? != SINK {
            return self.error("unsupported result of `mbarrier.arrive`: expected `_`");
        }
        let n_operands = match operation {
            PhaseOperation::Arrive => first + 1..=first + 2,
            PhaseOperation::Invalidate => 1..=1,
            _ => first + 2..=first + 2,
        };
        op.expect(n_operands)?;
        let object = self.bare_access(op.operand(first)?, Space::Shared)?;
        let operand = if op.len() > first + 1 {
            self.source(op.operand(first + 1)?, 4)?
        } else {
            self.constant(1, 4)
        };
        let operation = MbarrierOp {
            operation,
            object,
            operand,
        };
        self.emit(Class::Synchronize, Action::Mbarrier(operation));
        Ok(())
    }

    /// Decodes `cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [from], bytes, [mbarrier]`. The
    /// block is its own cluster.
    pub fn bulk_copy(&mut self, op: &mut Opcode) -> Result<()> {
        let is_known = (op.take("shared::cluster") || op.take("shared::cta"))
            && op.take("global")
            && op.take("mbarrier::complete_tx::bytes");
        if !is_known {
            return self.error("unsupported `cp.async.bulk`: expected a copy from global to shared memory");
        }
        let is_hinted = op.take("L2::cache_hint");
        op.expect(4..=4 + usize::from(is_hinted))?;
        let copy = BulkCopy {
            to: self.bare_access(op.operand(0)?, Space::Shared)?,
            from: self.bare_access(op.operand(1)?, Space::Global)?,
            bytes: self.source(op.operand(2)?, 4)?,
            object: self.bare_access(op.operand(3)?, Space::Shared)?,
        };
        self.emit(Class::Global, Action::BulkCopy(copy));
        Ok(())
    }

    /// Decodes `setmaxnreg.inc.sync.aligned.u32 n` and `setmaxnreg.dec`.
    pub fn set_registers(&mut self, op: &mut Opcode) -> Result<()> {
        let is_increase = op.take_any(&["inc", "dec"]) == Some("inc");
        if op.kind()? != Scalar::U32 || !(op.take("sync") && op.take("aligned")) {
            return op.with_type(None);
        }
        match op.operand(0)? {
            Operand::Int(n @ 24..=256) if n % 8 == 0 => {
                self.emit(Class::Synchronize, Action::SetRegisters(*n as u32, is_increase));
                Ok(())
            }
            _ => self.error("invalid operand of `setmaxnreg`: expected a multiple of 8 from 24 to 256"),
        }
    }
}
