//! Gemma 3n: MobileNetV5 over the pixels of squares of one size. Four stages of inverted residuals have stride 2 each,
//! and the last two have multi-query attention. Their results are fused, averaged, normalized, and projected.

arch_macros::encoder! {
    name: "gemma3nv";
    of: image;

    image {
        size: fixed(image_size);
        resize: bilinear;
        patches: 1;
    }

    text { "\n\n<start_of_image>", image, "<end_of_image>\n\n" }

    tensors {
        use mobile_stem, edge_stage, started_stage, near_stage, far_stage;
    }

    graph {
        let fine = after_stage2(after_stage1(after_stage0(after_stem())));
        embedded(fused(fine, after_stage3(fine)))
    }

    test {
        n_embd: 48, n_head: 1, n_layer: 1, n_ff: 64, image_size: 192, n_out: 64, n_side: 4, n_stem: 8, width0: 16, width1: 24,
        width2: 32, width3: 40, depth0: 2, depth1: 3, depth2: 6, depth3: 3, n_plain: 3, head_dim2: 16, head_dim3: 24,
        n_query2: 48, n_query3: 48
    }
}
