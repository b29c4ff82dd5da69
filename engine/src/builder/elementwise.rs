//! [`Builder`]: elementwise ops, and reductions over dimension 0.

use crate::graph::{TensorId, Unary};

use super::Builder;

impl Builder<'_> {
    /// Applies an elementwise function.
    pub fn unary(&mut self, f: Unary, x: TensorId) -> TensorId {
        if let Some(y) = self.replaced(f, x) {
            return y;
        }
        let y = self.g.unary(f, x);
        self.ok(y, x)
    }

    /// Computes `f(gate) * up`.
    pub fn glu(&mut self, f: Unary, gate: TensorId, up: TensorId) -> TensorId {
        if let Some(y) = self.replaced(f, gate) {
            return self.mul(y, up);
        }
        let y = self.g.glu(f, gate, up);
        self.ok(y, gate)
    }

    /// Computes `cap * tanh(x / cap)`.
    pub fn softcap(&mut self, x: TensorId, cap: f32) -> TensorId {
        let x = self.scale(x, 1.0 / cap);
        let x = self.unary(Unary::Tanh, x);
        self.scale(x, cap)
    }

    /// Clamps values to `min..=max`.
    pub fn clamp(&mut self, x: TensorId, min: f32, max: f32) -> TensorId {
        let y = self.g.clamp(x, min, max);
        self.ok(y, x)
    }

    /// Applies softmax over dimension 0.
    pub fn softmax(&mut self, x: TensorId) -> TensorId {
        let y = self.g.soft_max(x, 1.0);
        self.ok(y, x)
    }

    /// Sums over dimension 0.
    pub fn sum_rows(&mut self, x: TensorId) -> TensorId {
        let y = self.g.sum_rows(x);
        self.ok(y, x)
    }

    /// Computes `a + b`, broadcasting the smaller operand.
    pub fn add(&mut self, a: TensorId, b: TensorId) -> TensorId {
        let (a, b) = self.larger_first(a, b);
        let y = self.g.add(a, b);
        self.ok(y, a)
    }

    /// Computes `a - b`, broadcasting `b`.
    pub fn sub(&mut self, a: TensorId, b: TensorId) -> TensorId {
        let y = self.g.sub(a, b);
        self.ok(y, a)
    }

    /// Computes `a * b`, broadcasting the smaller operand.
    pub fn mul(&mut self, a: TensorId, b: TensorId) -> TensorId {
        let (a, b) = self.larger_first(a, b);
        let y = self.g.mul(a, b);
        self.ok(y, a)
    }

    /// Computes `a / b`, broadcasting `b`.
    pub fn div(&mut self, a: TensorId, b: TensorId) -> TensorId {
        let y = self.g.div(a, b);
        self.ok(y, a)
    }

    /// Computes `x * factor`.
    pub fn scale(&mut self, x: TensorId, factor: f32) -> TensorId {
        let y = self.g.scale(x, factor, 0.0);
        self.ok(y, x)
    }

    /// Computes `x + term`.
    pub fn shift(&mut self, x: TensorId, term: f32) -> TensorId {
        let y = self.g.scale(x, 1.0, term);
        self.ok(y, x)
    }

    /// Returns the operand with more elements first.
    fn larger_first(&self, a: TensorId, b: TensorId) -> (TensorId, TensorId) {
        if self.g.tensor(a).nelements() < self.g.tensor(b).nelements() {
            (b, a)
        } else {
            (a, b)
        }
    }
}
