//! Prompts with several images, against transformers. `tests/tools/record_media.py` made the recording.

use engine::gguf::logits::Logits;
use tests::{data_dir, exact};

use crate::encoder_families::Family;
use crate::encoders::{context, logits};

/// The rows of the second image have its number along the fourth axis of XD-RoPE.
#[test]
fn second_image_matches_transformers() {
    let family = Family::named("hunyuanvl");
    let recorded = Logits::read(data_dir().join("encoders/hunyuanvl-two.logits")).unwrap();
    for (n_ubatch, pieces) in [(512, false), (512, true), (7, false)] {
        let mut params = exact();
        params.context.n_ubatch = n_ubatch;
        let rows = family.encoded(&params);
        let mut ctx = context(family.text(&params), &params, &rows);
        let error = recorded.nmse(&logits(&mut ctx, recorded.tokens(), &[rows.clone(), rows], pieces));
        assert!(error <= 1e-10, "in ubatches of {n_ubatch}: {error:.1e}");
    }
}
