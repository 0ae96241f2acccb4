#!/usr/bin/env bash
# From a bare Debian 12 to a session with real work in it, lost and brought back. Run as root; cleans up after itself.
#   tools/quickstart.sh [--keep]     --keep leaves the daemon and the session running and says how to look around
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tools/setup.sh

keep=no
case "${1-}" in
  '') ;;
  --keep) keep=yes ;;
  *) echo "usage: tools/quickstart.sh [--keep]" >&2; exit 2 ;;
esac
need_root
unset "${!OKCVM_@}"  # a setting for this host's daemon is none for ours

work='' daemon='' finished=no

# A hung mount blocks whoever touches it, so whatever does runs under a time limit.
limited() { timeout -s KILL 120 "$@"; }

show() { # a command, as a user would type it, and what it prints
  printf '  $ %s\n' "$*"
  limited "$@" 2>&1 | sed 's/^/    /'
}
shell() { # the same for a line of shell, run in the session
  printf '  $ %s\n' "$1"
  (cd "$mount" && limited bash -c "set -euo pipefail; $1") 2>&1 | sed 's/^/    /'
}
refused() { # the same for a line that must fail, with these words
  local output
  printf '  $ %s\n' "$2"
  if output=$(cd "$mount" && limited bash -c "$2" 2>&1); then fail "that should have been refused"; fi
  printf '    %s\n' "$output"
  grep -qi "$1" <<<"$output" || fail "that should have been refused with '$1'"
}
step() { printf '\n== %s\n' "$*"; }
okcvm() { limited build/okcvm --socket "$work/run/control.sock" "$@"; }
okcvm_shown() { printf '  $ okcvm %s\n' "$*"; okcvm "$@" 2>&1 | sed 's/^/    /'; }

clean_up() {
  local status=$?
  trap - EXIT
  set +e
  if [ "$status" != 0 ] && [ -n "$work" ] && [ -s "$work/okcvmd.log" ]; then
    echo "-- the end of the daemon's log:" >&2
    tail -n 30 "$work/okcvmd.log" >&2
  fi
  if [ "$keep" = yes ] && [ "$finished" = yes ]; then exit "$status"; fi
  if [ -n "$daemon" ]; then
    kill -TERM "$daemon" 2>/dev/null
    for _ in $(seq 100); do kill -0 "$daemon" 2>/dev/null || break; sleep 0.1; done
    if kill -0 "$daemon" 2>/dev/null; then
      echo "the daemon does not end: killing it" >&2
      kill -KILL "$daemon" 2>/dev/null
      status=1
    fi
    wait "$daemon" 2>/dev/null
  fi
  if [ -n "$work" ]; then
    while read -r left; do
      echo "still mounted: $left" >&2
      umount -l "$left"
      status=1
    done < <(fuse_mounts | grep -F "$work/")
    if [ -n "$(ls -A "$work/mnt" 2>/dev/null)" ] && [ "$status" = 0 ]; then
      echo "left behind below the mount root: $(ls -A "$work/mnt")" >&2
      status=1
    fi
    rm -rf --one-file-system "$work"
  fi
  [ "$status" = 0 ] || echo "quickstart FAILED" >&2
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step "What this needs: Debian packages, then a build"
install_packages "${build_packages[@]}" git make gcc libc6-dev
[ -c /dev/fuse ] || modprobe fuse 2>/dev/null || fail "there is no /dev/fuse: modprobe fuse, or allow the container the device"
build_preset release okcvmd okcvm
show build/okcvm version

step "A private daemon: its own state, run and mount directories, nothing of this host's"
work=$(mktemp -d /tmp/okcvm-quickstart.XXXXXX)
chmod 755 "$work"
mkdir -p "$work"/{state/skills/greeting,run,mnt}
printf 'Greet people by name.\n' >"$work/state/skills/greeting/SKILL.md"
daemon_options=(--config /dev/null --state-dir "$work/state" --run-dir "$work/run" --mount-root "$work/mnt")
build/okcvmd --help 2>/dev/null | grep -q -e '--keeper' && daemon_options+=(--keeper)
printf '  $ okcvmd %s &\n' "${daemon_options[*]}"
build/okcvmd "${daemon_options[@]}" >"$work/okcvmd.log" 2>&1 </dev/null &
daemon=$!
for _ in $(seq 200); do
  okcvm status >/dev/null 2>&1 && break
  kill -0 "$daemon" 2>/dev/null || fail "okcvmd ended at once"
  sleep 0.1
done
okcvm_shown status

step "A session: a file system of its own"
printf '  $ okcvm create --id demo\n'
mount=$(okcvm create --id demo)
printf '    %s\n' "$mount"
shell 'ls -A'
shell 'cat .metadata.json'

step "A skill, live and read-only"
okcvm_shown skill load demo greeting
shell 'cat skills/greeting/SKILL.md'
refused 'read-only' 'echo "Be rude." > skills/greeting/SKILL.md'

step "Nothing leads out of a session"
refused 'not permitted' 'ln -s /etc/shadow outputs/innocent'
refused 'not permitted' 'ln -s ../../../etc/shadow outputs/innocent'
printf '  $ okcvm read demo ../../etc/shadow\n'
if output=$(okcvm read demo ../../etc/shadow 2>&1); then fail "that should have been refused"; fi
printf '    %s\n' "$output"

step "Nothing was written so far, so nothing is on disk"
printf '  $ ls STATE/workspaces\n'
[ -z "$(ls -A "$work/state/workspaces" 2>/dev/null)" ] || fail "a folder was made before the first write"
echo '    (nothing)'

step "Real work by unmodified tools: git clone, edit, make, commit"
mkdir "$work/origin"
(
  cd "$work/origin"
  printf '#include <stdio.h>\n\nint main(void) {\n  puts("hello");\n  return 0;\n}\n' >hello.c
  printf 'hello: hello.o\n\t$(CC) -o $@ $^\nclean:\n\trm -f hello hello.o\n' >Makefile
  printf '*.o\nhello\n' >.gitignore
  git init -q -b main && git add -A
  git -c user.name=demo -c user.email=demo@localhost commit -q -m 'Say hello'
)
origin=$work/origin
if git rev-parse --git-dir >/dev/null 2>&1; then
  shell "git clone -q '$PWD' outputs/okcvm-fs && find outputs/okcvm-fs -type f | wc -l"
fi
shell "git clone -q '$origin' outputs/hello"
shell "cd outputs/hello && sed -i 's/\"hello\"/\"hello from a session\"/' hello.c && make -s && ./hello"
shell 'cd outputs/hello && git -c user.name=agent -c user.email=agent@localhost commit -qam "Say where" && git log --oneline'
shell 'cd outputs/hello && git fsck --strict && git status --short --ignored'
okcvm_shown ls demo outputs/hello
show ls "$work/state/workspaces"

step "A snapshot: everything, what git ignores too"
manifest() { # names, types, modes, times to the nanosecond, link texts, and the checksum of every byte
  (
    cd "$mount/outputs"
    limited find . -printf '%p %y %m %T@ %l\n' | LC_ALL=C sort
    limited find . -type f -print0 | LC_ALL=C sort -z | limited xargs -0 sha256sum
  )
}
manifest >"$work/before"
printf '  $ okcvm snapshot demo -m "it works"\n'
snapshot=$(okcvm snapshot demo -m 'it works')
printf '    %s\n' "$snapshot"

step "The work is lost ..."
shell 'rm -rf outputs/* && find outputs | wc -l'
printf '  $ okcvm restore demo %s --dry-run | tail -n 4\n' "${snapshot:0:12}"
okcvm restore demo "$snapshot" --dry-run | tail -n 4 | sed 's/^/    /'

step "... and comes back, in place"
printf '  $ okcvm restore demo %s\n' "${snapshot:0:12}"
okcvm restore demo "${snapshot:0:12}" | tail -n 1 | sed 's/^/    /'
manifest >"$work/after"
cmp "$work/before" "$work/after" || { diff "$work/before" "$work/after" | head; fail "what came back differs"; }
printf '    %s names with their modes and times, and %s checksums: all as before\n' \
  "$(grep -c '^\.' "$work/after")" "$(grep -c '^[0-9a-f]\{64\} ' "$work/after")"
shell 'cd outputs/hello && ./hello && git status --short && git fsck --strict'
okcvm_shown snapshots demo

finished=yes
if [ "$keep" = yes ]; then
  step "Left running"
  cat <<TEXT
  export OKCVM_SOCKET=$work/run/control.sock
  cd $mount
  build/okcvm help
  curl --unix-socket \$OKCVM_SOCKET http://okcvm/v1/sessions
  To end it:  kill $daemon; rm -rf --one-file-system $work
TEXT
  disown "$daemon"
  exit 0
fi
step "Away with it"
okcvm_shown delete demo
echo "quickstart done: exit 0, nothing left behind"
