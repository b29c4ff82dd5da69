"""Reconstructs the parameters of published models from the tensors of a GGUF file.

The `checkpoint` section of an architecture is applied in reverse: its steps permute elements. Applied to the indices of
a parameter's elements, they return the index that each element has in the file.
"""

import json
import math
import re
import subprocess

import numpy as np

OPERATORS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if isinstance(a, int) and isinstance(b, int) and a % b == 0 else a / b,
    "%": lambda a, b: a % b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "&&": lambda a, b: a and b,
    "||": lambda a, b: a or b,
    "min": min,
    "max": max,
    "neg": lambda a: -a,
    "not": lambda a: not a,
    "int": int,
    "sqrt": math.sqrt,
    "ln": math.log,
}
ROOTS = ("model.", "model.language_model.", "language_model.model.", "language_model.", "bert.", "")
# Steps that change values, with the inverse of each.
CHANGES = {
    "plus": lambda x, n: x - n,
    "times": lambda x, n: x / n,
    "exp": lambda x: np.log(x),
    "neg": lambda x: -x,
}


class Mapping:
    """The `checkpoint` section of an architecture, as printed by `PROGRAM arch NAME --mapping`."""

    def __init__(self, program, arch, class_name):
        printed = subprocess.run([program, "arch", arch, "--mapping"], capture_output=True, text=True, check=True).stdout
        sections = [section for section in json.loads(printed) if class_name in section["classes"]]
        self.section = sections[0] if sections else None
        self.config = {}

    def settings(self, key_of, known):
        """Returns the settings of the configuration that follow from keys of the file, if the configuration has
        them."""
        found = {}
        for setting in self.section["settings"]:
            value = key_of(setting["key"])
            names = [term["path"] for term in setting["values"] if isinstance(term, dict) and "path" in term]
            names = [name for name in names if "." not in name and hasattr(known, name)]
            if value is not None and names:
                found.setdefault(names[0], value)
        return found

    def contradictions(self, key_of):
        """Returns messages about keys of the file that contradict the configuration."""
        for setting in self.section["settings"]:
            expected, found = self.first(setting["values"]), key_of(setting["key"])
            if expected is not None and found is not None and not agree(expected, found):
                yield f"{setting['key']}: the file has {found}, and the configuration gives {expected}"

    def absent(self, key_of):
        """Returns messages about keys that only the file or only the configuration has; their defaults must agree."""
        for setting in self.section["settings"]:
            expected, found = self.first(setting["values"]), key_of(setting["key"])
            names = " or ".join(f"`{name}`" for name in paths(setting["values"])) or "such setting"
            if expected is None and found is not None:
                yield f"{setting['key']}: the file has {found}, and the configuration has no {names}"
            if expected is not None and found is None:
                yield f"{setting['key']}: the file has no such key, and the configuration gives {expected}"

    def term(self, term, layer=None):
        """Returns the value of an expression over the configuration; None if a part is missing."""
        if not isinstance(term, dict):
            return term
        if "path" in term:
            value = self.config
            for name in term["path"].split("."):
                value = value.get(name) if isinstance(value, dict) else None
            return value
        if "symbol" in term:
            values = next(s["values"] for s in self.section["settings"] if s["symbol"] == term["symbol"])
            return self.first(values, layer)
        call, args = term["call"], term["args"]
        if call == "first":
            return self.first(args, layer)
        if call == "given":
            return self.first(args, layer) is not None
        if call == "il":
            return list(range(self.first([{"symbol": "n_layer"}])))
        values = [self.term(arg, layer) for arg in args]
        if call == "if":
            return elementwise(lambda cond, yes, no: yes if cond else no, values)
        if any(value is None for value in values):
            return None
        if call == "at":
            return values[0][values[1]]
        if call == "length":
            return len(values[0])
        if call == "contains":
            return elementwise(lambda x: x in values[0], values[1:])
        if call == "each_layer":
            return values[0]
        return elementwise(OPERATORS[call], values)

    def first(self, terms, layer=None):
        values = (self.term(term, layer) for term in terms)
        return next((value for value in values if value is not None), None)

    def size(self, term, layer):
        value = self.term(term, layer)
        return value[layer] if isinstance(value, list) else value

    def sources(self, tensor):
        """Returns the sources of a tensor of the file, each with its layer and its part."""
        for source in self.section["sources"]:
            prefix = "" if source["group"] is None else re.escape(source["group"]) + r"\.(\d+)\."
            suffix = "" if source["kind"] == "raw" else r"\.(weight|bias|scale)"
            match = re.fullmatch(prefix + re.escape(source["gguf"]) + suffix, tensor)
            if not match:
                continue
            groups = list(match.groups())
            layer = int(groups.pop(0)) if source["group"] is not None else None
            part = groups[0] if groups else "weight"
            if source["part"] in ("", part) and (source["part"] == part or part == "weight" or source["kind"] in ("linear", "experts", "norm")):
                yield source, layer, part

    def elements(self, source, layer, part, shapes):
        """Returns the elements of a tensor: a pair of parameter and index for each, and the inverse value changes of
        each source."""
        for chain in source["alternatives"]:
            links = [self.link(link, layer, part, source["part"] == part, shapes) for link in chain]
            if all(link is not None for link in links):
                return links
        return None

    def link(self, link, layer, part, is_own, shapes):
        name = link["name"].replace("{}", str(layer), 1) if layer is not None else link["name"]
        names = [name]
        if link["stack"]:
            names = [name.replace("{}", str(i)) for i in range(1 << 14)]
        arrays, changes = [], []
        for name in names:
            parameter = find(name, part, is_own, shapes)
            if parameter is None:
                break
            shape = shapes[parameter]
            index = np.arange(math.prod(shape)).reshape(shape)
            moved, changes = self.steps(link["steps"], index, layer, part != "weight")
            arrays.append((parameter, moved))
        if not arrays:
            return None
        return arrays, link["stack"], changes

    def steps(self, steps, index, layer, is_bias):
        index = index[..., None] if is_bias else index
        changes = []
        for word, args in steps:
            if word in CHANGES:
                changes.append((CHANGES[word], [self.term(arg) for arg in args]))
                continue
            if word == "transpose" and is_bias:
                continue
            index = moved(word, index, *[self.size(arg, layer) for arg in args])
        return (index[..., 0] if is_bias else index), changes[::-1]

    def parameters(self, tensors, shapes):
        """Returns the parameters of a model with these shapes, built from the tensors of a file, and the unused
        tensors."""
        values = {name: np.full(math.prod(shape), np.nan) for name, shape in shapes.items()}
        unused = []
        for tensor, data in tensors.items():
            used = False
            for source, layer, part in self.sources(tensor):
                links = self.elements(source, layer, part, shapes)
                if links is not None:
                    used = True
                    scatter(links, data.astype(np.float64), values)
            if not used:
                unused.append(tensor)
        return {name: value.reshape(shapes[name]) for name, value in values.items()}, unused


def agree(expected, found):
    """Returns True if two settings are equal. A number equals a list of equal numbers."""
    is_close = lambda a, b: a == b if isinstance(a, str) or isinstance(b, str) else abs(a - b) <= 1e-6 * abs(b)
    lists = [value if isinstance(value, list) else [value] for value in (expected, found)]
    n = max(map(len, lists))
    a, b = (values * n if len(values) == 1 else values for values in lists)
    return len(a) == len(b) and all(map(is_close, a, b))


def paths(terms):
    """Returns the names of the settings in expressions."""
    for term in terms:
        if isinstance(term, dict):
            yield from [term["path"]] if "path" in term else paths(term.get("args", []))


def scatter(links, data, values):
    """Stores the elements of a tensor in parameters. The rows of the links are concatenated."""
    for arrays, is_stack, changes in links:
        of_parameters = np.stack([index for _, index in arrays]) if is_stack else arrays[0][1]
        n = len(of_parameters)
        part, data = (data, None) if len(links) == 1 else (data[:n], data[n:])
        part = part.reshape(of_parameters.shape)
        for change, args in changes:
            part = change(part, *args)
        for i, (parameter, index) in enumerate(arrays):
            values[parameter][index.reshape(-1)] = (part[i] if is_stack else part).reshape(-1)


def find(name, part, is_own, shapes):
    """Returns the parameter of a name in a section, whose root may differ."""
    suffixed = {"bias": [name, f"{name}.bias"] if is_own else [f"{name}.bias", f"{name}_bias"]}.get(part, [f"{name}.weight", name])
    for candidate in suffixed:
        bare = candidate.removeprefix("model.")
        for full in (candidate, *(root + bare for root in ROOTS)):
            if full in shapes:
                return full
    return None


def elementwise(f, values):
    lists = [value for value in values if isinstance(value, list)]
    if not lists:
        return f(*values)
    at = lambda value, i: value[i] if isinstance(value, list) else value
    return [f(*(at(value, i) for value in values)) for i in range(min(map(len, lists)))]


def moved(word, index, *args):
    """Returns an array after a step, which permutes rows or dimensions."""
    axis = max(index.ndim - 2, 0)
    size = index.shape[axis] if index.ndim else 1
    before, after = index.shape[:axis], index.shape[axis + 1 :]
    if word == "split":
        return np.split(index, args[1], axis)[args[0]]
    if word == "every":
        return np.take(index, range(args[0], size, args[1]), axis)
    if word == "rows":
        return np.take(index, range(args[0], args[1]), axis)
    if word == "pairs":
        halves = index.reshape(*before, args[0], 2, size // args[0] // 2, *after)
        return np.swapaxes(halves, axis + 1, axis + 2).reshape(index.shape)
    if word == "heads":
        return index.reshape(*before, args[0], size // args[0], *after)
    if word == "merge":
        return index.reshape(-1, *index.shape[2:])
    if word == "tile":
        return np.swapaxes(index.reshape(args[0], -1, *index.shape[1:]), 0, 1).reshape(index.shape)
    if word == "squeeze":
        return index.reshape([n for n in index.shape if n != 1] or [1])
    if word == "transpose":
        return np.swapaxes(index, -1, -2)
    raise ValueError(f"unknown step `{word}`")
