//! First stage of MobileNetV5: edge residuals. The first one has stride 2.

fragment! {
    needs(n_stem: usize, width0: usize, depth0: usize);

    tensors {
        layer first0 "v.blk.0" 1 {
            use edge_block(from = n_stem, width = width0);
        }
        layer stage0 "v.blk.0" depth0 {
            if il > 0 {
                use edge_block(from = width0, width = width0);
            }
        }
    }

    fn after_stage0(x: [n_stem, _]) {
        let y = x;
        for first0 {
            y = edge(y, stride = 2);
        }
        for stage0 {
            if il > 0 {
                y += edge(y);
            }
        }
        y
    }
}
