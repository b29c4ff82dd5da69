//! The bytes of a saved state. All numbers are little-endian:
//!
//! | part | content |
//! |---|---|
//! | prefix | magic (8 bytes), version u32, scope u32 (0 a context, 1 a sequence), length of the whole u64 |
//! | fields | architecture (length u64, UTF-8); one u64 for every [`Field`] that state and context must agree on |
//! | tokens | count u64; ids u32 |
//! | cells | per pool: count of runs u64; runs of cells at consecutive positions: first position u32, cells u32, sequences 4 × u64, one bit each |
//! | rows | per slot: the keys of its pool's cells in the order of the runs, then the values |
//! | checksum | [`Digest`] of everything before, u64 |

use std::fmt;
use std::io::Write;

use kernels::GgmlType;

use crate::context::batch::SeqSet;
use crate::digest::Digest;
use crate::vocab::Token;

use super::StateError;

/// The first bytes of every state.
const MAGIC: [u8; 8] = *b"kv-state";
/// Version of everything after the version.
const VERSION: u32 = 3;
/// Bytes of the prefix.
pub(super) const PREFIX: usize = 24;
/// Bytes of the checksum.
const CHECKSUM: usize = 8;
/// Bytes of a run.
const RUN: usize = 8 + size_of::<SeqSet>();

/// What a state holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    /// All sequences of a context.
    Context,
    /// One sequence, whichever it was.
    Sequence,
}

impl Scope {
    const ALL: [Scope; 2] = [Scope::Context, Scope::Sequence];

    fn describe(self) -> &'static str {
        match self {
            Scope::Context => "a whole context",
            Scope::Sequence => "one sequence",
        }
    }
}

/// A number that a state's context and the one it is restored into must have in common.
#[derive(Clone, Debug)]
pub(super) struct Field {
    /// Belongs to the model rather than to the settings of a context.
    pub of_model: bool,
    pub what: &'static str,
    /// The layer or pool it belongs to.
    pub index: Option<usize>,
    pub value: FieldValue,
}

/// Values are compared as they are stored, and shown for what they mean.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldValue {
    Count(usize),
    Float(f32),
    Digest(u64),
    Type(GgmlType),
    /// Digest of the adapters in use, 0 without any.
    Adapters(u64),
}

impl FieldValue {
    fn bits(self) -> u64 {
        match self {
            FieldValue::Count(n) => n as u64,
            FieldValue::Float(x) => u64::from(x.to_bits()),
            FieldValue::Digest(d) | FieldValue::Adapters(d) => d,
            FieldValue::Type(ty) => u64::from(ty.id()),
        }
    }

    /// Other bits in the same meaning.
    fn show(self, bits: u64) -> String {
        match self {
            FieldValue::Count(_) => bits.to_string(),
            FieldValue::Float(_) => f32::from_bits(bits as u32).to_string(),
            FieldValue::Digest(_) => format!("{bits:016x}"),
            FieldValue::Adapters(_) if bits == 0 => "none".to_owned(),
            FieldValue::Adapters(_) => format!("{bits:016x} (as a digest)"),
            FieldValue::Type(_) => match u32::try_from(bits).ok().and_then(GgmlType::from_id) {
                Some(ty) => ty.to_string(),
                None => format!("type {bits}"),
            },
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        self.index.map_or(Ok(()), |i| write!(f, " {i}"))
    }
}

/// Everything that decides whether a state fits a context.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub arch: &'static str,
    pub fields: Vec<Field>,
}

/// Cells at consecutive positions that belong to the same sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub pos: i32,
    pub len: u32,
    pub seqs: SeqSet,
}

/// Bytes per cell of one slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowSizes {
    pub pool: usize,
    pub key: usize,
    pub value: usize,
}

/// Everything before the rows; `row_bytes` is what follows, without the checksum. Lengths that do not fit 64 bits cannot
/// occur: the rows exist in memory.
pub(super) fn head(scope: Scope, identity: &Identity, tokens: &[Token], pools: &[Vec<Run>], row_bytes: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(scope as u32).to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&(identity.arch.len() as u64).to_le_bytes());
    out.extend_from_slice(identity.arch.as_bytes());
    for field in &identity.fields {
        out.extend_from_slice(&field.value.bits().to_le_bytes());
    }
    out.extend_from_slice(&(tokens.len() as u64).to_le_bytes());
    tokens.iter().for_each(|t| out.extend_from_slice(&t.to_le_bytes()));
    for runs in pools {
        out.extend_from_slice(&(runs.len() as u64).to_le_bytes());
        for run in runs {
            out.extend_from_slice(&run.pos.to_le_bytes());
            out.extend_from_slice(&run.len.to_le_bytes());
            run.seqs
                .words()
                .iter()
                .for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
        }
    }
    let len = out.len() as u64 + row_bytes + CHECKSUM as u64;
    out[PREFIX - 8..PREFIX].copy_from_slice(&len.to_le_bytes());
    out
}

/// Passes bytes on and adds the checksum in the end.
pub(super) struct Sink<'a> {
    out: &'a mut dyn Write,
    digest: Digest,
}

impl<'a> Sink<'a> {
    pub fn new(out: &'a mut dyn Write) -> Sink<'a> {
        let digest = Digest::default();
        Sink { out, digest }
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        self.digest.update(bytes);
        self.out.write_all(bytes).map_err(StateError::io("write the state"))
    }

    pub fn finish(self) -> Result<(), StateError> {
        let Sink { out, digest } = self;
        out.write_all(&digest.finish().to_le_bytes())
            .and_then(|()| out.flush())
            .map_err(StateError::io("write the state"))
    }
}

/// A state whose bytes have all been checked against its checksum and against the context it is meant for.
#[derive(Debug)]
pub(super) struct Saved<'a> {
    pub tokens: Vec<Token>,
    /// Runs of each pool.
    pub pools: Vec<Vec<Run>>,
    /// Of each slot.
    pub rows: Vec<Rows<'a>>,
}

/// Rows of one slot, in the order of the runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a> {
    pub keys: &'a [u8],
    pub values: &'a [u8],
}

/// What a state is checked against.
pub(super) struct Expected<'a> {
    pub scope: Scope,
    pub identity: &'a Identity,
    pub n_vocab: usize,
    pub n_seq_max: usize,
    pub n_pools: usize,
    pub slots: &'a [RowSizes],
}

/// Checks the first [`PREFIX`] bytes and returns the length that the whole state must have.
pub(super) fn check_prefix(bytes: &[u8]) -> Result<u64, StateError> {
    let found = &bytes[..bytes.len().min(MAGIC.len())];
    if found != MAGIC {
        return Err(StateError::NotAState {
            expected: MAGIC,
            found: found.to_vec(),
        });
    }
    let mut cursor = Cursor {
        bytes,
        pos: MAGIC.len(),
    };
    let found = cursor.u32("the version")?;
    if found != VERSION {
        return Err(StateError::Version {
            expected: VERSION,
            found,
        });
    }
    cursor.u32("the scope")?;
    cursor.u64("the length")
}

/// Checks a whole state. Allocates no more than a small multiple of the bytes that are there.
pub(super) fn parse<'a>(bytes: &'a [u8], expected: &Expected<'_>) -> Result<Saved<'a>, StateError> {
    let len = check_prefix(bytes)?;
    if len != bytes.len() as u64 || bytes.len() < PREFIX + CHECKSUM {
        return Err(StateError::Length {
            expected: len,
            found: bytes.len() as u64,
        });
    }
    let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
    let (expects, found) = (word(checksum), Digest::of(content));
    // Fuzzing would not get past it.
    if expects != found && !cfg!(fuzzing) {
        return Err(StateError::Checksum {
            expected: expects,
            found,
        });
    }
    let mut cursor = Cursor {
        bytes: content,
        pos: MAGIC.len() + 4,
    };
    cursor.check_scope(expected.scope)?;
    cursor.pos = PREFIX;
    cursor.check_identity(expected.identity)?;
    let tokens = cursor.tokens(expected.n_vocab)?;
    let pools = (0..expected.n_pools)
        .map(|_| cursor.runs(expected.n_seq_max))
        .collect::<Result<Vec<_>, _>>()?;
    let rows = cursor.rows(&pools, expected.slots)?;
    Ok(Saved { tokens, pools, rows })
}

/// Cells of runs.
pub(super) fn n_cells(runs: &[Run]) -> usize {
    runs.iter().map(|r| r.len as usize).sum()
}

/// Reads values from the front of what is left.
struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.pos
    }

    fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], StateError> {
        if n > self.left() {
            return Err(self.malformed(what, format!("{n} bytes"), self.left()));
        }
        let taken = &self.bytes[self.pos..self.pos + n];
        self.pos += n;
        Ok(taken)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, StateError> {
        let bytes = self.take(4, what)?;
        Ok(bytes.iter().rev().fold(0, |n, &b| n << 8 | u32::from(b)))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, StateError> {
        self.take(8, what).map(word)
    }

    /// A count of things of `size` bytes each, all of which are there.
    fn count(&mut self, size: usize, what: &'static str) -> Result<usize, StateError> {
        let n = self.u64(what)?;
        let most = self.left() / size;
        match usize::try_from(n) {
            Ok(n) if n <= most => Ok(n),
            _ => Err(self.malformed(what, format!("at most {most}"), n)),
        }
    }

    fn malformed(&self, what: &'static str, expected: String, found: impl fmt::Display) -> StateError {
        StateError::Malformed {
            offset: self.pos,
            what,
            expected,
            found: found.to_string(),
        }
    }

    fn check_scope(&mut self, expected: Scope) -> Result<(), StateError> {
        let id = self.u32("the scope")?;
        match Scope::ALL.into_iter().find(|&s| s as u32 == id) {
            Some(found) if found == expected => Ok(()),
            Some(found) => Err(StateError::Scope {
                expected: expected.describe(),
                found: found.describe(),
            }),
            None => Err(self.malformed("the scope", "0 or 1".to_owned(), id)),
        }
    }

    fn check_identity(&mut self, expected: &Identity) -> Result<(), StateError> {
        let n = self.count(1, "the length of the architecture's name")?;
        let arch = self.take(n, "the architecture")?;
        if arch != expected.arch.as_bytes() {
            const SHOWN: usize = 64;
            return Err(StateError::Model {
                what: "architecture".to_owned(),
                expected: expected.arch.to_owned(),
                found: String::from_utf8_lossy(&arch[..n.min(SHOWN)]).into_owned(),
            });
        }
        for field in &expected.fields {
            let bits = self.u64(field.what)?;
            if bits == field.value.bits() {
                continue;
            }
            let what = field.to_string();
            let (expected, found) = (field.value.show(field.value.bits()), field.value.show(bits));
            return Err(if field.of_model {
                StateError::Model { what, expected, found }
            } else {
                StateError::Settings { what, expected, found }
            });
        }
        Ok(())
    }

    fn tokens(&mut self, n_vocab: usize) -> Result<Vec<Token>, StateError> {
        let n = self.count(size_of::<Token>(), "the number of tokens")?;
        let mut tokens = Vec::with_capacity(n);
        for _ in 0..n {
            let token = self.u32("a token")?;
            if token as usize >= n_vocab {
                return Err(self.malformed("a token", format!("below {n_vocab}"), token));
            }
            tokens.push(token);
        }
        Ok(tokens)
    }

    fn seqs(&mut self) -> Result<SeqSet, StateError> {
        let mut words = SeqSet::default().words();
        for word in &mut words {
            *word = self.u64("a set of sequences")?;
        }
        Ok(SeqSet::from_words(words))
    }

    fn runs(&mut self, n_seq_max: usize) -> Result<Vec<Run>, StateError> {
        let n = self.count(RUN, "the number of runs")?;
        let mut runs = Vec::with_capacity(n);
        for _ in 0..n {
            let (pos, len) = (self.u32("a position")?, self.u32("the length of a run")?);
            let seqs = self.seqs()?;
            // The position after the last must be one, too.
            let end = u64::from(pos) + u64::from(len);
            if len == 0 || end > i32::MAX as u64 {
                let expected = format!("positions below {}", i32::MAX);
                return Err(self.malformed("a run", expected, format!("{pos}..{end}")));
            }
            if seqs.is_empty() {
                return Err(self.malformed("a set of sequences", "at least one".to_owned(), "none"));
            }
            if let Some(seq) = seqs.iter().find(|&seq| seq >= n_seq_max) {
                return Err(crate::context::MemoryError::Sequence { seq, n_seq_max }.into());
            }
            let pos = pos as i32;
            runs.push(Run { pos, len, seqs });
        }
        Ok(runs)
    }

    /// The rest: as many rows as the runs have cells, and nothing more.
    fn rows(&mut self, pools: &[Vec<Run>], slots: &[RowSizes]) -> Result<Vec<Rows<'a>>, StateError> {
        let mut rows = Vec::with_capacity(slots.len());
        for slot in slots {
            let n = n_cells(&pools[slot.pool]);
            let keys = self.take(n.saturating_mul(slot.key), "rows of keys")?;
            let values = self.take(n.saturating_mul(slot.value), "rows of values")?;
            rows.push(Rows { keys, values });
        }
        if self.left() > 0 {
            return Err(self.malformed(
                "what follows the rows",
                "nothing".to_owned(),
                format!("{} bytes", self.left()),
            ));
        }
        Ok(rows)
    }
}

/// A little-endian number of up to 8 bytes.
fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        let field = |of_model, what, value| Field {
            of_model,
            what,
            index: None,
            value,
        };
        Identity {
            arch: "toy",
            fields: vec![
                field(true, "tensors", FieldValue::Digest(7)),
                field(false, "rope frequency base", FieldValue::Float(10000.0)),
                field(false, "type of keys", FieldValue::Type(GgmlType::F16)),
            ],
        }
    }

    const SLOTS: [RowSizes; 2] = [
        RowSizes {
            pool: 0,
            key: 4,
            value: 2,
        },
        RowSizes {
            pool: 1,
            key: 3,
            value: 1,
        },
    ];

    fn expected(identity: &Identity) -> Expected<'_> {
        Expected {
            scope: Scope::Context,
            identity,
            n_vocab: 100,
            n_seq_max: 4,
            n_pools: 2,
            slots: &SLOTS,
        }
    }

    fn pools() -> Vec<Vec<Run>> {
        let run = |pos, len, seqs: &[usize]| Run {
            pos,
            len,
            seqs: SeqSet::of(seqs.iter().copied()),
        };
        vec![vec![run(0, 3, &[0]), run(5, 1, &[1, 2])], vec![run(2, 2, &[0])]]
    }

    fn state() -> Vec<u8> {
        let rows: Vec<u8> = (0..4 * 6 + 2 * 4).collect();
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out);
        sink.write(&head(
            Scope::Context,
            &identity(),
            &[1, 99],
            &pools(),
            rows.len() as u64,
        ))
        .unwrap();
        sink.write(&rows).unwrap();
        sink.finish().unwrap();
        out
    }

    /// Corrects length and checksum, as somebody who means harm would.
    fn seal(state: &mut [u8]) {
        let (len, end) = (state.len() as u64, state.len() - CHECKSUM);
        state[PREFIX - 8..PREFIX].copy_from_slice(&len.to_le_bytes());
        let digest = Digest::of(&state[..end]);
        state[end..].copy_from_slice(&digest.to_le_bytes());
    }

    fn error(state: &[u8]) -> String {
        parse(state, &expected(&identity())).unwrap_err().to_string()
    }

    #[test]
    fn what_was_written_is_read() {
        let (state, identity) = (state(), identity());
        let saved = parse(&state, &expected(&identity)).unwrap();
        assert_eq!((saved.tokens, &saved.pools), (vec![1, 99], &pools()));
        assert_eq!(saved.rows[0].values, [16, 17, 18, 19, 20, 21, 22, 23]);
        assert_eq!(saved.rows[1].keys, [24, 25, 26, 27, 28, 29]);
        assert_eq!(saved.rows[1].values, [30, 31]);
    }

    #[test]
    fn differences_are_named() {
        let state = state();
        let with = |change: fn(&mut Identity)| {
            let mut identity = identity();
            change(&mut identity);
            parse(&state, &expected(&identity)).unwrap_err().to_string()
        };
        assert_eq!(
            with(|i| i.arch = "other"),
            "the state is of another model: architecture toy, this model has other"
        );
        assert_eq!(
            with(|i| i.fields[0].value = FieldValue::Digest(0xab)),
            "the state is of another model: tensors 0000000000000007, this model has 00000000000000ab"
        );
        assert_eq!(
            with(|i| i.fields[1].value = FieldValue::Float(5e5)),
            "the state is of a context with other settings: rope frequency base 10000, this context has 500000"
        );
        assert_eq!(
            with(|i| i.fields[2].value = FieldValue::Type(GgmlType::Q8_0)),
            "the state is of a context with other settings: type of keys f16, this context has q8_0"
        );
        assert!(error(b"GGUF\x03\0\0\0").starts_with("not a saved state"));
        assert_eq!(
            parse(
                &state,
                &Expected {
                    scope: Scope::Sequence,
                    ..expected(&identity())
                }
            )
            .unwrap_err()
            .to_string(),
            "the state holds a whole context, expected one sequence"
        );
    }

    #[test]
    fn counts_are_believed_only_when_their_bytes_are_there() {
        let state = state();
        let tokens = PREFIX + 8 + 3 + 3 * 8;
        let first_runs = tokens + 8 + 2 * 4;
        let first_run = first_runs + 8;
        let patched = |at: usize, bytes: &[u8]| {
            let mut state = state.clone();
            state[at..at + bytes.len()].copy_from_slice(bytes);
            seal(&mut state);
            error(&state)
        };
        assert!(patched(PREFIX, &u64::MAX.to_le_bytes()).contains("the length of the architecture's name"));
        assert!(patched(tokens, &u64::MAX.to_le_bytes()).contains("the number of tokens"));
        assert!(patched(tokens + 8, &100u32.to_le_bytes()).contains("a token is 100, expected below 100"));
        assert!(patched(first_runs, &(1u64 << 60).to_le_bytes()).contains("the number of runs"));
        assert!(patched(first_run, &(-1i32).to_le_bytes()).contains("a run is"));
        assert!(patched(first_run + 4, &0u32.to_le_bytes()).contains("a run is"));
        assert!(patched(first_run + 4, &i32::MAX.to_le_bytes()).contains("rows of keys"));
        assert!(patched(first_run + 8, &[0; 32]).contains("at least one"));
        assert!(patched(first_run + 8, &16u64.to_le_bytes()).contains("sequence 4 is beyond the context's 4"));
        assert!(patched(first_run + 39, &[0x80]).contains("sequence 255 is beyond the context's 4"));
        assert!(patched(first_run + 4, &2u32.to_le_bytes()).contains("what follows the rows"));
        assert!(patched(8, &9u32.to_le_bytes()).contains("version 9, expected 3"));
        assert!(patched(12, &2u32.to_le_bytes()).contains("the scope is 2"));
    }

    #[test]
    fn no_forged_state_does_harm() {
        let (state, identity) = (state(), identity());
        for len in 0..state.len() {
            let mut cut = state[..len].to_vec();
            assert!(parse(&cut, &expected(&identity)).is_err(), "{len} bytes");
            if len >= PREFIX + CHECKSUM {
                seal(&mut cut);
                assert!(parse(&cut, &expected(&identity)).is_err(), "{len} bytes, sealed");
            }
        }
        // Every byte set to telling values: either it is a state of the same size or it is refused.
        for at in 0..state.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut forged = state.clone();
                forged[at] = value;
                seal(&mut forged);
                if let Ok(saved) = parse(&forged, &expected(&identity)) {
                    assert_eq!(n_cells(&saved.pools[0]) * 6 + n_cells(&saved.pools[1]) * 4, 32);
                }
            }
        }
    }
}
