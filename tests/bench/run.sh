#!/bin/sh
# Builds and runs the benchmarks: tests/bench/run.sh [--dir /dev/shm] [--rounds 5] [--json FILE] [...]
# All options are fs_bench's (see README.md). $OKCVM_BUILD chooses the build folder (default: build).
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${OKCVM_BUILD:-$top/build}
[ "$(id -u)" = 0 ] || { echo "run.sh: mounting needs root" >&2; exit 1; }
[ -f "$build/build.ninja" ] || [ -f "$build/Makefile" ] ||
  cmake -S "$top" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release >&2
cmake --build "$build" --target fs_bench bench_session session_cost >&2
exec "$build/fs_bench" "$@"
