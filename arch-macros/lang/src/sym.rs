//! Symbolic sizes and shapes. A size is a polynomial over symbols, compared in normal form.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::builtins;

/// Maximum number of terms of a product or sum. Larger ones are opaque: they equal only themselves.
const MAX_TERMS: usize = 64;

/// Maximum number of factors of a term.
const MAX_DEGREE: usize = 64;

/// A symbol, or an opaque expression with `text` as its parenthesized normal form.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Atom {
    rank: usize,
    text: String,
    /// Symbol and divisor, if the atom is a quotient without a remainder.
    quotient: Option<Box<(String, Dim)>>,
}

/// A size: a sum of terms, each an integer times a product of atoms.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Dim {
    /// Maps the sorted atoms of a product to its nonzero coefficient.
    terms: BTreeMap<Vec<Atom>, i128>,
}

/// A symbol that every accepted file makes a multiple of `divisor`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Multiple {
    symbol: Atom,
    divisor: Dim,
}

impl Multiple {
    /// Returns the fact that `whole % divisor == 0`, or `None` if `whole` is not a symbol.
    pub fn new(whole: &Dim, divisor: &Dim) -> Option<Multiple> {
        let mut terms = whole.terms.iter();
        match (terms.next(), terms.next()) {
            (Some((atoms, 1)), None) if atoms.len() == 1 => Some(Multiple {
                symbol: atoms[0].clone(),
                divisor: divisor.clone(),
            }),
            _ => None,
        }
    }

    /// Returns the quotient as an atom.
    fn quotient(&self) -> Dim {
        let symbol = Dim::term(vec![self.symbol.clone()], 1);
        let mut quotient = symbol.div(&self.divisor);
        let of = Box::new((self.symbol.text.clone(), self.divisor.clone()));
        if let Some((mut atoms, c)) = quotient.terms.pop_first() {
            atoms.iter_mut().for_each(|atom| atom.quotient = Some(of.clone()));
            quotient.insert(atoms, c);
        }
        quotient
    }
}

impl Dim {
    /// Returns a constant dimension.
    pub fn constant(n: u64) -> Dim {
        Dim::term(Vec::new(), i128::from(n))
    }

    /// Returns a symbolic dimension.
    pub fn symbol(name: &str) -> Dim {
        let name = builtins::builtin(name).and_then(|b| b.alias_of).unwrap_or(name);
        Dim::atom(name.to_string())
    }

    /// Returns an expression outside the algebra. It equals only expressions with the same text.
    pub fn opaque(text: &str) -> Dim {
        Dim::atom(format!("({text})"))
    }

    /// Returns the number of tokens in the batch, the outermost dimension of activations.
    pub fn n_tokens() -> Dim {
        Dim::symbol("T")
    }

    /// Returns the number of values in a bank.
    pub fn banked() -> Dim {
        Dim::symbol("n_banked")
    }

    /// Returns the number of patches of an image whose encoder also reads a learned column.
    pub fn n_patches() -> Dim {
        Dim::symbol("T_patches")
    }

    fn atom(text: String) -> Dim {
        // The batch dimension prints last, declared hyperparameters before it, and builtins first.
        let rank = if text == "T" { usize::MAX } else { builtins::rank(&text) };
        let quotient = None;
        Dim::term(vec![Atom { rank, text, quotient }], 1)
    }

    fn term(atoms: Vec<Atom>, coefficient: i128) -> Dim {
        let mut dim = Dim::default();
        dim.insert(atoms, coefficient);
        dim
    }

    fn insert(&mut self, atoms: Vec<Atom>, coefficient: i128) {
        let sum = self.terms.get(&atoms).copied().unwrap_or(0).saturating_add(coefficient);
        if sum == 0 {
            self.terms.remove(&atoms);
        } else {
            self.terms.insert(atoms, sum);
        }
    }

    pub fn add(&self, other: &Dim) -> Dim {
        let mut sum = self.clone();
        other.terms.iter().for_each(|(atoms, &c)| sum.insert(atoms.clone(), c));
        sum.bounded().normalized()
    }

    pub fn sub(&self, other: &Dim) -> Dim {
        let mut difference = self.clone();
        other
            .terms
            .iter()
            .for_each(|(atoms, &c)| difference.insert(atoms.clone(), c.saturating_neg()));
        difference.bounded().normalized()
    }

    /// Returns an opaque size in place of a sum with too many terms.
    fn bounded(self) -> Dim {
        if self.terms.len() <= MAX_TERMS {
            return self;
        }
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        Dim::opaque(&format!("a sum with too many terms, {:x}", hasher.finish()))
    }

    pub fn mul(&self, other: &Dim) -> Dim {
        self.expanded(other).normalized()
    }

    fn expanded(&self, other: &Dim) -> Dim {
        let n_terms = self.terms.len() * other.terms.len();
        if n_terms > MAX_TERMS || self.degree() + other.degree() > MAX_DEGREE {
            let mut hasher = DefaultHasher::new();
            (self, other).hash(&mut hasher);
            return Dim::opaque(&format!("a product with too many factors, {:x}", hasher.finish()));
        }
        let mut product = Dim::default();
        for (a, &ca) in &self.terms {
            for (b, &cb) in &other.terms {
                let mut atoms = [a.as_slice(), b.as_slice()].concat();
                atoms.sort();
                product.insert(atoms, ca.saturating_mul(cb));
            }
        }
        product
    }

    /// Returns the number of factors of the longest product.
    fn degree(&self) -> usize {
        self.terms.keys().map(Vec::len).max().unwrap_or(0)
    }

    /// Returns the normal form of a size with exact quotients. If possible, the form has no quotients: `2 * (n / 2)`
    /// becomes `n`. Otherwise it is in terms of the quotient: `n - (n / 2)` becomes `(n / 2)`.
    fn normalized(self) -> Dim {
        let quotients: BTreeMap<&Atom, &(String, Dim)> = (self.terms.keys().flatten())
            .filter_map(|atom| Some((atom, atom.quotient.as_deref()?)))
            .collect();
        if quotients.is_empty() {
            return self;
        }
        let mut dim = self.clone();
        for (atom, (symbol, divisor)) in quotients {
            let quotient = Dim::term(vec![atom.clone()], 1);
            let in_parts = dim.replaced(|a| a.text == *symbol, &divisor.expanded(&quotient));
            let whole = Dim::atom(symbol.clone());
            dim = in_parts.folded(atom, divisor, &whole).unwrap_or(in_parts);
        }
        dim
    }

    /// Returns the size with each atom that matches replaced.
    fn replaced(&self, is: impl Fn(&Atom) -> bool, by: &Dim) -> Dim {
        let mut out = Dim::default();
        for (atoms, &c) in &self.terms {
            let (matching, rest): (Vec<Atom>, Vec<Atom>) = atoms.iter().cloned().partition(|a| is(a));
            let term = matching
                .iter()
                .fold(Dim::term(rest, c), |product, _| product.expanded(by));
            term.terms.into_iter().for_each(|(atoms, c)| out.insert(atoms, c));
        }
        out
    }

    /// Returns the size with every `divisor * quotient` replaced by `whole`, or `None` if a quotient would remain.
    fn folded(&self, quotient: &Atom, divisor: &Dim, whole: &Dim) -> Option<Dim> {
        let mut out = Dim::default();
        for (atoms, &c) in &self.terms {
            let (quotients, rest): (Vec<Atom>, Vec<Atom>) = atoms.iter().cloned().partition(|a| a == quotient);
            let mut term = Dim::term(rest, c);
            for _ in &quotients {
                term = term.div_exact(divisor)?.expanded(whole);
            }
            term.terms.into_iter().for_each(|(atoms, c)| out.insert(atoms, c));
        }
        Some(out)
    }

    /// Returns the quotient if the algebra, or one of `multiples`, shows that there is no remainder.
    pub fn div_known(&self, divisor: &Dim, multiples: &[Multiple]) -> Option<Dim> {
        let by_multiple = |m: &Multiple| {
            let rest = self.div_exact(&Dim::term(vec![m.symbol.clone()], 1))?;
            let factor = m.divisor.div_exact(divisor)?;
            Some(rest.mul(&factor).mul(&m.quotient()))
        };
        let exact = self.div_exact(divisor).or_else(|| self.div_by_quotient(divisor));
        exact.or_else(|| multiples.iter().find_map(by_multiple))
    }

    /// Divides by a size with an exact quotient: `n / (n / 2)` is 2.
    fn div_by_quotient(&self, divisor: &Dim) -> Option<Dim> {
        let of_atom = |atom: &Atom| {
            let (symbol, by) = atom.quotient.as_deref()?;
            let whole = by.expanded(&Dim::term(vec![atom.clone()], 1));
            let quotient = self.replaced(|a| a.text == *symbol, &whole).div_exact(divisor)?;
            Some(quotient.normalized())
        };
        divisor.terms.keys().flatten().find_map(of_atom)
    }

    /// Returns true if the size exceeds `limit` for all positive values of the symbols, except those that are 0.
    pub fn exceeds(&self, limit: &Dim, is_zero: impl Fn(&str) -> bool) -> bool {
        let excess = self.sub(limit);
        let mut terms = excess
            .terms
            .iter()
            .filter(|(atoms, _)| !atoms.iter().any(|a| is_zero(&a.text)));
        terms.clone().next().is_some() && terms.all(|(_, &c)| c > 0)
    }

    /// Returns the quotient if `divisor` equals `self` or is a single term that divides every term.
    pub fn div_exact(&self, divisor: &Dim) -> Option<Dim> {
        if self == divisor && !self.terms.is_empty() {
            return Some(Dim::constant(1));
        }
        let mut single = divisor.terms.iter();
        let (Some((by, &cb)), None) = (single.next(), single.next()) else {
            return None;
        };
        let mut quotient = Dim::default();
        for (atoms, &c) in &self.terms {
            let mut rest = atoms.clone();
            for atom in by {
                rest.remove(rest.iter().position(|a| a == atom)?);
            }
            if c.checked_rem(cb)? != 0 {
                return None;
            }
            quotient.insert(rest, c / cb);
        }
        Some(quotient)
    }

    /// Returns the integer quotient: exact if the algebra can compute it, otherwise an atom `(a / b)`.
    pub fn div(&self, divisor: &Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.as_constant(), divisor.as_constant())
            && let Some(quotient) = a.checked_div(b)
        {
            return Dim::constant(quotient);
        }
        self.div_exact(divisor).unwrap_or_else(|| {
            let group = |d: &Dim| {
                if d.terms.len() > 1 {
                    format!("({d})")
                } else {
                    d.to_string()
                }
            };
            let denominator = if divisor.terms.keys().any(|k| k.len() > 1) {
                format!("({divisor})")
            } else {
                group(divisor)
            };
            Dim::opaque(&format!("{} / {denominator}", group(self)))
        })
    }

    /// Returns the value of a constant.
    pub fn as_constant(&self) -> Option<u64> {
        match self.terms.len() {
            0 => Some(0),
            1 => self.terms.get(&Vec::new()).and_then(|&c| u64::try_from(c).ok()),
            _ => None,
        }
    }

    /// Returns true for the constant 1.
    pub fn is_one(&self) -> bool {
        self.as_constant() == Some(1)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return f.write_str("0");
        }
        // Print positive terms first, so that a difference does not start with a minus, and constants last.
        let mut terms: Vec<_> = self.terms.iter().collect();
        terms.sort_by_key(|(atoms, c)| (**c < 0, atoms.is_empty()));
        for (i, (atoms, &c)) in terms.into_iter().enumerate() {
            match (i, c < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            let names = atoms.iter().map(|a| a.text.as_str()).collect::<Vec<_>>().join(" * ");
            match (c.unsigned_abs(), names.is_empty()) {
                (c, true) => write!(f, "{c}")?,
                (1, false) => f.write_str(&names)?,
                (c, false) => write!(f, "{c} * {names}")?,
            }
        }
        Ok(())
    }
}

/// Sizes of up to four dimensions, innermost first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// Returns true for a bank `[n, n_banked, T]`, whose second size grows during the computation.
    pub fn is_bank(&self) -> bool {
        self.rank() == 3 && self.dim(1) == Dim::banked()
    }

    /// Returns the shape `[n_embd, T]`.
    pub fn embeddings() -> Shape {
        Shape(vec![Dim::symbol("n_embd"), Dim::n_tokens()])
    }

    /// Returns the shape `[n_vocab, T]`.
    pub fn logits() -> Shape {
        Shape(vec![Dim::symbol("n_vocab"), Dim::n_tokens()])
    }

    /// Returns the number of explicit dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the size of dimension `i`; 1 beyond the rank.
    pub fn dim(&self, i: usize) -> Dim {
        self.0.get(i).cloned().unwrap_or_else(|| Dim::constant(1))
    }

    /// Returns the shape with dimension 0 replaced.
    pub fn with_dim0(&self, dim: Dim) -> Shape {
        let mut dims = self.0.clone();
        if dims.is_empty() {
            dims.push(dim);
        } else {
            dims[0] = dim;
        }
        Shape(dims)
    }

    /// Returns true if the shapes are equal up to trailing dimensions of size 1.
    pub fn same(&self, other: &Shape) -> bool {
        (0..4).all(|i| self.dim(i) == other.dim(i))
    }

    /// Returns true if the shape broadcasts to `target` along its dimensions of size 1.
    pub fn broadcasts_to(&self, target: &Shape) -> bool {
        (0..4).all(|i| self.dim(i).is_one() || self.dim(i) == target.dim(i))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<_> = self.0.iter().map(Dim::to_string).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(name: &str) -> Dim {
        Dim::symbol(name)
    }

    #[test]
    fn products_and_sums_are_equal_after_normalization() {
        let a = s("n_head").mul(&s("head_dim")).add(&s("n_rot"));
        let b = s("n_rot").add(&s("head_dim").mul(&s("n_head")));
        assert_eq!(a, b);
        assert_eq!(a.to_string(), "n_head * head_dim + n_rot");
        assert_eq!(a.sub(&s("n_rot")), s("n_head").mul(&s("head_dim_k")));
        assert_eq!(s("n_ff").sub(&s("n_ff")).to_string(), "0");
        assert_eq!(
            Dim::constant(2).mul(&s("n_ff")).sub(&Dim::constant(1)).to_string(),
            "2 * n_ff - 1"
        );
    }

    #[test]
    fn division_is_exact_or_opaque() {
        let q = s("n_head").mul(&s("head_dim"));
        assert_eq!(q.div_exact(&s("n_head")), Some(s("head_dim")));
        assert_eq!(q.div_exact(&s("n_head_kv")), None);
        assert_eq!(s("n_rot").div(&Dim::constant(2)).to_string(), "(n_rot / 2)");
        assert_eq!(s("n_rot").div(&Dim::constant(2)), s("n_rot").div(&Dim::constant(2)));
        assert_ne!(
            s("n_rot").div(&Dim::constant(2)).mul(&Dim::constant(2)),
            s("n_rot"),
            "integer division drops a remainder"
        );
        assert_eq!(
            s("n_ff").mul(&Dim::constant(6)).div(&Dim::constant(3)).to_string(),
            "2 * n_ff"
        );
        assert_eq!(Dim::constant(7).div(&Dim::constant(2)), Dim::constant(3));
        assert_eq!(Dim::constant(7).div(&Dim::constant(0)).to_string(), "(7 / 0)");
        assert_eq!(s("a").div(&s("b").mul(&s("c"))).to_string(), "(a / (b * c))");
    }

    #[test]
    fn known_multiples_divide_exactly() {
        let (n, two, d) = (s("n_head"), Dim::constant(2), s("head_dim"));
        let facts = [Multiple::new(&n, &two).unwrap()];
        let half = n.div_known(&two, &facts).unwrap();
        assert_eq!(half.to_string(), "(n_head / 2)");
        assert_eq!(half.mul(&two), n);
        assert_eq!(half.add(&half), n);
        assert_eq!(n.sub(&half), half);
        assert_eq!(n.mul(&d).div_known(&two, &facts), Some(half.mul(&d)));
        assert_eq!(half.mul(&d).mul(&two), n.mul(&d));
        assert_eq!(n.div_known(&Dim::constant(4), &facts), None);
        assert_eq!(s("n_ff").div_known(&two, &facts), None);
        let facts = [Multiple::new(&s("n_embd"), &n).unwrap()];
        let width = s("n_embd").div_known(&n, &facts).unwrap();
        assert_eq!(width.mul(&n), s("n_embd"));
        assert_eq!(s("n_embd").div_known(&width, &[]), Some(n.clone()));
        let facts = [Multiple::new(&n, &Dim::constant(4)).unwrap()];
        assert_eq!(n.div_known(&two, &facts).unwrap().to_string(), "2 * (n_head / 4)");
        assert_eq!(Multiple::new(&n.mul(&d), &two), None);
    }

    #[test]
    fn product_or_sum_exceeds_its_operands() {
        let (never, n_ff) = (|_: &str| false, s("n_ff"));
        assert!(n_ff.mul(&Dim::constant(2)).exceeds(&n_ff, never));
        assert!(n_ff.add(&Dim::constant(1)).exceeds(&n_ff, never));
        assert!(n_ff.add(&s("n_rot")).exceeds(&n_ff, never));
        assert!(!n_ff.add(&s("n_rot")).exceeds(&n_ff, |symbol| symbol == "n_rot"));
        assert!(!n_ff.exceeds(&n_ff, never));
        assert!(!n_ff.exceeds(&s("n_embd"), never));
    }

    #[test]
    fn broadcasting_repeats_dimensions_of_one() {
        let x = Shape(vec![s("n_embd"), s("T")]);
        assert!(Shape(vec![s("n_embd")]).broadcasts_to(&x));
        assert!(Shape(vec![Dim::constant(1), s("T")]).broadcasts_to(&x));
        assert!(!Shape(vec![s("T")]).broadcasts_to(&x));
        assert!(x.same(&Shape(vec![s("n_embd"), s("T"), Dim::constant(1)])));
    }
}
