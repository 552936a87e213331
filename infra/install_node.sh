#!/bin/sh
# Installs this checkout for a node of a cluster: infra/install_node.sh FOLDER [EXTRAS]
# makes a virtual environment in FOLDER. EXTRAS are `cluster` or `cluster,gpu`. PYTHON names the interpreter.
# Every file that is installed has the version and the hash of constraints.txt, uv itself too.
set -eu

folder=$1
extras=${2:-cluster}
cd "$(dirname "$0")/.."

"${PYTHON:-python3}" -m venv "$folder"
sed -n '/^uv==/,/[^\\]$/p' constraints.txt > "$folder/uv.txt"
"$folder/bin/python" -m pip install --quiet --require-hashes --no-deps -r "$folder/uv.txt"
# With bytecode, because nodes may run under a user who cannot write it.
"$folder/bin/uv" pip install --quiet --compile-bytecode --python "$folder/bin/python" \
    -c constraints.txt -b constraints.txt ".[$extras]"
