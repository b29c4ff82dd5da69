//! Inverted residual of MobileNetV5: projections from the width `from` to `mid` values, and to `width`, each with a
//! norm. The result has a layer scale.

fragment! {
    options(from, mid, width);

    tensors {
        pw_exp:  linear "pw_exp.conv"  [from -> mid];
        exp_bn:  vector "pw_exp.bn"    [mid];
        pw_proj: linear "pw_proj.conv" [mid -> width];
        proj_bn: vector "pw_proj.bn"   [width];
    }

    fn expanded(x: [_, _]) { gelu(rms_norm(pw_exp(x), exp_bn, 0.000001)) }

    fn projected(x: [_, _]) { rms_norm(pw_proj(x), proj_bn, 0.000001) * gamma }

    fn inverted(x: [_, _]) { projected(expanded(x)) }
}
