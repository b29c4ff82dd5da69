//! Functions of numbers, conditions, and lists.

/// A numeric function of the language.
#[derive(Debug, PartialEq, Eq)]
pub struct ScalarFn {
    /// Name of the function in declarations.
    pub name: &'static str,
    /// Method of `f32` that computes the function; also of `usize` if [`ScalarFn::keeps_ints`] is set.
    pub method: &'static str,
    /// Number of arguments of the function.
    pub arity: usize,
    /// True if integer arguments yield an integer.
    pub keeps_ints: bool,
}

/// All numeric functions of the language.
pub static SCALAR_FNS: &[ScalarFn] = &[
    ScalarFn {
        name: "sqrt",
        method: "sqrt",
        arity: 1,
        keeps_ints: false,
    },
    ScalarFn {
        name: "ln",
        method: "ln",
        arity: 1,
        keeps_ints: false,
    },
    ScalarFn {
        name: "exp",
        method: "exp",
        arity: 1,
        keeps_ints: false,
    },
    ScalarFn {
        name: "pow",
        method: "powf",
        arity: 2,
        keeps_ints: false,
    },
    ScalarFn {
        name: "min",
        method: "min",
        arity: 2,
        keeps_ints: true,
    },
    ScalarFn {
        name: "max",
        method: "max",
        arity: 2,
        keeps_ints: true,
    },
];

/// A function of lists, which is the value of a `let` in `hparams`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListFn {
    /// `count(list)`: the number of elements.
    Count,
    /// `first(list)`: the first element; 0 for an empty list.
    First,
    /// `max_sum(a, b, n)`: the largest sum of elements of both lists at one of the first `n` positions.
    MaxSum,
}

impl ListFn {
    /// All functions with their names and forms.
    pub const ALL: [(&'static str, ListFn, &'static str); 3] = [
        ("count", ListFn::Count, "count(list)` or `count(condition)"),
        ("first", ListFn::First, "first(list)"),
        ("max_sum", ListFn::MaxSum, "max_sum(list, list, n)"),
    ];

    /// Returns the function with this name.
    pub fn named(name: &str) -> Option<ListFn> {
        ListFn::ALL.iter().find(|(n, ..)| *n == name).map(|&(_, f, _)| f)
    }

    /// Returns the form of a call, for messages.
    pub fn form(self) -> &'static str {
        ListFn::ALL
            .iter()
            .find(|(_, f, _)| *f == self)
            .map_or("", |&(.., form)| form)
    }

    /// Returns the number of lists that the function takes.
    pub fn n_lists(self) -> usize {
        match self {
            ListFn::Count | ListFn::First => 1,
            ListFn::MaxSum => 2,
        }
    }
}
