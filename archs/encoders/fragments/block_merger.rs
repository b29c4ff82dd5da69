//! Merger of blocks: attention within each block of patches, then an MLP of the concatenated patches, added to their
//! mean. Files without these tensors have blocks of one patch.

fragment! {
    hparams {
        scale: usize = "projector.scale_factor" or 4;
        // Index of the layer before the merger.
        merge_layers: [usize; 0..] = "wa_layer_indexes";
        let merge_layer = first(merge_layers);
        let side = scale / 2;
        n_merger_head: usize = "attention.head_count" or 1;
        n_width: usize = "feed_forward_length" or 0;
        let n_mid = n_width * side * side;
        check n_merger_head > 0 && n_embd % n_merger_head == 0, "attention.head_count must divide embedding_length";
        check scale == 2 || scale == 4, "projector.scale_factor must be 2 or 4";
        check merge_layer < n_layer, "wa_layer_indexes must contain the index of a layer";
    }

    tensors {
        merger_ln1?: norm "v.vit_merger.ln1" [n_embd];
        if has(merger_ln1) {
            merger_q:    linear "v.vit_merger.attn_q"      [n_embd -> n_embd];
            merger_k:    linear "v.vit_merger.attn_k"      [n_embd -> n_embd];
            merger_v:    linear "v.vit_merger.attn_v"      [n_embd -> n_embd];
            merger_o:    linear "v.vit_merger.attn_out"    [n_embd -> n_embd];
            merger_ln2:  norm   "v.vit_merger.ds_ln"       [n_embd * side * side];
            merger_up:   linear "v.vit_merger.ds_ffn_up"   [n_embd * side * side -> n_mid];
            merger_down: linear "v.vit_merger.ds_ffn_down" [n_mid -> n_embd];
        }
    }

    fn merged_blocks(x: [n_embd, T]) {
        if has(merger_ln1) {
            let h = layer_norm(x, merger_ln1);
            let q = heads(merger_q(h), n_merger_head);
            let h = block_attention(q, heads(merger_k(h), n_merger_head), heads(merger_v(h), n_merger_head), side * side, side * side);
            let x = group_rows(x + merger_o(h), side * side);
            let h = merger_down(gelu(merger_up(layer_norm(merge(x), merger_ln2))));
            h + sum_heads(x) / (side * side)
        } else {
            sum_heads(group_rows(x, side * side))
        }
    }
}
