"""lm-eval with local-completions and local-chat-completions, on a small local task without downloads."""

import json
import pathlib
import tempfile

# The API variant of the package, without PyTorch.
PACKAGES = ["lm-eval[api]==0.4.13"]
CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima"}


def check(base):
    with tempfile.TemporaryDirectory() as directory:
        tasks = write_tasks(pathlib.Path(directory))
        limits = {"model": "any", "max_retries": 1, "num_concurrent": 2}
        # `remote` uses the tokenizer of the server.
        texts = {**limits, "base_url": f"{base}/v1/completions", "tokenizer_backend": "remote"}
        found = evaluate("local-completions", texts, tasks, ["capitals_choice", "capitals_text"])
        assert found["capitals_choice"]["acc,none"] > 0.8 and found["capitals_text"]["exact_match,none"] > 0.5, found
        as_texts = evaluate("local-completions", {**texts, "tokenized_requests": False}, tasks, ["capitals_text"])
        assert as_texts["capitals_text"] == found["capitals_text"], (as_texts, found)
        perplexity = evaluate("local-completions", texts, tasks, ["capitals_rolling"])["capitals_rolling"]["word_perplexity,none"]
        assert 1 < perplexity < 1000, perplexity
        chats = {**limits, "base_url": f"{base}/v1/chat/completions"}
        chat = evaluate("local-chat-completions", chats, tasks, ["capitals_chat"], apply_chat_template=True)
        assert chat["capitals_chat"]["exact_match,none"] > 0.5, chat
        print("lm_eval, choices, texts, perplexity, chats:", found, perplexity, chat)


def write_tasks(directory):
    documents = [{"country": country, "city": city} for country, city in CAPITALS.items()]
    (directory / "capitals.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(directory / "capitals.jsonl")}}, "test_split": "test"}
    generation = {
        "output_type": "generate_until",
        "doc_to_target": "{{city}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 20, "temperature": 0},
        "filter_list": [{"name": "none", "filter": [{"function": "regex", "regex_pattern": "is ([A-Z][a-z]+)"}, {"function": "take_first"}]}],
        "metric_list": [{"metric": "exact_match"}],
    }
    begun = {"filter_list": [{"name": "none", "filter": [{"function": "regex", "regex_pattern": "([A-Z][a-z]+)"}, {"function": "take_first"}]}]}
    asked = "The capital of {{country}} is"
    tasks = {
        "capitals_choice": {
            "output_type": "multiple_choice",
            "doc_to_text": asked,
            "doc_to_choice": list(CAPITALS.values()),
            "doc_to_target": "{{city}}",
            "metric_list": [{"metric": "acc"}],
        },
        "capitals_text": {**generation, **begun, "doc_to_text": asked},
        "capitals_chat": {**generation, "doc_to_text": "What is the capital of {{country}}?"},
        "capitals_rolling": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": f"{asked} {{{{city}}}}.",
            "metric_list": [{"metric": "word_perplexity"}],
        },
    }
    return [{"task": name, **data, **task} for name, task in tasks.items()]


def evaluate(model, arguments, tasks, names, **more):
    import lm_eval

    chosen = [task for task in tasks if task["task"] in names]
    return lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=chosen, bootstrap_iters=0, **more)["results"]
