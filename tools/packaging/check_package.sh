#!/usr/bin/env bash
# Builds the Debian package and puts it through its whole life in a clean Debian 12 root: installed, used, upgraded under
# work, removed, purged. As root; leaves nothing behind.
#   tools/packaging/check_package.sh [MIRROR]     the default mirror is this host's
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tools/setup.sh
need_root

mirror=${1-$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Codename: bookworm' | sort -u | head -n 1)}
work='' root='' daemon=''

clean_up() {
  local status=$?
  trap - EXIT
  set +e
  if [ -n "$daemon" ]; then kill -KILL "$daemon" 2>/dev/null; fi
  if [ -n "$root" ]; then
    fuse_mounts | grep -F "$root/" | while read -r left; do umount -l "$left"; done
    umount -l "$root/sys" "$root/proc" 2>/dev/null
  fi
  [ -z "$work" ] || rm -rf --one-file-system "$work"
  [ "$status" = 0 ] && echo "check_package done" || echo "check_package FAILED" >&2
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
step() { printf '== %s\n' "$*"; }
clean=(/usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C)
inside() { timeout -s KILL 300 chroot "$root" "${clean[@]}" "$@"; }
must_be_there() { for path; do [ -e "$root$path" ] || fail "$path is missing"; done; }
must_be_gone() { for path; do [ ! -e "$root$path" ] || fail "$path is still there"; done; }

start_daemon() { # in the root; its keeper stands in for the service manager that does not run there
  chroot "$root" "${clean[@]}" okcvmd --keeper >>"$work/okcvmd.log" 2>&1 </dev/null &
  daemon=$!
  for _ in $(seq 100); do
    inside okcvm status >/dev/null 2>&1 && return
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.1
  done
  cat "$work/okcvmd.log"
  fail "okcvmd does not answer"
}
stop_daemon() {
  kill -TERM "$daemon"
  wait "$daemon" || fail "okcvmd ended with status $?"
  daemon=''
}

step "building the packages: this version and the next"
install_packages "${build_packages[@]}" debootstrap dpkg-dev fakeroot file procps
work=$(mktemp -d /var/tmp/okcvm-package.XXXXXX)
build_preset release okcvmd okcvm documentation
version=$(sed -n 's/^project(okcvm-fs VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
for each in "$version" "$version+next"; do
  (cd build && cpack -G DEB -B "$work" -D CPACK_PACKAGE_VERSION="$each" >"$work/cpack.log") || {
    cat "$work/cpack.log"
    fail "cpack failed"
  }
done
rm -rf "$work/_CPack_Packages"
package=$(ls "$work/okcvm-fs_${version}"_*.deb) upgrade=$(ls "$work/okcvm-fs_${version}+next"_*.deb)
dpkg-deb --info "$package" | sed 's/^/   /'

step "a clean Debian 12 root"
root=$work/root
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$work/debootstrap.log" || {
  tail "$work/debootstrap.log"
  fail "debootstrap failed"
}
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
[ -e "$root/dev/fuse" ] || mknod -m 0666 "$root/dev/fuse" c 10 229
[ ! -e /etc/apt/apt.conf ] || cp /etc/apt/apt.conf "$root/etc/apt/"
cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
cp "$package" "$upgrade" "$root/tmp/"

step "install"
inside apt-get install -y -qq --no-install-recommends "/tmp/$(basename "$package")" >"$work/apt.log" 2>&1 || {
  tail -n 20 "$work/apt.log"
  fail "the installation failed"
}
must_be_there /usr/bin/okcvm /usr/sbin/okcvmd /usr/lib/systemd/system/okcvmd.service \
  /usr/lib/systemd/system/okcvmd.socket /usr/lib/sysusers.d/okcvm.conf /usr/lib/tmpfiles.d/okcvm.conf \
  /etc/okcvm/okcvmd.conf /usr/share/bash-completion/completions/okcvm /usr/share/zsh/vendor-completions/_okcvm \
  /usr/share/fish/vendor_completions.d/okcvm.fish /var/lib/okcvm/skills
[ "$(stat -c %a "$root/var/lib/okcvm")" = 700 ] || fail "/var/lib/okcvm is open to others"
inside getent group okcvm >/dev/null || fail "there is no group okcvm"
inside okcvmd --print-config >/dev/null

step "use"
start_daemon
[ "$(stat -c '%a %G' "$root/run/okcvm/control.sock" | sed "s/ [^ ]*$//")" = 660 ] || fail "the socket's mode is not 0660"
mount=$(inside okcvm create --id package)
inside sh -c "echo 'kept through it all' > $mount/outputs/note"
snapshot=$(inside okcvm snapshot package -m first)
inside rm "$mount/outputs/note"
inside okcvm restore package "$snapshot" >/dev/null
[ "$(inside cat "$mount/outputs/note")" = 'kept through it all' ] || fail "the restored file differs"
inside okcvm doctor

step "upgrade under work: mounts, open files, an edited configuration and the sessions stay"
mount_number() { awk -v point="$root$mount" '$5 == point { print $1 }' /proc/self/mountinfo; }
daemon_pid() { inside okcvm status --json | sed -n 's/.*"pid":\([0-9]*\).*/\1/p'; }
echo 'log-level = debug' >>"$root/etc/okcvm/okcvmd.conf"
before=$(mount_number) old=$(daemon_pid)
exec 7<"$root$mount/outputs/note"
inside apt-get install -y -qq --no-install-recommends "/tmp/$(basename "$upgrade")" >"$work/apt.log" 2>&1 || {
  tail -n 20 "$work/apt.log"
  fail "the upgrade failed"
}
kill -HUP "$daemon" # as postinst does by systemctl reload
for _ in $(seq 100); do
  new=$(daemon_pid 2>/dev/null) && [ -n "$new" ] && [ "$new" != "$old" ] && break
  sleep 0.1
done
[ "$new" != "$old" ] || fail "the new okcvmd is not in place"
[ "$(mount_number)" = "$before" ] || fail "the session was mounted anew"
[ "$(timeout -s KILL 30 cat <&7)" = 'kept through it all' ] || fail "the open file was lost"
exec 7<&-
[ "$(inside cat "$mount/outputs/note")" = 'kept through it all' ] || fail "the upgrade lost a file"
[ "$(inside okcvm snapshots package --json | grep -c "$snapshot")" = 1 ] || fail "the upgrade lost a snapshot"
grep -q '^log-level = debug' "$root/etc/okcvm/okcvmd.conf" || fail "the upgrade replaced an edited configuration"

step "stop and remove: nothing stays mounted, the state stays"
stop_daemon
[ -z "$(fuse_mounts | grep -F "$root/")" ] || fail "a stopped okcvmd left a mount"
inside apt-get remove -y -qq okcvm-fs >"$work/apt.log" 2>&1
must_be_gone /usr/bin/okcvm /usr/sbin/okcvmd /usr/lib/systemd/system/okcvmd.service
must_be_there /var/lib/okcvm/sessions.db /etc/okcvm/okcvmd.conf

step "purge: nothing stays"
inside apt-get purge -y -qq okcvm-fs >"$work/apt.log" 2>&1
must_be_gone /var/lib/okcvm /etc/okcvm /run/okcvm
[ -z "$(ls -A "$root/mnt")" ] || fail "left behind: $(ls -A "$root/mnt")"
