//! Numbers that several layers share: the page size of attention, and the numbers of columns above which another
//! algorithm is faster.

/// Maximum cells of the KV cache per page of attention, one bit of a `u64` each.
pub const KEYS: usize = 64;

/// Minimum rows of activations for the cheaper forms of [`Precision::Fast`](crate::Precision::Fast). Below
/// this number (short prompts, decoding a few sequences, verifying drafts) results equal those of
/// [`Precision::High`](crate::Precision::High).
pub const FAST_COLUMNS: usize = 32;

/// Minimum rows of activations for these forms with [`Precision::Fastest`](crate::Precision::Fastest). With
/// fewer rows, unpacking panels of weights takes longer than 8-bit products save.
pub const FASTEST_COLUMNS: usize = 9;

/// Minimum columns for 16-bit panels with weights in file layout, and with interleaved weights on CPUs whose only VNNI
/// is AVX-VNNI. For this number of columns or more, unpacking the weights once pays off.
pub(crate) const PANEL_COLUMNS: usize = 9;

/// Minimum columns for 16-bit panels with interleaved weights on AVX2, which has no VNNI. With fewer columns,
/// filling a panel takes longer than unpacking the weights again for every four columns.
pub(crate) const AVX2_PANEL_COLUMNS: usize = 12;

/// [`AVX2_PANEL_COLUMNS`] for weights stored as whole bytes.
pub(crate) const AVX2_PANEL_COLUMNS_OF_BYTES: usize = 16;
