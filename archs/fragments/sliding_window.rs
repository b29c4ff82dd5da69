//! Sliding windows: their length `n_swa`, the layers that have one (`is_swa`), and the base and scale of rotary positions there. Files that
//! lack the length have windows of `length`, 0 being none, and their `period` is the layers from one full layer to the next; without these
//! options, files must have the keys. `kind = late_pattern` says that a period begins with its full layer, `kind = [bool]`
//! that files name the layers one by one.

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
