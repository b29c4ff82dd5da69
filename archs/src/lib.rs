//! The model architectures, one declaration per file next to this crate's manifest, and the media encoders in
//! `encoders/`. The build script registers all files.

#![allow(
    clippy::approx_constant,
    reason = "declarations contain the constants of published models"
)]

#[cfg(test)]
mod listing;

use engine::arch::Registered;

include!(concat!(env!("OUT_DIR"), "/registry.rs"));

/// Returns the architecture for files with `general.architecture = name`.
pub fn find(name: &str) -> Option<&'static Registered> {
    ALL.binary_search_by(|r| r.arch.name.cmp(name)).ok().map(|i| &ALL[i])
}

/// Returns the encoder for files with `clip.projector_type = name`.
pub fn find_encoder(name: &str) -> Option<&'static Registered> {
    let found = ENCODERS.binary_search_by(|r| r.arch.name.cmp(name)).ok();
    found.map(|i| &ENCODERS[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoders_are_sorted_and_described() {
        assert!(ENCODERS.windows(2).all(|p| p[0].arch.name < p[1].arch.name));
        for r in ENCODERS {
            assert!(!r.about.is_empty() && r.arch.media.is_some(), "{}", r.arch.name);
            assert!(find_encoder(r.arch.name).is_some_and(|f| std::ptr::eq(f.arch, r.arch)));
        }
        assert!(find_encoder("no-such").is_none());
    }

    #[test]
    fn architectures_are_sorted_and_described() {
        assert!(ALL.len() >= 5);
        assert!(ALL.windows(2).all(|p| p[0].arch.name < p[1].arch.name));
        for r in ALL {
            assert!(!r.about.is_empty(), "{}", r.arch.name);
            assert!(!r.arch.tensors.is_empty(), "{}", r.arch.name);
            assert!(find(r.arch.name).is_some_and(|f| std::ptr::eq(f.arch, r.arch)));
        }
        assert!(find("no-such").is_none());
    }
}
