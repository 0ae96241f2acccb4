#!/usr/bin/env bash
# Builds and runs the benchmarks: tests/bench/run.sh [--dir /dev/shm] [--rounds 5] [--json FILE] [...]
# All options are fs_bench's (see README.md). $OKCVM_BUILD chooses the build folder (default: build).
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${OKCVM_BUILD:-$top/build}
. "$top/tools/setup.sh"
need_root
install_packages "${build_packages[@]}" bindfs fuse-overlayfs fio git
[ -f "$build/build.ninja" ] || [ -f "$build/Makefile" ] ||
  cmake -S "$top" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release >&2
cmake --build "$build" --target fs_bench bench_session session_cost >&2
exec "$build/fs_bench" "$@"
