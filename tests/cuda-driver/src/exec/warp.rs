//! A warp: registers, and groups of lanes that are at the same instruction. The group at the lowest one runs first, so that lanes that went
//! different ways come together where the ways do.

use super::access::Copy;
use super::env::Env;
use super::fault::{Fault, Kind};
use super::inst::{Action, Barrier, Inst};
use super::lanes::{ALL, LANES, Slot, bits, read, set_bits};

/// Lanes at one instruction.
#[derive(Debug, Clone, Copy)]
struct Group {
    pc: u32,
    mask: u32,
    /// Whether it is at an instruction that more lanes must come to.
    waits: bool,
}

/// Why a warp stopped.
pub enum Stop {
    /// All lanes ended.
    Ended,
    /// It is at a barrier of the block.
    Barrier(Barrier),
}

/// What comes after an instruction.
enum Step {
    /// The next one.
    Next,
    /// The group's lanes are at different places, or wait.
    Parted,
    /// They are at a barrier of the block.
    Barrier(Barrier),
}

/// A warp.
pub struct Warp {
    /// In words of 64 bytes, so that registers are aligned.
    file: Vec<[u64; 8]>,
    /// By instruction.
    groups: Vec<Group>,
    /// Lanes that there are threads for.
    all: u32,
    /// Lanes that did not end.
    live: u32,
    /// The running instruction.
    pub pc: u32,
    /// Its place in the block.
    pub index: u32,
    /// Local memory of its lanes.
    pub local: Vec<u8>,
    /// `bar.warp.sync` so far.
    pub time: u32,
    /// Asynchronous copies under way.
    pub copies: Vec<Copy>,
    /// Groups of copies that each lane ended.
    pub committed: [u32; LANES],
    branches: u64,
}

impl Warp {
    /// A warp with registers for a kernel's constants and results.
    pub fn new(file_bytes: u32, index: u32) -> Self {
        let mut file = vec![[0; 8]; (file_bytes as usize).div_ceil(64)];
        // The predicate that is always true.
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
            time: 0,
            copies,
            committed: [0; LANES],
            branches: 0,
        }
    }

    /// Makes room for the registers of another kernel.
    pub fn grow(&mut self, file_bytes: u32) {
        let words = (file_bytes as usize).div_ceil(64);
        if self.file.len() < words {
            self.file.resize(words, [0; 8]);
        }
    }

    /// At the first instruction, with lanes for the block's threads.
    pub fn begin(&mut self, threads: u32, local_bytes: u32) {
        let mine = (threads - self.index * LANES as u32).min(LANES as u32);
        self.all = ALL >> (LANES as u32 - mine);
        self.live = self.all;
        self.groups.clear();
        self.groups.push(Group {
            pc: 0,
            mask: self.live,
            waits: false,
        });
        self.local.resize(local_bytes as usize * LANES, 0);
        self.copies.clear();
        (self.time, self.committed, self.branches) = (0, [0; LANES], 0);
    }

    /// The registers.
    pub fn file(&self) -> *const u8 {
        self.file.as_ptr().cast()
    }

    /// The registers.
    pub fn file_mut(&mut self) -> *mut u8 {
        self.file.as_mut_ptr().cast()
    }

    /// The lanes that did not end.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Runs until it ends or comes to a barrier.
    pub fn run(&mut self, env: &mut Env) -> Result<Stop, Box<Fault>> {
        loop {
            let Some(at) = self.groups.iter().position(|g| !g.waits) else {
                return if self.groups.is_empty() {
                    Ok(Stop::Ended)
                } else {
                    Err(self.stuck(env))
                };
            };
            if let Some(barrier) = self.run_group(at, env).map_err(|fault| self.located(fault, env))? {
                return Ok(Stop::Barrier(barrier));
            }
        }
    }

    fn located(&self, mut fault: Box<Fault>, env: &Env) -> Box<Fault> {
        if fault.line == 0 {
            fault.line = env.kernel.code[self.pc as usize].line;
        }
        fault
    }

    /// Runs a group until it ends, splits, waits, or comes to where another one is.
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
            // SAFETY: guards are predicates of the file.
            let on = mask & (unsafe { bits(self.file(), inst.guard) } ^ inst.negate);
            let count = &mut env.counts[pc as usize];
            count.warps += u64::from(on != 0);
            count.lanes += u64::from(on.count_ones());
            self.pc = pc;
            match &inst.action {
                Action::Alu(run, args) => {
                    if on != 0 {
                        // SAFETY: the decoder gave the operands registers of these types, and asked for the CPU's features.
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
                    self.end_lanes(on, env);
                    mask &= !on;
                    pc += 1;
                    if mask == 0 {
                        return Ok(None);
                    }
                }
                _ => match self.step(inst, mask, on, env)? {
                    Step::Next => pc += 1,
                    Step::Parted => return Ok(None),
                    Step::Barrier(barrier) => return Ok(Some(barrier)),
                },
            }
        }
    }

    /// Instructions after which lanes may be at different places, or wait. `on` of the group's lanes do it.
    fn step(&mut self, inst: &Inst, mask: u32, on: u32, env: &mut Env) -> Result<Step, Box<Fault>> {
        let pc = self.pc;
        let is_of_warp = matches!(
            inst.action,
            Action::Barrier(_) | Action::WarpBarrier(_) | Action::Exchange(_) | Action::Matrix(_)
        );
        match &inst.action {
            Action::Branch(target) => {
                self.count_branch(env)?;
                if on != mask {
                    env.counts[pc as usize].diverged += 1;
                    self.insert(pc + 1, mask & !on);
                }
                self.insert(*target, on);
                Ok(Step::Parted)
            }
            Action::BranchIndexed(index, targets) => {
                self.count_branch(env)?;
                self.branch_indexed(*index, targets, pc, mask, on)?;
                Ok(Step::Parted)
            }
            // Lanes that do not take part go on.
            _ if is_of_warp && on != mask => {
                self.insert(pc, on);
                self.insert(pc + 1, mask & !on);
                Ok(Step::Parted)
            }
            _ if !self.have_come(inst, mask) => {
                self.wait(pc, mask);
                Ok(Step::Parted)
            }
            Action::Barrier(barrier) => {
                self.insert(pc + 1, mask);
                Ok(Step::Barrier(barrier.clone()))
            }
            _ => {
                self.other(inst, on, env)?;
                Ok(Step::Next)
            }
        }
    }

    /// Instructions that are rarer.
    fn other(&mut self, inst: &Inst, on: u32, env: &mut Env) -> Result<(), Box<Fault>> {
        match &inst.action {
            Action::Atomic(atomic) => self.atomic(env, atomic, on)?,
            Action::AsyncCopy(copy) => self.async_copy(env, copy, on)?,
            Action::AsyncCommit => self.async_commit(on),
            Action::AsyncWait(n) => self.async_wait(env, *n, on),
            Action::WarpBarrier(_) => self.time += 1,
            Action::Exchange(exchange) => self.exchange(exchange, on)?,
            Action::Matrix(matrix) => self.matrix(env, matrix)?,
            Action::Clock(slot, bytes) => self.clock(*slot, *bytes, env),
            Action::Trap => {
                return Err(Fault::new(
                    Kind::Trap,
                    Some(self.thread(on)),
                    "the kernel gave up (`trap`)",
                ));
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether all lanes are here that an instruction of the whole warp wants.
    fn have_come(&self, inst: &Inst, here: u32) -> bool {
        let wanted = match &inst.action {
            Action::WarpBarrier(members) => self.members(*members, here),
            Action::Exchange(exchange) => exchange.members.map_or(0, |members| self.members(members, here)),
            Action::Barrier(barrier) if barrier.waits => return here == self.all,
            // Matrix instructions have no mask: all lanes take part, and there is no way without one.
            Action::Matrix(_) => return here == ALL,
            _ => 0,
        };
        wanted & self.live & !here == 0
    }

    /// The mask of members that the first lane names.
    fn members(&self, slot: Slot, here: u32) -> u32 {
        // SAFETY: the decoder gave masks registers of 32 bits.
        let masks = unsafe { read::<u32>(self.file(), slot) };
        masks[here.trailing_zeros() as usize % LANES]
    }

    fn branch_indexed(&mut self, index: Slot, targets: &[u32], pc: u32, mask: u32, on: u32) -> Result<(), Box<Fault>> {
        // SAFETY: the decoder gave indices registers of 32 bits.
        let indices = unsafe { read::<u32>(self.file(), index) };
        if mask & !on != 0 {
            self.insert(pc + 1, mask & !on);
        }
        for lane in (0..LANES).filter(|lane| on >> lane & 1 != 0) {
            let target = targets.get(indices[lane] as usize).ok_or_else(|| {
                let what = format!("a jump to target {} of {}", indices[lane], targets.len());
                Fault::new(Kind::OutOfBounds, Some(self.thread(1 << lane)), what)
            })?;
            self.insert(*target, 1 << lane);
        }
        Ok(())
    }

    fn count_branch(&mut self, env: &Env) -> Result<(), Box<Fault>> {
        self.branches += 1;
        if self.branches <= env.branches_max {
            return Ok(());
        }
        let what = format!("a warp took {} branches and did not end", env.branches_max);
        Err(Fault::new(Kind::Hang, None, what))
    }

    fn end_lanes(&mut self, lanes: u32, env: &mut Env) {
        // Copies under way end with their thread.
        if !self.copies.is_empty() {
            self.async_wait(env, None, lanes);
        }
        self.live &= !lanes;
        self.groups.iter_mut().for_each(|g| g.waits = false);
    }

    /// Lanes come to an instruction, where others may be.
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

    /// No group can go on.
    fn stuck(&self, env: &Env) -> Box<Fault> {
        let places = self.groups.iter().map(|g| {
            let line = env.kernel.code[g.pc as usize].line;
            format!("lanes {:#010x} at line {line}", g.mask)
        });
        let places: Vec<_> = places.collect();
        let ended = self.all & !self.live;
        let ended = if ended == 0 {
            String::new()
        } else {
            format!(", and lanes {ended:#010x} ended")
        };
        let what = format!(
            "lanes of a warp wait for each other: {}{ended}. All lanes that a barrier, shuffle or matrix instruction names must come to it",
            places.join(", ")
        );
        let first = self.groups.first().map_or(0, |g| g.pc);
        let mut fault = Fault::new(
            Kind::Synchronization,
            Some(self.thread(self.groups.first().map_or(1, |g| g.mask))),
            what,
        );
        fault.line = env.kernel.code[first as usize].line;
        fault
    }

    /// The first thread of a mask.
    pub fn thread(&self, mask: u32) -> u32 {
        self.index * LANES as u32 + mask.trailing_zeros() % LANES as u32
    }

    /// Time is counted in branches: it goes on, and is the same in every run.
    fn clock(&mut self, slot: Slot, bytes: u32, env: &Env) {
        let now = env.counts.iter().map(|c| c.warps).sum::<u64>();
        let file = self.file_mut();
        // SAFETY: the decoder gave the result a register of this width.
        unsafe {
            if bytes == 4 {
                super::lanes::write(file, slot, &[now as u32; LANES], ALL);
            } else {
                super::lanes::write(file, slot, &[now; LANES], ALL);
            }
        }
    }

    /// Sets a predicate of all lanes of a mask.
    pub fn set_predicate(&mut self, slot: Slot, value: u32, mask: u32) {
        // SAFETY: the decoder gave the result a predicate, or the sink.
        unsafe { set_bits(self.file_mut(), slot, value, mask) };
    }

    /// A predicate.
    pub fn predicate(&self, slot: Slot) -> u32 {
        // SAFETY: the decoder gave the operand a predicate.
        unsafe { bits(self.file(), slot) }
    }
}
