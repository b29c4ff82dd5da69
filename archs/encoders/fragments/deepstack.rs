//! DeepStack (arXiv 2406.04334): some layers of an encoder add features to the first layers of the language model.
//! Their states are concatenated and projected like the rows, with weights of the layer.

fragment! {
    hparams {
        deep: [bool] = "is_deepstack_layers";
    }

    tensors {
        if deep {
            deep_norm: norm   "/v.deepstack.{}.norm" [joined];
            deep_fc1:  linear "/v.deepstack.{}.fc1"  [joined -> joined];
            deep_fc2:  linear "/v.deepstack.{}.fc2"  [joined -> n_out];
        }
    }

    fn deep_features(x: [n_embd, T]) {
        deep_fc2(gelu_erf(deep_fc1(layer_norm(blocks(x), deep_norm))))
    }
}
