"""Writes the JSON schemas that kubeconform reads: kube_schemas.py OUT FOLDER...

A folder holds either Kubernetes' OpenAPI documents (*_openapi.json) or CustomResourceDefinitions (*.yaml). Each kind becomes
OUT/KIND-GROUP-VERSION.json, in lower case, the group without its domain. A field that a schema does not name is an error in it.
"""

import json
import pathlib
import sys

import yaml

# YAML 1.1 gives a plain `=` a meaning of its own; in these files it is a text.
yaml.CSafeLoader.add_constructor("tag:yaml.org,2002:value", yaml.CSafeLoader.construct_yaml_str)


def close(schema):
    """Forbids the fields that an object's schema does not name, as the API server's strict validation does."""
    if isinstance(schema, list):
        return [close(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close(value) for key, value in schema.items() if key != "format"}
    open_ended = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and "type" in schema and not open_ended:
        closed["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
        closed["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return closed


def write(out, group, version, kind, schema):
    parts = [kind, *([group.split(".")[0]] if group else []), version]
    (out / ("-".join(parts).lower() + ".json")).write_text(json.dumps(schema))


def write_openapi(out, path):
    document = json.loads(path.read_text())
    schemas = document.get("components", {}).get("schemas", {})
    text = json.dumps(close(schemas)).replace("#/components/schemas/", f"_{path.stem}.json#/definitions/")
    (out / f"_{path.stem}.json").write_text(f'{{"definitions": {text}}}')
    for name, schema in schemas.items():
        for named in schema.get("x-kubernetes-group-version-kind", []):
            write(out, named["group"], named["version"], named["kind"], {"$ref": f"_{path.stem}.json#/definitions/{name}"})


def write_definitions(out, path):
    for definition in yaml.load_all(path.read_text(), yaml.CSafeLoader):
        if not definition or definition.get("kind") != "CustomResourceDefinition":
            continue
        spec = definition["spec"]
        for version in spec["versions"]:
            schema = close(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            write(out, spec["group"], version["name"], spec["names"]["kind"], schema)


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for folder in map(pathlib.Path, sys.argv[2:]):
        documents = sorted(folder.glob("*_openapi.json"))
        definitions = sorted(folder.glob("*.yaml"))
        if not documents and not definitions:
            sys.exit(f"no schemas in {folder}")
        for path in documents:
            write_openapi(out, path)
        for path in definitions:
            write_definitions(out, path)


main()
