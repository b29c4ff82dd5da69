//! Qwen3, dense: RMS norms per query and key head, grouped-query attention, and SwiGLU.

arch_macros::arch! {
    name: "qwen3";
    rope: neox;

    tensors {
        token_embd:  embed  "token_embd"  [n_embd, n_vocab];
        output_norm: vector "output_norm" [n_embd];
        output:      linear "output"      [n_embd -> n_vocab] or token_embd;
        cls_output?: linear "cls.output"  [n_embd -> n_labels];

        layer {
            attn_norm: vector "attn_norm"   [n_embd];
            wq:        linear "attn_q"      [n_embd -> n_head * head_dim];
            wk:        linear "attn_k"      [n_embd -> n_head_kv * head_dim];
            wv:        linear "attn_v"      [n_embd -> n_head_kv * head_dim_v];
            q_norm:    vector "attn_q_norm" [head_dim];
            k_norm:    vector "attn_k_norm" [head_dim];
            wo:        linear "attn_output" [n_head * head_dim_v -> n_embd];
            ffn_norm:  vector "ffn_norm"    [n_embd];
            gate:      linear "ffn_gate"    [n_embd -> n_ff];
            up:        linear "ffn_up"      [n_embd -> n_ff];
            down:      linear "ffn_down"    [n_ff -> n_embd];
        }
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            let h = rms_norm(x, attn_norm);
            let q = rope(rms_norm(heads(wq(h), n_head), q_norm));
            let k = rope(rms_norm(heads(wk(h), n_head_kv), k_norm));
            let v = heads(wv(h), n_head_kv);
            x += wo(attention(q, k, v));
            let h = rms_norm(x, ffn_norm);
            x += down(silu(gate(h)) * up(h));
        }
        output(rms_norm(x, output_norm))
    }

    rank { softmax(cls_output(pooled)) }

    checkpoint "Qwen3ForCausalLM" {
        rope_freq_base = "rope_parameters.rope_theta" or "rope_theta" or 1000000.0;
        token_embd <- "model.embed_tokens";
        output_norm <- "model.norm";
        output <- "lm_head";
        without cls_output "the class has no classifier";
        layer {
            attn_norm <- ".input_layernorm";
            wq <- ".self_attn.q_proj";
            wk <- ".self_attn.k_proj";
            wv <- ".self_attn.v_proj";
            wo <- ".self_attn.o_proj";
            q_norm <- ".self_attn.q_norm";
            k_norm <- ".self_attn.k_norm";
            ffn_norm <- ".post_attention_layernorm";
            gate <- ".mlp.gate_proj";
            up <- ".mlp.up_proj";
            down <- ".mlp.down_proj";
        }
    }

    test { n_embd: 256, n_head: 4, n_head_kv: 1, n_layer: 2, n_ff: 384, n_vocab: 128 }
}
