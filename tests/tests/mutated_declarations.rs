//! Feeds mutated declarations and headers through the compiler, the tensor table, and the plan of a model. A separate
//! test binary, because it counts the allocations and the CPU time of its process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use arch_runtime::embedded;
use arch_runtime::library::{BuiltIn, BuiltInEncoders};
use engine::conformance::{Draft, fixtures};
use engine::gguf::Gguf;
use engine::model::{LoadParams, declare_header, plan};
use engine::random::SplitMix64;
use tests::data_dir;

/// Maximum CPU time of a case.
const TIME_MAX: Duration = Duration::from_secs(2);
/// CPU time after which a case does not end: it is saved, and the process exits. The elapsed time also advances while
/// the machine is suspended.
const ENDLESS: Duration = Duration::from_secs(20);
/// Maximum memory of a case in bytes.
const MEMORY_MAX: usize = 256 << 20;
/// Maximum number of mutated declarations that are mutated again.
const KEPT_MAX: usize = 2000;

/// Allocator that counts the allocated bytes.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to `System`.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let n = ALLOCATED.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(n, Relaxed);
        // SAFETY: the caller meets the conditions of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `data` is from `System.alloc` with this layout.
        unsafe { System.dealloc(data, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The counters belong to the process, so the tests run one at a time.
static RUN: Mutex<()> = Mutex::new(());

/// Last step that a case reached.
#[derive(Clone, Copy)]
enum Step {
    Text,
    Compiled,
    Parsed,
    Declared,
    Planned,
}

const N_STEPS: usize = Step::Planned as usize + 1;

/// Text of a declaration, and a header of a file.
#[derive(Clone)]
struct Case {
    text: String,
    header: Vec<u8>,
}

/// The case that is processed, and the CPU time of the process at its start.
static RUNNING: Mutex<Option<(Duration, Case)>> = Mutex::new(None);

fn set_running(case: Option<(Duration, Case)>) {
    *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) = case;
}

/// Starts a thread that saves a case that does not end.
fn watch(seed: u64) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((start, case)) = running.as_ref()
                && cpu_time().saturating_sub(*start) > ENDLESS
            {
                let path = save(case, "endless", seed, 0);
                eprintln!("{path}: no end after {ENDLESS:?} of CPU time");
                std::process::exit(1);
            }
        }
    });
}

/// Writes a case to files of the target directory, and returns their path without the extensions.
fn save(case: &Case, fault: &str, seed: u64, n: usize) -> String {
    let path = format!("{}/{fault}-{seed}-{n}", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(format!("{path}.rs"), &case.text).expect("the directory is writable");
    std::fs::write(format!("{path}.header.gguf"), &case.header).expect("the directory is writable");
    path
}

/// Results of all cases.
#[derive(Default)]
struct Summary {
    n_cases: usize,
    steps: [usize; N_STEPS],
    slowest: Duration,
    largest: usize,
    findings: Vec<String>,
}

#[test]
fn mutated_declarations_end_in_time_and_memory() {
    let summary = run(1, |n, _| n < 250);
    assert!(summary.findings.is_empty(), "{:#?}", summary.findings);
    // The test is meaningful only if some mutations are harmless and some are fatal.
    assert!(
        summary.steps[Step::Text as usize] > 20 && summary.steps[Step::Planned as usize] > 5,
        "{:?}",
        summary.steps
    );
}

/// `FUZZ_SECONDS` is the duration, and `FUZZ_SEED` selects other mutations. With `FUZZ_CASE`, only the case saved at
/// this path (without an extension) is processed.
#[test]
#[ignore = "runs for FUZZ_SECONDS, a minute by default"]
fn mutated_declarations_end_in_time_and_memory_for_long() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |n| n.parse().expect("a number"));
    if let Ok(path) = std::env::var("FUZZ_CASE") {
        return check_saved(&path);
    }
    let end = Duration::from_secs(number("FUZZ_SECONDS", 60));
    let summary = run(number("FUZZ_SEED", 2), |_, elapsed| elapsed < end);
    assert!(summary.findings.is_empty(), "{:#?}", summary.findings);
}

/// Processes a saved case. Panics if the case exceeds a limit.
fn check_saved(path: &str) {
    let file = |extension: &str| std::fs::read(format!("{path}.{extension}")).expect("the file is readable");
    let text = String::from_utf8(file("rs")).expect("the text is UTF-8");
    let case = Case {
        text,
        header: file("header.gguf"),
    };
    let _guard = RUN.lock().unwrap_or_else(PoisonError::into_inner);
    let (allocated, cpu) = (ALLOCATED.load(Relaxed), cpu_time());
    PEAK.store(allocated, Relaxed);
    read(&case);
    let (spent, peak) = (cpu_time() - cpu, PEAK.load(Relaxed).saturating_sub(allocated));
    assert!(spent <= TIME_MAX && peak <= MEMORY_MAX, "{spent:?}, {} MiB", peak >> 20);
}

/// Runs cases while `continues` holds for their number and the elapsed time.
fn run(seed: u64, continues: impl Fn(usize, Duration) -> bool) -> Summary {
    let _guard = RUN.lock().unwrap_or_else(PoisonError::into_inner);
    let (seeds, headers) = (seeds(), headers());
    watch(seed);
    let (mut corpus, mut random) = (seeds.clone(), SplitMix64(seed));
    let (mut summary, start) = (Summary::default(), Instant::now());
    while continues(summary.n_cases, start.elapsed()) {
        let case = mutated(&corpus, &headers, &mut random);
        set_running(Some((cpu_time(), case.clone())));
        let (allocated, cpu) = (ALLOCATED.load(Relaxed), cpu_time());
        PEAK.store(allocated, Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| read(&case)));
        let (spent, peak) = (cpu_time() - cpu, PEAK.load(Relaxed).saturating_sub(allocated));
        set_running(None);
        summary.n_cases += 1;
        summary.slowest = summary.slowest.max(spent);
        summary.largest = summary.largest.max(peak);
        let fault = match result {
            Err(_) => Some("panic"),
            Ok(_) if spent > TIME_MAX => Some("slow"),
            Ok(_) if peak > MEMORY_MAX => Some("large"),
            Ok(step) => {
                summary.steps[step as usize] += 1;
                if matches!(step, Step::Compiled | Step::Parsed | Step::Declared) && corpus.len() < KEPT_MAX {
                    corpus.push(case.clone());
                }
                None
            }
        };
        if let Some(fault) = fault {
            let path = save(&case, fault, seed, summary.n_cases);
            let finding = format!("{path}: {spent:?} of CPU time, {} MiB", peak >> 20);
            println!("{finding}");
            summary.findings.push(finding);
        }
    }
    println!(
        "seed {seed}: {} cases of {} declarations in {:.0?}; stopped by the text, header, table, plan, or nothing: {:?}; \
         longest {:?} of CPU time, largest {} KiB, {} findings",
        summary.n_cases,
        seeds.len(),
        start.elapsed(),
        summary.steps,
        summary.slowest,
        summary.largest >> 10,
        summary.findings.len()
    );
    summary
}

/// Processes a case as far as possible.
fn read(case: &Case) -> Step {
    let registered = match embedded("mutated.rs", &case.text) {
        Ok(registered) => registered,
        Err(e) => {
            assert!(!e.to_string().is_empty());
            return Step::Text;
        }
    };
    let Ok(header) = Gguf::parse_header(&case.header) else {
        return Step::Compiled;
    };
    let (path, arch) = (Path::new("mutated.gguf"), registered.arch);
    if let Err(e) = declare_header(&header, path, arch, arch.key_prefix(arch.file_arch())) {
        assert!(!e.to_string().is_empty());
        return Step::Parsed;
    }
    let params = LoadParams {
        arch: Some(arch.name.to_owned()),
        ..LoadParams::default()
    };
    match plan(&header, path, &[registered], &params) {
        Ok(_) => Step::Planned,
        Err(e) => {
            assert!(!e.to_string().is_empty());
            Step::Declared
        }
    }
}

/// Returns all built-in declarations with the headers of their test models.
fn seeds() -> Vec<Case> {
    let files = BuiltIn.all().filter(|(file, _)| !file.contains('/'));
    let texts = files.chain(BuiltInEncoders.encoders()).map(|(_, text)| text);
    let mut seeds = Vec::new();
    for text in texts {
        let Ok(registered) = embedded("seed.rs", text) else {
            continue;
        };
        for has_all in [false, true] {
            let draft = Draft::of_declaration(registered.arch, &[registered], has_all).expect("the sizes are valid");
            seeds.push(Case {
                text: text.to_owned(),
                header: draft.header_bytes().expect("the header is valid"),
            });
        }
    }
    assert!(seeds.len() > 200, "{}", seeds.len());
    seeds
}

/// Returns the headers of all fixtures.
fn headers() -> Vec<Vec<u8>> {
    let all = fixtures(&data_dir().join("archs")).expect("the data directory is readable");
    let headers: Vec<Vec<u8>> = all
        .iter()
        .map(|fixture| std::fs::read(&fixture.header).expect("the fixture is readable"))
        .collect();
    assert!(headers.len() > 100);
    headers
}

/// Parts of declarations, and values at the limits of types.
const PARTS: [&str; 44] = [
    "18446744073709551615",
    "9223372036854775808",
    "4294967296",
    "0",
    "1",
    "-1",
    "1e308",
    "1e-320",
    "n_embd",
    "n_layer",
    "n_vocab",
    "n_head",
    "il",
    "il - 1",
    "n_embd * n_embd * n_embd",
    " / 0",
    " % n_ff",
    "if has(wq) { ",
    " }",
    "else {",
    "for layer {",
    "for _ in 0..1000000 {",
    "for _ in 0..n_vocab {",
    "let x = if n_ff > 1 {",
    "\"",
    "'",
    "/*",
    "//",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "use ",
    "like: ",
    "fn f(x) { f(x) }",
    "checkpoint \"A\" {}",
    "rust!(1)",
    "tensors {",
    "..",
    "->",
    "without ",
    "| 0.0",
];

/// Returns a changed declaration with its header, a changed header, or the header of another model.
fn mutated(corpus: &[Case], headers: &[Vec<u8>], random: &mut SplitMix64) -> Case {
    let seed = &corpus[random.below(corpus.len())];
    let change = random.below(10);
    let text = match change {
        0..=2 => changed_words(&seed.text, corpus, random),
        3..=4 => changed_names(&seed.text, random),
        5..=6 => changed_lines(&seed.text, corpus, random),
        7 => changed_characters(&seed.text, random),
        _ => seed.text.clone(),
    };
    let mut header = match random.below(8) {
        0 => headers[random.below(headers.len())].clone(),
        _ => seed.header.clone(),
    };
    if change >= 8 || random.below(4) == 0 {
        change_header(&mut header, random);
    }
    Case { text, header }
}

/// Removes, repeats, exchanges, and inserts words.
fn changed_words(text: &str, corpus: &[Case], random: &mut SplitMix64) -> String {
    let ends_word = |c: char| !c.is_alphanumeric() && c != '_';
    let mut words: Vec<&str> = text.split_inclusive(ends_word).collect();
    for _ in 0..=random.below(4) {
        if words.is_empty() {
            words.push("x");
        }
        let (i, j) = (random.below(words.len()), random.below(words.len()));
        let part = PARTS[random.below(PARTS.len())];
        match random.below(8) {
            0 => drop(words.remove(i)),
            1 => words.insert(i, words[j]),
            2 => words.swap(i, j),
            3 => words[i] = words[j],
            4 => words.insert(i, part),
            5 => words[i] = part,
            6 => {
                let other = &corpus[random.below(corpus.len())].text;
                let other: Vec<&str> = other.split_inclusive(ends_word).collect();
                if !other.is_empty() {
                    let start = random.below(other.len());
                    let end = (start + 1 + random.below(60)).min(other.len());
                    words.splice(i..i, other[start..end].iter().copied());
                }
            }
            _ => {
                let (start, end) = (i.min(j), i.max(j).min(i.min(j) + 200));
                let repeated = words[start..end].repeat(1 << random.below(6));
                words.splice(end..end, repeated);
            }
        }
    }
    words.concat()
}

/// Replaces names by other names of the text, and numbers by other numbers.
fn changed_names(text: &str, random: &mut SplitMix64) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    // Names in the documentation before the declaration do not matter.
    let (docs, code) = text.split_at(text.find("arch_macros::").unwrap_or(0));
    let mut words: Vec<&str> = code.split_inclusive(|c| !is_part(c)).collect();
    let length = |word: &str| word.trim_end_matches(|c| !is_part(c)).len();
    let is_number = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    for _ in 0..=random.below(3) {
        let named: Vec<usize> = (0..words.len()).filter(|&i| length(words[i]) > 0).collect();
        if named.is_empty() {
            break;
        }
        let i = named[random.below(named.len())];
        let (name, end) = words[i].split_at(length(words[i]));
        let others = named.iter().map(|&j| &words[j][..length(words[j])]);
        let others: Vec<&str> = others.filter(|other| is_number(other) == is_number(name)).collect();
        let other = if is_number(name) && random.below(2) == 0 {
            PARTS[random.below(5)]
        } else {
            others[random.below(others.len())]
        };
        words.splice(i..=i, [other, end]);
    }
    [docs, &words.concat()].concat()
}

/// Removes, repeats, and moves lines, and inserts lines of other declarations.
fn changed_lines(text: &str, corpus: &[Case], random: &mut SplitMix64) -> String {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    for _ in 0..=random.below(3) {
        if lines.is_empty() {
            break;
        }
        let (i, j) = (random.below(lines.len()), random.below(lines.len()));
        match random.below(4) {
            0 => drop(lines.remove(i)),
            1 => lines.insert(i, lines[j]),
            2 => lines.swap(i, j),
            _ => {
                let other = &corpus[random.below(corpus.len())].text;
                let others: Vec<&str> = other.split_inclusive('\n').collect();
                let other = others.get(random.below(others.len().max(1)));
                lines.splice(i..i, other.copied());
            }
        }
    }
    lines.concat()
}

/// Replaces characters by random ones.
fn changed_characters(text: &str, random: &mut SplitMix64) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    for _ in 0..=random.below(8) {
        let i = random.below(characters.len().max(1));
        let code = random.next_u64() as u32 >> random.below(32);
        if let (Some(to), Some(c)) = (characters.get_mut(i), char::from_u32(code)) {
            *to = c;
        }
    }
    characters.into_iter().collect()
}

/// Changes bytes of a header.
fn change_header(header: &mut [u8], random: &mut SplitMix64) {
    for _ in 0..=random.below(6) {
        let i = random.below(header.len());
        let end = (i + 1 + random.below(8)).min(header.len());
        match random.below(4) {
            0 => header[i] = random.next_u64() as u8,
            1 => header[i] = header[i].wrapping_add(1),
            2 => header[i..end].fill(255),
            _ => header[i..end].fill(0),
        }
    }
}

/// Returns the CPU time of all threads of the process.
fn cpu_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is valid for writes, and all zeros are a valid `rusage`.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let of = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}
