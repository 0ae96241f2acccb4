#!/usr/bin/env bash
# Installs what the tests need, builds, and runs every test. The last line counts test cases:
#   N passed, N failed, N skipped
#   tools/test.sh [--quick] [--sanitizers]
#     --quick        leave out the tests labelled slow
#     --sanitizers   also build and run with AddressSanitizer + UBSan, and with ThreadSanitizer
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/setup.sh

ctest_options=() presets=(release)
for option in "$@"; do
  case "$option" in
    --quick) ctest_options+=(--label-exclude slow) ;;
    --sanitizers) presets+=(asan tsan) ;;
    *) echo "usage: tools/test.sh [--quick] [--sanitizers]" >&2; exit 2 ;;
  esac
done
need_root
install_packages "${build_packages[@]}" attr btrfs-progs bubblewrap clang curl fish gcc git groff libc6-dev make procps python3 \
  sqlite3 strace tar xfsprogs
[ -c /dev/fuse ] || modprobe fuse 2>/dev/null || echo "there is no /dev/fuse: tests that mount will be skipped"

# Counts cases: of a GoogleTest program by its own summary in ctest's log ($2), of any other test as one, by ctest's
# verdict ($1). A program that died or failed after its last case counts as one failure more.
count_cases() {
  awk '
    FNR == NR {
      if ($0 !~ /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: /) next
      sub(/^.*#[0-9]+: /, "")
      verdict[$1] = /\.   Passed / ? "passed" : /\*\*\*Skipped|\*\*\*Not Run \(Disabled\)/ ? "skipped" : "failed"
      next
    }
    /^[0-9]+\/[0-9]+ Test: / { name = $3 }
    /^\[       OK \]/ { ok[name]++ }
    /^\[==========\] [0-9]+ tests? from [0-9]+ test (suite|case)s? ran\./ { ran[name] = 1 }
    /^\[  SKIPPED \] [0-9]+ tests?, listed below:/ { skipped[name] = $4 }
    /^\[  FAILED  \] [0-9]+ tests?, listed below:/ { failed[name] = $4 }
    END {
      for (name in verdict) {
        if (ok[name] || ran[name]) {
          passes += ok[name]
          skips += skipped[name]
          failures += failed[name] ? failed[name] : verdict[name] == "failed"
        } else if (verdict[name] == "passed") passes++
        else if (verdict[name] == "skipped") skips++
        else failures++
      }
      print passes + 0, failures + 0, skips + 0
    }
  ' "$1" "$2"
}

mounts_before=$(fuse_mounts | sort)
total_passed=0 total_failed=0 total_skipped=0
status=0
for preset in "${presets[@]}"; do
  folder=build
  [ "$preset" = release ] || folder=build-$preset
  echo "== $preset: building"
  build_preset "$preset"
  echo "== $preset: testing"
  export TSAN_OPTIONS=die_after_fork=0  # tests fork while they have threads, and the child makes more
  [ "$preset" != asan ] || ulimit -s 65536  # its frames are several times as large
  # Twice as many as processors: the tests wait half of their time.
  ctest --test-dir "$folder" --parallel "$((2 * $(nproc)))" --output-on-failure --timeout 900 "${ctest_options[@]}" </dev/null 2>&1 |
    tee "$folder/ctest.log"
  [ "${PIPESTATUS[0]}" = 0 ] || status=1
  read -r passed failed skipped < <(count_cases "$folder/ctest.log" "$folder/Testing/Temporary/LastTest.log")
  echo "$preset: $passed cases passed, $failed failed, $skipped skipped"
  total_passed=$((total_passed + passed)) total_failed=$((total_failed + failed)) total_skipped=$((total_skipped + skipped))
done

left=$(comm -13 <(echo "$mounts_before") <(fuse_mounts | sort))
if [ -n "$left" ]; then
  printf 'FUSE mounts left behind:\n%s\n' "$left" >&2
  total_failed=$((total_failed + 1))
fi
[ "$status" = 0 ] || [ "$total_failed" -gt 0 ] || total_failed=1
echo "$total_passed passed, $total_failed failed, $total_skipped skipped"
[ "$total_passed" -gt 0 ] && [ "$total_failed" = 0 ]
