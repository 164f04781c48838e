#!/usr/bin/env python3
"""check_json.py SCHEMA VERB FILE - is each document of FILE an answer of VERB (or of a definition, as #error)?

Reads the part of JSON Schema that schema/output.json uses and refuses any other keyword, so that nothing in the schema
goes unchecked. Prints what is wrong and exits 1. FILE may hold several documents. With VERB "-" it only checks the
schema itself and prints the verbs it knows."""
import json
import re
import sys

KNOWN = {"$ref", "type", "enum", "anyOf", "properties", "required", "additionalProperties", "items", "minItems",
         "maxItems", "pattern", "description"}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def is_type(value, name):
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def faults(value, schema, defs, path):
    """Yields one text for each disagreement."""
    if "$ref" in schema:
        yield from faults(value, defs[schema["$ref"].removeprefix("#/$defs/")], defs, path)
        return
    if "anyOf" in schema:
        tried = [list(faults(value, s, defs, path)) for s in schema["anyOf"]]
        if all(tried):
            yield min(tried, key=len)[0] + (" (the nearest of %d forms)" % len(tried) if len(tried) > 1 else "")
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and not any(is_type(value, k) for k in kinds):
        yield f"{path}: {value!r} is not {' or '.join(kinds)}"
    elif isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: {value!r} does not match {schema['pattern']}"
    elif isinstance(value, dict):
        known = schema.get("properties", {})
        yield from (f"{path}.{name} is missing" for name in schema.get("required", []) if name not in value)
        for name, member in value.items():
            if name in known:
                yield from faults(member, known[name], defs, f"{path}.{name}")
            elif schema.get("additionalProperties", True) is False:
                yield f"{path}.{name} is not in the schema"
    elif isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{path}: {len(value)} items"
        for i, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), defs, f"{path}[{i}]")


def check_schema(schema, defs, path):
    for word in schema:
        if word not in KNOWN:
            sys.exit(f"{path}: the keyword {word} is not checked by check_json.py")
    if "$ref" in schema and schema["$ref"].removeprefix("#/$defs/") not in defs:
        sys.exit(f"{path}: {schema['$ref']} leads nowhere")
    for name, inner in schema.get("properties", {}).items():
        check_schema(inner, defs, f"{path}.{name}")
    for i, inner in enumerate(schema.get("anyOf", [])):
        check_schema(inner, defs, f"{path}[{i}]")
    if "items" in schema:
        check_schema(schema["items"], defs, f"{path}[]")


def documents(text):
    decoder, at = json.JSONDecoder(parse_constant=lambda word: sys.exit(f"{word} is not JSON")), 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at == len(text):
            return
        value, at = decoder.raw_decode(text, at)
        yield value


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        whole = json.load(f)
    defs, verbs = whole["$defs"], whole["properties"]
    for name, schema in list(defs.items()) + list(verbs.items()):
        check_schema(schema, defs, name)
    if sys.argv[2] == "-":
        print("\n".join(verbs))
        return 0
    name = sys.argv[2]
    schema = defs[name[1:]] if name.startswith("#") else verbs[name]
    with open(sys.argv[3], encoding="utf-8") as f:
        values = list(documents(f.read()))
    found = [f"document {i + 1}: {fault}" for i, v in enumerate(values) for fault in faults(v, schema, defs, "$")]
    if not values:
        found = ["no document"]
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
