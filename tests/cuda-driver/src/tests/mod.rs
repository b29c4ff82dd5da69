//! Kernels as PTX text, run without a driver or compiler: each instruction against values known from elsewhere, and each kind of fault.

mod faults;
mod floats;
mod integers;
mod matrices;
mod order;
mod parsing;
mod warps;

use crate::decode::decode;
use crate::device::memory::Memory;
use crate::exec::env::Reach;
use crate::exec::fault::{Fault, Kind};
use crate::exec::grid::{Done, Launch, Worker, run};
use crate::exec::inst::Kernel;
use crate::ptx::{Space, parse};
use std::collections::HashMap;

/// A device with a kernel.
struct Machine {
    memory: Memory,
    kernel: Kernel,
    params: Vec<u8>,
    buffers: Vec<(u64, usize)>,
    workers: usize,
    blocks: u32,
    threads: u32,
    dynamic_shared: u32,
}

/// A module of one kernel `k` with this body; its parameters `p0`, `p1`, ... are addresses.
fn module(n_params: usize, body: &str) -> String {
    let params: Vec<_> = (0..n_params).map(|i| format!(".param .u64 p{i}")).collect();
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k({})\n{{\n{body}\n}}\n",
        params.join(", ")
    )
}

impl Machine {
    /// A device with the module's only kernel, which has one warp.
    fn new(text: &str) -> Self {
        let module = parse(text).unwrap_or_else(|e| panic!("{e}"));
        let mut memory = Memory::new(0);
        let mut globals = HashMap::new();
        for v in module.variables.iter().filter(|v| v.space != Space::Shared) {
            let at = memory.allocate(v.size.into(), "variable").expect("there is memory");
            let (i, _) = memory.find(at, 1).expect("it was allocated");
            let region = memory.region_mut(i);
            // SAFETY: the variable has room for its values.
            unsafe { region.data(0).copy_from(v.init.as_ptr(), v.init.len()) };
            region.mark(0, v.size.into());
            globals.insert(v.name.clone(), at);
        }
        let entry = module
            .functions
            .iter()
            .find(|f| f.is_entry)
            .expect("the module has a kernel");
        let kernel = decode(&module, entry, &globals).unwrap_or_else(|e| panic!("{e}"));
        let (params, buffers) = (Vec::new(), Vec::new());
        Self {
            memory,
            kernel,
            params,
            buffers,
            workers: 1,
            blocks: 1,
            threads: 32,
            dynamic_shared: 0,
        }
    }

    /// One more parameter: the address of a buffer that is written (`Some` bytes) or not (so many).
    fn buffer(mut self, bytes: &[u8]) -> Self {
        let at = self
            .memory
            .allocate(bytes.len() as u64, "allocation")
            .expect("there is memory");
        let (i, _) = self.memory.find(at, 1).expect("it was allocated");
        let region = self.memory.region_mut(i);
        // SAFETY: the region has as many bytes.
        unsafe { region.data(0).copy_from(bytes.as_ptr(), bytes.len()) };
        region.mark(0, bytes.len() as u64);
        self.add(at, bytes.len())
    }

    /// One more parameter: the address of bytes that nobody wrote.
    fn unwritten(mut self, len: usize) -> Self {
        let at = self.memory.allocate(len as u64, "allocation").expect("there is memory");
        self.add(at, len)
    }

    fn add(mut self, at: u64, len: usize) -> Self {
        self.params.extend(at.to_le_bytes());
        self.buffers.push((at, len));
        self
    }

    fn run(&self) -> Result<Done, Box<Fault>> {
        let launch = Launch {
            kernel: &self.kernel,
            params: &self.params,
            blocks: [self.blocks, 1, 1],
            threads: [self.threads, 1, 1],
            dynamic_shared: self.dynamic_shared,
            reach: Reach {
                memories: vec![Some(&self.memory)],
                hosts: &[],
            },
            watch_races: true,
            watch_order: false,
            branches_max: 10_000,
        };
        let mut workers: Vec<_> = (0..self.workers).map(|_| Worker::default()).collect();
        run(&launch, &mut workers)
    }

    /// The bytes of a buffer.
    fn bytes(&self, buffer: usize) -> Vec<u8> {
        let (at, len) = self.buffers[buffer];
        let (i, _) = self.memory.find(at, 1).expect("it was allocated");
        // SAFETY: the region has as many bytes.
        unsafe { std::slice::from_raw_parts(self.memory.regions()[i].data(0), len) }.to_vec()
    }

    fn words(&self, buffer: usize) -> Vec<u32> {
        self.bytes(buffer)
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    }

    /// The fault of a run, and that it is of this kind and says these words.
    #[track_caller]
    fn fails(&self, kind: Kind, words: &[&str]) -> Box<Fault> {
        let fault = self.run().err().expect("the kernel is wrong");
        assert_eq!(fault.kind, kind, "{}", fault.what);
        for word in words {
            assert!(fault.what.contains(word), "`{}` does not say `{word}`", fault.what);
        }
        fault
    }
}

fn le(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Bytes of registers by their letter in [`apply`].
fn width(letter: char) -> usize {
    match letter {
        'h' => 2,
        'r' | 'f' => 4,
        'd' | 'l' => 8,
        _ => panic!("`{letter}` is no kind of register"),
    }
}

/// Results of an instruction for up to 32 sets of operands. `form` names the registers' widths, result first: "r rr". In the instruction the
/// result is `%d`, the operands are `%a`, `%b`, `%c`.
fn apply(instruction: &str, form: &str, cases: &[Vec<u64>]) -> Vec<u64> {
    let letters: Vec<char> = form.chars().filter(|c| *c != ' ').collect();
    let names = ["d", "a", "b", "c"];
    let mut body = String::from(".reg .b64 %at, %lane, %x; .reg .b32 %t; .reg .pred %p;\n");
    for (name, letter) in names.iter().zip(&letters) {
        body += &format!(".reg .b{} %{name};\n", width(*letter) * 8);
    }
    body += "mov.u32 %t, %tid.x;\ncvt.u64.u32 %lane, %t;\nmul.lo.u64 %lane, %lane, 8;\n";
    for (i, letter) in letters.iter().enumerate().skip(1) {
        let bits = width(*letter) * 8;
        body += &format!(
            "ld.param.u64 %x, [p{i}];\nadd.u64 %at, %x, %lane;\nld.global.b{bits} %{}, [%at];\n",
            names[i]
        );
    }
    let bits = width(letters[0]) * 8;
    body +=
        &format!("{instruction}\nld.param.u64 %x, [p0];\nadd.u64 %at, %x, %lane;\nst.global.b{bits} [%at], %d;\nret;");
    let mut machine = Machine::new(&module(letters.len(), &body)).buffer(&[0; 256]);
    for operand in 0..letters.len() - 1 {
        let mut bytes = [0; 256];
        for (i, case) in cases.iter().enumerate() {
            bytes[8 * i..][..8].copy_from_slice(&case[operand].to_le_bytes());
        }
        machine = machine.buffer(&bytes);
    }
    machine
        .run()
        .unwrap_or_else(|fault| panic!("{instruction}: {}", fault.what));
    let results = machine.bytes(0);
    let result = |i: usize| u64::from_le_bytes(results[8 * i..][..8].try_into().expect("8 bytes"));
    (0..cases.len()).map(result).collect()
}

/// Checks an instruction against its results: each row has the operands and then the result.
#[track_caller]
fn check(instruction: &str, form: &str, rows: &[&[u64]]) {
    for part in rows.chunks(32) {
        let cases: Vec<Vec<u64>> = part.iter().map(|row| row[..row.len() - 1].to_vec()).collect();
        for (row, found) in part.iter().zip(apply(instruction, form, &cases)) {
            let expected = row[row.len() - 1];
            assert_eq!(
                found,
                expected,
                "{instruction} of {:x?}: {found:#x}, not {expected:#x}",
                &row[..row.len() - 1]
            );
        }
    }
}
