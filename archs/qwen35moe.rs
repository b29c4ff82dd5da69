//! Qwen3.5 with experts: Qwen3-Next with interleaved multi-axis rotary positions, and value heads assigned to
//! key heads round-robin.

arch_macros::arch! {
    name: "qwen35moe";
    like: "qwen3next";
    rope: imrope;

    hparams {
        let by_key = false;
    }

    graph {
        let x = with_media(token_embd[tokens]);
        for layer {
            let h = rms_norm(x, attn_norm);
            x += if is_recurrent { delta_net(h) } else { attend(h) };
            let h = rms_norm(x, ffn_norm);
            x += if n_expert > 0 { experts(h) } else { ffn(h) };
        }
        output(rms_norm(x, output_norm))
    }

    mtp {
        mtp_logits(layer(mtp_input()))
    }
}
