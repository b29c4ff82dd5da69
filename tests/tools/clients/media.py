"""Images and audio in the requests of the packages `openai`, `anthropic`, `ollama`, `langchain-openai`, `litellm`, and `ai`."""

import base64
import json
import math
import pathlib
import struct
import subprocess
import urllib.request
import zlib

import packages

from .ai import MODULES
from .langchain import PACKAGES as LANGCHAIN
from .litellm import PACKAGES as LITELLM

# LiteLLM and LangChain choose the version of `openai`.
PACKAGES = [*LITELLM, *LANGCHAIN, "anthropic==2.12.0", "ollama==0.6.3"]
QUESTION = "Describe the file."
MAX_TOKENS = 8


def image():
    """Returns a PNG file of 40 x 30 pixels."""
    rows = b"".join(bytes([0]) + bytes((x * 6 + y * c) % 256 for x in range(40) for c in (1, 3, 5)) for y in range(30))

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", 40, 30, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def audio():
    """Returns a WAV file of half a second."""
    samples = b"".join(struct.pack("<h", int(9000 * math.sin(i * 0.2))) for i in range(4000))
    head = struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVEfmt ", 16, 1, 1, 8000, 16000, 2, 16, b"data", len(samples))
    return head + samples


def check(base):
    with urllib.request.urlopen(f"{base}/props") as response:
        reads = json.load(response)["modalities"]
    assert reads["vision"] != reads["audio"], reads
    if reads["vision"]:
        check_images(base)
    else:
        check_audio(base)
    with urllib.request.urlopen(f"{base}/metrics") as response:
        lines = response.read().decode().splitlines()
    (n_encoded,) = [line.split()[1] for line in lines if line.startswith("llamacpp:media_encoded_total ")]
    assert n_encoded == "1", f"the file was encoded {n_encoded} times"
    print("media, encoded once")


def same(name, texts):
    assert len(set(texts)) == 1 and texts[0], (name, texts)
    print(f"media, {name}: {len(texts)} times {texts[0]!r}")


def check_images(base):
    data = base64.b64encode(image()).decode()
    url = f"data:image/png;base64,{data}"
    part = {"type": "image_url", "image_url": {"url": url}}
    texts = by_openai(base, part, {"type": "input_image", "image_url": url})
    texts += by_ollama(base, image())
    texts += by_anthropic(base, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
    texts += by_langchain(base, {"type": "image", "base64": data, "mime_type": "image/png"})
    for model, path in {"openai/any": "/v1", "hosted_vllm/any": "/v1", "anthropic/any": "", "ollama_chat/any": ""}.items():
        texts += by_litellm(base + path, model, part)
    texts += by_ai(base, "image", "image/png", data)
    same("images", texts)


def check_audio(base):
    data = base64.b64encode(audio()).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    texts = by_openai(base, part, part)
    texts += by_ollama(base, audio())
    texts += by_langchain(base, {"type": "audio", "base64": data, "mime_type": "audio/wav"})
    texts += by_litellm(f"{base}/v1", "openai/any", part)
    texts += by_ai(base, "file", "audio/wav", data)
    same("audio", texts)


def by_openai(base, part, response_part):
    import openai

    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": [part, {"type": "text", "text": QUESTION}]}]
    asked = {"model": "any", "messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**asked, stream=True) if chunk.choices]
    said = [{"role": "user", "content": [response_part, {"type": "input_text", "text": QUESTION}]}]
    response = client.responses.create(model="any", input=said, max_output_tokens=MAX_TOKENS, temperature=0)
    try:
        client.chat.completions.create(**{**asked, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]}]})
        raise AssertionError("the server downloaded an image from another host")
    except openai.BadRequestError as refused:
        assert refused.body["param"] == "messages[0].content", refused
    return [whole, "".join(pieces), response.output_text]


def by_anthropic(base, block):
    import anthropic

    client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)
    messages = [{"role": "user", "content": [block, {"type": "text", "text": QUESTION}]}]
    answer = client.messages.create(model="any", max_tokens=MAX_TOKENS, messages=messages, extra_body={"temperature": 0})
    counted = client.messages.count_tokens(model="any", messages=messages)
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens, (counted, answer.usage)
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [block]}
    turns = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert client.messages.create(model="any", max_tokens=MAX_TOKENS, messages=turns).content[0].text
    return [answer.content[0].text]


def by_ollama(base, file):
    import ollama

    client = ollama.Client(host=base)
    options = {"temperature": 0, "num_predict": MAX_TOKENS}
    messages = [{"role": "user", "content": QUESTION, "images": [file]}]
    chat = client.chat(model="any", messages=messages, options=options)
    generated = client.generate(model="any", prompt=QUESTION, images=[file], options=options)
    return [chat.message.content, generated.response]


def by_langchain(base, block):
    from langchain_core.messages import HumanMessage
    from langchain_openai import ChatOpenAI

    asked = {"base_url": f"{base}/v1", "api_key": "none", "model": "any", "temperature": 0, "max_retries": 0, "max_tokens": MAX_TOKENS}
    # The package translates audio for chat completions only.
    ways = [False, True] if block["type"] == "image" else [False]
    message = HumanMessage([block, {"type": "text", "text": QUESTION}])
    answers = [ChatOpenAI(**asked, use_responses_api=way).invoke([message]) for way in ways]
    return [answer.text if isinstance(answer.text, str) else answer.text() for answer in answers]


def by_litellm(api_base, model, part):
    import litellm

    messages = [{"role": "user", "content": [part, {"type": "text", "text": QUESTION}]}]
    answer = litellm.completion(model=model, api_base=api_base, api_key="none", messages=messages, temperature=0, max_tokens=MAX_TOKENS, num_retries=0)
    return [answer.choices[0].message.content]


def by_ai(base, kind, media_type, data):
    directory = packages.node_modules("clients", MODULES)
    with open(pathlib.Path(__file__).with_suffix(".mjs"), encoding="utf-8") as script:
        command = ["node", "--input-type=module", "-", base, kind, media_type, data, QUESTION, str(MAX_TOKENS)]
        done = subprocess.run(command, stdin=script, cwd=directory, check=True, stdout=subprocess.PIPE)
    return [json.loads(done.stdout)]
