#!/bin/sh
# Builds what moec is raced against, with every instruction that this machine has: llama.cpp, whose source comes with
# PyPI's llama-cpp-python, and a Python environment with numpy and gguf. What is there is not made again.
#
#     tests/race/peer.sh FOLDER
#
# FOLDER/llama/bin then has llama-bench, -completion, -imatrix, -perplexity, -quantize and -server, FOLDER/env/bin/python
# the packages. Needs cmake, a C++ compiler, python3 with venv and pip, ten minutes and 1 GB of disk.
set -eu
[ $# -eq 1 ] || { sed -n 's/^# \{0,1\}//p' "$0" | tail -n +2 >&2; exit 2; }
folder=$1
mkdir -p "$folder/src"
[ -x "$folder/env/bin/python" ] || python3 -m venv "$folder/env"
"$folder/env/bin/python" -c 'import gguf, numpy' 2>/dev/null || "$folder/env/bin/pip" install -q numpy gguf
source=$(find "$folder/src" -maxdepth 1 -type d -name 'llama_cpp_python-*' | head -n 1)
if [ -z "$source" ]; then
    "$folder/env/bin/pip" download -q --no-deps --no-binary :all: -d "$folder/src" llama-cpp-python
    tar -xzf "$folder"/src/llama_cpp_python-*.tar.gz -C "$folder/src"
    source=$(find "$folder/src" -maxdepth 1 -type d -name 'llama_cpp_python-*' | head -n 1)
fi
cmake -B "$folder/llama" -S "$source/vendor/llama.cpp" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=ON -DLLAMA_CURL=OFF
cmake --build "$folder/llama" -j"$(nproc)" --target llama-bench llama-completion llama-imatrix llama-perplexity \
    llama-quantize llama-server
echo "$folder/llama/bin $folder/env/bin/python"
