"""Published implementation of MERaLiON 2 for `record_audio.py`: the encoder of Whisper in transformers, and the projector of the package
`vllm-plugin-meralion2`."""

import torch

from record_audio import AUDIO, WhisperAndLlama, logits_around, spectrogram
from record_media import LLAMA, TEXT, load, text_config, within


class Meralion(WhisperAndLlama):
    def __init__(self, audio, text):
        super().__init__(audio, text)
        n_mid, n_embd = len(audio.tensors["mm.a.mlp.0.weight"]), audio.key("embedding_length")
        self.ln_speech = torch.nn.LayerNorm(n_embd)
        # The published projector sizes are multiples of the encoder width.
        self.mlp_adapter = torch.nn.Linear(n_embd * self.stack, n_mid)
        self.gate_proj, self.pool_proj = (torch.nn.Linear(n_mid, n_mid) for _ in range(2))
        self.out_proj = torch.nn.Linear(n_mid, text.key("embedding_length"))

    def rows(self, features):
        x = self.ln_speech(self.audio_tower(features).last_hidden_state)
        x = torch.nn.functional.silu(self.mlp_adapter(x.reshape(-1, x.shape[2] * self.stack)))
        return self.out_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.pool_proj(x))


def meralion(audio, text):
    model = Meralion(audio, text).double().eval()
    names = within("audio_tower", AUDIO) | within("language_model.model", TEXT | LLAMA)
    names |= {"ln_speech": "mm.a.norm_pre", "mlp_adapter": "mm.a.mlp.0", "gate_proj": "mm.a.mlp.1", "pool_proj": "mm.a.mlp.2", "out_proj": "mm.a.mlp.3"}
    load(model, names, audio.tensors | text.tensors, text_config(text)["head_dim"])
    n_frames = 2 * audio.key("context_length")
    chunks = spectrogram(audio.key("num_mel_bins"), 2 * n_frames).split(n_frames, dim=1)
    rows = torch.cat([model.rows(chunk[None]) for chunk in chunks])
    tokens, logits = logits_around(model.language_model, rows, model.language_model.get_input_embeddings())
    return rows, tokens, logits


FAMILIES = {"meralion": meralion}
