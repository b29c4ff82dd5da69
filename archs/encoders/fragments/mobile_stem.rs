//! Input and output of MobileNetV5, and the sizes of its stages. Files have no keys for these sizes. The input is a
//! convolution over pixels. The outputs of the last two stages are fused, averaged over blocks, and projected to the
//! language model.

fragment! {
    hparams {
        n_out: usize = "projection_dim";
        image_size: usize = "image_size";
        n_side: usize = "projector.side" or 16;
        n_stem: usize = "stem.embedding_length" or file_rows("v.conv_stem.conv.weight");
        width0: usize = "stage0.embedding_length" or file_rows("v.blk.0.0.conv_pwl.weight");
        width1: usize = "stage1.embedding_length" or file_rows("v.blk.1.0.pw_proj.conv.weight");
        width2: usize = "stage2.embedding_length" or file_rows("v.blk.2.0.pw_proj.conv.weight");
        width3: usize = "stage3.embedding_length" or file_rows("v.blk.3.0.pw_proj.conv.weight");
        depth0: usize = "stage0.block_count" or 3;
        depth1: usize = "stage1.block_count" or 5;
        depth2: usize = "stage2.block_count" or 37;
        depth3: usize = "stage3.block_count" or 39;
        n_plain: usize = "stage2.plain_block_count" or 8; // without attention, after the first
        head_dim2: usize = "stage2.key_length" or file_rows("v.blk.2.{}.attn.key.proj.weight");
        head_dim3: usize = "stage3.key_length" or file_rows("v.blk.3.{}.attn.key.proj.weight");
        n_query2: usize = "stage2.query_length" or file_rows("v.blk.2.{}.attn.query.proj.weight");
        n_query3: usize = "stage3.query_length" or file_rows("v.blk.3.{}.attn.query.proj.weight");
        let block = image_size / (16 * n_side);
        let n_fused = width2 + width3;
        check n_side > 0 && image_size > 0 && image_size % (16 * n_side) == 0, "image_size must be a multiple of 16 * projector.side";
        check head_dim2 > 0 && n_query2 % head_dim2 == 0, "stage2.query_length must be a multiple of stage2.key_length";
        check head_dim3 > 0 && n_query3 % head_dim3 == 0, "stage3.query_length must be a multiple of stage3.key_length";
    }

    tensors {
        stem:          linear "v.conv_stem.conv"        [27 -> n_stem];
        stem_norm:     vector "v.conv_stem.bn"          [n_stem];
        fuse_exp:      linear "v.msfa.ffn.pw_exp.conv"  [n_fused -> 2 * n_fused];
        fuse_exp_norm: vector "v.msfa.ffn.pw_exp.bn"    [2 * n_fused];
        fuse_proj:     linear "v.msfa.ffn.pw_proj.conv" [2 * n_fused -> n_embd];
        fuse_norm:     vector "v.msfa.ffn.pw_proj.bn"   [n_embd];
        fused_norm:    vector "v.msfa.norm"             [n_embd];
        soft_emb_norm: vector "mm.soft_emb_norm"        [n_embd];
        proj:          linear "mm.input_projection"     [n_embd -> n_out];
        ignore "mm.embedding", "mm.hard_emb_norm"; // of the vision tokens of the vocabulary
    }

    fn after_stem() {
        gelu(rms_norm(conv_grid(patches, stem, 2, same = true), stem_norm, 0.000001))
    }

    // The finer of these two stages determines the grid.
    fn fused(fine: [width2, _], coarse: [width3, _]) {
        let x = concat(fine, resized_to(coarse, fine, 0, nearest));
        let x = rms_norm(fuse_proj(gelu(rms_norm(fuse_exp(x), fuse_exp_norm, 0.000001))), fuse_norm, 0.000001);
        rms_norm(pool_rows(in_windows(x, block), block * block), fused_norm, 0.000001)
    }

    fn embedded(x: [n_embd, _]) {
        rms_norm(proj(rms_norm(x * sqrt(n_embd), soft_emb_norm, 0.000001)), 0.000001)
    }
}
