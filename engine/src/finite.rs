//! Detection of results that are not numbers, which weights or hyperparameters of a damaged file cause.

/// A result that is not a finite number.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the model computed {value} at index {index} of its result; its weights, hyperparameters, or adapters are damaged"
)]
pub struct NotFinite {
    /// Index of the value.
    pub index: usize,
    /// NaN or infinity.
    pub value: f32,
}

/// Compares the bits, so that NaN equals itself.
impl PartialEq for NotFinite {
    fn eq(&self, other: &NotFinite) -> bool {
        (self.index, self.value.to_bits()) == (other.index, other.value.to_bits())
    }
}

/// Checks that all values are finite.
///
/// # Errors
/// Returns a [`NotFinite`] for the first other value.
pub fn check_finite(values: &[f32]) -> Result<(), NotFinite> {
    check(values, |value| value.is_finite())
}

/// Checks that logits are numbers. Negative infinity is the logit of a token that cannot occur.
///
/// # Errors
/// Returns a [`NotFinite`] for the first other value.
pub fn check_logits(logits: &[f32]) -> Result<(), NotFinite> {
    check(logits, |logit| logit < f32::INFINITY)
}

fn check(values: &[f32], is_fine: impl Fn(f32) -> bool) -> Result<(), NotFinite> {
    // Without an early exit, the loop is vectorized.
    if values.iter().fold(true, |all, &value| all & is_fine(value)) {
        return Ok(());
    }
    let wrong = values.iter().enumerate().find(|(_, value)| !is_fine(**value));
    let (index, &value) = wrong.unwrap_or((0, &f32::NAN));
    Err(NotFinite { index, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_not_finite_are_found() {
        let mut values = vec![0.5; 100];
        assert!(check_finite(&values).is_ok() && check_logits(&values).is_ok());
        values[70] = f32::NEG_INFINITY;
        assert_eq!(check_finite(&values).unwrap_err().index, 70);
        assert!(check_logits(&values).is_ok());
        for value in [f32::NAN, -f32::NAN, f32::INFINITY] {
            values[60] = value;
            assert_eq!(check_finite(&values), Err(NotFinite { index: 60, value }));
            assert_eq!(check_logits(&values), Err(NotFinite { index: 60, value }));
        }
        assert!(check_finite(&[]).is_ok());
    }
}
