//! Weight handles used in graph code; each refers to a row of the tensor table.

use crate::graph::TensorId;

/// Index of a row in the tensor table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Embedding table `[n, rows]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Embed(pub WeightId);

/// Elementwise tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vector(pub WeightId);

/// Norm weight with an optional bias.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Norm {
    /// `[n]`
    pub weight: WeightId,
    /// `[n]`
    pub bias: Option<WeightId>,
}

/// Matrix `[n_in, n_out]` with an optional bias and scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Linear {
    /// `[n_in, n_out]`
    pub weight: WeightId,
    /// `[n_out]`
    pub bias: Option<WeightId>,
    /// Factor applied to the product, f32 `[1]`.
    pub scale: Option<WeightId>,
    /// Lower and upper bound of the input, then of the result, f32 `[1]` each.
    pub bounds: Option<[WeightId; 4]>,
}

/// Stack of expert matrices `[n_in, n_out, n_expert]` with an optional bias and scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Experts {
    /// Stack of expert matrices `[n_in, n_out, n_expert]`.
    pub weight: WeightId,
    /// `[n_out, n_expert]`
    pub bias: Option<WeightId>,
    /// `[n_expert]`: factor applied to the product of each expert.
    pub scale: Option<WeightId>,
}

/// Stack of per-head matrices `[n_in, n_out, n_head]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PerHead(pub WeightId);

impl Linear {
    /// Uses the embedding table as a matrix (tied output).
    pub fn tied_to(table: Embed) -> Linear {
        Linear {
            weight: table.0,
            bias: None,
            scale: None,
            bounds: None,
        }
    }
}

impl From<Norm> for Vector {
    fn from(norm: Norm) -> Vector {
        Vector(norm.weight)
    }
}

impl From<Vector> for Norm {
    fn from(v: Vector) -> Norm {
        Norm {
            weight: v.0,
            bias: None,
        }
    }
}

/// Handles with a placeholder, which [`Builder::present`](super::Builder::present) returns if a tensor is missing.
pub trait Placeholder {
    /// Returns a dummy. The build fails, so the dummy is never used in a computation.
    fn placeholder() -> Self;
}

macro_rules! placeholders {
    ($( $ty:ident $value:expr; )*) => { $( impl Placeholder for $ty { fn placeholder() -> Self { $value } } )* };
}
placeholders! {
    Embed Embed(WeightId(0));
    Vector Vector(WeightId(0));
    Norm Norm { weight: WeightId(0), bias: None };
    Linear Linear { weight: WeightId(0), bias: None, scale: None, bounds: None };
    PerHead PerHead(WeightId(0));
    TensorId TensorId(0);
    Experts Experts { weight: WeightId(0), bias: None, scale: None };
}
