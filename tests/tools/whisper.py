"""Compares `llama transcribe` with transformers on spoken sentences, token for token, or records a tiny random model.

    pip install numpy torch transformers gguf librosa soundfile; apt install espeak-ng
    python tests/tools/whisper.py DIRECTORY MODEL.gguf LLAMA
    python tests/tools/whisper.py record tests/data/whisper

DIRECTORY has the files of CTranslate2 that `convert_whisper.py` converted to MODEL.gguf; LLAMA is the binary.
"""
import json, os, subprocess, sys, tempfile
import numpy as np, torch, librosa, soundfile
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
import convert_whisper

SENTENCES = [
    'The quick brown fox jumps over the lazy dog.',
    'Please close the window before you leave the office tonight.',
    'Seven hundred and forty two people attended the annual meeting.',
    'My sister bought three apples and a loaf of bread at the market.',
    'The weather in London is often cloudy, but today the sun is shining.',
    'Could you tell me where the nearest train station is?',
    'Computers can now recognize spoken words with surprising accuracy.',
    'He opened the old book and began to read the first chapter aloud.',
    'Our flight to New York has been delayed by two hours.',
    'Remember to save your work, and then restart the machine. I will wait for you outside.',
]


def model(v, head=64):
    """The published implementation with the converted weights, in float32."""
    v = {name: torch.tensor(np.asarray(a, np.float32)) for name, a in v.items() if a.ndim}
    n_vocab, d = v['decoder/embeddings/weight'].shape
    n = {side: len({name.split('/')[1] for name in v if name.startswith(side) and '/layer_' in name and 'layer_norm' not in name.split('/')[1]}) for side in ('encoder', 'decoder')}
    ff = v['encoder/layer_0/ffn/linear_0/bias'].numel()
    ids = dict(pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0)
    config = WhisperConfig(**ids, vocab_size=n_vocab, d_model=d, encoder_layers=n['encoder'], decoder_layers=n['decoder'], encoder_attention_heads=d // head,
                           decoder_attention_heads=d // head, max_source_positions=len(v['encoder/position_encodings/encodings']),
                           max_target_positions=len(v['decoder/position_encodings/encodings']), encoder_ffn_dim=ff, decoder_ffn_dim=ff, num_mel_bins=v['encoder/conv1/weight'].shape[1])
    m = WhisperForConditionalGeneration(config).eval()
    s = {}
    lin = lambda to, of: s.update({f'{to}.weight': v[of + '/weight'], f'{to}.bias': v[of + '/bias']})
    norm = lambda to, of: s.update({f'{to}.weight': v[of + '/gamma'], f'{to}.bias': v[of + '/beta']})
    def fused(to, names, of):
        for i, name in enumerate(names):
            s[f'{to}.{name}.weight'] = v[of + '/weight'].chunk(len(names))[i]
            if name != 'k_proj':
                s[f'{to}.{name}.bias'] = v[of + '/bias'].chunk(len(names))[i]
    for side in ('encoder', 'decoder'):
        norm(f'model.{side}.layer_norm', f'{side}/layer_norm')
        s[f'model.{side}.embed_positions.weight'] = v[f'{side}/position_encodings/encodings']
        for i in range(n[side]):
            a, b = f'{side}/layer_{i}', f'model.{side}.layers.{i}'
            norm(f'{b}.self_attn_layer_norm', f'{a}/self_attention/layer_norm')
            fused(f'{b}.self_attn', ['q_proj', 'k_proj', 'v_proj'], f'{a}/self_attention/linear_0')
            lin(f'{b}.self_attn.out_proj', f'{a}/self_attention/linear_1')
            norm(f'{b}.final_layer_norm', f'{a}/ffn/layer_norm')
            lin(f'{b}.fc1', f'{a}/ffn/linear_0'), lin(f'{b}.fc2', f'{a}/ffn/linear_1')
            if side == 'decoder':
                norm(f'{b}.encoder_attn_layer_norm', f'{a}/attention/layer_norm')
                lin(f'{b}.encoder_attn.q_proj', f'{a}/attention/linear_0')
                fused(f'{b}.encoder_attn', ['k_proj', 'v_proj'], f'{a}/attention/linear_1')
                lin(f'{b}.encoder_attn.out_proj', f'{a}/attention/linear_2')
    lin('model.encoder.conv1', 'encoder/conv1'), lin('model.encoder.conv2', 'encoder/conv2')
    s['model.decoder.embed_tokens.weight'] = s['proj_out.weight'] = v['decoder/embeddings/weight']
    m.load_state_dict(s, strict=True)
    return m


def generation(directory, m):
    j, config = json.load(open(f'{directory}/tokenizer.json')), json.load(open(f'{directory}/config.json'))
    ids = {t['content']: t['id'] for t in j['added_tokens']}
    multilingual = m.config.vocab_size >= 51865
    g = GenerationConfig(bos_token_id=ids['<|endoftext|>'], eos_token_id=ids['<|endoftext|>'], pad_token_id=ids['<|endoftext|>'],
                         decoder_start_token_id=ids['<|startoftranscript|>'], suppress_tokens=config['suppress_ids'],
                         begin_suppress_tokens=config['suppress_ids_begin'], max_length=448, return_timestamps=False)
    g.is_multilingual, g.no_timestamps_token_id, g.max_initial_timestamp_index = multilingual, ids['<|notimestamps|>'], 50
    if multilingual:
        g.lang_to_id = {t: i for t, i in ids.items() if ids['<|startoftranscript|>'] < i < ids['<|translate|>']}
        g.task_to_id = {'transcribe': ids['<|transcribe|>'], 'translate': ids['<|translate|>']}
    m.generation_config = g
    return multilingual


def record(out):
    """Writes `tiny.gguf`, and `tiny.logits`: logits of transformers in float64 for a spectrogram that is a function of
    positions."""
    d, ff, n_mel, n_vocab, n_rows, n_text = 32, 48, 8, 64, 20, 16
    r = np.random.default_rng(7)
    v = {}
    def add(name, *shape, scale=0.25, at=0.0):
        v[name] = np.float32(np.float16(at + r.normal(size=shape) * scale))
    def linear(name, n_in, n_out):
        add(name + '/weight', n_out, n_in), add(name + '/bias', n_out)
    def norm(name):
        add(name + '/gamma', d, at=1.0), add(name + '/beta', d)
    for side in ('encoder', 'decoder'):
        norm(f'{side}/layer_norm')
        for i in range(2):
            a = f'{side}/layer_{i}'
            norm(f'{a}/self_attention/layer_norm'), linear(f'{a}/self_attention/linear_0', d, 3 * d), linear(f'{a}/self_attention/linear_1', d, d)
            v[f'{a}/self_attention/linear_0/bias'][d:2 * d] = 0
            norm(f'{a}/ffn/layer_norm'), linear(f'{a}/ffn/linear_0', d, ff), linear(f'{a}/ffn/linear_1', ff, d)
            if side == 'decoder':
                norm(f'{a}/attention/layer_norm'), linear(f'{a}/attention/linear_0', d, d), linear(f'{a}/attention/linear_1', d, 2 * d)
                linear(f'{a}/attention/linear_2', d, d)
                v[f'{a}/attention/linear_1/bias'][:d] = 0
    add('encoder/conv1/weight', d, n_mel, 3), add('encoder/conv1/bias', d), add('encoder/conv2/weight', d, d, 3), add('encoder/conv2/bias', d)
    add('encoder/position_encodings/encodings', n_rows, d), add('decoder/position_encodings/encodings', n_text, d)
    add('decoder/embeddings/weight', n_vocab, d)
    texts = [chr(33 + i) for i in range(n_vocab)]
    specials = ['<|endoftext|>', '<|startoftranscript|>', '<|translate|>', '<|transcribe|>', '<|startofprev|>', '<|notimestamps|>']
    texts[50:56] = specials
    kinds = [int(convert_whisper.gguf.TokenType.NORMAL if i < 50 else convert_whisper.gguf.TokenType.CONTROL) for i in range(n_vocab)]
    config = dict(suppress_ids=[1], suppress_ids_begin=[2])
    convert_whisper.write(f'{out}/tiny.gguf', convert_whisper.tensors(v), 2, config, (texts, kinds, ['! "']), True)
    m = model(v, head=d // 2).double()
    i = np.arange(2 * n_rows * n_mel)
    mel = ((i * 37 % 101 - 50) / 25).reshape(2 * n_rows, n_mel)
    tokens = [51, 3, 9, 27, 4, 41, 8]
    with torch.no_grad():
        logits = m(input_features=torch.tensor(mel.T[None]), decoder_input_ids=torch.tensor([tokens])).logits[0].numpy()
    open(f'{out}/tiny.logits', 'wb').write(np.asarray(logits, '<f4').tobytes())


def main():
    if sys.argv[1] == 'record':
        return record(sys.argv[2])
    directory, gguf, llama = sys.argv[1:4]
    m = model(convert_whisper.variables(f'{directory}/model.bin'))
    multilingual = generation(directory, m)
    extractor = WhisperFeatureExtractor(feature_size=m.config.num_mel_bins)
    work, equal = tempfile.mkdtemp(), 0
    files = []
    for i, sentence in enumerate(SENTENCES):
        subprocess.run(['espeak-ng', '-v', 'en-us', '-s', '150', '-w', f'{work}/{i}.22k.wav', sentence], check=True)
        x, rate = soundfile.read(f'{work}/{i}.22k.wav', dtype='float32')
        files.append(f'{work}/{i}.wav')
        soundfile.write(files[-1], librosa.resample(x, orig_sr=rate, target_sr=16000), 16000, subtype='PCM_16')
    for timestamps in (False, True):
        options = [] if timestamps else ['--no-timestamps']
        options += ['-l', 'en'] if multilingual else []
        run = subprocess.run([llama, 'transcribe', '-m', gguf, '--precision', 'exact', '--no-context', '--json', *options, *files], capture_output=True, text=True)
        if run.returncode:
            sys.exit(run.stderr)
        lines = [json.loads(line) for line in run.stdout.splitlines()]
        for file, line in zip(files, lines):
            x, _ = soundfile.read(file, dtype='float32')
            features = torch.tensor(extractor._np_extract_fbank_features(np.pad(x, (0, 480000 - len(x)))[None].astype(np.float64), 'cpu'))
            kw = dict(language='en', task='transcribe') if multilingual else {}
            with torch.no_grad():
                out = m.generate(features.float(), return_timestamps=timestamps, **kw)[0].tolist()
            special = m.generation_config.eos_token_id
            notime = m.generation_config.no_timestamps_token_id
            expected = [t for t in out if t < special or t > notime]
            got = [t for s in line['segments'] for t in s['tokens']]
            same = got == expected
            equal += same
            print('same' if same else 'DIFFERENT', json.dumps(line['text']), '' if same else f'{got} {expected}')
    print(f'{equal} of {2 * len(files)} transcripts are equal')
    sys.exit(equal != 2 * len(files))


if __name__ == '__main__':
    main()
