//! Nemotron H: each layer is either a Mamba 2 mixer, attention without positions, or a feed-forward network
//! of squared ReLUs. Feed-forward layers may use experts in a narrower latent space.

arch_macros::arch! {
    name: "nemotron_h";
    like: "mamba2";

    hparams {
        rms_norm_eps: f32 = "attention.layer_norm_rms_epsilon" or layer_norm_eps;
        exp_len: [usize] = "expert_feed_forward_length" or 0;
        n_ff_shexp: usize = "expert_shared_feed_forward_length" or 0;
        latent_len: usize = "moe_latent_size" or 0;
        norm_weights: bool = "expert_weights_norm" or false;
        weights_scale: f32 = "expert_weights_scale" or 0.0;
        let n_latent = if latent_len > 0 { latent_len } else { n_embd };
        let n_ff_exp = if exp_len > 0 { exp_len } else { n_ff / n_expert_used };
        let recurrent = n_head_kv == 0 && n_ff == 0;
        let attends = n_head_kv > 0 && n_ff == 0;
    }

    tensors {
        layer {
            if recurrent {
                use mamba2_mixer;
            } else if attends {
                use self_attention;
            } else if n_expert == 0 {
                use plain_ffn;
            } else {
                router:       linear  "ffn_gate_inp"     [n_embd -> n_expert];
                probs_bias:   raw     "exp_probs_b.bias" [n_expert];
                latent_down?: linear  "ffn_latent_down"  [n_embd -> n_latent];
                latent_up?:   linear  "ffn_latent_up"    [n_latent -> n_embd];
                up_exps:      experts "ffn_up_exps"      [n_latent -> n_ff_exp; n_expert];
                down_exps:    experts "ffn_down_exps"    [n_ff_exp -> n_latent; n_expert];
                up_shexp:     linear  "ffn_up_shexp"     [n_embd -> n_ff_shexp];
                down_shexp:   linear  "ffn_down_shexp"   [n_ff_shexp -> n_embd];
            }
        }
    }

    fn narrow_experts(h) {
        let narrow = if has(latent_down) { latent_down(h) } else { h[..n_latent] };
        let y = moe(narrow, router = router(h), up = up_exps, down = down_exps, act = relu_sqr, gating = sigmoid,
                    n_used = n_expert_used, norm_weights = norm_weights, scale = weights_scale, selection_bias = probs_bias);
        if has(latent_up) { latent_up(y) } else { y[..n_embd] }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            let h = rms_norm(x, attn_norm);
            x += if recurrent {
                mixer(h)
            } else if attends {
                attend(h, rotated = false)
            } else if n_expert == 0 {
                ffn(h, act = relu_sqr)
            } else {
                narrow_experts(h) + down_shexp(relu_sqr(up_shexp(h)))
            };
        }
        output(rms_norm(x, output_norm))
    }

    test {
        n_embd: 256, n_head: 2, n_layer: 3, n_ff: 384, n_vocab: 128, d_conv: 4, d_inner: 512, d_state: 128, n_ssm: 2,
        n_group: 2
    }
}
