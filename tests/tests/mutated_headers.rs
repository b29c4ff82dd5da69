//! Feeds 100,000 corrupted headers through the parser, hyperparameters, tensor table, vocabulary, and chat template. A
//! separate test binary, because it limits the address space of its process.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use engine::chat::{ChatTemplate, Message};
use engine::gguf::{Array, Gguf, GgufWriter, StringArray, Value};
use engine::model::declare_header;
use engine::random::SplitMix64;
use engine::vocab::Vocab;
use tests::data_dir;

const CASES: usize = 100_000;
/// Address space in bytes beyond that of the process before the first case.
const MEMORY_MAX: usize = 64 << 20;
const TIME_MAX: Duration = Duration::from_secs(300);

#[test]
#[ignore = "takes a minute; run with --release"]
fn mutated_headers_never_panic() {
    let headers = headers();
    let n_bytes_max = headers.iter().map(Vec::len).max().unwrap_or(0);
    let limited = limit_address_space(n_bytes_max + MEMORY_MAX);
    let counts: [AtomicUsize; 4] = Default::default();
    let start = Instant::now();
    for case in 0..CASES {
        let mut bytes = headers[case % headers.len()].clone();
        mutate(&mut bytes, &mut SplitMix64(0x9e37_79b9_7f4a_7c15 ^ (case as u64 + 1)));
        let result = std::panic::catch_unwind(|| read(&bytes, &counts));
        assert!(result.is_ok(), "case {case} panicked");
    }
    let (elapsed, counts) = (start.elapsed(), counts.map(AtomicUsize::into_inner));
    let [parsed, declared, vocabularies, rendered] = counts;
    println!(
        "{CASES} headers in {elapsed:.1?}: {parsed} parsed, {declared} declared, {vocabularies} vocabularies, {rendered} templates \
         rendered; 0 panics, address space {}",
        if limited {
            "limited to 64 MiB beyond the file"
        } else {
            "not limited on this system"
        }
    );
    // The test is meaningful only if some mutations are harmless and some are fatal.
    assert!(counts.iter().all(|n| (100..CASES).contains(n)), "{counts:?}");
    assert!(elapsed < TIME_MAX, "{elapsed:?}");
}

/// Processes a header as far as possible without reading weights.
fn read(bytes: &[u8], counts: &[AtomicUsize; 4]) {
    let done = |i: usize| counts[i].fetch_add(1, Relaxed);
    let header = match Gguf::parse_header(bytes) {
        Ok(header) => header,
        Err(e) => return assert!(!e.to_string().is_empty()),
    };
    done(0);
    let prefix: String = header.require("general.architecture").unwrap_or_default();
    // If the architecture name is corrupted, use another architecture to test the remaining steps.
    let arch = archs::find(&prefix).map_or(archs::ALL[prefix.len() % archs::ALL.len()].arch, |r| r.arch);
    match declare_header(&header, Path::new("mutated.gguf"), arch, &prefix) {
        Ok(_) => drop(done(1)),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    let vocab = match Vocab::load(&header) {
        Ok(vocab) => vocab,
        Err(e) => return assert!(!e.to_string().is_empty()),
    };
    done(2);
    let tokens = vocab.tokenize("A text <s> of se\u{301}veral w\u{f6}rds.\n\u{1f600}", true, true);
    vocab.detokenize(&tokens, false, true);
    if let Ok(template) = ChatTemplate::of_model(&header.metadata, &vocab) {
        let messages = [Message::system("Be brief."), Message::user("Hi")];
        if template.render(&messages, true, &Default::default()).is_ok() {
            done(3);
        }
    }
}

/// Returns the headers of the fixtures, and one header with text vocabularies.
fn headers() -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = std::fs::read_dir(data_dir().join("archs"))
        .expect("the directory is readable")
        .map(|entry| entry.expect("the directory is readable").path())
        .filter(|path| path.to_string_lossy().ends_with(".header.gguf"))
        .collect();
    paths.sort();
    let mut headers: Vec<_> = paths
        .iter()
        .map(|path| std::fs::read(path).expect("readable"))
        .collect();
    let plain = Gguf::parse_header(&headers[0]).expect("the fixture is valid");
    // Half of the cases have text vocabularies.
    for i in 0..headers.len() {
        headers.push(with_text(&plain, i % 2 == 0));
    }
    headers
}

/// Returns a header with a SentencePiece or byte-level BPE vocabulary and a chat template.
fn with_text(plain: &Gguf, spm: bool) -> Vec<u8> {
    let strings = |all: Vec<String>| Value::Array(Array::String(all.iter().collect::<StringArray>()));
    let words = [
        "<s>", "</s>", "<unk>", "A", "t", "e", "x", "te", "xt", "text", "\u{2581}", "\u{120}", "o", "f", "<0x0A>", "w",
    ];
    let n = 128;
    let tokens = (0..n).map(|i| words.get(i).map_or(format!("tok{i}"), |w| (*w).to_owned()));
    let types = (0..n).map(|i| if i < 3 { 3 } else { 1 }).collect::<Vec<i32>>();
    let mut writer = GgufWriter::with_metadata(plain.metadata.clone());
    writer
        .set("tokenizer.ggml.model", if spm { "llama" } else { "gpt2" })
        .set("tokenizer.ggml.pre", if spm { "default" } else { "llama-bpe" })
        .set("tokenizer.ggml.tokens", strings(tokens.collect()))
        .set("tokenizer.ggml.token_type", types)
        .set("tokenizer.ggml.merges", strings(["t e", "x t", "te xt"].map(str::to_owned).to_vec()))
        .set("tokenizer.ggml.bos_token_id", 0u32)
        .set("tokenizer.ggml.eos_token_id", 1u32)
        .set(
            "tokenizer.chat_template",
            "{{ bos_token }}{% for m in messages %}[{{ m['role'] | upper }}] {{ m.content | trim }}{% if loop.last %}!{% endif %}{% endfor %}",
        );
    for t in plain.tensors() {
        let added = writer.add_tensor_with(t.name.clone(), t.ty, t.shape(), |_| Ok(()));
        added.expect("the fixture is valid");
    }
    writer.header().expect("the fixture is valid")
}

/// Corrupts a header at one to three offsets, usually by replacing probable lengths and counts. Insertions and
/// deletions are rare, because they are detected early.
fn mutate(bytes: &mut Vec<u8>, random: &mut SplitMix64) {
    for _ in 0..=random.below(3) {
        let i = random.below(bytes.len());
        match random.below(32) {
            0 => bytes.truncate(i.max(1)),
            1 => drop(bytes.drain(i..(i + 1 + random.below(16)).min(bytes.len()))),
            2 => {
                let again = bytes[i..(i + 1 + random.below(16)).min(bytes.len())].to_vec();
                bytes.splice(i..i, again);
            }
            3..=20 => bytes[i] = random.next_u64() as u8,
            _ => {
                let number = [
                    random.next_u64(),
                    random.next_u64() >> random.below(64),
                    1 << random.below(64),
                ][random.below(3)];
                let len = [1, 4, 8][random.below(3)].min(bytes.len() - i);
                bytes[i..i + len].copy_from_slice(&number.to_le_bytes()[..len]);
            }
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
}

/// Limits the address space to `more` bytes beyond the current size; larger allocations abort the process.
/// Returns false if limits are not supported.
#[cfg(target_os = "linux")]
fn limit_address_space(more: usize) -> bool {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let n_pages: usize = statm
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("statm starts with a number of pages");
    // By default, glibc reserves 64 MiB of address space per allocating thread; use a single arena.
    #[cfg(target_env = "gnu")]
    // SAFETY: M_ARENA_MAX is a valid parameter.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
    // SAFETY: `sysconf` has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for reads and writes during the calls.
    unsafe {
        libc::getrlimit(libc::RLIMIT_AS, &mut limit);
        limit.rlim_cur = (n_pages * page + more) as libc::rlim_t;
        libc::setrlimit(libc::RLIMIT_AS, &limit) == 0
    }
}

#[cfg(not(target_os = "linux"))]
fn limit_address_space(_more: usize) -> bool {
    false
}
