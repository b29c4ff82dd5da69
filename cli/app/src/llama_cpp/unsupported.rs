//! llama.cpp options (release b11434) that are not supported, by reason.

use super::UnsupportedOptions;

const fn no(names: &'static [&'static str], why: &'static str) -> UnsupportedOptions {
    UnsupportedOptions { names, why }
}

/// Each entry: options with their spellings, and the reason.
#[rustfmt::skip]
pub const UNSUPPORTED: &[UnsupportedOptions] = &[
    no(&["--server-base"], "`llama run` loads the model itself instead of using a server"),
    no(&[
        "-C --cpu-mask", "-Cr --cpu-range", "--cpu-strict", "-Cb --cpu-mask-batch", "-Crb --cpu-range-batch",
        "--cpu-strict-batch", "--spec-draft-cpu-mask -Cd --cpu-mask-draft",
        "--spec-draft-cpu-range -Crd --cpu-range-draft", "--spec-draft-cpu-strict --cpu-strict-draft",
        "--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft",
        "--spec-draft-cpu-range-batch -Crbd --cpu-range-batch-draft",
        "--spec-draft-cpu-strict-batch --cpu-strict-batch-draft",
    ], "the OS schedules threads; use `taskset` to select cores"),
    no(&[
        "--prio", "--prio-batch", "--spec-draft-prio --prio-draft", "--spec-draft-prio-batch --prio-batch-draft",
    ], "use `nice` to change the process priority"),
    no(&[
        "--poll", "--poll-batch", "--spec-draft-poll --poll-draft", "--spec-draft-poll-batch --poll-batch-draft",
    ], "idle threads choose their polling time automatically"),
    no(&[
        "-lcs --lookup-cache-static", "-lcd --lookup-cache-dynamic",
    ], "--lookup-file takes a plain text file, not an n-gram cache"),
    no(&[
        "--kv-unified-per-slot", "-cms --checkpoint-min-step", "--cache-idle-slots", "--no-cache-idle-slots",
        "--mtmd-batch-max-tokens", "--reuse-port", "--cors-methods", "--cors-headers", "--cors-credentials",
        "--no-cors-credentials", "--ui-config --webui-config", "--ui-config-file --webui-config-file",
        "--ui-mcp-proxy --webui-mcp-proxy", "--no-ui-mcp-proxy --no-webui-mcp-proxy", "--tools", "--tools-runtime",
        "--mcp-servers-config", "--mcp-servers-json", "-ag --agent", "-no-ag --no-agent", "--rerank --reranking",
        "--sse-ping-interval", "--no-cache-prompt", "--prefill-assistant", "--no-prefill-assistant",
    ], "no equivalent in `llama serve`"),
    no(&["--swa-full"], "sliding-window layers cache only their window; --state-checkpoints extends it"),
    no(&["-ctxcp --ctx-checkpoints --swa-checkpoints"], "use --state-checkpoints"),
    no(&["-cram --cache-ram"], "the cache of the conversation is never evicted"),
    no(&[
        "--ppl-stride", "--ppl-output-type", "--ppl", "--no-ppl",
    ], "`llama perplexity` scores the second half of each chunk"),
    no(&[
        "--save-frequency", "--nextn", "--show-statistics", "--parse-special",
    ], "`llama imatrix` writes one file, and --show prints its tensors"),
    no(&["-ptc --print-token-count"], "the statistics line shows token counts"),
    no(&["-mli --multiline-input"], "enclose multi-line input in \"\"\", or end lines with \\"),
    no(&[
        "--in-prefix-bos", "--in-prefix", "--in-suffix",
    ], "message prefixes come from the chat template; use --chat-template to replace it"),
    no(&[
        "-bs --backend-sampling", "--spec-draft-backend-sampling",
    ], "sampling always runs on the CPU, where its cost is negligible"),
    no(&["--attention"], "the model file defines the attention mask"),
    no(&[
        "-gan --grp-attn-n", "-gaw --grp-attn-w",
    ], "group attention is not implemented; use --rope-scale or --rope-scaling yarn"),
    no(&["--no-host"], "each backend chooses the memory of its weights"),
    no(&[
        "-ns --sequences", "--junk", "--pos", "-pps", "-tgs", "-npp", "-ntg", "-npl",
    ], "use `llama bench` with -p, -n, -d and -np"),
    no(&[
        "-mmu --mmproj-url", "--mmproj-auto", "--mmproj-offload", "--no-mmproj-offload",
        "--video", "--video-fps",
        "--video-timestamp-interval", "--video-ffmpeg-dir", "--tts-lang", "--tts-speaker-file",
    ], "not supported with --mmproj"),
    no(&["--rpc"], "remote devices are not supported"),
    no(&["-lzm --lazy-mode"], "mapped pages are always read on first use"),
    no(&["-fitp --fit-print"], "use `llama inspect --plan`"),
    no(&["-dr --docker-repo"], "use -hf, -mu or -m"),
    no(&["--dflash", "--eagle3"], "use `llama pull`, which downloads all files of a model"),
    no(&["--context-file", "--chunk-size", "--chunk-separator"], "use `llama embed --rerank`"),
    no(&["--output-format"], "use `llama bench -o`"),
    no(&["--stdin"], "`llama tokenize` reads standard input if no text is given"),
    no(&["--show-count"], "`llama tokenize` prints the token count"),
    no(&["--cls-separator"], "`llama embed --rerank` takes the query and each document as separate arguments"),
    no(&["--no-jinja"], "chat templates are always rendered with Jinja"),
    no(&[
        "--reasoning-format",
    ], "`llama run` detects reasoning by the template's tags; use --hide-reasoning to hide it"),
    no(&["--log-prompts-dir"], "use --verbose-prompt and --log-file"),
    no(&[
        "--spec-draft-threads -td --threads-draft", "--spec-draft-threads-batch -tbd --threads-batch-draft",
    ], "the draft model uses the threads of the target model"),
    no(&[
        "--spec-draft-type-k -ctkd --cache-type-k-draft", "--spec-draft-type-v -ctvd --cache-type-v-draft",
    ], "the draft model uses the cache types of the target model"),
    no(&[
        "--spec-draft-override-tensor -otd --override-tensor-draft", "--spec-draft-cpu-moe -cmoed --cpu-moe-draft",
        "--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft",
    ], "use --device-draft and --n-gpu-layers-draft"),
    no(&[
        "--spec-draft-n-min", "--spec-draft-p-split --draft-p-split", "--spec-draft-p-min --draft-p-min",
    ], "the draft length adapts to measured cost and acceptance rate"),
    no(&["--spec-synth-len", "--spec-synth-rates"], "synthetic drafts are not implemented"),
    no(&["--spec-draft-sampling"], "drafts are always verified with the sampler chain"),
    no(&[
        "--spec-ngram-mod-n-min", "--spec-ngram-mod-n-max", "--spec-ngram-mod-n-match", "--spec-ngram-simple-size-n",
        "--spec-ngram-simple-size-m", "--spec-ngram-simple-min-hits", "--spec-ngram-map-k-size-n",
        "--spec-ngram-map-k-size-m", "--spec-ngram-map-k-min-hits", "--spec-ngram-map-k4v-size-n",
        "--spec-ngram-map-k4v-size-m", "--spec-ngram-map-k4v-min-hits", "--spec-ngram-size-n", "--spec-ngram-size-m",
        "--spec-ngram-min-hits",
    ], "--prompt-lookup always uses the longest matching n-gram"),
    no(&["--draft-min --draft-n-min"], "removed from llama.cpp; the draft length adapts automatically"),
    no(&[
        "--diffusion-steps", "--diffusion-visual", "--diffusion-eps", "--diffusion-algorithm", "--diffusion-alg-temp",
        "--diffusion-block-length", "--diffusion-cfg-scale", "--diffusion-add-gumbel-noise",
    ], "diffusion decoding is not implemented"),
    no(&[
        "-lr --learning-rate", "-lr-min --learning-rate-min", "-decay-epochs --learning-rate-decay-epochs",
        "-wd --weight-decay", "-val-split --val-split", "-epochs --epochs", "-opt --optimizer",
    ], "training is not implemented"),
    no(&["--check"], "use `llama arch check` to compare logits"),
    no(&["--save-logits", "--logits-output-dir", "--tensor-filter"], "use `llama logits`"),
    no(&[
        "--vision-gemma-4b-default", "--vision-gemma-12b-default",
    ], "only text models are supported; use -hf to select a model"),
];
