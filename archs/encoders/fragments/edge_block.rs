//! Fused inverted residual of MobileNetV5 (edge residual): a 3 x 3 convolution to four times the width `from`, and a
//! projection, each with a norm.

fragment! {
    options(from, width);

    tensors {
        conv_exp: linear "conv_exp" [9 * from -> 4 * from];
        bn1:      vector "bn1"      [4 * from];
        conv_pwl: linear "conv_pwl" [4 * from -> width];
        bn2:      vector "bn2"      [width];
    }

    fn edge(x: [_, _], stride = 1) {
        let x = gelu(rms_norm(conv_grid(x, conv_exp, stride, same = true), bn1, 0.000001));
        rms_norm(conv_pwl(x), bn2, 0.000001)
    }
}
