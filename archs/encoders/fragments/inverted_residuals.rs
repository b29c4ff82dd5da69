//! Two blocks of MobileNet V3 after a depthwise convolution: the results are weighted by channel, according to their
//! mean (squeeze and excitation), and projected.

fragment! {
    hparams {
        n_squeezed: usize = "projector.squeezed_length" or file_rows("mm.model.mb_block.1.block.1.fc1.weight");
    }

    tensors {
        taps1:    vector "mm.model.mb_block.1.block.0.0"   [9, n_out];
        norm1:    norm   "mm.model.mb_block.1.block.0.1"   [n_out];
        squeeze1: linear "mm.model.mb_block.1.block.1.fc1" [n_out -> n_squeezed];
        expand1:  linear "mm.model.mb_block.1.block.1.fc2" [n_squeezed -> n_out];
        project1: linear "mm.model.mb_block.1.block.2.0"   [n_out -> n_out];
        last1:    norm   "mm.model.mb_block.1.block.2.1"   [n_out];

        taps2:    vector "mm.model.mb_block.2.block.0.0"   [9, n_out];
        norm2:    norm   "mm.model.mb_block.2.block.0.1"   [n_out];
        squeeze2: linear "mm.model.mb_block.2.block.1.fc1" [n_out -> n_squeezed];
        expand2:  linear "mm.model.mb_block.2.block.1.fc2" [n_squeezed -> n_out];
        project2: linear "mm.model.mb_block.2.block.2.0"   [n_out -> n_out];
        last2:    norm   "mm.model.mb_block.2.block.2.1"   [n_out];
    }

    fn inverted(x: [n_out, _]) {
        let h = hard_swish(layer_norm(x, norm1, 0.00001));
        let weight = hard_sigmoid(expand1(relu(squeeze1(mean_rows(h)))));
        layer_norm(project1(h * weight), last1, 0.00001)
    }

    fn second_inverted(x: [n_out, _]) {
        let h = hard_swish(layer_norm(x, norm2, 0.00001));
        let weight = hard_sigmoid(expand2(relu(squeeze2(mean_rows(h)))));
        layer_norm(project2(h * weight), last2, 0.00001)
    }

    fn hard_sigmoid(x: [n_out, _]) {
        clamp(x / 6.0 + 0.5, 0.0, 1.0)
    }

    fn hard_swish(x: [n_out, _]) {
        x * hard_sigmoid(x)
    }
}
