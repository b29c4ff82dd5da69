"""Records which documents are valid under the JSON schemas that client libraries write.

python3 record_schemas.py > schemas.json; needs PyPI's jsonschema. Each schema lists candidate documents; jsonschema
decides which are valid. `refused` is the location of the part that no grammar can enforce.
"""
import json, sys
from jsonschema import Draft202012Validator, Draft7Validator
EMAIL = "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"
DEC = "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"
CAT = {"type": "object", "properties": {"k": {"const": "cat", "type": "string"}, "n": {"type": "integer"}}, "required": ["k", "n"], "additionalProperties": False}
DOG = {"type": "object", "properties": {"k": {"const": "dog", "type": "string"}, "b": {"type": "boolean"}}, "required": ["k", "b"], "additionalProperties": False}
def obj(required=None, **properties):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required, "additionalProperties": False}
def strings(**k): return {"type": "string", **k}
CASES = [
 ("zod: email with lookaheads", obj(e=strings(format="email", pattern=EMAIL)), [{"e": e} for e in ("a@b.co", "a.b@c.de", "a..b@c.de", ".a@c.de", "a@b", "a@b..co")]),
 ("password with lookaheads", strings(pattern="^(?=.*[A-Z])(?=.*\\d).{3,6}$"), ["A1b", "abc", "ABC", "A1", "xxA1xx", "xxA1xxx", "1234A"]),
 ("pydantic: Decimal", obj(d={"anyOf": [{"type": "number"}, strings(pattern=DEC)]}), [{"d": d} for d in (1.5, "1.5", "-.5", "-", "", "+", "x", "01", None)]),
 ("zod: record", obj(m={"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}}), [{"m": {}}, {"m": {"a": 1}}, {"m": {"a": "x"}}]),
 ("zod: record of enum", {"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]}, "additionalProperties": {"type": "number"}, "required": ["a", "b"]}, [{"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": "x", "b": 1}]),
 ("pydantic: dict of enum", {"$defs": {"C": {"enum": ["red", "blue"], "type": "string", "title": "C"}}, "type": "object", "properties": {"m": {"type": "object", "propertyNames": {"$ref": "#/$defs/C"}, "additionalProperties": {"type": "integer"}}}, "required": ["m"]}, [{"m": {}}, {"m": {"red": 1}}, {"m": {"red": 1, "blue": 2}}, {"m": {"green": 1}}]),
 ("property names by pattern", {"type": "object", "propertyNames": {"pattern": "^x_"}, "additionalProperties": {"type": "integer"}}, [{}, {"x_a": 1}, {"a": 1}, {"x_a": "b"}]),
 ("property names by length", {"type": "object", "propertyNames": {"maxLength": 2}}, [{}, {"ab": 1}, {"abc": 1}]),
 ("pydantic: discriminated union", {"$defs": {"Cat": CAT, "Dog": DOG}, "type": "object", "properties": {"pet": {"discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "k"}, "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}}, "required": ["pet"]}, [{"pet": {"k": "cat", "n": 1}}, {"pet": {"k": "dog", "b": True}}, {"pet": {"k": "dog", "n": 1}}, {"pet": {"k": "cow"}}]),
 ("oneOf by type", {"oneOf": [{"type": "null"}, {"type": "string"}, obj(a={"type": "integer"})]}, [None, "a", {"a": 1}, 1, {}]),
 ("oneOf by forbidden property", {"oneOf": [obj(a={"type": "integer"}), obj(b={"type": "integer"})]}, [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {}]),
 ("oneOf beside anyOf", {"oneOf": [{"type": "integer"}, {"type": "string"}], "anyOf": [{"type": "integer"}, {"type": "boolean"}]}, [1, "a", True]),
 ("oneOf of nested unions", {"$defs": {"A": {"oneOf": [{"const": 1}, {"const": 2}]}}, "oneOf": [{"$ref": "#/$defs/A"}, {"enum": [3, "x"]}]}, [1, 2, 3, "x", 4]),
 ("unknown formats", obj(a=strings(format="binary"), b=strings(format="password", writeOnly=True), c=strings(format="phone-number")), [{"a": "x", "b": "y", "c": "z"}, {"a": 1, "b": "y", "c": "z"}]),
 ("integers with a format", obj(i={"type": "integer", "format": "int64"}), [{"i": 3}, {"i": "3"}]),
 ("annotations", {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "type": "object", "properties": {"a": strings(default="x", examples=["y"], deprecated=True, widget="text", example=1, xml={"name": "a"})}, "required": ["a"]}, [{"a": "x"}, {}, {"a": 1}]),
 ("pydantic: set of literals", obj(tags={"type": "array", "items": {"enum": ["a", "b"], "type": "string"}, "uniqueItems": True}), [{"tags": t} for t in ([], ["a"], ["b", "a"], ["a", "b"], ["a", "a"], ["c"])]),
 ("set of booleans", {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 1}, [[], [True], [False, True], [True, True]]),
 ("not a constant", obj(a=strings(**{"not": {"const": "x"}})), [{"a": a} for a in ("", "y", "x", "xx", "yx", 1)]),
 ("not one of the enum", obj(a={"enum": ["a", "b", 1], "not": {"enum": ["b", 1]}}), [{"a": "a"}, {"a": "b"}, {"a": 1}]),
 ("not a type", obj(a={"type": ["string", "null"], "not": {"type": "null"}}), [{"a": "x"}, {"a": None}]),
 ("not a pattern", strings(**{"not": {"pattern": "^a|b$"}}), ["", "c", "a", "ac", "cb", "bc"]),
 ("implied dependencies", {**obj(["a", "b"], a=strings(), b=strings()), "dependentRequired": {"a": ["b"]}}, [{"a": "x", "b": "y"}, {"a": "x"}]),
 ("if without effect", {"type": "integer", "if": {"minimum": 3}}, [1, 5, "a"]),
 ("unevaluated properties", {"type": "object", "properties": {"a": strings()}, "unevaluatedProperties": False, "required": ["a"]}, [{"a": "x"}, {"a": "x", "b": 1}]),
 ("recursion to the root", obj(["v"], v={"type": "integer"}, c={"type": "array", "maxItems": 1, "items": {"$ref": "#"}}), [{"v": 1}, {"v": 1, "c": []}, {"v": 1, "c": [{"v": 2, "c": []}]}, {"v": 1, "c": [{"c": []}]}]),
 ("reference to a property", obj(a=obj(id=strings(maxLength=2)), b={"$ref": "#/properties/a"}), [{"a": {"id": "x"}, "b": {"id": "yy"}}, {"a": {"id": "x"}, "b": {"id": "yyy"}}]),
 ("reference into a list", obj(a={"anyOf": [strings(maxLength=3), {"type": "null"}]}, b={"$ref": "#/properties/a/anyOf/0"}), [{"a": None, "b": "abc"}, {"a": None, "b": None}]),
 ("escaped reference", {"$defs": {"a/b~c d": {"type": "boolean"}}, "items": {"$ref": "#/$defs/a~1b~0c%20d"}, "type": "array"}, [[], [True], [1]]),
 ("ids and anchors", {"$id": "https://e.com/s", "type": "object", "properties": {"a": {"$ref": "#foo"}, "b": {"$ref": "https://e.com/s#/$defs/x"}}, "$defs": {"x": {"$anchor": "foo", "type": "string"}}, "required": ["a"]}, [{"a": "x"}, {"a": 1}, {"a": "x", "b": "y"}, {"a": "x", "b": 1}]),
 ("allOf of one reference", {"$defs": {"N": {"type": "integer", "minimum": 0}}, "type": "object", "properties": {"a": {"allOf": [{"$ref": "#/$defs/N"}], "default": 1, "title": "A"}}, "required": ["a"]}, [{"a": 1}, {"a": -1}]),
 ("patterns of ECMAScript", obj(a=strings(pattern="^hello\\!$"), b=strings(pattern="^[\\w.-]+[[&~]$"), c=strings(pattern="^\\d{2}$")), [{"a": "hello!", "b": "a-.[", "c": "12"}, {"a": "hello", "b": "a[", "c": "12"}, {"a": "hello!", "b": "a", "c": "12"}]),
 ("alternative that cannot be enforced", {"anyOf": [strings(pattern="^(a|b)\\1$"), {"type": "integer"}]}, [1, True]),
 ("alternative by reference that cannot be enforced", {"$defs": {"X": {"type": "array", "contains": {"const": 1}}, "Y": {"type": "array", "items": {"$ref": "#/$defs/X"}, "minItems": 1}}, "anyOf": [{"$ref": "#/$defs/Y"}, {"$ref": "#/$defs/X"}, {"type": "null"}]}, [None, 1, [2]]),
]
DRAFT7 = [
 ("items of older drafts", obj(a={"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False}), [{"a": [1, "x"]}, {"a": ["x"]}, {"a": [1, "x", 2]}]),
]
REFUSED = [
 ("not an object form", obj(a={"type": "object", "not": {"required": ["x"]}}), "#/properties/a"),
 ("conditions", {"type": "object", "properties": {"a": strings()}, "if": {"properties": {"a": {"const": "x"}}}, "then": {"required": ["b"]}}, "#"),
 ("overlapping alternatives", obj(a={"oneOf": [{"type": "integer"}, {"type": "number"}]}), "#/properties/a"),
 ("unique strings", obj(a={"type": "array", "items": strings(), "uniqueItems": True}), "#/properties/a"),
 ("contains", obj(a={"type": "array", "contains": {"type": "integer"}}), "#/properties/a"),
 ("backreference", obj(a=strings(pattern="^(a|b)\\1$")), "#/properties/a/pattern"),
 ("lookbehind", obj(a=strings(pattern="(?<!a)b")), "#/properties/a/pattern"),
 ("lookahead inside", obj(a=strings(pattern="^a(?!b)")), "#/properties/a/pattern"),
 ("external reference", obj(a={"$ref": "https://example.com/x.json"}), "#/properties/a"),
 ("dependencies", {"type": "object", "properties": {"a": strings()}, "dependentRequired": {"a": ["b"]}}, "#"),
 ("definition", {"$defs": {"X": {"type": "array", "contains": {"const": 1}}}, "items": {"$ref": "#/$defs/X"}, "type": "array"}, "#/$defs/X"),
]
out = []
for validator, cases in ((Draft202012Validator, CASES), (Draft7Validator, DRAFT7)):
    for name, schema, documents in cases:
        validator.check_schema(schema)
        valid = [d for d in documents if validator(schema).is_valid(d)]
        out.append({"name": name, "schema": schema, "valid": valid, "invalid": [d for d in documents if not validator(schema).is_valid(d)]})
for name, schema, place in REFUSED:
    Draft202012Validator.check_schema(schema)
    out.append({"name": name, "schema": schema, "refused": place})
json.dump(out, sys.stdout, ensure_ascii=False, indent=None, separators=(",", ":"))
