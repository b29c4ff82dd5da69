//! Depthwise convolution with a norm, before an inverted residual of MobileNetV5. `taps` is the number of weights per
//! channel.

fragment! {
    options(taps, width);

    tensors {
        dw_start: vector "dw_start.conv" [taps, width];
        start_bn: vector "dw_start.bn"   [width];
    }

    fn started(x: [_, _]) { rms_norm(depthwise_grid(x, dw_start, 1, same = true), start_bn, 0.000001) }
}
