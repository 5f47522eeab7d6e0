#!/usr/bin/env bash
# Writes requirements.lock from requirements.in (needs uv).
# Packages for GPUs (nvidia-*, cuda-*, triton) are left out. A CUDA build of torch pins them
# itself, and a CPU build does not need them.
set -euo pipefail
cd "$(dirname "$0")"
{
  echo "# Made by envs/lock.sh from requirements.in. Install with: pip install -r requirements.lock"
  uv pip compile --universal --python-version 3.11.5 --quiet --no-header --no-annotate \
    --no-emit-index-url "$@" requirements.in | grep -vE '^(nvidia-|cuda-|triton==)'
} > requirements.lock.tmp
mv requirements.lock.tmp requirements.lock
