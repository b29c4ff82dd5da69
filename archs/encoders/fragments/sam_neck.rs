//! Input and output of SAM, and the sizes of images and tiles. Patches are added to the rows of a square position
//! table. Four convolutions follow the blocks; the last two have a stride of 2.

fragment! {
    options(tile = 640, most = 9);

    hparams {
        n_out: usize = "projection_dim";
        n_sam: usize = "sam.embedding_length";
        n_head_sam: usize = "sam.head_count";
        n_layer_sam: usize = "sam.block_count";
        n_ff_sam: usize = "sam.feed_forward_length" or file_rows("v.sam.blk.0.mlp.lin1.weight");
        n_neck: usize = "sam.neck_length" or file_rows("v.sam.neck.0.weight");
        n_net: usize = "sam.net_length" or file_rows("v.sam.net_2.weight");
        side: usize = "sam.side" or file_rows("v.sam.pos_embd.weight");
        window: usize = "window_size";
        // In files, image_size and patch_size belong to CLIP.
        patch: usize = "sam.patch_size" or 16;
        tile_size: usize = "preproc_tile_size" or tile;
        min_tiles: usize = "preproc_min_tiles" or 2;
        max_tiles: usize = "preproc_max_tiles" or most;
        check n_head_sam > 0 && n_sam % n_head_sam == 0, "sam.embedding_length must be a multiple of sam.head_count";
        check side > 0 && side % 4 == 0, "the side of v.sam.pos_embd must be a multiple of 4";
        check tile_size % (4 * patch) == 0, "the side of tiles must be a multiple of 4 patches";
        check window > 0 && window <= 1024, "window_size must be from 1 to 1024";
    }

    tensors {
        sam_embd:  linear "v.sam.patch_embd" [3 * patch * patch -> n_sam];
        sam_table: vector "v.sam.pos_embd"   [n_sam, side, side];
        neck0:     linear "v.sam.neck.0"     [n_sam -> n_neck];
        neck1:     norm   "v.sam.neck.1"     [n_neck];
        neck2:     linear "v.sam.neck.2"     [9 * n_neck -> n_neck];
        neck3:     norm   "v.sam.neck.3"     [n_neck];
        net2:      linear "v.sam.net_2"      [9 * n_neck -> n_net];
        net3:      linear "v.sam.net_3"      [9 * n_net -> n_embd];
    }

    fn sam_patches() { sam_embd(patches) + resized(sam_table, smooth_bicubic) }

    fn sam_features(x: [n_sam, T]) {
        let x = layer_norm(neck0(x), neck1, 0.000001);
        let x = layer_norm(conv_grid(x, neck2, 1), neck3, 0.000001);
        conv_grid(conv_grid(x, net2, 2), net3, 2)
    }
}
