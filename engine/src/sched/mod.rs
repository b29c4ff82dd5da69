//! (to come)

#[cfg(test)]
pub(crate) mod fake;
