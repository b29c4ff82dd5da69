//! PTX kernels executed without driver and compiler: results of instructions, and detection of faults.

mod faults;
mod floats;
mod integers;
mod latency;
mod matrices;
mod mbarriers;
mod order;
mod parsing;
mod products;
mod warps;

use crate::decode::decode;
use crate::device::memory::Memory;
use crate::exec::env::AccessibleMemory;
use crate::exec::fault::{Fault, Kind};
use crate::exec::grid::{Launch, LaunchResult, Worker, run};
use crate::exec::inst::Kernel;
use crate::ptx::{Space, parse};
use std::collections::HashMap;

/// A device with one kernel.
struct Machine {
    memory: Memory,
    kernel: Kernel,
    params: Vec<u8>,
    buffers: Vec<(u64, usize)>,
    workers: usize,
    blocks: u32,
    threads: u32,
    dynamic_shared: u32,
    is_early: bool,
}

/// Returns a module with a kernel `k`, whose parameters `p0`, `p1`, … are addresses.
fn module(n_params: usize, body: &str) -> String {
    let params: Vec<_> = (0..n_params).map(|i| format!(".param .u64 p{i}")).collect();
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k({})\n{{\n{body}\n}}\n",
        params.join(", ")
    )
}

/// Like [`module`], for instructions of compute capability 9.0.
fn hopper_module(n_params: usize, body: &str) -> String {
    module(n_params, body).replace("sm_80", "sm_90a")
}

impl Machine {
    /// Creates a device for the module's only kernel, with one warp.
    fn new(text: &str) -> Self {
        let module = parse(text).unwrap_or_else(|e| panic!("{e}"));
        let mut memory = Memory::new(0);
        let mut globals = HashMap::new();
        for v in module.variables.iter().filter(|v| v.space != Space::Shared) {
            let at = memory
                .allocate(v.size.into(), "variable")
                .expect("the allocation succeeds");
            let (i, _) = memory.find(at, 1).expect("the variable is allocated");
            let region = memory.region_mut(i);
            // SAFETY: the region has `size >= init.len()` bytes.
            unsafe { region.data(0).copy_from(v.init.as_ptr(), v.init.len()) };
            region.mark_written(0, v.size.into());
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
            is_early: false,
        }
    }

    /// Adds a parameter: the address of an initialized buffer.
    fn buffer(mut self, bytes: &[u8]) -> Self {
        let at = self
            .memory
            .allocate(bytes.len() as u64, "allocation")
            .expect("the allocation succeeds");
        let (i, _) = self.memory.find(at, 1).expect("the buffer is allocated");
        let region = self.memory.region_mut(i);
        // SAFETY: the region has `bytes.len()` bytes.
        unsafe { region.data(0).copy_from(bytes.as_ptr(), bytes.len()) };
        region.mark_written(0, bytes.len() as u64);
        self.add(at, bytes.len())
    }

    /// Adds a parameter: the address of an uninitialized buffer.
    fn unwritten(mut self, len: usize) -> Self {
        let at = self
            .memory
            .allocate(len as u64, "allocation")
            .expect("the allocation succeeds");
        self.add(at, len)
    }

    fn add(mut self, at: u64, len: usize) -> Self {
        self.params.extend(at.to_le_bytes());
        self.buffers.push((at, len));
        self
    }

    fn run(&self) -> Result<LaunchResult, Box<Fault>> {
        let launch = Launch {
            kernel: &self.kernel,
            params: &self.params,
            blocks: [self.blocks, 1, 1],
            threads: [self.threads, 1, 1],
            dynamic_shared: self.dynamic_shared,
            accessible: AccessibleMemory {
                memories: vec![Some(&self.memory)],
                pinned: &[],
            },
            detect_races: true,
            record_ranges: false,
            measure_latency: true,
            is_early: self.is_early,
            max_branches: 10_000,
        };
        let mut workers: Vec<_> = (0..self.workers).map(|_| Worker::default()).collect();
        run(&launch, &mut workers)
    }

    /// Returns the bytes of a buffer.
    fn bytes(&self, buffer: usize) -> Vec<u8> {
        let (at, len) = self.buffers[buffer];
        let (i, _) = self.memory.find(at, 1).expect("the buffer is allocated");
        // SAFETY: the region has `len` bytes.
        unsafe { std::slice::from_raw_parts(self.memory.regions()[i].data(0), len) }.to_vec()
    }

    fn words(&self, buffer: usize) -> Vec<u32> {
        self.bytes(buffer)
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    }

    /// Runs the kernel, which must fail with this kind of fault and a message that contains all `words`.
    #[track_caller]
    fn assert_fault(&self, kind: Kind, words: &[&str]) -> Box<Fault> {
        let fault = self.run().err().expect("the kernel has a fault");
        assert_eq!(fault.kind, kind, "{}", fault.description);
        for word in words {
            assert!(
                fault.description.contains(word),
                "expected `{word}` in `{}`",
                fault.description
            );
        }
        fault
    }
}

fn le(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Returns the size of a register by its letter in [`apply`].
fn width(letter: char) -> usize {
    match letter {
        'h' => 2,
        'r' | 'f' => 4,
        'd' | 'l' => 8,
        _ => panic!("unknown register letter `{letter}`"),
    }
}

/// Returns the results of an instruction for up to 32 sets of operands. `form` gives the register widths,
/// result first, such as "r rr". The instruction refers to the result as `%d` and to operands as `%a`, `%b`,
/// `%c`.
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
        .unwrap_or_else(|fault| panic!("{instruction}: {}", fault.description));
    let results = machine.bytes(0);
    let result = |i: usize| u64::from_le_bytes(results[8 * i..][..8].try_into().expect("8 bytes"));
    (0..cases.len()).map(result).collect()
}

/// Checks an instruction; each row has the operands followed by the result.
#[track_caller]
fn check(instruction: &str, form: &str, rows: &[&[u64]]) {
    for part in rows.chunks(32) {
        let cases: Vec<Vec<u64>> = part.iter().map(|row| row[..row.len() - 1].to_vec()).collect();
        for (row, found) in part.iter().zip(apply(instruction, form, &cases)) {
            let expected = row[row.len() - 1];
            assert_eq!(
                found,
                expected,
                "{instruction} of {:x?}: expected {expected:#x}, found {found:#x}",
                &row[..row.len() - 1]
            );
        }
    }
}
