#!/bin/sh
# Prints the GPU's name, driver and memory on one line; where there is none, why, and fails.
command -v nvidia-smi >/dev/null || {
    echo "there is no nvidia-smi"
    exit 1
}
answer=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1) || {
    echo "nvidia-smi says: $(echo "$answer" | head -n 1)"
    exit 1
}
echo "$answer" | head -n 1
