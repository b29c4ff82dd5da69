//! Architectures.
