//! Normal form of conditions. It shows, for example, that `if n_expert > 0` in the graph matches the `else`
//! of `if n_expert == 0` in the tensors.

use proc_macro2::Ident;

use crate::builtins::Ty;
use crate::model::{Scalar, ScalarKind, ScalarOp};
use crate::sym::Multiple;

/// A condition in normal form, and its value.
pub type Fact = (String, bool);

/// Returns the facts that hold when `cond` equals `truth`.
pub fn facts(cond: &Scalar, truth: bool) -> Vec<Fact> {
    let mut out = Vec::new();
    collect(cond, truth, &mut out);
    out
}

/// Returns the facts of both branches of an `if`. If the condition is invalid, every tensor is assumed to be
/// present.
pub fn both(cond: Option<&Scalar>) -> (Vec<Fact>, Vec<Fact>) {
    match cond {
        Some(c) => (facts(c, true), facts(c, false)),
        None => (vec![anything()], vec![anything()]),
    }
}

/// Returns the fact that implies all facts.
pub fn anything() -> Fact {
    (String::new(), true)
}

/// Returns the fact that the layer is, or is not, a layer of multi-token prediction.
pub fn mtp(truth: bool) -> Fact {
    ("is_mtp".to_owned(), truth)
}

/// Returns the fact that an optional tensor is present.
pub fn presence(tensor: &Ident) -> Fact {
    (format!("has({tensor})"), true)
}

/// Collects the sizes that a true condition makes multiples of others: `n % 2 == 0`, also joined by `&&`.
pub fn multiples(cond: &Scalar, out: &mut Vec<Multiple>) {
    match &cond.kind {
        ScalarKind::Binary(ScalarOp::And, a, b) => {
            multiples(a, out);
            multiples(b, out);
        }
        ScalarKind::Binary(ScalarOp::Eq, rest, zero) if matches!(zero.kind, ScalarKind::Int(0)) => {
            if let ScalarKind::Binary(ScalarOp::Rem, whole, divisor) = &rest.kind {
                out.extend(Multiple::new(&whole.dim, &divisor.dim));
            }
        }
        _ => {}
    }
}

/// Returns true if the two lists of facts contradict each other.
pub fn exclude(a: &[Fact], b: &[Fact]) -> bool {
    a.iter().any(|(key, truth)| b.contains(&(key.clone(), !truth)))
}

fn collect(cond: &Scalar, truth: bool, out: &mut Vec<Fact>) {
    match &cond.kind {
        ScalarKind::Not(a) => collect(a, !truth, out),
        ScalarKind::Binary(ScalarOp::And, a, b) if truth => {
            collect(a, true, out);
            collect(b, true, out);
        }
        ScalarKind::Binary(ScalarOp::Or, a, b) if !truth => {
            collect(a, false, out);
            collect(b, false, out);
        }
        ScalarKind::Binary(op, a, b) if !op.is_arithmetic() && !matches!(op, ScalarOp::And | ScalarOp::Or) => {
            out.push(comparison(*op, a, b, truth));
        }
        _ => out.push((cond.text.clone(), truth)),
    }
}

/// Reduces a comparison to `==` or `<`. For integers, `> 0` becomes the negation of `== 0`.
fn comparison(op: ScalarOp, a: &Scalar, b: &Scalar, truth: bool) -> Fact {
    let is = |s: &Scalar, n: u64| s.ty == Ty::Int && matches!(s.kind, ScalarKind::Int(m) if m == n);
    let equal = |a: &Scalar, b: &str| format!("{} == {b}", a.text);
    let less = |a: &Scalar, b: &Scalar| format!("{} < {}", a.text, b.text);
    match op {
        ScalarOp::Gt if is(b, 0) => (equal(a, "0"), !truth),
        ScalarOp::Ge if is(b, 1) => (equal(a, "0"), !truth),
        ScalarOp::Lt if is(b, 1) => (equal(a, "0"), truth),
        ScalarOp::Le if is(b, 0) => (equal(a, "0"), truth),
        ScalarOp::Lt if is(a, 0) => (equal(b, "0"), !truth),
        ScalarOp::Ne => (equal(a, &b.text), !truth),
        ScalarOp::Gt => (less(b, a), truth),
        ScalarOp::Ge => (less(a, b), !truth),
        ScalarOp::Le => (less(b, a), !truth),
        ScalarOp::Lt => (less(a, b), truth),
        _ => (equal(a, &b.text), truth),
    }
}
