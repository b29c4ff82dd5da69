//! Decodes arithmetic, comparisons, and bit operations.

use super::opcode::Opcode;
use super::{Decoder, Result, moves};
use crate::exec::float::{self, Modes};
use crate::exec::inst::Class;
use crate::exec::int::{self, Carried};
use crate::exec::lanes::{AluFn, Args, Combine, SINK, TRUE};
use crate::exec::scalar::Scalar::{self, *};
use crate::exec::{compare, half};
use crate::ptx::Operand;

impl Decoder<'_> {
    /// Decodes an arithmetic instruction. Returns false for other instructions.
    pub fn arithmetic(&mut self, op: &mut Opcode) -> Result<bool> {
        match op.name {
            "add" | "sub" | "addc" | "subc" => self.sum(op)?,
            "mul" => self.product(op, false)?,
            "mad" | "fma" => self.product(op, true)?,
            "madc" => self.product(op, true)?,
            "mul24" | "mad24" => self.product24(op)?,
            "div" | "rem" => self.quotient(op)?,
            "min" | "max" => self.extreme(op)?,
            "neg" | "abs" => self.sign(op)?,
            "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => self.function(op)?,
            "and" | "or" | "xor" | "not" | "cnot" => self.logic(op)?,
            "shl" | "shr" => self.shift(op)?,
            "popc" | "clz" | "brev" | "bfind" | "bfe" | "bfi" | "lop3" | "prmt" | "shf" | "sad" | "dp4a" | "dp2a"
            | "copysign" => self.bits(op)?,
            "setp" => self.setp(op)?,
            "testp" => self.testp(op)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Decodes an instruction whose result and sources all have `bytes` bytes.
    fn uniform(&mut self, op: &Opcode, class: Class, run: AluFn, bytes: u32) -> Result<()> {
        op.expect(2..=4)?;
        let mut args = Args {
            d: self.result(op.operand(0)?, bytes)?,
            ..Args::default()
        };
        args.a = self.source(op.operand(1)?, bytes)?;
        if op.len() > 2 {
            args.b = self.source(op.operand(2)?, bytes)?;
        }
        if op.len() > 3 {
            args.c = self.source(op.operand(3)?, bytes)?;
        }
        self.alu(class, run, args);
        Ok(())
    }

    fn sum(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        op.expect(3..=3)?;
        let subtract = op.name.starts_with("sub");
        let carry_in = op.name.ends_with('c');
        let carry_out = op.take("cc");
        if carry_in || carry_out {
            let run = int::carried(
                kind,
                Carried {
                    subtract,
                    carry_in,
                    carry_out,
                },
            );
            return self.uniform(op, Class::Integer, op.with_type(run)?, kind.bytes());
        }
        let run = if kind.is_float() {
            let modes = op.modes();
            match (is_half(kind), subtract) {
                (true, false) => half::add(kind, modes.saturate),
                (true, true) => half::sub(kind, modes.saturate),
                (false, false) => float::add(kind, modes),
                (false, true) => float::sub(kind, modes),
            }
        } else {
            match (op.take("sat"), subtract) {
                (true, false) => int::add_saturating(kind),
                (true, true) => int::sub_saturating(kind),
                (false, false) => int::add(kind),
                (false, true) => int::sub(kind),
            }
        };
        self.uniform(op, class_of(kind), op.with_type(run)?, kind.bytes())
    }

    /// Decodes `mul`, `mad`, `madc`, and `fma`.
    fn product(&mut self, op: &mut Opcode, has_sum: bool) -> Result<()> {
        let kind = op.kind()?;
        op.expect(if has_sum { 4..=4 } else { 3..=3 })?;
        if kind.is_float() {
            let relu = op.take("relu");
            let modes = op.modes();
            let run = match (is_half(kind), has_sum) {
                (true, false) => half::mul(kind, modes.saturate),
                (true, true) => half::fma(kind, modes.saturate, relu),
                (false, false) => float::mul(kind, modes),
                (false, true) => float::fma(kind, modes),
            };
            return self.uniform(op, class_of(kind), op.with_type(run)?, kind.bytes());
        }
        let part = op.take_any(&["lo", "hi", "wide"]);
        let (carry_in, carry_out) = (op.name == "madc", op.take("cc"));
        if carry_in || carry_out {
            return self.carried_product(
                op,
                kind,
                part,
                Carried {
                    subtract: false,
                    carry_in,
                    carry_out,
                },
            );
        }
        let run = match (part, has_sum) {
            (Some("hi"), false) => int::mul_hi(kind),
            (Some("hi"), true) => int::mad_hi(kind),
            (Some("wide"), false) => int::mul_wide(kind),
            (Some("wide"), true) => int::mad_wide(kind),
            (Some(_), false) => int::mul_lo(kind),
            (Some(_), true) => int::mad_lo(kind),
            (None, _) => None,
        };
        let run = op.with_type(run)?;
        let wide = kind.bytes() * if part == Some("wide") { 2 } else { 1 };
        let mut args = Args {
            d: self.result(op.operand(0)?, wide)?,
            ..Args::default()
        };
        args.a = self.source(op.operand(1)?, kind.bytes())?;
        args.b = self.source(op.operand(2)?, kind.bytes())?;
        if has_sum {
            args.c = self.source(op.operand(3)?, wide)?;
        }
        self.alu(Class::Integer, run, args);
        Ok(())
    }

    /// Decodes a multiplication followed by an addition with carry.
    fn carried_product(&mut self, op: &Opcode, kind: Scalar, part: Option<&str>, form: Carried) -> Result<()> {
        let product = if part == Some("hi") {
            int::mul_hi(kind)
        } else {
            int::mul_lo(kind)
        };
        let (product, sum) = (op.with_type(product)?, op.with_type(int::carried(kind, form))?);
        let between = self.new_slot(kind.bytes());
        let a = self.source(op.operand(1)?, kind.bytes())?;
        let b = self.source(op.operand(2)?, kind.bytes())?;
        let c = self.source(op.operand(3)?, kind.bytes())?;
        let d = self.result(op.operand(0)?, kind.bytes())?;
        self.alu(
            Class::Integer,
            product,
            Args {
                d: between,
                a,
                b,
                ..Args::default()
            },
        );
        self.alu(
            Class::Integer,
            sum,
            Args {
                d,
                a: between,
                b: c,
                ..Args::default()
            },
        );
        Ok(())
    }

    fn product24(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        let is_high = op.take_any(&["lo", "hi"]) == Some("hi");
        let run = match op.name {
            "mul24" => int::mul24(kind, is_high),
            _ if is_high => None,
            _ => int::mad24(kind),
        };
        self.uniform(op, Class::Integer, op.with_type(run)?, kind.bytes())
    }

    fn quotient(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        op.expect(3..=3)?;
        if kind.is_float() {
            op.ignore(&["approx", "full"]);
            let run = float::div(kind, op.modes());
            return self.uniform(op, Class::Special, op.with_type(run)?, kind.bytes());
        }
        let run = if op.name == "div" {
            int::div(kind)
        } else {
            int::rem(kind)
        };
        self.uniform(op, Class::Integer, op.with_type(run)?, kind.bytes())
    }

    fn extreme(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        op.expect(3..=3)?;
        let is_max = op.name == "max";
        let run = if kind.is_float() {
            let (modes, keeps_nan) = (op.modes(), op.take("NaN"));
            if is_half(kind) {
                half::extreme(kind, is_max, keeps_nan)
            } else {
                float::extreme(kind, modes, is_max, keeps_nan)
            }
        } else if is_max {
            int::max(kind)
        } else {
            int::min(kind)
        };
        self.uniform(op, class_of(kind), op.with_type(run)?, kind.bytes())
    }

    fn sign(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        op.expect(2..=2)?;
        let modes = op.modes();
        let run = match (op.name, kind.is_float(), is_half(kind)) {
            ("neg", true, true) => half::neg(kind),
            ("neg", true, false) => float::neg(kind, modes),
            ("neg", false, _) => int::neg(kind),
            (_, true, true) => half::abs(kind),
            (_, true, false) => float::abs(kind, modes),
            (_, false, _) => int::abs(kind),
        };
        self.uniform(op, class_of(kind), op.with_type(run)?, kind.bytes())
    }

    /// Decodes functions of one operand. The `.approx` variants are computed exactly.
    fn function(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        op.expect(2..=2)?;
        op.take("approx");
        let modes: Modes = op.modes();
        let run = match op.name {
            "rcp" => float::rcp(kind, modes),
            "sqrt" => float::sqrt(kind, modes),
            name if is_half(kind) => half::function(name, kind),
            name => float::function(name, kind, modes),
        };
        self.uniform(op, Class::Special, op.with_type(run)?, kind.bytes())
    }

    fn logic(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        op.expect(if op.name.ends_with("not") { 2..=2 } else { 3..=3 })?;
        if kind == Pred {
            let d = self.predicate_result(op.operand(0)?)?;
            let a = self.plain_predicate(op.operand(1)?)?;
            let b = if op.len() > 2 {
                self.plain_predicate(op.operand(2)?)?
            } else {
                a
            };
            let run = op.with_type(moves::predicate_logic(op.name))?;
            self.alu(
                Class::Integer,
                run,
                Args {
                    d,
                    a,
                    b,
                    ..Args::default()
                },
            );
            return Ok(());
        }
        let run = match op.name {
            "and" => int::and(kind),
            "or" => int::or(kind),
            "xor" => int::xor(kind),
            "not" => int::not(kind),
            _ => int::cnot(kind),
        };
        self.uniform(op, Class::Integer, op.with_type(run)?, kind.bytes())
    }

    fn shift(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        op.expect(3..=3)?;
        let run = if op.name == "shl" {
            int::shl(kind)
        } else {
            int::shr(kind)
        };
        let run = op.with_type(run)?;
        let d = self.result(op.operand(0)?, kind.bytes())?;
        let a = self.source(op.operand(1)?, kind.bytes())?;
        let b = self.source(op.operand(2)?, 4)?;
        self.alu(
            Class::Integer,
            run,
            Args {
                d,
                a,
                b,
                ..Args::default()
            },
        );
        Ok(())
    }

    fn bits(&mut self, op: &mut Opcode) -> Result<()> {
        match op.name {
            "bfi" | "bfe" | "lop3" => return self.fields(op),
            "prmt" => {
                let mode = op.take_any(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]);
                let run = if op.kind()? == B32 { int::prmt(mode) } else { None };
                op.expect(4..=4)?;
                return self.uniform(op, Class::Integer, op.with_type(run)?, 4);
            }
            "shf" => {
                let is_left = op.take_any(&["l", "r"]) == Some("l");
                let clamp = op.take_any(&["clamp", "wrap"]) == Some("clamp");
                let run = (op.kind()? == B32).then(|| int::funnel(is_left, clamp));
                op.expect(4..=4)?;
                return self.uniform(op, Class::Integer, op.with_type(run)?, 4);
            }
            "dp4a" | "dp2a" => {
                let (b, a) = (op.kind()?, op.kind()?);
                let high = op.take_any(&["lo", "hi"]) == Some("hi");
                let is_known = [a, b].iter().all(|k| matches!(k, U32 | S32));
                let (a, b) = (a == S32, b == S32);
                let run = if op.name == "dp4a" {
                    int::dp4a(a, b)
                } else {
                    int::dp2a(a, b, high)
                };
                op.expect(4..=4)?;
                return self.uniform(op, Class::Integer, op.with_type(is_known.then_some(run))?, 4);
            }
            _ => {}
        }
        let shift = op.take("shiftamt");
        let kind = op.kind()?;
        let run = match op.name {
            "popc" => int::popc(kind),
            "clz" => int::clz(kind),
            "brev" => int::brev(kind),
            "bfind" => int::bfind(kind, shift),
            "sad" => int::sad(kind),
            _ => float::copysign(kind),
        };
        let run = op.with_type(run)?;
        if !matches!(op.name, "popc" | "clz" | "bfind") {
            return self.uniform(op, class_of(kind), run, kind.bytes());
        }
        op.expect(2..=2)?;
        // The result of a bit count has 32 bits.
        let d = self.result(op.operand(0)?, 4)?;
        let a = self.source(op.operand(1)?, kind.bytes())?;
        self.alu(
            Class::Integer,
            run,
            Args {
                d,
                a,
                ..Args::default()
            },
        );
        Ok(())
    }

    fn fields(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        let bytes = kind.bytes();
        let d = self.result(op.operand(0)?, bytes)?;
        let mut args = Args {
            d,
            a: self.source(op.operand(1)?, bytes)?,
            ..Args::default()
        };
        let run = match op.name {
            "bfe" => {
                op.expect(4..=4)?;
                (args.b, args.c) = (self.source(op.operand(2)?, 4)?, self.source(op.operand(3)?, 4)?);
                int::bfe(kind)
            }
            "bfi" => {
                op.expect(5..=5)?;
                args.b = self.source(op.operand(2)?, bytes)?;
                (args.c, args.extra) = (self.source(op.operand(3)?, 4)?, self.source(op.operand(4)?, 4)?);
                int::bfi(kind)
            }
            _ => {
                op.expect(5..=5)?;
                (args.b, args.c) = (self.source(op.operand(2)?, 4)?, self.source(op.operand(3)?, 4)?);
                let Operand::Int(table @ 0..=255) = op.operand(4)? else {
                    return op.error("invalid operand of `lop3`: expected a table from 0 to 255");
                };
                args.extra = *table as u32;
                (kind == B32).then(int::lop3)
            }
        };
        self.alu(Class::Integer, op.with_type(run)?, args);
        Ok(())
    }

    fn setp(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        let comparison = op.next().unwrap_or_default();
        let flush = op.take("ftz");
        let combine = op.take_any(&["and", "or", "xor"]);
        op.expect(if combine.is_some() { 4..=4 } else { 3..=3 })?;
        let combined = match combine {
            Some("or") => Combine::Or,
            Some("xor") => Combine::Xor,
            _ => Combine::And,
        };
        let run = op.with_type(compare::setp(comparison, kind, combined, flush))?;
        let (d, extra) = match op.operand(0)? {
            Operand::Pair(p, q) => (self.predicate_result(p)?, self.predicate_result(q)?),
            p => (self.predicate_result(p)?, SINK),
        };
        let a = self.source(op.operand(1)?, kind.bytes())?;
        let b = self.source(op.operand(2)?, kind.bytes())?;
        let c = if combine.is_some() {
            self.plain_predicate(op.operand(3)?)?
        } else {
            TRUE
        };
        self.alu(class_of(kind), run, Args { d, a, b, c, extra });
        Ok(())
    }

    fn testp(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        op.expect(2..=2)?;
        let property = op.next().unwrap_or_default();
        let run = op.with_type(compare::testp(property, kind))?;
        let d = self.predicate_result(op.operand(0)?)?;
        let a = self.source(op.operand(1)?, kind.bytes())?;
        self.alu(
            class_of(kind),
            run,
            Args {
                d,
                a,
                b: a,
                c: TRUE,
                extra: SINK,
            },
        );
        Ok(())
    }
}

fn is_half(kind: Scalar) -> bool {
    matches!(kind, F16 | F16x2 | Bf16 | Bf16x2)
}

/// Returns the counter class for arithmetic of a type.
pub fn class_of(kind: Scalar) -> Class {
    match kind {
        F32 | Tf32 => Class::Single,
        F64 => Class::Double,
        _ if is_half(kind) => Class::Half,
        _ => Class::Integer,
    }
}
