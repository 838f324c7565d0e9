#!/bin/sh
# Surprise: a generation_config.json that turns sampling off (`do_sample: false`) becomes a GGUF with a temperature.
# Versions: gguf 0.19.0, the newest on PyPI
# Date: 2026-11-28
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0
"$work/venv/bin/python" - "$work" <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

from gguf import GGUFReader, GGUFWriter
from gguf.metadata import Metadata

model, file = Path(sys.argv[1]) / "translator", Path(sys.argv[1]) / "model.gguf"
model.mkdir()
# transformers then takes the likeliest token, and ignores the temperature.
config = {"do_sample": False, "temperature": 0.6, "top_p": 0.9}
(model / "generation_config.json").write_text(json.dumps(config))

writer = GGUFWriter(file, "llama")
Metadata.load(None, model).set_gguf_meta_model(writer)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.close()

fields = GGUFReader(file).fields.values()
written = {field.name: field.contents() for field in fields if field.name.startswith("general.sampling.")}
print("gguf", version("gguf"))
print("generation_config.json:", json.dumps(config))
print("GGUF:", json.dumps({name: round(value, 4) for name, value in sorted(written.items())}))
expected = {"general.sampling.temp": 0.6, "general.sampling.top_p": 0.9}
assert {name: round(value, 4) for name, value in written.items()} == expected, "the behaviour has changed"
print("seen: the GGUF has the temperature of 0.6, and no key says that the likeliest token is to be taken")
PYTHON
