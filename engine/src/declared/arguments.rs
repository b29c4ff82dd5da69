//! Evaluated arguments of an operation, and their conversion to the types of the builder's methods.

use crate::builder::{Embed, Experts, Gating, GridPairs, Linear, Norm, Placeholder, TableFilter, Vector, Visibility};
use crate::graph::{TensorId, Unary, Window};

use super::state::Handle;

/// Evaluated argument.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Argument<'a> {
    Omitted,
    Tensor(TensorId),
    Weight(Handle),
    Int(usize),
    Float(f32),
    Bool(bool),
    Activation(Unary),
    Word(&'static str),
    Window(Window),
    List(&'a [usize]),
}

/// Arguments of a call, in the order of the operation's parameters.
#[derive(Debug)]
pub struct Args<'a> {
    list: &'a [Argument<'a>],
    next: usize,
    /// True if an argument had the wrong type. The checker rejects these arguments.
    mismatched: bool,
}

impl<'a> Args<'a> {
    pub(super) fn new(list: &'a [Argument<'a>]) -> Args<'a> {
        Args {
            list,
            next: 0,
            mismatched: false,
        }
    }

    pub(super) fn are_mismatched(&self) -> bool {
        self.mismatched
    }

    /// Returns the next argument.
    pub(super) fn next<T: FromArgument<'a>>(&mut self) -> T {
        let argument = self.list.get(self.next).copied().unwrap_or(Argument::Omitted);
        self.next += 1;
        T::of(argument).unwrap_or_else(|| {
            self.mismatched = true;
            T::fallback()
        })
    }

    /// Sets a field to the next argument, unless it was omitted.
    pub(super) fn set<T: FromArgument<'a>>(&mut self, field: &mut T) {
        if self.list.get(self.next).is_some_and(|a| *a != Argument::Omitted) {
            *field = self.next();
        } else {
            self.next += 1;
        }
    }
}

/// Type of a parameter.
pub(super) trait FromArgument<'a>: Sized {
    /// Converts an argument, or returns `None` if it has the wrong type.
    fn of(argument: Argument<'a>) -> Option<Self>;

    /// Returns the placeholder for an argument of the wrong type. The build fails.
    fn fallback() -> Self;
}

macro_rules! from_argument {
    ($( $ty:ty { $($pattern:pat => $value:expr),+ } or $fallback:expr; )*) => { $(
        impl<'a> FromArgument<'a> for $ty {
            fn of(argument: Argument<'a>) -> Option<$ty> {
                match argument {
                    $($pattern => Some($value),)+
                    _ => None,
                }
            }

            fn fallback() -> $ty {
                $fallback
            }
        }
    )* };
}
from_argument! {
    TensorId { Argument::Tensor(t) => t } or TensorId(0);
    Vector {
        Argument::Weight(Handle::Vector(v)) => v,
        Argument::Weight(Handle::Norm(norm)) => norm.into()
    } or Vector::placeholder();
    Norm {
        Argument::Weight(Handle::Norm(norm)) => norm,
        Argument::Weight(Handle::Vector(v)) => v.into()
    } or Norm::placeholder();
    Linear { Argument::Weight(Handle::Linear(w)) => w } or Linear::placeholder();
    Experts { Argument::Weight(Handle::Experts(w)) => w } or Experts::placeholder();
    Embed { Argument::Weight(Handle::Embed(table)) => table } or Embed::placeholder();
    usize { Argument::Int(n) => n } or 0;
    &'a [usize] { Argument::List(list) => list } or &[];
    // Omitted factors are 1.
    f32 { Argument::Float(x) => x, Argument::Omitted => 1.0 } or 1.0;
    bool { Argument::Bool(b) => b } or false;
    Unary { Argument::Activation(f) => f } or Unary::Neg;
    Window { Argument::Window(window) => window } or Window::None;
    Gating {
        Argument::Word("Softmax") => Gating::Softmax,
        Argument::Word("Sigmoid") => Gating::Sigmoid,
        Argument::Word("SoftmaxWeight") => Gating::SoftmaxWeight,
        Argument::Word("None") => Gating::None,
        Argument::Int(code) => Gating::from_code(code)
    } or Gating::Softmax;
    Visibility { Argument::Word("Whole") => Visibility::Whole } or Visibility::Whole;
    TableFilter {
        Argument::Word("Linear") => TableFilter::Linear,
        Argument::Word("Bilinear") => TableFilter::Bilinear,
        Argument::Word("Dino") => TableFilter::Dino,
        Argument::Word("Smooth") => TableFilter::Smooth,
        Argument::Word("SmoothBicubic") => TableFilter::SmoothBicubic,
        Argument::Word("Bicubic") => TableFilter::Bicubic,
        Argument::Word("Nearest") => TableFilter::Nearest,
        Argument::Word("Zeros") => TableFilter::Zeros
    } or TableFilter::Linear;
    GridPairs {
        Argument::Word("Halves") => GridPairs::Halves,
        Argument::Word("Neighbors") => GridPairs::Neighbors,
        Argument::Word("Quarters") => GridPairs::Quarters,
        Argument::Word("Alternating") => GridPairs::Alternating
    } or GridPairs::Halves;
}

/// Returns true if a parameter of the engine type `ty` accepts the variant. Programs are checked with it when they are
/// lowered.
pub fn is_word(ty: &str, variant: &'static str) -> bool {
    let word = Argument::Word(variant);
    match ty {
        "Gating" => Gating::of(word).is_some(),
        "Visibility" => Visibility::of(word).is_some(),
        "TableFilter" => TableFilter::of(word).is_some(),
        "GridPairs" => GridPairs::of(word).is_some(),
        _ => false,
    }
}

impl<'a, T: FromArgument<'a>> FromArgument<'a> for Option<T> {
    fn of(argument: Argument<'a>) -> Option<Option<T>> {
        match argument {
            Argument::Omitted | Argument::Weight(Handle::Absent) => Some(None),
            given => T::of(given).map(Some),
        }
    }

    fn fallback() -> Option<T> {
        None
    }
}
