//! First block of a stage of MobileNetV5: an inverted residual with a depthwise convolution of stride 2.

fragment! {
    options(taps, from, width);

    tensors {
        use depthwise_conv(taps = taps, width = from), inverted_block(from = from, mid = 6 * from, width = width);
        dw_mid: vector "dw_mid.conv"       [25, 6 * from];
        mid_bn: vector "dw_mid.bn"         [6 * from];
        gamma:  raw    "layer_scale.gamma" [width];
    }

    fn reduced(x: [_, _]) {
        let x = depthwise_grid(expanded(started(x)), dw_mid, 2, same = true);
        projected(gelu(rms_norm(x, mid_bn, 0.000001)))
    }
}
