//! `LLAMA_CUDA_EMU`: which devices there are, and what goes wrong on request.
//!
//! Settings are separated by commas:
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `devices=2` | 1 | how many; with 0, initialization fails as on a machine without one |
//! | `sm=90` | 90 | their compute capability; modules for later ones are refused |
//! | `memory=8G` | 8G | each device's memory, in bytes or with K, M or G |
//! | `used=1G` | 0 | of it, what other programs use |
//! | `peer=0` | 1 | whether devices can reach each other's memory |
//! | `busy=1` | 0 | whether another program has the devices to itself |
//! | `driver=11040` | 12090 | the CUDA version of the driver |
//! | `threads=2` | the machine's | threads of the host that run blocks |
//! | `races=0` | 1 | whether races on shared memory are looked for |
//! | `order=0` | 1 | whether streams are watched that touch the same memory without an event between, and copies to pinned memory arrive only when the host waits |
//! | `branches=1000` | 2^28 | branches after which a warp is said to hang |
//! | `fail_alloc=17` | | the 17th allocation, of the device or of pinned memory, finds no memory |
//! | `fail_launch=5` | | the 5th launch is refused |
//! | `fault_at=5` | | the 5th launch does as if it had touched memory that is not there |
//! | `lost_at=9` | | at the 9th launch the device is lost: this and everything later fails |
//! | `fail_copy=3` | | the 3rd copy fails |
//!
//! Launches of graphs count as one for each kernel. `LLAMA_CUDA_EMU_REPORT` names a file that faults and leaks are appended to, beside
//! standard error; `LLAMA_CUDA_EMU_COUNTS` one that the counters are written to when the process ends, as JSON.
//!
//! Symbols that an old driver lacks are taken out of a copy of the library: [`without_symbols`].

/// What there is, and what goes wrong: the module's table says what each setting is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub devices: u32,
    pub sm: u32,
    pub memory: u64,
    pub used: u64,
    pub peer: bool,
    pub busy: bool,
    pub driver: i32,
    pub threads: usize,
    pub races: bool,
    pub order: bool,
    pub branches: u64,
    pub fail_alloc: Option<u64>,
    pub fail_launch: Option<u64>,
    pub fault_at: Option<u64>,
    pub lost_at: Option<u64>,
    pub fail_copy: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 1,
            sm: 90,
            memory: 8 << 30,
            used: 0,
            peer: true,
            busy: false,
            driver: 12090,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            races: true,
            order: true,
            branches: 1 << 28,
            fail_alloc: None,
            fail_launch: None,
            fault_at: None,
            lost_at: None,
            fail_copy: None,
        }
    }
}

impl Config {
    /// Settings as text. What is wrong with them is a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut config = Self::default();
        for setting in text.split(',').map(str::trim).filter(|s| !s.is_empty()) {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| format!("`{setting}` has no value"))?;
            let number = bytes(value).ok_or_else(|| format!("`{value}` of `{name}` is no number"))?;
            match name {
                // More than there are addresses for.
                "devices" if number > 64 => return Err("there are at most 64 devices".into()),
                "devices" => config.devices = number as u32,
                "sm" => config.sm = number as u32,
                "memory" => config.memory = number,
                "used" => config.used = number,
                "peer" => config.peer = number != 0,
                "busy" => config.busy = number != 0,
                "driver" => config.driver = number as i32,
                "threads" => config.threads = (number as usize).max(1),
                "races" => config.races = number != 0,
                "order" => config.order = number != 0,
                "branches" => config.branches = number,
                "fail_alloc" => config.fail_alloc = Some(number),
                "fail_launch" => config.fail_launch = Some(number),
                "fault_at" => config.fault_at = Some(number),
                "lost_at" => config.lost_at = Some(number),
                "fail_copy" => config.fail_copy = Some(number),
                _ => return Err(format!("the setting `{name}` is unknown")),
            }
        }
        Ok(config)
    }
}

/// A number, maybe with K, M or G.
fn bytes(text: &str) -> Option<u64> {
    let shift = match text.chars().last()? {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    digits.parse::<u64>().ok()?.checked_shl(shift)
}

/// A shared library without some of its symbols, as a driver of an earlier version lacks them: their names in its table are changed.
pub fn without_symbols(library: &[u8], names: &[&str]) -> Vec<u8> {
    let mut changed = library.to_vec();
    for name in names {
        let entry: Vec<u8> = [b"\0", name.as_bytes(), b"\0"].concat();
        let places: Vec<_> = changed
            .windows(entry.len())
            .enumerate()
            .filter(|(_, w)| *w == entry)
            .map(|(i, _)| i)
            .collect();
        for at in places {
            changed[at + 1] = b'_';
        }
    }
    changed
}
