//! Values of a loaded program: hyperparameters and handles of tensors.

use crate::builder::{Embed, Experts, Linear, Norm, PerHead, Vector};

use super::scalar::Scalar;

/// Value of an item of the `hparams` section.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    One(Scalar),
    PerLayer(Vec<Scalar>),
}

impl Stored {
    /// Returns the elements of a list.
    pub fn list(&self) -> &[usize] {
        match self {
            Stored::One(value) => value.list(),
            Stored::PerLayer(_) => &[],
        }
    }

    /// Returns the value in a layer.
    pub fn at(&self, il: usize) -> Scalar {
        match self {
            Stored::One(value) => value.clone(),
            Stored::PerLayer(values) => match values.get(il).or(values.last()) {
                Some(value) => value.clone(),
                None => Scalar::Int(0),
            },
        }
    }
}

/// Handle of a declared tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Handle {
    Absent,
    Embed(Embed),
    Vector(Vector),
    Norm(Norm),
    Linear(Linear),
    Experts(Experts),
    PerHead(PerHead),
}

macro_rules! from_handles {
    ($($ty:ident)*) => { $(
        impl From<$ty> for Handle {
            fn from(handle: $ty) -> Handle {
                Handle::$ty(handle)
            }
        }

        impl From<Option<$ty>> for Handle {
            fn from(handle: Option<$ty>) -> Handle {
                handle.map_or(Handle::Absent, Handle::$ty)
            }
        }
    )* };
}
from_handles! { Embed Vector Norm Linear Experts PerHead }
