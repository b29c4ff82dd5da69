//! Parameters of rotary position embeddings.

/// Pairing of elements in rotary position embeddings (RoPE; Su et al., arXiv 2104.09864).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RopeKind {
    /// Adjacent elements: (x0, x1), (x2, x3), … (ggml's `NORM`).
    Norm,
    /// First and second half: (x0, x[n/2]), (x1, x[n/2 + 1]), … (ggml's `NEOX`).
    Neox,
    /// Like [`RopeKind::Neox`], with positions of four axes (time, height, width, extra). Each axis rotates a
    /// section of the pairs (Qwen2-VL, arXiv 2409.12191).
    Mrope,
    /// Like [`RopeKind::Mrope`], with the axes interleaved pair by pair (Qwen3-VL, arXiv 2511.21631).
    Imrope,
}

/// Number of position axes of [`RopeKind::Mrope`] and [`RopeKind::Imrope`]. A text token has the position
/// `[p, p, p, p]`, as in XD-RoPE. M-RoPE has no section for the fourth axis.
pub const ROPE_AXES: usize = 4;

impl RopeKind {
    /// Returns the number of values in the position of a token.
    pub fn n_axes(self) -> usize {
        match self {
            RopeKind::Norm | RopeKind::Neox => 1,
            RopeKind::Mrope | RopeKind::Imrope => ROPE_AXES,
        }
    }
}

/// Parameters of [`Op::Rope`]; scaling follows YaRN (Peng et al., arXiv 2309.00071).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rope {
    /// Rule for pairing the rotated elements.
    pub kind: RopeKind,
    /// Pairs rotated by each axis, for kinds with several axes. The sections repeat if their sum is smaller
    /// than the number of pairs.
    pub sections: [usize; ROPE_AXES],
    /// Number of leading elements of a head that are rotated; even. The remaining elements are copied.
    pub n_dims: usize,
    /// Base frequency (theta).
    pub freq_base: f32,
    /// Factor applied to positions (1 / context extension factor).
    pub freq_scale: f32,
    /// Weight of the YaRN interpolation; 0 selects plain linear scaling.
    pub ext_factor: f32,
    /// Magnitude factor of the rotated elements.
    pub attn_factor: f32,
    /// Upper end of the YaRN correction range, in rotations over the original context.
    pub beta_fast: f32,
    /// Lower end of the YaRN correction range, in rotations over the original context.
    pub beta_slow: f32,
    /// Context length in training, for YaRN (`n_ctx_orig` in ggml).
    pub n_ctx_orig: usize,
    /// Positions are rounded down to a multiple of `every`; nonzero. 1 leaves positions unchanged.
    pub every: usize,
    /// Rotates by the negative angle (inverse RoPE).
    pub inverse: bool,
}

impl Rope {
    /// Creates a rotation of the first `n_dims` values by one position per token, without scaling of the context.
    pub fn unscaled(kind: RopeKind, n_dims: usize, freq_base: f32) -> Rope {
        Rope {
            kind,
            sections: [0; ROPE_AXES],
            n_dims,
            freq_base,
            freq_scale: 1.0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            n_ctx_orig: 0,
            every: 1,
            inverse: false,
        }
    }

    /// Returns the effective position used to compute the angle.
    pub fn place(&self, position: i32) -> i32 {
        let every = i32::try_from(self.every.max(1)).unwrap_or(i32::MAX);
        let place = position.div_euclid(every).saturating_mul(every);
        if self.inverse { place.saturating_neg() } else { place }
    }

    /// Returns the axis whose position rotates a pair.
    pub fn axis(&self, pair: usize) -> usize {
        let [time, height, width, _] = self.sections;
        let cycle = self.sections.iter().sum::<usize>().max(1);
        let sector = pair % cycle;
        match self.kind {
            RopeKind::Norm | RopeKind::Neox => 0,
            RopeKind::Mrope => [time, time + height, time + height + width]
                .iter()
                .filter(|&&end| sector >= end)
                .count(),
            // Pairs beyond the section of their axis use the first axis, as in the published Qwen3-VL. ggml uses the
            // fourth axis, whose positions are 0.
            RopeKind::Imrope => match sector % 3 {
                axis if sector < 3 * self.sections[axis] => axis,
                _ if sector >= time + height + width => 3,
                _ => 0,
            },
        }
    }
}
