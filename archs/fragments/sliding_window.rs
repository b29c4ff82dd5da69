//! Sliding windows: their length `n_swa`, the layers that have one (`is_swa`), and the base and scale of their rotary
//! positions. The options `length` and `period` are defaults for the file's keys; without them, the keys are required.
//! A length of 0 disables the windows. A period is the distance between full-attention layers. `kind = dense_first`
//! puts the full layer first in each period; `kind = [bool]` reads one flag per layer.

fragment! {
    options(length?, period?, kind = pattern, base = rope_freq_base);

    hparams {
        n_swa: usize = "attention.sliding_window" or length;
        swa_pattern: kind = "attention.sliding_window_pattern" or period;
        rope_base_swa: f32 = "rope.freq_base_swa" or base;
        let is_swa = n_swa > 0 && swa_pattern;
        let rope_base = if is_swa { rope_base_swa } else { rope_freq_base };
        let rope_scale = if is_swa { 1.0 } else { rope_freq_scale };
    }
}
