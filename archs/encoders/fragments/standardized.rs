//! Subtracts a mean from the rows and multiplies them by a factor, per channel. Files may lack both.

fragment! {
    tensors {
        std_bias?:  raw "v.std_bias"  [n_embd];
        std_scale?: raw "v.std_scale" [n_embd];
    }

    fn standardized(x: [n_embd, _]) {
        if has(std_bias) && has(std_scale) { (x - std_bias) * std_scale } else { x }
    }
}
