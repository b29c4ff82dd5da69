//! Decodes barriers, data exchanges between lanes, and matrix instructions.

use super::opcode::Opcode;
use super::{Decoder, Result};
use crate::exec::inst::{Access, Action, Barrier, BarrierOp, Class, Exchange, ExchangeKind, GroupProduct};
use crate::exec::inst::{Matrix, Multiply};
use crate::exec::lanes::{SINK, Slot, TRUE};
use crate::exec::scalar::Scalar::{self, *};
use crate::ptx::{Operand, Space};

impl Decoder<'_> {
    /// Decodes a warp-level instruction. Returns false for other instructions.
    pub fn warp(&mut self, op: &mut Opcode) -> Result<bool> {
        match op.name {
            "bar" | "barrier" => self.barrier(op)?,
            "shfl" => self.shuffle(op)?,
            "vote" => self.vote(op)?,
            "match" => self.match_sync(op)?,
            "redux" => self.redux(op)?,
            "activemask" => {
                op.kind()?;
                let d = self.result(op.operand(0)?, 4)?;
                self.exchange(ExchangeKind::ActiveMask, d, SINK, TRUE, None);
            }
            "elect" => {
                op.take("sync");
                let (d, p) = self.result_and_predicate(op.operand(0)?)?;
                let members = self.source(op.operand(1)?, 4)?;
                self.exchange(ExchangeKind::Elect, d, p, TRUE, Some(members));
            }
            "mma" => self.mma(op)?,
            "mbarrier" => self.mbarrier(op)?,
            "setmaxnreg" => self.set_registers(op)?,
            "wgmma" => self.warpgroup(op)?,
            "ldmatrix" => self.matrix_access(op, true)?,
            "stmatrix" => self.matrix_access(op, false)?,
            "movmatrix" => {
                op.ignore(&["sync", "aligned", "m8n8", "trans"]);
                op.kind()?;
                let (d, a) = (self.result(op.operand(0)?, 4)?, self.source(op.operand(1)?, 4)?);
                self.emit(Class::Matrix, Action::Matrix(Matrix::Transpose(d, a)));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn exchange(&mut self, kind: ExchangeKind, d: Slot, p: Slot, a: Slot, members: Option<Slot>) {
        let exchange = Exchange {
            kind,
            d,
            p,
            a,
            b: TRUE,
            c: TRUE,
            negate: 0,
            members,
        };
        self.emit(Class::Exchange, Action::Exchange(exchange));
    }

    fn barrier(&mut self, op: &mut Opcode) -> Result<()> {
        if op.take("warp") {
            op.take("sync");
            let members = self.source(op.operand(0)?, 4)?;
            self.emit(Class::Synchronize, Action::WarpBarrier(members));
            return Ok(());
        }
        op.ignore(&["cta", "aligned"]);
        let mut barrier = Barrier {
            id: 0,
            count: None,
            waits: true,
            reduce: None,
        };
        let mut first = 0;
        let mut last = op.len();
        match op.take_any(&["sync", "arrive", "red"]) {
            Some("sync") => {}
            Some("arrive") => barrier.waits = false,
            Some(_) => {
                let operation = match op.take_any(&["popc", "and", "or"]) {
                    Some("popc") => BarrierOp::Count,
                    Some("and") => BarrierOp::All,
                    _ => BarrierOp::Any,
                };
                op.kind()?;
                let d = match operation {
                    BarrierOp::Count => self.result(op.operand(0)?, 4)?,
                    _ => self.predicate_result(op.operand(0)?)?,
                };
                last -= 1;
                let (predicate, negate) = self.predicate(op.operand(last)?)?;
                barrier.reduce = Some((operation, predicate, negate, d));
                first = 1;
            }
            None => return self.error(format!("`{}`: this kind of barrier is not supported", op.name)),
        }
        barrier.id = self.source(op.operand(first)?, 4)?;
        if last > first + 1 {
            barrier.count = Some(self.source(op.operand(first + 1)?, 4)?);
        }
        self.emit(Class::Synchronize, Action::Barrier(barrier));
        Ok(())
    }

    /// Decodes a result with an optional predicate, `d|p` or `d`.
    fn result_and_predicate(&mut self, operand: &Operand) -> Result<(Slot, Slot)> {
        match operand {
            Operand::Pair(d, p) => Ok((self.result(d, 4)?, self.predicate_result(p)?)),
            d => Ok((self.result(d, 4)?, SINK)),
        }
    }

    fn shuffle(&mut self, op: &mut Opcode) -> Result<()> {
        let is_sync = op.take("sync");
        let kind = match op.take_any(&["up", "down", "bfly", "idx"]) {
            Some("up") => ExchangeKind::ShuffleUp,
            Some("down") => ExchangeKind::ShuffleDown,
            Some("bfly") => ExchangeKind::ShuffleXor,
            _ => ExchangeKind::ShuffleIndex,
        };
        op.expect(5..=5)?;
        if op.kind()? != B32 || !is_sync {
            return op.with_type(None);
        }
        let (d, p) = self.result_and_predicate(op.operand(0)?)?;
        let a = self.source(op.operand(1)?, 4)?;
        let (b, c) = (self.source(op.operand(2)?, 4)?, self.source(op.operand(3)?, 4)?);
        let members = Some(self.source(op.operand(4)?, 4)?);
        let exchange = Exchange {
            kind,
            d,
            p,
            a,
            b,
            c,
            negate: 0,
            members,
        };
        self.emit(Class::Exchange, Action::Exchange(exchange));
        Ok(())
    }

    fn vote(&mut self, op: &mut Opcode) -> Result<()> {
        let is_sync = op.take("sync");
        let kind = match op.take_any(&["all", "any", "uni", "ballot"]) {
            Some("all") => ExchangeKind::VoteAll,
            Some("any") => ExchangeKind::VoteAny,
            Some("uni") => ExchangeKind::VoteUniform,
            _ => ExchangeKind::VoteBallot,
        };
        op.expect(3..=3)?;
        op.kind()?;
        if !is_sync {
            return op.with_type(None);
        }
        let d = match kind {
            ExchangeKind::VoteBallot => self.result(op.operand(0)?, 4)?,
            _ => self.predicate_result(op.operand(0)?)?,
        };
        let (a, negate) = self.predicate(op.operand(1)?)?;
        let members = Some(self.source(op.operand(2)?, 4)?);
        let exchange = Exchange {
            kind,
            d,
            p: SINK,
            a,
            b: TRUE,
            c: TRUE,
            negate,
            members,
        };
        self.emit(Class::Exchange, Action::Exchange(exchange));
        Ok(())
    }

    fn match_sync(&mut self, op: &mut Opcode) -> Result<()> {
        op.take("sync");
        let is_any = op.take_any(&["any", "all"]) == Some("any");
        op.expect(3..=3)?;
        let bytes = op.kind()?.bytes();
        let (d, p) = self.result_and_predicate(op.operand(0)?)?;
        let a = self.source(op.operand(1)?, bytes)?;
        let members = Some(self.source(op.operand(2)?, 4)?);
        let kind = if is_any {
            ExchangeKind::MatchAny(bytes)
        } else {
            ExchangeKind::MatchAll(bytes)
        };
        self.exchange(kind, d, p, a, members);
        Ok(())
    }

    fn redux(&mut self, op: &mut Opcode) -> Result<()> {
        op.take("sync");
        op.expect(3..=3)?;
        let scalar = op.kind()?;
        let kind = match (op.take_any(&["add", "min", "max", "and", "or", "xor"]), scalar) {
            (Some("add"), U32 | S32) => ExchangeKind::ReduceAdd,
            (Some("min"), U32) => ExchangeKind::ReduceMinUnsigned,
            (Some("max"), U32) => ExchangeKind::ReduceMaxUnsigned,
            (Some("min"), S32) => ExchangeKind::ReduceMinSigned,
            (Some("max"), S32) => ExchangeKind::ReduceMaxSigned,
            (Some("and"), B32) => ExchangeKind::ReduceAnd,
            (Some("or"), B32) => ExchangeKind::ReduceOr,
            (Some("xor"), B32) => ExchangeKind::ReduceXor,
            _ => return op.with_type(None),
        };
        let d = self.result(op.operand(0)?, 4)?;
        let a = self.source(op.operand(1)?, 4)?;
        let members = Some(self.source(op.operand(2)?, 4)?);
        self.exchange(kind, d, SINK, a, members);
        Ok(())
    }

    /// Decodes `mma.sync.aligned.SHAPE.row.col.D.A.B.C d, a, b, c`.
    fn mma(&mut self, op: &mut Opcode) -> Result<()> {
        let (c_kind, b_kind, a_kind, d_kind) = (op.kind()?, op.kind()?, op.kind()?, op.kind()?);
        let is_plain = op.take("sync") && op.take("aligned") && op.take("row") && op.take("col");
        let saturate = op.take("satfinite");
        let shape = op.next().unwrap_or_default();
        let multiply = if is_plain && c_kind == d_kind {
            shape_of(shape, [a_kind, b_kind], d_kind)
        } else {
            None
        };
        let Some((m, k)) = multiply else {
            return op.with_type(None);
        };
        op.expect(4..=4)?;
        let per_register = 4 / a_kind.bytes() as usize;
        let sums = if d_kind == F16 { m * 8 / 64 } else { m * 8 / 32 };
        let counts = [sums, m * k / 32 / per_register, k * 8 / 32 / per_register, sums];
        let mut registers: [Vec<Slot>; 4] = Default::default();
        for (i, count) in counts.into_iter().enumerate() {
            registers[i] = self.words(op.operand(i)?)?;
            if registers[i].len() != count {
                return self.error(format!(
                    "operand {i} of `mma`: expected {count} registers, found {}",
                    registers[i].len()
                ));
            }
        }
        let multiply = Multiply {
            m,
            k,
            kinds: [a_kind, b_kind],
            sum: d_kind,
            saturate,
            registers,
        };
        self.emit(Class::Matrix, Action::Matrix(Matrix::Multiply(multiply)));
        Ok(())
    }

    /// Decodes an instruction that starts with `wgmma`.
    fn warpgroup(&mut self, op: &mut Opcode) -> Result<()> {
        let name = op.take_any(&["fence", "commit_group", "wait_group", "mma_async"]);
        if !(op.take("sync") && op.take("aligned")) {
            return op.with_type(None);
        }
        let action = match name {
            Some("fence") => Action::ProductsFence,
            Some("commit_group") => Action::ProductsCommit,
            Some("wait_group") => {
                let Operand::Int(n @ 0..=7) = op.operand(0)? else {
                    return self.error("invalid operand of `wgmma.wait_group`: expected 0 to 7");
                };
                Action::ProductsWait(*n as u32)
            }
            Some(_) => return self.group_product(op),
            None => return op.with_type(None),
        };
        self.emit(Class::Synchronize, action);
        Ok(())
    }

    /// Decodes `wgmma.mma_async.sync.aligned.m64nNk16.f32.T.T d, a, b, add, 1, 1, 0, 0`, with operands in shared
    /// memory: not negated, and in the order of their rows.
    fn group_product(&mut self, op: &mut Opcode) -> Result<()> {
        let (b_kind, a_kind, sum) = (op.kind()?, op.kind()?, op.kind()?);
        let columns = op
            .next()
            .and_then(|shape| shape.strip_prefix("m64n")?.strip_suffix("k16"));
        let n = columns
            .and_then(|n| n.parse().ok())
            .filter(|n| n % 8 == 0 && (8..=256).contains(n));
        let is_known = matches!(a_kind, F16 | Bf16) && a_kind == b_kind && sum == F32;
        let n = if is_known { n } else { None };
        let Some(n) = n else {
            return op.with_type(None);
        };
        op.expect(8..=8)?;
        for (i, expected) in [(4, 1), (5, 1), (6, 0), (7, 0)] {
            if !matches!(op.operand(i)?, Operand::Int(found) if *found == expected) {
                return self.error(format!("unsupported operand {i} of `wgmma`: expected {expected}"));
            }
        }
        let registers = self.words(op.operand(0)?)?;
        if registers.len() != n / 2 {
            return self.error(format!("operand 0 of `wgmma`: expected {} registers", n / 2));
        }
        let product = GroupProduct {
            n,
            kind: a_kind,
            registers,
            operands: [self.source(op.operand(1)?, 8)?, self.source(op.operand(2)?, 8)?],
            adds: self.predicate(op.operand(3)?)?,
        };
        self.emit(Class::Matrix, Action::Matrix(Matrix::Group(product)));
        Ok(())
    }

    /// Decodes a vector of 32-bit registers, or a single one.
    fn words(&mut self, operand: &Operand) -> Result<Vec<Slot>> {
        match operand {
            Operand::Vector(values) => values.iter().map(|value| self.source(value, 4)).collect(),
            value => Ok(vec![self.source(value, 4)?]),
        }
    }

    /// Decodes `ldmatrix.sync.aligned.m8n8.x4{.trans}.shared.b16 d, [a]`, and `stmatrix` with the operands in
    /// reverse order.
    fn matrix_access(&mut self, op: &mut Opcode, is_load: bool) -> Result<()> {
        let is_plain = op.take("sync") && op.take("aligned") && op.take("m8n8") && op.kind()? == B16;
        let n = match op.take_any(&["x1", "x2", "x4"]) {
            Some("x1") => 1,
            Some("x2") => 2,
            Some(_) => 4,
            None => 0,
        };
        let transposed = op.take("trans");
        let space = if op.take("shared") || op.take("shared::cta") {
            Space::Shared
        } else {
            Space::Generic
        };
        op.expect(2..=2)?;
        let (values, address_index) = if is_load { (0, 1) } else { (1, 0) };
        let registers = self.words(op.operand(values)?)?;
        if !is_plain || registers.len() != n {
            return op.with_type(None);
        }
        let (space, address, is_wide, offset) = self.address(op.operand(address_index)?, space)?;
        let kind = Scalar::B32;
        let access = Access {
            space,
            address,
            is_wide,
            offset,
            kind,
            registers,
            register_bytes: 4,
        };
        let matrix = if is_load {
            Matrix::Load(access, transposed)
        } else {
            Matrix::Store(access, transposed)
        };
        self.emit(Class::Matrix, Action::Matrix(matrix));
        Ok(())
    }
}

/// Returns the rows and columns of matrix A for a supported `mma` shape.
fn shape_of(shape: &str, kinds: [Scalar; 2], sum: Scalar) -> Option<(usize, usize)> {
    let integers = kinds.iter().all(|k| matches!(k, S8 | U8)) && sum == S32;
    let known: &[(&str, usize, usize)] = match (kinds, sum) {
        ([F16, F16], F16 | F32) | ([Bf16, Bf16], F32) => &[("m16n8k8", 16, 8), ("m16n8k16", 16, 16)],
        ([Tf32, Tf32], F32) => &[("m16n8k4", 16, 4), ("m16n8k8", 16, 8)],
        _ if integers => &[("m8n8k16", 8, 16), ("m16n8k16", 16, 16), ("m16n8k32", 16, 32)],
        _ => return None,
    };
    known.iter().find(|(name, ..)| *name == shape).map(|(_, m, k)| (*m, *k))
}
