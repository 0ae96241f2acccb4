#!/bin/sh
# Builds the fuzzers in build-fuzz/ and runs each for SECONDS (default 120). What they learn is kept in
# build-fuzz/corpus/, inputs that broke something in build-fuzz/findings/; exits 1 if there are any.
# usage: tests/fuzz/run.sh [SECONDS [FUZZER...]]
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-120}
[ $# -gt 0 ] && shift
fuzzers=${*:-fuzz_policy fuzz_http_text fuzz_http_server fuzz_options fuzz_registry_file fuzz_registry_rows fuzz_keeper fuzz_snapshot_store fuzz_cli}

cmake -S . -B build-fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ \
  -DCMAKE_C_COMPILER=clang -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DOKCVM_FUZZ=ON >build-fuzz.log 2>&1 || { cat build-fuzz.log; exit 1; }
mv build-fuzz.log build-fuzz/configure.log
# shellcheck disable=SC2086
nice ninja -C build-fuzz -j2 $fuzzers

failed=0
for fuzzer in $fuzzers; do
  corpus=build-fuzz/corpus/$fuzzer
  findings=build-fuzz/findings/$fuzzer
  mkdir -p "$corpus" "$findings"
  echo "== $fuzzer for $seconds s"
  if ! nice build-fuzz/"$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=2048 -len_control=0 \
    -artifact_prefix="$findings/" -print_final_stats=1 \
    -dict=tests/fuzz/words.dict "$corpus" >"$findings/log" 2>&1; then
    failed=1
    echo "   found something: $findings/"
    grep -m 5 -E "ERROR|SUMMARY|does not hold|runtime error|artifact" "$findings/log" || tail -5 "$findings/log"
  fi
  grep -E "number_of_executed_units|DONE" "$findings/log" | sed 's/^/   /' || true
done
exit $failed
