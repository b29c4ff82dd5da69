//! Last stage of MobileNetV5: alternating attention and inverted residuals. The first block has stride 2.

fragment! {
    needs(width2: usize, width3: usize, depth3: usize, n_query3: usize, head_dim3: usize);

    tensors {
        layer first3 "v.blk.3" 1 {
            use reducing_block(taps = 25, from = width2, width = width3);
        }
        layer stage3 "v.blk.3" depth3 {
            if il > 0 {
                gamma: raw "layer_scale.gamma" [width3];
                if il % 2 == 1 {
                    use multi_query_attention(width = width3, queries = n_query3, size = head_dim3);
                } else {
                    use inverted_block(from = width3, mid = 2 * width3, width = width3);
                }
            }
        }
    }

    fn after_stage3(x: [width2, _]) {
        let y = x;
        for first3 {
            y = reduced(y);
        }
        for stage3 {
            if il > 0 {
                if il % 2 == 1 {
                    let h = rms_norm(y, attn_norm, 0.000001);
                    y += attended(h, h, h, n = n_query3 / head_dim3);
                } else {
                    y += inverted(y);
                }
            }
        }
        y
    }
}
