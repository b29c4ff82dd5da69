#!/usr/bin/env bash
# Seeds and records the models of ../data/recorded that transformers computes, with all biases of the published models.
#
#     record_published.sh LLAMA DIR [NAME]...
#
# LLAMA is the binary. DIR/NAME-transformers.header.gguf and .logits are the files of the recordings. PYTHON is an
# interpreter with the packages that record_transformers.py needs [default: python3].
set -euo pipefail
tools=$(cd "$(dirname "$0")" && pwd)
llama=$1 directory=$2
chosen=("${@:3}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# record NAME ARCHITECTURE OPTIONS_OF_SEED TYPE [NAME_OF_RECORD]...: names are PARAMETER=TENSOR, settings KEY:=VALUE.
record() {
    local name=$1 arch=$2 seed=$3 type=$4 arguments=() argument
    shift 4
    if ((${#chosen[@]})) && [[ " ${chosen[*]} " != *" $name "* ]]; then
        return
    fi
    for argument in "$@"; do
        case $argument in
        --*) arguments+=("$argument") ;;
        *:=*) arguments+=(--set "${argument/:=/=}") ;;
        *=*) arguments+=(--name "$argument") ;;
        *) arguments+=("$argument") ;;
        esac
    done
    # shellcheck disable=SC2086
    "$llama" arch seed "$arch" -o "$work" $seed
    "${PYTHON:-python3}" "$tools/record_transformers.py" "$work/$arch.gguf" "$type" --llama "$llama" "${arguments[@]}"
    mv "$work/$arch.header.gguf" "$directory/$name-transformers.header.gguf"
    mv "$work/$arch.logits" "$directory/$name-transformers.logits"
}

attention=attn_q,attn_k,attn_v,attn_output
layer='model.layers.{}'
record qwen3 qwen3 '' qwen3
record qwen3moe qwen3moe --bare qwen3_moe

t=transformer h='transformer.h.{}'
record gptj gptj '--bias output,attn_norm,output_norm,ffn_up,ffn_down' gptj rotary_dim:=16 n_inner:=192 \
    $t.wte=token_embd $t.ln_f=output_norm "$h.ln_1=blk.{}.attn_norm" "$h.attn.q_proj=blk.{}.attn_q" "$h.attn.k_proj=blk.{}.attn_k" \
    "$h.attn.v_proj=blk.{}.attn_v" "$h.attn.out_proj=blk.{}.attn_output" "$h.mlp.fc_in=blk.{}.ffn_up" "$h.mlp.fc_out=blk.{}.ffn_down"
a="$h.attn.attention"
record gptneo gptneo '--bias attn_norm,ffn_norm,output_norm,attn_output,ffn_up,ffn_down' gpt_neo num_layers:=2 num_heads:=4 window_size:=32 \
    'attention_types:=[[["global","local"],1]]' $t.wte=token_embd $t.wpe=position_embd $t.ln_f=output_norm "$h.ln_1=blk.{}.attn_norm" \
    "$h.ln_2=blk.{}.ffn_norm" "$a.q_proj=blk.{}.attn_q" "$a.k_proj=blk.{}.attn_k" "$a.v_proj=blk.{}.attn_v" "$a.out_proj=blk.{}.attn_output" \
    "$h.mlp.c_fc=blk.{}.ffn_up" "$h.mlp.c_proj=blk.{}.ffn_down"

d=model.decoder l='model.decoder.layers.{}'
opt=(opt ffn_dim:=192 word_embed_proj_dim:=64 $d.embed_tokens=token_embd $d.embed_positions=position_embd $d.project_in=token_embd_in
    $d.project_out=token_embd_out $d.final_layer_norm=output_norm "$l.self_attn.q_proj=blk.{}.attn_q" "$l.self_attn.k_proj=blk.{}.attn_k"
    "$l.self_attn.v_proj=blk.{}.attn_v" "$l.self_attn.out_proj=blk.{}.attn_output" "$l.self_attn_layer_norm=blk.{}.attn_norm"
    "$l.final_layer_norm=blk.{}.ffn_norm" "$l.fc1=blk.{}.ffn_up" "$l.fc2=blk.{}.ffn_down")
record opt opt "--bias attn_norm,ffn_norm,output_norm,$attention,ffn_up,ffn_down" "${opt[@]}" do_layer_norm_before:=true
record opt-after opt "--bare --bias attn_norm,ffn_norm,$attention,ffn_up,ffn_down" "${opt[@]}" do_layer_norm_before:=false

e=embeddings l='encoder.layer.{}'
record mpnet mpnet "--bias token_embd_norm,attn_output_norm,layer_output_norm,$attention,ffn_up,ffn_down,cls" mpnet --without-token 1 \
    max_position_embeddings:=258 $e.word_embeddings=token_embd $e.position_embeddings=position_embd $e.LayerNorm=token_embd_norm \
    encoder.relative_attention_bias=blk.0.attn_rel_b pooler.dense=cls "$l.attention.attn.q=blk.{}.attn_q" "$l.attention.attn.k=blk.{}.attn_k" \
    "$l.attention.attn.v=blk.{}.attn_v" "$l.attention.attn.o=blk.{}.attn_output" "$l.attention.LayerNorm=blk.{}.attn_output_norm" \
    "$l.intermediate.dense=blk.{}.ffn_up" "$l.output.dense=blk.{}.ffn_down" "$l.output.LayerNorm=blk.{}.layer_output_norm"

record vaultgemma vaultgemma "--bias $attention" vaultgemma query_pre_attn_scalar:=32 attn_logit_softcapping:=50.0 final_logit_softcapping:=30.0 \
    "model.norm=output_norm|minus-one" "$layer.input_layernorm=blk.{}.attn_norm|minus-one" \
    "$layer.pre_feedforward_layernorm=blk.{}.ffn_norm|minus-one"
record nanochat nanochat "--bias $attention" nanochat final_logit_softcapping:=15.0 "$layer.mlp.fc1=blk.{}.ffn_up" "$layer.mlp.fc2=blk.{}.ffn_down"
x="$layer.self_attn.lambda"
record diffllama diffllama "--bias $attention" diffllama "${x}_q1=blk.{}.attn_lambda_q1.weight" "${x}_k1=blk.{}.attn_lambda_k1.weight" \
    "${x}_q2=blk.{}.attn_lambda_q2.weight" "${x}_k2=blk.{}.attn_lambda_k2.weight"
record flexolmo flexolmo "--bias $attention" flex_olmo "$layer.post_attention_layernorm=blk.{}.post_attention_norm" \
    "$layer.post_feedforward_layernorm=blk.{}.post_ffw_norm"

mla=(num_key_value_heads:=2 head_dim:=16 qk_rope_head_dim:=16 qk_nope_head_dim:=32 v_head_dim:=32 kv_lora_rank:=64 q_lora_rank:=48)
# latent MODULE LAYER: names of latent attention.
latent() {
    names=("$1.q_a_proj=$2.attn_q_a" "$1.q_a_layernorm=$2.attn_q_a_norm" "$1.q_b_proj=$2.attn_q_b" "$1.kv_a_proj_with_mqa=$2.attn_kv_a_mqa"
        "$1.kv_a_layernorm=$2.attn_kv_a_norm" "$1.kv_b_proj=$2.attn_k_b|transpose,$2.attn_v_b" "$1.o_proj=$2.attn_output")
}
latent "$layer.self_attn" 'blk.{}'
s="$layer.mlp.shared_experts"
record axk1 axk1 '--bias attn_q_a,attn_kv_a_mqa,attn_output' axk1 "${mla[@]}" n_routed_experts:=8 num_experts_per_tok:=3 moe_intermediate_size:=64 \
    n_shared_experts:=1 n_group:=4 topk_group:=2 routed_scaling_factor:=2.5 norm_topk_prob:=true 'mlp_layer_types:=["dense","sparse"]' "${names[@]}" \
    "$layer.mlp.gate.e_score_correction_bias=blk.{}.exp_probs_b.bias" "$s.gate_proj=blk.{}.ffn_gate_shexp" "$s.up_proj=blk.{}.ffn_up_shexp" \
    "$s.down_proj=blk.{}.ffn_down_shexp" "$layer.mlp.post_mlp_layernorm=blk.{}.post_ffw_norm"

# A published layer has two blocks, 0 and 1, and experts in the first.
b='blk.{2*i+j}' first='blk.{2*i}'
latent "$layer.self_attn.{}" "$b"
record longcat-flash longcat-flash '--bias attn_q_a,attn_kv_a_mqa,attn_output' longcat_flash "${mla[@]}" num_layers:=2 n_routed_experts:=6 \
    zero_expert_num:=3 moe_topk:=3 expert_ffn_hidden_size:=64 ffn_hidden_size:=192 routed_scaling_factor:=6.0 "${names[@]}" \
    "$layer.mlps.{}.gate_proj=$b.ffn_gate" "$layer.mlps.{}.up_proj=$b.ffn_up" "$layer.mlps.{}.down_proj=$b.ffn_down" \
    "$layer.input_layernorm.{}=$b.attn_norm" "$layer.post_attention_layernorm.{}=$b.ffn_norm" "$layer.mlp.router.classifier=$first.ffn_gate_inp" \
    "$layer.mlp.router.e_score_correction_bias=$first.exp_probs_b.bias" \
    "$layer.mlp.experts.gate_up_proj=$first.ffn_gate_exps|pad,$first.ffn_up_exps|pad" "$layer.mlp.experts.down_proj=$first.ffn_down_exps"

m="$layer.mlp_block" r="$layer.temporal_block"
record recurrentgemma recurrentgemma "--bias ssm_in,ssm_gate,ssm_out,$attention,ffn_gate,ffn_up,ffn_down" recurrent_gemma \
    'block_types:=["recurrent","attention"]' attention_window_size:=32 lru_width:=192 intermediate_size:=384 conv1d_width:=4 logits_soft_cap:=30.0 \
    'rope_parameters:={"rope_type":"default","rope_theta":10000.0,"partial_rotary_factor":0.5}' "model.final_norm=output_norm|minus-one" \
    "$layer.temporal_pre_norm=blk.{}.attn_norm|minus-one" "$layer.channel_pre_norm=blk.{}.ffn_norm|minus-one" "$m.gate_proj=blk.{}.ffn_gate" \
    "$m.up_proj=blk.{}.ffn_up" "$m.down_proj=blk.{}.ffn_down" "$r.q_proj=blk.{}.attn_q" "$r.k_proj=blk.{}.attn_k" "$r.v_proj=blk.{}.attn_v" \
    "$r.o_proj=blk.{}.attn_output" "$r.linear_x=blk.{}.ssm_in" "$r.linear_y=blk.{}.ssm_gate" "$r.linear_out=blk.{}.ssm_out" \
    "$r.conv_1d=blk.{}.ssm_conv1d" "$r.rg_lru.recurrent_param=blk.{}.ssm_decay" \
    "$r.rg_lru.input_gate_weight=blk.{}.ssm_input_gate.weight|transpose" "$r.rg_lru.input_gate_bias=blk.{}.ssm_input_gate.bias" \
    "$r.rg_lru.recurrent_gate_weight=blk.{}.ssm_decay_gate.weight|transpose" "$r.rg_lru.recurrent_gate_bias=blk.{}.ssm_decay_gate.bias"
