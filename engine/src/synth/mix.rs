//! Assignment of types to tensors: one type for all matrices, or a mix as in common quantized files.

use std::fmt;

use kernels::GgmlType;

/// Mix of quantization types for the matrices of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Stores all matrices in the same type.
    Plain(GgmlType),
    /// The "medium" mix of a K-quant: the output projection, and the most sensitive matrices of some layers,
    /// are Q6_K.
    Medium(GgmlType),
}

/// Names of the mixed types.
const MEDIUM: [(&str, GgmlType); 2] = [("q4_k_m", GgmlType::Q4_K), ("q5_k_m", GgmlType::Q5_K)];

/// Matrices that quantizers keep in F32: routers, convolutions, positions, and low-rank parts of recurrences.
const UNQUANTIZED: &[&str] = &[
    "ffn_gate_inp",
    "position_embd",
    "token_types",
    "attn_rel_b",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv",
    "time_mix_a",
    "time_mix_decay_w",
    "time_mix_g1",
    "time_mix_g2",
    "time_mix_v1",
    "time_mix_v2",
    "time_mix_w1",
    "time_mix_w2",
    "indexer.weights_proj",
];

/// Properties of a matrix that determine its type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix<'a> {
    /// Full name of the tensor.
    pub name: &'a str,
    /// Number of elements per row.
    pub n_in: usize,
    /// Index of the matrix among the tensors of its kind, and their number.
    pub turn: (usize, usize),
    /// Whether the matrix is the output projection.
    pub is_output: bool,
}

impl Mix {
    /// Returns the mix, or the type for all matrices, named `name`.
    pub fn find(name: &str) -> Option<Mix> {
        let medium = MEDIUM.iter().find(|(m, _)| m.eq_ignore_ascii_case(name));
        let plain = || GgmlType::from_name(name).filter(|&ty| kernels::can_decode(ty));
        medium
            .map(|&(_, ty)| Mix::Medium(ty))
            .or_else(|| plain().map(Mix::Plain))
    }

    /// Returns the names of all mixes.
    pub fn names() -> Vec<String> {
        let of_files = GgmlType::ALL.iter().filter(|ty| ty.is_in_files());
        let plain = of_files.filter(|&&ty| kernels::can_decode(ty));
        let medium = MEDIUM.iter().map(|(name, _)| (*name).to_owned());
        medium.chain(plain.map(|ty| ty.name().to_ascii_lowercase())).collect()
    }

    /// Returns the type of a matrix. If the rows are not a whole number of blocks, returns a type with
    /// smaller blocks, or F16.
    pub(super) fn type_of(self, matrix: &Matrix<'_>) -> GgmlType {
        if UNQUANTIZED.iter().any(|part| matrix.name.contains(part)) {
            return GgmlType::F32;
        }
        let mut ty = match self {
            Mix::Plain(ty) => ty,
            Mix::Medium(base) => medium(base, matrix),
        };
        while ty.row_bytes(matrix.n_in).is_none() {
            ty = shorter(ty);
        }
        ty
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mix::Plain(ty) => f.pad(&ty.name().to_ascii_lowercase()),
            Mix::Medium(base) => {
                let found = MEDIUM.iter().find(|(_, ty)| ty == base);
                f.pad(found.map_or("", |(name, _)| name))
            }
        }
    }
}

fn medium(base: GgmlType, matrix: &Matrix<'_>) -> GgmlType {
    let is = |kind: &str| matrix.name.contains(&format!(".{kind}."));
    let (i, n) = matrix.turn;
    // The first and last eighth of the layers, and every third layer between them.
    let takes_more = i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    if matrix.is_output || takes_more && (is("attn_v") || is("ffn_down") || is("ffn_down_exps")) {
        GgmlType::Q6_K
    } else if is("attn_qkv") {
        if base == GgmlType::Q4_K {
            GgmlType::Q5_K
        } else {
            GgmlType::Q6_K
        }
    } else {
        base
    }
}

/// Returns the replacement for a type whose blocks are too large.
fn shorter(ty: GgmlType) -> GgmlType {
    use GgmlType::*;
    match ty {
        Q2_K | Q3_K | IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | TQ1_0 | TQ2_0 => IQ4_NL,
        IQ4_XS | IQ4_K | IQ4_KS => IQ4_NL,
        Q4_K => Q5_0,
        Q5_K | IQ5_K | IQ5_KS => Q5_1,
        Q6_K | IQ6_K => Q8_0,
        _ => F16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(name: &str, turn: (usize, usize)) -> Matrix<'_> {
        Matrix {
            name,
            n_in: 512,
            turn,
            is_output: name == "output.weight",
        }
    }

    #[test]
    fn mix_names_round_trip() {
        for name in Mix::names() {
            assert_eq!(Mix::find(&name).map(|mix| mix.to_string()), Some(name));
        }
        assert_eq!(Mix::find("Q4_K_M"), Some(Mix::Medium(GgmlType::Q4_K)));
        assert!(Mix::find("q8_1").is_none() && Mix::find("i32").is_none());
    }

    /// Checks that mixes match llama.cpp's `Q4_K_M` and `Q5_K_M`.
    #[test]
    fn medium_mix_gives_half_of_sensitive_matrices_more_bits() {
        let mix = Mix::Medium(GgmlType::Q4_K);
        let layers: Vec<usize> = (0..16)
            .filter(|&i| mix.type_of(&matrix("blk.0.attn_v.weight", (i, 16))) == GgmlType::Q6_K)
            .collect();
        assert_eq!(layers, [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(mix.type_of(&matrix("output.weight", (0, 1))), GgmlType::Q6_K);
        assert_eq!(mix.type_of(&matrix("blk.0.ffn_up.weight", (0, 16))), GgmlType::Q4_K);
        assert_eq!(mix.type_of(&matrix("blk.0.attn_qkv.weight", (0, 16))), GgmlType::Q5_K);
        assert_eq!(
            mix.type_of(&matrix("blk.0.ffn_gate_inp.weight", (0, 16))),
            GgmlType::F32
        );
    }

    #[test]
    fn partial_blocks_get_another_type() {
        for name in Mix::names() {
            let mix = Mix::find(&name).unwrap();
            for n_in in [1, 32, 96, 576] {
                let ty = mix.type_of(&Matrix {
                    n_in,
                    ..matrix("blk.0.ffn_up.weight", (3, 9))
                });
                assert!(ty.row_bytes(n_in).is_some(), "{name} {n_in}");
            }
        }
        let smol = Matrix {
            n_in: 576,
            ..matrix("blk.0.ffn_up.weight", (3, 9))
        };
        assert_eq!(Mix::Medium(GgmlType::Q4_K).type_of(&smol), GgmlType::Q5_0);
    }
}
