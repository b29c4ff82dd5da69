//! The settings of `LLAMA_CUDA_EMU`: device properties and fault injection.
//!
//! Settings are separated by commas:
//!
//! | setting | default | meaning |
//! |---|---|---|
//! | `devices=2` | 1 | number of devices; with 0, `cuInit` fails as on a machine without a GPU |
//! | `sm=90` | 90 | compute capability; modules for a newer one, or with instructions that their target lacks, fail to load |
//! | `geforce=1` | 0 | whether the name of the devices contains "GeForce" |
//! | `memory=8G` | 8G | memory of each device, in bytes or with suffix K, M, or G |
//! | `used=1G` | 0 | device memory that other programs use |
//! | `peer=0` | 1 | whether devices can access each other's memory |
//! | `busy=1` | 0 | whether another program has exclusive use of the devices |
//! | `driver=11040` | 12090 | CUDA version of the driver |
//! | `ptx=72` | of the driver | newest PTX version that loads, as 10 * major + minor |
//! | `cubin=1` | 0 | whether machine code loads: with the PTX that its debug information contains |
//! | `threads=2` | CPU count | host threads that run blocks |
//! | `races=0` | 1 | whether data races on shared memory are detected |
//! | `order=0` | 1 | whether unordered accesses by streams are detected and copies to pinned memory are delayed until the host waits |
//! | `branches=1000` | 2^28 | branches after which a warp is reported as hanging |
//! | `fail_alloc=17` | | the 17th allocation of device or pinned memory fails |
//! | `fail_launch=5` | | the 5th launch fails with `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES` |
//! | `fault_at=5` | | the 5th launch fails with `CUDA_ERROR_ILLEGAL_ADDRESS` |
//! | `lost_at=9` | | the device is lost at the 9th launch: this call and all later ones fail |
//! | `fail_copy=3` | | the 3rd copy fails |
//! | `no_products=1` | 0 | whether modules with `wgmma` products fail to load |
//! | `fail_products=1` | 0 | whether launches of kernels with `wgmma` products fail with `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES` |
//! | `early_launches=0` | 1 | whether the driver supports early launches |
//! | `early_captures=0` | 1 | whether captures may contain early launches |
//! | `break_capture=1` | | the 1st stream capture is invalidated, as by a call of another thread |
//!
//! A graph launch counts as one launch for each kernel. Errors and leaks are printed to standard error and
//! appended to the file in `LLAMA_CUDA_EMU_REPORT`. The counters are written as JSON to the file in
//! `LLAMA_CUDA_EMU_COUNTS` when the process exits.
//!
//! [`without_symbols`] removes symbols from a copy of the library, to emulate an older driver.

/// Device properties and injected failures; the module documentation describes each setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub devices: u32,
    pub sm: u32,
    pub geforce: bool,
    pub memory: u64,
    pub used: u64,
    pub peer: bool,
    pub busy: bool,
    pub driver: i32,
    pub ptx: Option<u32>,
    pub cubin: bool,
    pub threads: usize,
    pub races: bool,
    pub order: bool,
    pub branches: u64,
    pub fail_alloc: Option<u64>,
    pub fail_launch: Option<u64>,
    pub fault_at: Option<u64>,
    pub lost_at: Option<u64>,
    pub fail_copy: Option<u64>,
    pub no_products: bool,
    pub fail_products: bool,
    pub early_launches: bool,
    pub early_captures: bool,
    pub break_capture: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 1,
            sm: 90,
            geforce: false,
            memory: 8 << 30,
            used: 0,
            peer: true,
            busy: false,
            driver: 12090,
            ptx: None,
            cubin: false,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            races: true,
            order: true,
            branches: 1 << 28,
            fail_alloc: None,
            fail_launch: None,
            fault_at: None,
            lost_at: None,
            fail_copy: None,
            no_products: false,
            fail_products: false,
            early_launches: true,
            early_captures: true,
            break_capture: None,
        }
    }
}

impl Config {
    /// Parses comma-separated settings.
    ///
    /// # Errors
    /// Returns a message if a setting has no value, is unknown, or is not a number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut config = Self::default();
        for setting in text.split(',').map(str::trim).filter(|s| !s.is_empty()) {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| format!("setting `{setting}` has no value"))?;
            let number = bytes(value).ok_or_else(|| format!("value `{value}` of setting `{name}` is not a number"))?;
            match name {
                // Device addresses are assigned for at most 64 devices.
                "devices" if number > 64 => return Err("setting `devices` must be at most 64".into()),
                "devices" => config.devices = number as u32,
                "sm" => config.sm = number as u32,
                "geforce" => config.geforce = number != 0,
                "memory" => config.memory = number,
                "used" => config.used = number,
                "peer" => config.peer = number != 0,
                "busy" => config.busy = number != 0,
                "driver" => config.driver = number as i32,
                "ptx" => config.ptx = Some(number as u32),
                "cubin" => config.cubin = number != 0,
                "threads" => config.threads = (number as usize).max(1),
                "races" => config.races = number != 0,
                "order" => config.order = number != 0,
                "branches" => config.branches = number,
                "fail_alloc" => config.fail_alloc = Some(number),
                "fail_launch" => config.fail_launch = Some(number),
                "fault_at" => config.fault_at = Some(number),
                "lost_at" => config.lost_at = Some(number),
                "fail_copy" => config.fail_copy = Some(number),
                "no_products" => config.no_products = number != 0,
                "fail_products" => config.fail_products = number != 0,
                "early_launches" => config.early_launches = number != 0,
                "early_captures" => config.early_captures = number != 0,
                "break_capture" => config.break_capture = Some(number),
                _ => return Err(format!("unknown setting `{name}`")),
            }
        }
        Ok(config)
    }
}

/// CUDA versions with the newest PTX version of their drivers, as 10 * major + minor.
const PTX_VERSIONS: [(i32, u32); 24] = [
    (11000, 70),
    (11010, 71),
    (11020, 72),
    (11030, 73),
    (11040, 74),
    (11050, 75),
    (11060, 76),
    (11070, 77),
    (11080, 78),
    (12000, 80),
    (12010, 81),
    (12020, 82),
    (12030, 83),
    (12040, 84),
    (12050, 85),
    (12070, 86),
    (12080, 87),
    (12090, 88),
    (13000, 90),
    (13010, 91),
    (13020, 92),
    (13030, 93),
    (13040, 94),
    (13050, 95),
];

impl Config {
    /// Returns the newest PTX version that loads, as 10 * major + minor.
    pub fn newest_ptx(&self) -> u32 {
        let known = PTX_VERSIONS.iter().rev().find(|(cuda, _)| *cuda <= self.driver);
        self.ptx.unwrap_or_else(|| known.map_or(0, |(_, ptx)| *ptx))
    }
}

/// Parses a number with an optional suffix K, M, or G (powers of 1024).
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

/// Returns a copy of a shared library in which the given symbols are renamed, to emulate an older driver.
pub fn without_symbols(library: &[u8], names: &[&str]) -> Vec<u8> {
    let mut changed = library.to_vec();
    for name in names {
        let entry: Vec<u8> = [b"\0", name.as_bytes(), b"\0"].concat();
        let offsets: Vec<_> = changed
            .windows(entry.len())
            .enumerate()
            .filter(|(_, w)| *w == entry)
            .map(|(i, _)| i)
            .collect();
        for at in offsets {
            changed[at + 1] = b'_';
        }
    }
    changed
}
