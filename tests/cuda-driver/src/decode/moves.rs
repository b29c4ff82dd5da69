//! Decodes moves, selections, and conversions of values and addresses.

use super::opcode::Opcode;
use super::{Decoder, Result};
use crate::exec::convert::{self, Conversion};
use crate::exec::env::{LOCAL_WINDOW, SHARED_WINDOW};
use crate::exec::inst::{Action, Class};
use crate::exec::lanes::{AluFn, Args, LANES, Lane, SINK, Slot, bits, op, read, set_bits, write};
use crate::exec::scalar::Rounding;
use crate::exec::scalar::Scalar::{self, *};
use crate::ptx::Operand;

impl Decoder<'_> {
    /// Decodes a move or conversion. Returns false for other instructions.
    pub fn moves(&mut self, op: &mut Opcode) -> Result<bool> {
        match op.name {
            "mov" => self.mov(op)?,
            "selp" => self.selp(op)?,
            "cvt" => self.cvt(op)?,
            "cvta" => self.cvta(op)?,
            "isspacep" => self.isspacep(op)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn mov(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        op.expect(2..=2)?;
        let (d, a) = (op.operand(0)?, op.operand(1)?);
        match (d, a) {
            (Operand::Vector(parts), a) => return self.unpack(op, parts, a, kind.bytes()),
            (d, Operand::Vector(parts)) => return self.pack(op, d, parts, kind.bytes()),
            _ => {}
        }
        if kind == Pred {
            let a = self.plain_predicate(a)?;
            let d = self.predicate_result(d)?;
            self.alu(
                Class::Move,
                predicate_and,
                Args {
                    d,
                    a,
                    b: a,
                    ..Args::default()
                },
            );
            return Ok(());
        }
        if let Operand::Name(name) = a
            && let Some(bytes) = clock(name)
        {
            let slot = self.result(d, bytes)?;
            self.emit(Class::Move, Action::Clock(slot, bytes));
            return Ok(());
        }
        let args = Args {
            d: self.result(d, kind.bytes())?,
            a: self.source(a, kind.bytes())?,
            ..Args::default()
        };
        self.alu(Class::Move, copy(kind.bytes()), args);
        Ok(())
    }

    /// Decodes `mov.b64 {a, b}, d`. The low part comes first.
    fn unpack(&mut self, op: &Opcode, parts: &[Operand], from: &Operand, bytes: u32) -> Result<()> {
        let width = bytes / parts.len() as u32;
        let a = self.source(from, bytes)?;
        let run = match (bytes, width) {
            (8, 4) => op!(|a: u64, _b: u64, _c: u64, shift| -> u32 { (a >> shift) as u32 }),
            (8, 2) => op!(|a: u64, _b: u64, _c: u64, shift| -> u16 { (a >> shift) as u16 }),
            (4, 2) => op!(|a: u32, _b: u32, _c: u32, shift| -> u16 { (a >> shift) as u16 }),
            _ => return op.with_type(None),
        };
        for (i, part) in parts.iter().enumerate() {
            let d = self.result(part, width)?;
            if d != SINK {
                self.alu(
                    Class::Move,
                    run,
                    Args {
                        d,
                        a,
                        extra: 8 * width * i as u32,
                        ..Args::default()
                    },
                );
            }
        }
        Ok(())
    }

    fn pack(&mut self, op: &Opcode, to: &Operand, parts: &[Operand], bytes: u32) -> Result<()> {
        let width = bytes / parts.len() as u32;
        let d = self.result(to, bytes)?;
        let sources = parts
            .iter()
            .map(|part| self.source(part, width))
            .collect::<Result<Vec<_>>>()?;
        let halves = op!(|a: u16, b: u16| -> u32 { u32::from(b) << 16 | u32::from(a) });
        let words = op!(|a: u32, b: u32| -> u64 { u64::from(b) << 32 | u64::from(a) });
        let pair = |d: Slot, parts: &[Slot]| Args {
            d,
            a: parts[0],
            b: parts[1],
            ..Args::default()
        };
        match (bytes, width) {
            (8, 4) => self.alu(Class::Move, words, pair(d, &sources)),
            (4, 2) => self.alu(Class::Move, halves, pair(d, &sources)),
            (8, 2) => {
                let (low, high) = (self.new_slot(4), self.new_slot(4));
                self.alu(Class::Move, halves, pair(low, &sources[..2]));
                self.alu(Class::Move, halves, pair(high, &sources[2..]));
                self.alu(Class::Move, words, pair(d, &[low, high]));
            }
            _ => return op.with_type(None),
        }
        Ok(())
    }

    fn selp(&mut self, op: &mut Opcode) -> Result<()> {
        let kind = op.kind()?;
        op.expect(4..=4)?;
        let run: AluFn = match kind.bytes() {
            2 => select::<u16>,
            4 => select::<u32>,
            8 => select::<u64>,
            _ => return op.with_type(None),
        };
        let d = self.result(op.operand(0)?, kind.bytes())?;
        let a = self.source(op.operand(1)?, kind.bytes())?;
        let b = self.source(op.operand(2)?, kind.bytes())?;
        let (c, extra) = self.predicate(op.operand(3)?)?;
        self.alu(Class::Move, run, Args { d, a, b, c, extra });
        Ok(())
    }

    /// Returns the slot and size of a conversion operand, whose register may be wider than the type.
    fn at_least(&mut self, operand: &Operand, kind: Scalar) -> Result<(Slot, u32)> {
        let Operand::Name(name) = operand else {
            let bytes = kind.bytes().max(2);
            return Ok((self.source(operand, bytes)?, bytes));
        };
        match self.register(name)? {
            (slot, bytes) if bytes >= kind.bytes() && bytes > 0 => Ok((slot, bytes)),
            _ => self.error(format!("register `{name}` is narrower than the type of the conversion")),
        }
    }

    fn cvt(&mut self, op: &mut Opcode) -> Result<()> {
        let is_pack = op.take("pack");
        let from = op.kind()?;
        let to = op.kind()?;
        let to_integer = op.take_any(&["rni", "rzi", "rmi", "rpi"]);
        let rounding = match to_integer {
            Some("rni") => Some(Rounding::Nearest),
            Some("rzi") => Some(Rounding::Zero),
            Some("rmi") => Some(Rounding::Down),
            Some(_) => Some(Rounding::Up),
            None => op.rounding(),
        };
        let (flush, saturate, relu) = (op.take("ftz"), op.take("sat"), op.take("relu"));
        if is_pack {
            return self.cvt_pack(op, to, from == S32 && saturate);
        }
        if matches!(to, F16x2 | Bf16x2) {
            let run = (from == F32)
                .then_some(rounding)
                .flatten()
                .and_then(|r| convert::pack(to, r, relu));
            op.expect(3..=3)?;
            let args = Args {
                d: self.result(op.operand(0)?, 4)?,
                a: self.source(op.operand(1)?, 4)?,
                b: self.source(op.operand(2)?, 4)?,
                ..Args::default()
            };
            self.alu(Class::Convert, op.with_type(run)?, args);
            return Ok(());
        }
        op.expect(2..=2)?;
        let conversion = Conversion {
            to,
            from,
            rounding,
            to_integer: to_integer.is_some(),
            saturate,
            flush,
            relu,
        };
        let (d, d_bytes) = self.at_least(op.operand(0)?, to)?;
        let (a, a_bytes) = self.at_least(op.operand(1)?, from)?;
        let run = op.with_type(convert::convert(&conversion, d_bytes, a_bytes))?;
        // The assembler converts f16 to f32 by an addition.
        let is_addition = (to, from) == (F32, F16);
        self.alu(
            if is_addition { Class::Single } else { Class::Convert },
            run,
            Args {
                d,
                a,
                extra: convert::encode(&conversion),
                ..Args::default()
            },
        );
        Ok(())
    }

    fn cvt_pack(&mut self, op: &mut Opcode, to: Scalar, is_saturated: bool) -> Result<()> {
        // In `cvt.pack.sat.TO.s32{.b32}`, the type of an optional third operand comes last.
        op.expect(3..=4)?;
        let run = is_saturated
            .then(|| convert::pack_integers(to, op.len() == 4))
            .flatten();
        let mut args = Args {
            d: self.result(op.operand(0)?, 4)?,
            ..Args::default()
        };
        (args.a, args.b) = (self.source(op.operand(1)?, 4)?, self.source(op.operand(2)?, 4)?);
        if op.len() == 4 {
            args.c = self.source(op.operand(3)?, 4)?;
        }
        self.alu(Class::Convert, op.with_type(run)?, args);
        Ok(())
    }

    /// Decodes conversions between generic addresses and addresses of a state space.
    fn cvta(&mut self, op: &mut Opcode) -> Result<()> {
        let back = op.take("to");
        let Some(space) = op.take_any(&["global", "const", "param", "shared", "local"]) else {
            return self.error("`cvta` requires a state space");
        };
        op.take("cta");
        op.expect(2..=2)?;
        let bytes = op.kind()?.bytes();
        let window = match space {
            "shared" => SHARED_WINDOW,
            "local" => LOCAL_WINDOW,
            _ => 0,
        };
        if bytes != 8 {
            return op.with_type(None);
        }
        let offset = if back { window.wrapping_neg() } else { window };
        let args = Args {
            d: self.result(op.operand(0)?, bytes)?,
            a: self.source(op.operand(1)?, bytes)?,
            b: self.constant(offset, bytes),
            ..Args::default()
        };
        self.alu(Class::Move, op!(|a: u64, b: u64| -> u64 { a.wrapping_add(b) }), args);
        Ok(())
    }

    fn isspacep(&mut self, op: &mut Opcode) -> Result<()> {
        op.expect(2..=2)?;
        let run: AluFn = match op.next() {
            Some("shared") => is_in_window::<SHARED_WINDOW>,
            Some("local") => is_in_window::<LOCAL_WINDOW>,
            Some("global") => is_in_window::<0>,
            _ => return op.with_type(None),
        };
        let args = Args {
            d: self.predicate_result(op.operand(0)?)?,
            a: self.source(op.operand(1)?, 8)?,
            ..Args::default()
        };
        self.alu(Class::Integer, run, args);
        Ok(())
    }
}

/// Returns the size of a clock register in bytes; `None` for other names.
fn clock(name: &str) -> Option<u32> {
    match name {
        "%clock" | "%clock_hi" | "%globaltimer_lo" | "%globaltimer_hi" => Some(4),
        "%clock64" | "%globaltimer" => Some(8),
        _ => None,
    }
}

fn copy(bytes: u32) -> AluFn {
    match bytes {
        2 => op!(|a: u16| -> u16 { a }),
        4 => op!(|a: u32| -> u32 { a }),
        _ => op!(|a: u64| -> u64 { a }),
    }
}

/// ALU function that negates a predicate.
pub const NOT: AluFn = predicate_not;

/// Returns the lane loop of a logical operation on predicates.
pub fn predicate_logic(name: &str) -> Option<AluFn> {
    Some(match name {
        "and" => predicate_and,
        "or" => predicate_or,
        "xor" => predicate_xor,
        "not" => predicate_not,
        _ => return None,
    })
}

/// # Safety
/// The slots in `args` are predicates within `file`, and `is_supported` returned true.
unsafe fn predicate_and(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the slots are predicates within `file` (function contract).
    unsafe { set_bits(file, args.d, bits(file, args.a) & bits(file, args.b), mask) }
}

/// # Safety
/// The slots in `args` are predicates within `file`, and `is_supported` returned true.
unsafe fn predicate_or(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the slots are predicates within `file` (function contract).
    unsafe { set_bits(file, args.d, bits(file, args.a) | bits(file, args.b), mask) }
}

/// # Safety
/// The slots in `args` are predicates within `file`, and `is_supported` returned true.
unsafe fn predicate_xor(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the slots are predicates within `file` (function contract).
    unsafe { set_bits(file, args.d, bits(file, args.a) ^ bits(file, args.b), mask) }
}

/// # Safety
/// The slots in `args` are predicates within `file`, and `is_supported` returned true.
unsafe fn predicate_not(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: the slots are predicates within `file` (function contract).
    unsafe { set_bits(file, args.d, !bits(file, args.a), mask) }
}

/// # Safety
/// `args.a`, `args.b`, and `args.d` are registers of type `T` within `file`, `args.c` is a predicate, and
/// `args.extra` is all ones if the predicate is negated.
unsafe fn select<T: Lane>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: `args.a` and `args.b` are registers of type `T`, and `args.c` is a predicate (function
    // contract).
    let (a, b, c) = unsafe {
        (
            read::<T>(file, args.a),
            read::<T>(file, args.b),
            bits(file, args.c) ^ args.extra,
        )
    };
    let mut d = b;
    for i in 0..LANES {
        if c >> i & 1 != 0 {
            d[i] = a[i];
        }
    }
    // SAFETY: `args.d` is a register of type `T` (function contract).
    unsafe { write(file, args.d, &d, mask) };
}

/// # Safety
/// `args.a` is a 64-bit register and `args.d` a predicate within `file`, and `is_supported` returned true.
unsafe fn is_in_window<const WINDOW: u64>(file: *mut u8, args: &Args, mask: u32) {
    // SAFETY: `args.a` is a 64-bit register and `args.d` a predicate (function contract).
    unsafe {
        let a = read::<u64>(file, args.a);
        let flags = a.iter().enumerate();
        let is_in = |address: u64| crate::exec::env::window_of(address) == WINDOW;
        let result = flags.fold(0, |m, (i, address)| m | u32::from(is_in(*address)) << i);
        set_bits(file, args.d, result, mask);
    }
}
