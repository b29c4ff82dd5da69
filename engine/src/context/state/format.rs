//! Binary format of a saved state. All numbers are little-endian.
//!
//! | part | content |
//! |---|---|
//! | prefix | magic (8 bytes), version u32, scope u32 (0: context, 1: sequence), total length u64 |
//! | fields | architecture (length u64, UTF-8); one u64 for every [`Field`] that must match the context |
//! | tokens | count u64; ids u32, for media rows at least [`MEDIA_TOKENS`] |
//! | cells | per pool: number of runs u64; runs of cells at consecutive positions: first position u32, number of cells u32, distance of positions along the axes i32, sequences 4 × u64 (bits) |
//! | rows | per slot: the keys of its pool's cells in run order, then the values |
//! | checksum | [`Digest`] of all preceding bytes, u64 |

use std::fmt;
use std::io::Write;

use kernels::GgmlType;

use crate::context::batch::SeqSet;
use crate::context::media::MEDIA_TOKENS;
use crate::digest::Digest;
use crate::vocab::Token;

use super::StateError;

/// Magic number at the start of every state.
const MAGIC: [u8; 8] = *b"kv-state";
/// Format version.
const VERSION: u32 = 4;
/// Size of the prefix in bytes.
pub(super) const PREFIX: usize = 24;
/// Size of the checksum in bytes.
const CHECKSUM: usize = 8;
/// Size of an encoded run in bytes.
const RUN: usize = 12 + size_of::<SeqSet>();

/// Scope of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    /// State of all sequences of a context.
    Context,
    /// State of a single sequence.
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

/// Property that must match between a state and the context it is restored into.
#[derive(Clone, Debug)]
pub(super) struct Field {
    /// Property of the model rather than of the context settings.
    pub of_model: bool,
    pub what: &'static str,
    /// Layer or pool of the property.
    pub index: Option<usize>,
    pub value: FieldValue,
}

/// Property value. Values are compared bitwise and displayed by type.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldValue {
    Count(usize),
    Float(f32),
    Digest(u64),
    Type(GgmlType),
    /// Digest of the active adapters; 0 if there are none.
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

    /// Formats `bits` as a value of this type.
    fn show(self, bits: u64) -> String {
        match self {
            FieldValue::Count(_) => bits.to_string(),
            FieldValue::Float(_) => f32::from_bits(bits as u32).to_string(),
            FieldValue::Digest(_) => format!("{bits:016x}"),
            FieldValue::Adapters(_) if bits == 0 => "none".to_owned(),
            FieldValue::Adapters(_) => format!("{bits:016x} (digest)"),
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

/// Properties that determine whether a state matches a context.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub arch: &'static str,
    pub fields: Vec<Field>,
}

/// Cells at consecutive positions with equal sequence sets and distances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub pos: i32,
    pub len: u32,
    /// Distance of the following tokens' positions along the axes of M-RoPE to their positions in the sequence.
    pub lag: i32,
    pub seqs: SeqSet,
}

/// Row sizes of a slot in bytes per cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowSizes {
    pub pool: usize,
    pub key: usize,
    pub value: usize,
}

/// Encodes everything before the rows. `row_bytes` is the size of the rows. The total length cannot overflow,
/// because the rows exist in memory.
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
            out.extend_from_slice(&run.lag.to_le_bytes());
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

/// Writer that computes the checksum and appends it on finish.
pub(super) struct ChecksumWriter<'a> {
    out: &'a mut dyn Write,
    digest: Digest,
}

impl<'a> ChecksumWriter<'a> {
    pub fn new(out: &'a mut dyn Write) -> ChecksumWriter<'a> {
        let digest = Digest::default();
        ChecksumWriter { out, digest }
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        self.digest.update(bytes);
        self.out
            .write_all(bytes)
            .map_err(StateError::io("cannot write the state"))
    }

    pub fn finish(self) -> Result<(), StateError> {
        let ChecksumWriter { out, digest } = self;
        out.write_all(&digest.finish().to_le_bytes())
            .and_then(|()| out.flush())
            .map_err(StateError::io("cannot write the state"))
    }
}

/// State that was verified against its checksum and the target context.
#[derive(Debug)]
pub(super) struct VerifiedState<'a> {
    pub tokens: Vec<Token>,
    /// Runs of each pool.
    pub pools: Vec<Vec<Run>>,
    /// Saved rows of each slot.
    pub rows: Vec<Rows<'a>>,
}

/// Saved rows of a slot, in run order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a> {
    pub keys: &'a [u8],
    pub values: &'a [u8],
}

/// Properties that a state is checked against.
pub(super) struct Expected<'a> {
    pub scope: Scope,
    pub identity: &'a Identity,
    pub n_vocab: usize,
    pub n_seq_max: usize,
    pub n_pools: usize,
    pub slots: &'a [RowSizes],
}

/// Checks the first [`PREFIX`] bytes and returns the declared total length.
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

/// Parses and validates a state. Allocates at most a small multiple of its size.
pub(super) fn parse<'a>(bytes: &'a [u8], expected: &Expected<'_>) -> Result<VerifiedState<'a>, StateError> {
    let len = check_prefix(bytes)?;
    if len != bytes.len() as u64 || bytes.len() < PREFIX + CHECKSUM {
        return Err(StateError::Length {
            expected: len,
            found: bytes.len() as u64,
        });
    }
    let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
    let (expects, found) = (word(checksum), Digest::of(content));
    // Skipped when fuzzing, because mutated inputs never have a valid checksum.
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
    Ok(VerifiedState { tokens, pools, rows })
}

/// Returns the number of cells in the runs.
pub(super) fn n_cells(runs: &[Run]) -> usize {
    runs.iter().map(|r| r.len as usize).sum()
}

/// Bounds-checked reader of little-endian values.
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

    /// Reads a count of elements of `size` bytes and checks that the rest of the state can contain them.
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
        let n = self.count(1, "the architecture name length")?;
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
        let n = self.count(size_of::<Token>(), "the token count")?;
        let mut tokens = Vec::with_capacity(n);
        for _ in 0..n {
            let token = self.u32("a token")?;
            if token as usize >= n_vocab && token < MEDIA_TOKENS {
                return Err(self.malformed("a token", format!("below {n_vocab}"), token));
            }
            tokens.push(token);
        }
        Ok(tokens)
    }

    fn seqs(&mut self) -> Result<SeqSet, StateError> {
        let mut words = SeqSet::default().words();
        for word in &mut words {
            *word = self.u64("a sequence set")?;
        }
        Ok(SeqSet::from_words(words))
    }

    fn runs(&mut self, n_seq_max: usize) -> Result<Vec<Run>, StateError> {
        let n = self.count(RUN, "the run count")?;
        let mut runs = Vec::with_capacity(n);
        for _ in 0..n {
            let (pos, len) = (self.u32("a position")?, self.u32("a run length")?);
            let lag = self.u32("a distance")? as i32;
            let seqs = self.seqs()?;
            // The position after the last cell must also be valid.
            let end = u64::from(pos) + u64::from(len);
            if len == 0 || end > i32::MAX as u64 {
                let expected = format!("positions below {}", i32::MAX);
                return Err(self.malformed("a run", expected, format!("{pos}..{end}")));
            }
            if seqs.is_empty() {
                return Err(self.malformed("a sequence set", "at least one sequence".to_owned(), "none"));
            }
            if let Some(seq) = seqs.iter().find(|&seq| seq >= n_seq_max) {
                return Err(crate::context::MemoryError::Sequence { seq, n_seq_max }.into());
            }
            let pos = pos as i32;
            runs.push(Run { pos, len, lag, seqs });
        }
        Ok(runs)
    }

    /// Reads the rows, which must fill the rest of the state exactly.
    fn rows(&mut self, pools: &[Vec<Run>], slots: &[RowSizes]) -> Result<Vec<Rows<'a>>, StateError> {
        let mut rows = Vec::with_capacity(slots.len());
        for slot in slots {
            let n = n_cells(&pools[slot.pool]);
            let keys = self.take(n.saturating_mul(slot.key), "key rows")?;
            let values = self.take(n.saturating_mul(slot.value), "value rows")?;
            rows.push(Rows { keys, values });
        }
        if self.left() > 0 {
            return Err(self.malformed(
                "data after the rows",
                "nothing".to_owned(),
                format!("{} bytes", self.left()),
            ));
        }
        Ok(rows)
    }
}

/// Decodes a little-endian number of up to 8 bytes.
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
                field(false, "RoPE base frequency", FieldValue::Float(10000.0)),
                field(false, "key type", FieldValue::Type(GgmlType::F16)),
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
            lag: pos + 1,
            seqs: SeqSet::of(seqs.iter().copied()),
        };
        vec![vec![run(0, 3, &[0]), run(5, 1, &[1, 2])], vec![run(2, 2, &[0])]]
    }

    fn state() -> Vec<u8> {
        let rows: Vec<u8> = (0..4 * 6 + 2 * 4).collect();
        let mut out = Vec::new();
        let mut sink = ChecksumWriter::new(&mut out);
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

    /// Fixes length and checksum, as an attacker would.
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
    fn parse_returns_written_state() {
        let (state, identity) = (state(), identity());
        let saved = parse(&state, &expected(&identity)).unwrap();
        assert_eq!((saved.tokens, &saved.pools), (vec![1, 99], &pools()));
        assert_eq!(saved.rows[0].values, [16, 17, 18, 19, 20, 21, 22, 23]);
        assert_eq!(saved.rows[1].keys, [24, 25, 26, 27, 28, 29]);
        assert_eq!(saved.rows[1].values, [30, 31]);
    }

    #[test]
    fn identity_mismatch_names_field() {
        let state = state();
        let with = |change: fn(&mut Identity)| {
            let mut identity = identity();
            change(&mut identity);
            parse(&state, &expected(&identity)).unwrap_err().to_string()
        };
        assert_eq!(
            with(|i| i.arch = "other"),
            "the state belongs to a different model: architecture: expected other, found toy"
        );
        assert_eq!(
            with(|i| i.fields[0].value = FieldValue::Digest(0xab)),
            "the state belongs to a different model: tensors: expected 00000000000000ab, found 0000000000000007"
        );
        assert_eq!(
            with(|i| i.fields[1].value = FieldValue::Float(5e5)),
            "the state was saved with different settings: RoPE base frequency: expected 500000, found 10000"
        );
        assert_eq!(
            with(|i| i.fields[2].value = FieldValue::Type(GgmlType::Q8_0)),
            "the state was saved with different settings: key type: expected q8_0, found f16"
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
            "wrong state scope: expected one sequence, found a whole context"
        );
    }

    #[test]
    fn parse_rejects_counts_beyond_data() {
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
        assert!(patched(PREFIX, &u64::MAX.to_le_bytes()).contains("the architecture name length"));
        assert!(patched(tokens, &u64::MAX.to_le_bytes()).contains("the token count"));
        assert!(patched(tokens + 8, &100u32.to_le_bytes()).contains("a token: expected below 100, found 100"));
        assert!(patched(first_runs, &(1u64 << 60).to_le_bytes()).contains("the run count"));
        assert!(patched(first_run, &(-1i32).to_le_bytes()).contains("a run: expected positions below "));
        assert!(patched(first_run + 4, &0u32.to_le_bytes()).contains("a run: expected positions below "));
        assert!(patched(first_run + 4, &i32::MAX.to_le_bytes()).contains("key rows"));
        assert!(patched(first_run + 12, &[0; 32]).contains("at least one"));
        assert!(
            patched(first_run + 12, &16u64.to_le_bytes()).contains("invalid sequence 4: the context has 4 sequences")
        );
        assert!(patched(first_run + 43, &[0x80]).contains("invalid sequence 255: the context has 4 sequences"));
        assert!(patched(first_run + 4, &2u32.to_le_bytes()).contains("data after the rows"));
        assert!(patched(8, &9u32.to_le_bytes()).contains("version: expected 4, found 9"));
        assert!(patched(12, &2u32.to_le_bytes()).contains("the scope: expected 0 or 1, found 2"));
    }

    #[test]
    fn parse_rejects_forged_states() {
        let (state, identity) = (state(), identity());
        for len in 0..state.len() {
            let mut cut = state[..len].to_vec();
            assert!(parse(&cut, &expected(&identity)).is_err(), "{len} bytes");
            if len >= PREFIX + CHECKSUM {
                seal(&mut cut);
                assert!(parse(&cut, &expected(&identity)).is_err(), "{len} bytes, sealed");
            }
        }
        // Every byte set to boundary values: the state is either rejected or has the same size.
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
