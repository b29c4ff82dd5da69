//! Weights as graph code names them: handles for rows of the tensor table.

use crate::graph::TensorId;

/// Index of a row of the tensor table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// A table of rows read by token: `[n, rows]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Embed(pub WeightId);

/// A tensor used element by element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vector(pub WeightId);

/// The weight of a norm, with its bias if the file has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Norm {
    /// `[n]`
    pub weight: WeightId,
    /// `[n]`
    pub bias: Option<WeightId>,
}

/// A matrix `[n_in, n_out]` with its optional bias and scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Linear {
    /// `[n_in, n_out]`
    pub weight: WeightId,
    /// `[n_out]`
    pub bias: Option<WeightId>,
    /// `[1]`: the product is multiplied by it.
    pub scale: Option<WeightId>,
}

/// A stack of matrices `[n_in, n_out, n_expert]` with its optional bias and scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Experts {
    /// `[n_in, n_out, n_expert]`
    pub weight: WeightId,
    /// `[n_out, n_expert]`
    pub bias: Option<WeightId>,
    /// `[n_expert]`: each expert's product is multiplied by its own.
    pub scale: Option<WeightId>,
}

/// A stack of matrices `[n_in, n_out, n_head]`, one for each head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PerHead(pub WeightId);

impl Linear {
    /// The embedding table as a matrix (tied output).
    pub fn tied_to(table: Embed) -> Linear {
        Linear {
            weight: table.0,
            bias: None,
            scale: None,
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

/// What [`Builder::present`](super::Builder::present) returns when a declared tensor is absent after all.
pub trait Placeholder {
    /// A dummy; the build fails, so it is never computed with.
    fn placeholder() -> Self;
}

macro_rules! placeholders {
    ($( $ty:ident $value:expr; )*) => { $( impl Placeholder for $ty { fn placeholder() -> Self { $value } } )* };
}
placeholders! {
    Embed Embed(WeightId(0));
    Vector Vector(WeightId(0));
    Norm Norm { weight: WeightId(0), bias: None };
    Linear Linear { weight: WeightId(0), bias: None, scale: None };
    PerHead PerHead(WeightId(0));
    TensorId TensorId(0);
    Experts Experts { weight: WeightId(0), bias: None, scale: None };
}
