//! A warp: its registers, and the groups of lanes that are at the same instruction. The group at the lowest
//! instruction runs first, so that diverged lanes reconverge.

use super::env::Env;
use super::fault::{Fault, Kind};
use super::inst::{Action, Barrier, Inst, Matrix};
use super::lanes::{ALL, LANES, Slot, bits, read, set_bits};
use super::latency::Chain;
use super::running::Products;

/// The lanes that are at the same instruction.
#[derive(Debug, Clone, Copy)]
struct Group {
    pc: u32,
    mask: u32,
    /// True if the group waits for other lanes, or for the phase of an `mbarrier`.
    waits: bool,
}

/// The reason why a warp stopped.
pub enum StopReason {
    /// All lanes have exited.
    Ended,
    /// The warp is at a block barrier.
    Barrier(Barrier),
    /// The warp waits for the phase of an `mbarrier`.
    Phase,
}

/// The continuation of a group after an instruction.
enum Step {
    /// The group continues with the next instruction.
    Next,
    /// The lanes diverged, or they wait for other lanes.
    Diverged,
    /// The lanes are at a block barrier.
    Barrier(Barrier),
}

/// A pending asynchronous copy from global to shared memory.
pub struct Copy {
    pub lane: u32,
    /// Number of the lane's copy group.
    pub group: u32,
    pub address: u64,
    pub bytes: [u8; 16],
    pub len: u32,
}

/// The state of a warp.
pub struct Warp {
    /// Register file in 64-byte words, so that registers are aligned.
    file: Vec<[u64; 8]>,
    /// Groups of lanes, sorted by instruction.
    groups: Vec<Group>,
    /// Mask of the lanes that have a thread.
    all: u32,
    /// Mask of the lanes that have not exited.
    live: u32,
    /// Index of the running instruction.
    pub pc: u32,
    /// Index of the warp in its block.
    pub index: u32,
    /// Local memory of all lanes.
    pub local: Vec<u8>,
    /// Mask of the lanes that must still execute `griddepcontrol.wait`, before they access global memory.
    pub unordered: u32,
    /// Number of completed `bar.warp.sync`.
    pub time: u32,
    /// Pending asynchronous copies.
    pub copies: Vec<Copy>,
    /// Number of committed copy groups, by lane.
    pub committed: [u32; LANES],
    /// Matrix products that may be running.
    pub products: Products,
    /// Address of the `mbarrier` that lanes of the warp wait for, and whether there is one.
    pub waits_for: u64,
    is_blocked: bool,
    /// Registers of a thread that `setmaxnreg` set.
    pub registers: Option<u32>,
    /// The clock of the warp; `None` if latencies are not measured.
    pub chain: Option<Box<Chain>>,
    branches: u64,
}

impl Warp {
    /// Creates a warp with a register file of `file_bytes` bytes.
    pub fn new(file_bytes: u32, index: u32) -> Self {
        let mut file = vec![[0; 8]; (file_bytes as usize).div_ceil(64)];
        // Set the predicate in slot `TRUE`.
        file[0][0] = u64::from(ALL);
        let (groups, local, copies) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            file,
            groups,
            all: 0,
            live: 0,
            pc: 0,
            index,
            local,
            unordered: 0,
            time: 0,
            copies,
            committed: [0; LANES],
            products: Products::default(),
            waits_for: 0,
            is_blocked: false,
            registers: None,
            chain: None,
            branches: 0,
        }
    }

    /// Enlarges the register file to at least `file_bytes` bytes.
    pub fn grow(&mut self, file_bytes: u32) {
        let words = (file_bytes as usize).div_ceil(64);
        if self.file.len() < words {
            self.file.resize(words, [0; 8]);
        }
    }

    /// Moves all lanes that have a thread to the first instruction.
    pub fn begin(&mut self, env: &Env) {
        let (threads, kernel) = (env.threads, env.kernel);
        let n_lanes = (threads - self.index * LANES as u32).min(LANES as u32);
        self.all = ALL >> (LANES as u32 - n_lanes);
        self.live = self.all;
        self.unordered = if env.is_early { self.all } else { 0 };
        self.groups.clear();
        self.groups.push(Group {
            pc: 0,
            mask: self.live,
            waits: false,
        });
        self.local.resize(kernel.local_bytes as usize * LANES, 0);
        self.copies.clear();
        (self.time, self.committed, self.branches) = (0, [0; LANES], 0);
        (self.is_blocked, self.registers) = (false, None);
        let file_bytes = self.file.len() as u32 * 64;
        if kernel.has_products {
            self.products.begin(file_bytes);
        }
        if let Some(chain) = &mut self.chain {
            chain.begin(file_bytes);
        }
    }

    /// Returns the clock of the warp, or 0 if latencies are not measured.
    pub fn now(&self) -> u64 {
        self.chain.as_ref().map_or(0, |chain| chain.now())
    }

    /// Returns a pointer to the register file.
    pub fn file(&self) -> *const u8 {
        self.file.as_ptr().cast()
    }

    /// Returns a mutable pointer to the register file.
    pub fn file_mut(&mut self) -> *mut u8 {
        self.file.as_mut_ptr().cast()
    }

    /// Returns the mask of the lanes that have not exited.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Runs until the warp ends or reaches a block barrier.
    pub fn run(&mut self, env: &mut Env) -> Result<StopReason, Box<Fault>> {
        if std::mem::take(&mut self.is_blocked) {
            self.groups.iter_mut().for_each(|g| g.waits = false);
        }
        loop {
            let Some(at) = self.groups.iter().position(|g| !g.waits) else {
                return match (self.groups.is_empty(), self.is_blocked) {
                    (true, _) => Ok(StopReason::Ended),
                    (_, true) => Ok(StopReason::Phase),
                    _ => Err(self.deadlock_fault(env)),
                };
            };
            if let Some(barrier) = self.run_group(at, env).map_err(|fault| self.with_line(fault, env))? {
                return Ok(StopReason::Barrier(barrier));
            }
        }
    }

    fn with_line(&self, mut fault: Box<Fault>, env: &Env) -> Box<Fault> {
        if fault.line == 0 {
            fault.line = env.kernel.code[self.pc as usize].line;
        }
        fault
    }

    /// Runs a group until it exits, diverges, waits, or reaches another group.
    fn run_group(&mut self, at: usize, env: &mut Env) -> Result<Option<Barrier>, Box<Fault>> {
        let Group { mut pc, mut mask, .. } = self.groups.remove(at);
        let limit = self.groups.get(at).map_or(u32::MAX, |next| next.pc);
        let is_alone = self.groups.is_empty();
        let code = &env.kernel.code[..];
        loop {
            if pc >= limit {
                self.insert(pc, mask);
                return Ok(None);
            }
            let inst = &code[pc as usize];
            // SAFETY: the decoder assigned a predicate to every guard (`Decoder::statement`).
            let on = mask & (unsafe { bits(self.file(), inst.guard) } ^ inst.negate);
            let count = &mut env.counts[pc as usize];
            count.warps += u64::from(on != 0);
            count.lanes += u64::from(on.count_ones());
            self.pc = pc;
            if on != 0
                && let Some(chain) = &mut self.chain
            {
                chain.issue(&env.kernel.timings[pc as usize]);
            }
            if env.kernel.has_products && on != 0 && !matches!(inst.action, Action::Matrix(Matrix::Group(_))) {
                self.check_registers(env)?;
            }
            match &inst.action {
                Action::Alu(run, args) => {
                    if on != 0 {
                        // SAFETY: the decoder assigned registers of the function's types, and `decode`
                        // checked the CPU features.
                        unsafe { run(self.file_mut(), args, on) };
                    }
                    pc += 1;
                }
                Action::Load(access) if on != 0 => {
                    self.load(env, access, on)?;
                    pc += 1;
                }
                Action::Store(access) if on != 0 => {
                    self.store(env, access, on)?;
                    pc += 1;
                }
                _ if on == 0 => pc += 1,
                Action::Branch(target) if on == mask && is_alone => {
                    self.count_branch(env)?;
                    pc = *target;
                }
                Action::Exit => {
                    self.end_lanes(on, env)?;
                    mask &= !on;
                    pc += 1;
                    if mask == 0 {
                        return Ok(None);
                    }
                }
                _ => match self.step(inst, mask, on, env)? {
                    Step::Next => pc += 1,
                    Step::Diverged => return Ok(None),
                    Step::Barrier(barrier) => return Ok(Some(barrier)),
                },
            }
        }
    }

    /// Executes an instruction after which lanes may diverge or wait. Only the lanes in `on` execute the
    /// instruction.
    fn step(&mut self, inst: &Inst, mask: u32, on: u32, env: &mut Env) -> Result<Step, Box<Fault>> {
        let pc = self.pc;
        let is_of_warp = matches!(
            inst.action,
            Action::Barrier(_)
                | Action::WarpBarrier(_)
                | Action::Exchange(_)
                | Action::Matrix(_)
                | Action::ProductsFence
                | Action::ProductsCommit
                | Action::ProductsWait(_)
                | Action::SetRegisters(..)
        );
        match &inst.action {
            Action::Branch(target) => {
                self.count_branch(env)?;
                if on != mask {
                    env.counts[pc as usize].diverged += 1;
                    self.insert(pc + 1, mask & !on);
                }
                self.insert(*target, on);
                Ok(Step::Diverged)
            }
            Action::BranchIndexed(index, targets) => {
                self.count_branch(env)?;
                self.branch_indexed(*index, targets, pc, mask, on)?;
                Ok(Step::Diverged)
            }
            // Lanes with a false guard continue.
            _ if is_of_warp && on != mask => {
                self.insert(pc, on);
                self.insert(pc + 1, mask & !on);
                Ok(Step::Diverged)
            }
            _ if !self.have_arrived(inst, mask) => {
                self.wait(pc, mask);
                Ok(Step::Diverged)
            }
            Action::Barrier(barrier) => {
                self.insert(pc + 1, mask);
                Ok(Step::Barrier(barrier.clone()))
            }
            Action::MbarrierWait(wait) => {
                if self.try_wait(env, wait, on)? {
                    self.set_predicate(wait.done, ALL, on);
                    return Ok(Step::Next);
                }
                self.is_blocked = true;
                self.wait(pc, mask);
                Ok(Step::Diverged)
            }
            _ => {
                self.execute_uncommon(inst, on, env)?;
                Ok(Step::Next)
            }
        }
    }

    /// Executes instructions that are too rare for the main loop.
    fn execute_uncommon(&mut self, inst: &Inst, on: u32, env: &mut Env) -> Result<(), Box<Fault>> {
        match &inst.action {
            Action::Atomic(atomic) => self.atomic(env, atomic, on)?,
            Action::AsyncCopy(copy) => self.async_copy(env, copy, on)?,
            Action::AsyncCommit => self.async_commit(on),
            Action::AsyncWait(n) => self.async_wait(env, *n, on),
            Action::WarpBarrier(_) => {
                self.time += 1;
                self.sync(env);
            }
            Action::Mbarrier(op) => self.mbarrier(env, op, on)?,
            Action::BulkCopy(copy) => self.bulk_copy(env, copy, on)?,
            Action::SetRegisters(n, is_increase) => self.set_registers(env, *n, *is_increase)?,
            Action::MbarrierFence => {
                if let Some(mbarriers) = &mut env.shared.mbarriers {
                    mbarriers.publish(self.index);
                }
            }
            Action::Exchange(exchange) => self.exchange(exchange, on)?,
            Action::Matrix(matrix) => self.matrix(env, matrix)?,
            // A fence of some lanes publishes no store.
            Action::ProxyFence if on == self.live => env.shared.publish(self.index),
            Action::ProductsFence => self.products.fence(),
            Action::ProductsCommit => self.products.commit(),
            Action::ProductsWait(running) => self.wait_for_products(env, *running)?,
            Action::GridWait => self.unordered &= !on,
            Action::Clock(slot, bytes) => self.clock(*slot, *bytes, env),
            Action::Trap => {
                return Err(Fault::new(
                    Kind::Trap,
                    Some(self.thread(on)),
                    "the kernel executed `trap`",
                ));
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns whether all lanes that a warp-level instruction requires have arrived.
    fn have_arrived(&self, inst: &Inst, here: u32) -> bool {
        let required = match &inst.action {
            Action::WarpBarrier(members) => self.members(*members, here),
            Action::Exchange(exchange) => exchange.members.map_or(0, |members| self.members(members, here)),
            Action::Barrier(barrier) if barrier.waits => return here == self.all,
            // Matrix instructions have no mask and require all lanes.
            Action::Matrix(_)
            | Action::ProductsFence
            | Action::ProductsCommit
            | Action::ProductsWait(_)
            | Action::SetRegisters(..) => return here == ALL,
            _ => 0,
        };
        required & self.live & !here == 0
    }

    /// Records in the order of `mbarrier` that all lanes are synchronized.
    pub fn sync(&self, env: &mut Env) {
        if let Some(mbarriers) = &mut env.shared.mbarriers {
            mbarriers.clocks.sync(self.index);
        }
    }

    /// Returns the member mask that the first lane passes.
    fn members(&self, slot: Slot, here: u32) -> u32 {
        // SAFETY: the decoder assigned a 32-bit register to the member mask.
        let masks = unsafe { read::<u32>(self.file(), slot) };
        masks[here.trailing_zeros() as usize % LANES]
    }

    fn branch_indexed(&mut self, index: Slot, targets: &[u32], pc: u32, mask: u32, on: u32) -> Result<(), Box<Fault>> {
        // SAFETY: the decoder assigned a 32-bit register to the branch index (`Decoder::branch_indexed`).
        let indices = unsafe { read::<u32>(self.file(), index) };
        if mask & !on != 0 {
            self.insert(pc + 1, mask & !on);
        }
        for lane in (0..LANES).filter(|lane| on >> lane & 1 != 0) {
            let target = targets.get(indices[lane] as usize).ok_or_else(|| {
                let description = format!(
                    "invalid branch target: index {} of {} targets",
                    indices[lane],
                    targets.len()
                );
                Fault::new(Kind::OutOfBounds, Some(self.thread(1 << lane)), description)
            })?;
            self.insert(*target, 1 << lane);
        }
        Ok(())
    }

    fn count_branch(&mut self, env: &Env) -> Result<(), Box<Fault>> {
        self.branches += 1;
        if self.branches <= env.max_branches {
            return Ok(());
        }
        let description = format!("the warp took {} branches without ending", env.max_branches);
        Err(Fault::new(Kind::Hang, None, description))
    }

    fn end_lanes(&mut self, lanes: u32, env: &mut Env) -> Result<(), Box<Fault>> {
        let unordered = lanes & self.unordered;
        if unordered != 0 {
            let description = "the thread of an early launch ended without `griddepcontrol.wait`";
            return Err(Fault::new(Kind::Order, Some(self.thread(unordered)), description));
        }
        // Pending copies complete when their thread exits.
        if !self.copies.is_empty() {
            self.async_wait(env, None, lanes);
        }
        self.live &= !lanes;
        self.groups.iter_mut().for_each(|g| g.waits = false);
        Ok(())
    }

    /// Adds lanes to the group at an instruction.
    fn insert(&mut self, pc: u32, mask: u32) {
        let at = self.groups.partition_point(|g| g.pc < pc);
        match self.groups.get_mut(at) {
            Some(group) if group.pc == pc => {
                group.mask |= mask;
                group.waits = false;
            }
            _ => self.groups.insert(at, Group { pc, mask, waits: false }),
        }
    }

    fn wait(&mut self, pc: u32, mask: u32) {
        self.insert(pc, mask);
        self.groups
            .iter_mut()
            .filter(|g| g.pc == pc)
            .for_each(|g| g.waits = true);
    }

    /// Returns the fault for a deadlock within a warp.
    fn deadlock_fault(&self, env: &Env) -> Box<Fault> {
        let waiting = self.groups.iter().map(|g| {
            let line = env.kernel.code[g.pc as usize].line;
            format!("lanes {:#010x} at line {line}", g.mask)
        });
        let waiting: Vec<_> = waiting.collect();
        let ended = self.all & !self.live;
        let ended = if ended == 0 {
            String::new()
        } else {
            format!(", and lanes {ended:#010x} ended")
        };
        let description = format!(
            "deadlock in a warp: {}{ended}; a barrier, shuffle, or matrix instruction must be reached by all lanes that it names",
            waiting.join(", ")
        );
        let first = self.groups.first().map_or(0, |g| g.pc);
        let mut fault = Fault::new(
            Kind::Synchronization,
            Some(self.thread(self.groups.first().map_or(1, |g| g.mask))),
            description,
        );
        fault.line = env.kernel.code[first as usize].line;
        fault
    }

    /// Returns the index of the first thread in a mask.
    pub fn thread(&self, mask: u32) -> u32 {
        self.index * LANES as u32 + mask.trailing_zeros() % LANES as u32
    }

    /// Reads a clock register. Time is the number of executed instructions, so it is monotonic and
    /// deterministic.
    fn clock(&mut self, slot: Slot, bytes: u32, env: &Env) {
        let now = env.counts.iter().map(|c| c.warps).sum::<u64>();
        let file = self.file_mut();
        // SAFETY: the decoder assigned a result register of `bytes` bytes.
        unsafe {
            if bytes == 4 {
                super::lanes::write(file, slot, &[now as u32; LANES], ALL);
            } else {
                super::lanes::write(file, slot, &[now; LANES], ALL);
            }
        }
    }

    /// Sets a predicate for the lanes in `mask`.
    pub fn set_predicate(&mut self, slot: Slot, value: u32, mask: u32) {
        // SAFETY: the decoder assigned a predicate or the sink to `slot`.
        unsafe { set_bits(self.file_mut(), slot, value, mask) };
    }

    /// Returns a predicate.
    pub fn predicate(&self, slot: Slot) -> u32 {
        // SAFETY: the decoder assigned a predicate to `slot`.
        unsafe { bits(self.file(), slot) }
    }
}
