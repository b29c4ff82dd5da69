//! Second stage of MobileNetV5: inverted residuals after depthwise convolutions, alternately with 5 x 5 and 3 x 3
//! weights. The first block has stride 2.

fragment! {
    needs(width0: usize, width1: usize, depth1: usize);

    tensors {
        layer first1 "v.blk.1" 1 {
            use reducing_block(taps = 9, from = width0, width = width1);
        }
        layer stage1 "v.blk.1" depth1 {
            if il > 0 {
                use depthwise_conv(taps = if il % 2 == 1 { 25 } else { 9 }, width = width1);
                gamma: raw "layer_scale.gamma" [width1];
                use inverted_block(from = width1, mid = 4 * width1, width = width1);
            }
        }
    }

    fn after_stage1(x: [width0, _]) {
        let y = x;
        for first1 {
            y = reduced(y);
        }
        for stage1 {
            if il > 0 {
                y += inverted(started(y));
            }
        }
        y
    }
}
