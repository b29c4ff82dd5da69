//! Third stage of MobileNetV5: inverted residuals, then alternating attention and inverted residuals. Depthwise
//! convolutions with stride 2 reduce keys and values. The first block has stride 2.

fragment! {
    needs(width1: usize, width2: usize, depth2: usize, n_plain: usize, n_query2: usize, head_dim2: usize);

    tensors {
        layer first2 "v.blk.2" 1 {
            use reducing_block(taps = 25, from = width1, width = width2);
        }
        layer stage2 "v.blk.2" depth2 {
            if il > 0 {
                gamma: raw "layer_scale.gamma" [width2];
                if il > n_plain && (il - n_plain) % 2 == 1 {
                    use multi_query_attention(width = width2, queries = n_query2, size = head_dim2);
                    key_conv:   vector "attn.key.down_conv"   [9, width2];
                    value_conv: vector "attn.value.down_conv" [9, width2];
                    key_bn, value_bn: vector "attn.key.norm", "attn.value.norm" [width2];
                } else {
                    use inverted_block(
                        from = width2, mid = if il < n_plain { 4 * width2 } else if il == n_plain { width2 } else { 2 * width2 },
                        width = width2
                    );
                    if il < n_plain {
                        use depthwise_conv(taps = 25, width = width2);
                    }
                }
            }
        }
    }

    fn after_stage2(x: [width1, _]) {
        let y = x;
        for first2 {
            y = reduced(y);
        }
        for stage2 {
            if il > 0 {
                if il > n_plain && (il - n_plain) % 2 == 1 {
                    y += attend_to_reduced(rms_norm(y, attn_norm, 0.000001));
                } else {
                    y += inverted(if il < n_plain { started(y) } else { y });
                }
            }
        }
        y
    }

    fn attend_to_reduced(x: [width2, _]) {
        let keys = rms_norm(depthwise_grid(x, key_conv, 2, same = true), key_bn, 0.000001);
        let values = rms_norm(depthwise_grid(x, value_conv, 2, same = true), value_bn, 0.000001);
        attended(x, keys, values, n = n_query2 / head_dim2)
    }
}
