#!/usr/bin/env python3
"""Compares image encoders with libmtmd of llama.cpp, and with transformers in 64 bits.

    compare_mtmd.py DIRECTORY LLAMA [NAME]...

DIRECTORY is `tests/data/encoders`, and LLAMA the binary `llama`. For each NAME, all three encode an image of noise
with the seeded weights of NAME.header.gguf. The script prints a table row of normalized mean squared errors (NMSE)
against transformers. The columns for `llama` are the number of rows and their NMSE. The columns for libmtmd are the
number of rows, and the positions of the image in the language model. The last columns are the NMSE of the rows and of
the logits afterward. A dash marks different numbers of rows or different tokens.

libmtmd appends the class column to the patches instead of prepending it. NAME:last moves the first row of the position
table to the end for libmtmd, and compares the patches that both return.

libmtmd aborts the process for some files, so each NAME runs in a separate process.

Needs: pip install xllamacpp gguf numpy pillow torch transformers (xllamacpp has the C API of libmtmd).
"""

import ctypes
import importlib.util
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from PIL import Image
from record_media import AFTER, BEFORE, Seeded, computed, image_size, pixels

NAMES = ["gemma3", "idefics3", "qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "pixtral", "lightonocr", "kimivl", "internvl", "internvl:last", "mlp", "mlp:last"]

Pointer = ctypes.c_void_p


class MediaParams(ctypes.Structure):
    _fields_ = [
        ("use_gpu", ctypes.c_bool),
        ("device", Pointer),
        ("print_timings", ctypes.c_bool),
        ("n_threads", ctypes.c_int),
        ("image_marker", ctypes.c_char_p),
        ("media_marker", ctypes.c_char_p),
        ("flash_attn_type", ctypes.c_int),
        ("warmup", ctypes.c_bool),
        ("rest", ctypes.c_char * 512),
    ]


class ContextParams(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch")),
        ("before", ctypes.c_char * 92),
        ("type_k", ctypes.c_int),
        ("type_v", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    ]


class ModelParams(ctypes.Structure):
    _fields_ = [("all", ctypes.c_char * 1024)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), *((name, Pointer) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits"))]


class Text(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("len", ctypes.c_size_t), ("add_special", ctypes.c_bool), ("parse_special", ctypes.c_bool)]


FUNCTIONS = {
    "llama_model_default_params": (ModelParams,),
    "llama_model_load_from_file": (Pointer, ctypes.c_char_p, ModelParams),
    "llama_context_default_params": (ContextParams,),
    "llama_init_from_model": (Pointer, Pointer, ContextParams),
    "llama_batch_get_one": (Batch, Pointer, ctypes.c_int32),
    "llama_decode": (ctypes.c_int32, Pointer, Batch),
    "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), Pointer, ctypes.c_int32),
    "mtmd_context_params_default": (MediaParams,),
    "mtmd_init_from_file": (Pointer, ctypes.c_char_p, Pointer, MediaParams),
    "mtmd_bitmap_init": (Pointer, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p),
    "mtmd_input_chunks_init": (Pointer,),
    "mtmd_input_chunks_size": (ctypes.c_size_t, Pointer),
    "mtmd_input_chunks_get": (Pointer, Pointer, ctypes.c_size_t),
    "mtmd_tokenize": (ctypes.c_int32, Pointer, Pointer, ctypes.POINTER(Text), Pointer, ctypes.c_size_t),
    "mtmd_input_chunk_get_type": (ctypes.c_int, Pointer),
    "mtmd_input_chunk_get_n_tokens": (ctypes.c_size_t, Pointer),
    "mtmd_input_chunk_get_n_pos": (ctypes.c_int32, Pointer),
    "mtmd_encode_chunk": (ctypes.c_int32, Pointer, Pointer),
    "mtmd_get_output_embd": (ctypes.POINTER(ctypes.c_float), Pointer),
    "mtmd_helper_eval_chunk_single": (
        ctypes.c_int32, Pointer, Pointer, Pointer, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_bool, ctypes.POINTER(ctypes.c_int32),
    ),
    "llama_log_set": (None, Pointer, Pointer),
    "mtmd_log_set": (None, Pointer, Pointer),
    "llama_backend_init": (None,),
}  # fmt: skip

SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, Pointer)(lambda *_: None)


def library():
    """The C API. The extension module of xllamacpp exports it."""
    directory = Path(importlib.util.find_spec("xllamacpp").origin).parent
    found = ctypes.CDLL(next(str(path) for path in directory.glob("xllamacpp*.so")))
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    found.llama_backend_init()
    found.llama_log_set(SILENT, None)
    found.mtmd_log_set(SILENT, None)
    return found


# Encoders with SiLU, and encoders with the sigmoid approximation of GELU. libmtmd reads the activation from a key of
# the file.
SILU = ("qwen2.5vl_merger", "pixtral", "lightonocr", "exaone4_5", "dots_ocr", "glm4v")
QUICK = ("mlp", "qwen2vl_merger")

# Keys that libmtmd hard-codes, and images that it does not enlarge.
KEYS = {"qwen2.5vl_merger": {"clip.vision.window_size": 112}}
IMAGES = {"qwen2.5vl_merger": (240, 144), "lightonocr": (144, 80)}


def vocabulary(n):
    """One token per printable character, so that any text around an image can be tokenized."""
    tokens = ["<unk>", "<s>", "</s>", "\n", "\u2581", *map(chr, range(33, 127))]
    return tokens + [f"<{i}>" for i in range(len(tokens), n)]


def write_model(header, path, moved=False):
    """Writes a GGUF file with the keys of a header and seeded weights."""
    writer = gguf.GGUFWriter(path, header.keys["general.architecture"])
    keys = dict(header.keys)
    if keys["general.architecture"] == "clip":
        kind = keys["clip.projector_type"]
        keys |= {"clip.use_gelu": kind not in SILU + QUICK, "clip.use_silu": kind in SILU}
        # Declarations have defaults for these keys.
        size = keys.get("clip.vision.image_size") or 16 * keys["clip.vision.patch_size"]
        keys |= {"clip.vision.image_size": size, "clip.vision.preproc_image_size": size}
        if kind == "mlp":
            keys["clip.vision.feature_layer"] = [keys["clip.vision.block_count"]]
    else:
        tokens = vocabulary(len(keys["tokenizer.ggml.tokens"]))
        keys |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.0] * len(tokens)}
        keys |= {"tokenizer.ggml.token_type": [3 if i < 3 else 1 for i in range(len(tokens))]}
    for key, value in keys.items():
        if key == "general.architecture":
            continue
        add(writer, key, value)
    for name, array in for_peer(header, moved).items():
        # llama.cpp's files store patch embeddings as convolutions.
        if name.startswith("v.patch_embd.weight"):
            side = round((array.shape[1] / 3) ** 0.5)
            array = array.reshape(-1, 3, side, side)
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def for_peer(header, moved):
    """Returns the tensors as libmtmd requires them: concatenated query, key, and value matrices, and a row after
    each row of patches."""
    tensors = dict(header.tensors)
    kind = header.keys.get("clip.projector_type")
    if moved:
        tensors["v.position_embd.weight"] = np.roll(tensors["v.position_embd.weight"], -1, axis=0)
    if kind == "pixtral":
        tensors["v.token_embd.img_break"] = np.zeros(header.key("projection_dim"))
    if kind == "qwen3vl_merger":
        for il in range(header.key("block_count")):
            for suffix in ("weight", "bias"):
                parts = [tensors.pop(f"v.blk.{il}.attn_{part}.{suffix}") for part in "qkv"]
                tensors[f"v.blk.{il}.attn_qkv.{suffix}"] = np.concatenate(parts)
    return tensors


def add(writer, key, value):
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    kinds[type(value)](key, value)


def read(path):
    """Returns the values of a rows file."""
    data = path.read_bytes()
    n, width = struct.unpack_from("<II", data)
    return np.frombuffer(data, "<f4", n * width, 8 + 4 * n).reshape(n, width).astype(np.float64)


def nmse(found, expected):
    if found.shape != expected.shape:
        return "-"
    return f"{((found - expected) ** 2).sum() / (expected**2).sum():.1e}"


class Peer:
    """libmtmd with an encoder and a language model."""

    def __init__(self, encoder, text):
        self.lib = library()
        self.model = self.lib.llama_model_load_from_file(str(text).encode(), self.lib.llama_model_default_params())
        if not self.model:
            sys.exit(f"{text}: not loaded")
        params = self.lib.mtmd_context_params_default()
        params.use_gpu, params.warmup, params.n_threads = False, False, 2
        self.media = self.lib.mtmd_init_from_file(str(encoder).encode(), self.model, params)
        if not self.media:
            sys.exit(f"{encoder}: not loaded")

    def chunks(self, image):
        """Returns the parts of the prompt that are rows of an image."""
        height, width, _ = image.shape
        bitmap = self.lib.mtmd_bitmap_init(width, height, image.tobytes())
        text, chunks = Text(b"<__media__>", 11, False, True), self.lib.mtmd_input_chunks_init()
        if self.lib.mtmd_tokenize(self.media, chunks, ctypes.byref(text), (Pointer * 1)(bitmap), 1):
            sys.exit("the image has no tokens")
        every = [self.lib.mtmd_input_chunks_get(chunks, i) for i in range(self.lib.mtmd_input_chunks_size(chunks))]
        return [chunk for chunk in every if self.lib.mtmd_input_chunk_get_type(chunk)]

    def rows(self, chunk, width):
        n = self.lib.mtmd_input_chunk_get_n_tokens(chunk)
        if self.lib.mtmd_encode_chunk(self.media, chunk):
            sys.exit("the image is not encoded")
        return np.ctypeslib.as_array(self.lib.mtmd_get_output_embd(self.media), (n, width)).astype(np.float64)

    def logits(self, chunk, tokens, n_vocab):
        """Returns the logits of the tokens after the image. The cache is in f32."""
        params = self.lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.type_k, params.type_v = 256, 256, 256, 0, 0
        context = self.lib.llama_init_from_model(self.model, params)

        def decode(ids, at):
            array, places = ((ctypes.c_int32 * len(ids))(*numbers) for numbers in (ids, range(at, at + len(ids))))
            batch = self.lib.llama_batch_get_one(array, len(ids))
            batch.pos = ctypes.cast(places, Pointer)
            if self.lib.llama_decode(context, batch):
                sys.exit("tokens are not decoded")

        decode(tokens[:BEFORE], 0)
        past = ctypes.c_int32()
        if self.lib.mtmd_helper_eval_chunk_single(self.media, context, chunk, BEFORE, 0, 256, False, ctypes.byref(past)):
            sys.exit("rows are not decoded")
        found = []
        for i, token in enumerate(tokens[-AFTER:]):
            decode([token], past.value + i)
            found.append(np.ctypeslib.as_array(self.lib.llama_get_logits_ith(context, -1), (n_vocab,)).astype(np.float64))
        return np.stack(found)


def compare(directory, llama, name):
    title = name
    name, _, moved = name.partition(":")
    vision, text = (Seeded(directory / f"{name}{kind}.header.gguf") for kind in ("", "-text"))
    vision.keys |= KEYS.get(name, {})
    image = pixels(*IMAGES.get(name) or image_size(vision, name))
    with tempfile.TemporaryDirectory() as directory:
        encoder, model, picture, rows = (Path(directory) / part for part in ("mmproj.gguf", "text.gguf", "image.png", "rows"))
        write_model(vision, encoder)
        write_model(text, model)
        expected, tokens, logits = computed(vision, text, name, image)
        Image.fromarray(image).save(picture)
        subprocess.run([llama, "encode", picture, "--mmproj", encoder, "-o", rows], check=True, capture_output=True)
        ours = read(rows)
        print(f"| {title} | {len(ours)} | {nmse(ours, expected)}", end="", flush=True)
        write_model(vision, encoder, moved)
        peer = Peer(encoder, model)
        # The last part is the whole image.
        chunk = peer.chunks(image)[-1]
        theirs, n_pos = peer.rows(chunk, expected.shape[1]), peer.lib.mtmd_input_chunk_get_n_pos(chunk)
        if name == "pixtral":
            columns = image.shape[1] // vision.key("patch_size") // vision.key("spatial_merge_size")
            theirs = theirs[[i for i in range(len(theirs)) if (i + 1) % (columns + 1)]]
        if name == "mlp" and moved:
            # libmtmd returns the class column instead of the first patch.
            theirs, expected = theirs[:-1], expected[1:]
        print(f" | {len(theirs)} | {n_pos} | {nmse(theirs, expected)}", end="", flush=True)
        if name == "pixtral" or moved:
            print(" | - |", flush=True)
            return
        behind = peer.logits(chunk, tokens, logits.shape[1])
        print(f" | {nmse(behind, logits[-AFTER:])} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    if len(sys.argv) == 4:
        compare(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
        sys.exit()
    print("| encoder | rows | NMSE | libmtmd: rows | positions | NMSE | logits |\n|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for name in sys.argv[3:] or NAMES:
        done = subprocess.run([sys.executable, __file__, *sys.argv[1:3], name], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(f" | failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}", flush=True)
