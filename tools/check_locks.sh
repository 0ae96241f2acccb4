#!/usr/bin/env bash
# Has Clang look at every source of the product, without building it: its warnings, and whether who touches what a lock
# guards holds it (-Wthread-safety, policy/thread_annotations.h). 77 where there is no Clang.
#   tools/check_locks.sh [FOLDER]   (default: build-clang)
set -euo pipefail
folder=$(realpath -m "${1:-build-clang}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v clang++ >/dev/null || { echo "SKIPPED: there is no clang++ (Debian: clang)"; exit 77; }
cmake --preset clang -B "$folder" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=OFF >/dev/null

# The commands for what all include, or else for the sources themselves.
commands() {
  python3 - "$folder/compile_commands.json" "$1" <<'python'
import json, sys
for unit in json.load(open(sys.argv[1])):
    shared = "cmake_pch" in unit["file"]
    if " -o tests/" not in unit["command"] and shared == (sys.argv[2] == "shared"):
        print(unit["command"], "" if shared else "-fsyntax-only")
python
}
cd "$folder"
for kind in shared sources; do
  list=$(commands "$kind")
  [ -n "$list" ] || { echo "there are no $kind to look at" >&2; exit 1; }
  xargs -d '\n' -P "$(nproc)" -n 1 sh -c <<<"$list"  # 123 where one of them finds something
done
