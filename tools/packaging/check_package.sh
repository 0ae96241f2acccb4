#!/usr/bin/env bash
# Builds the Debian package and puts it through its whole life in a clean Debian 12 root: installed, used, upgraded under
# work, removed, purged. As root; leaves nothing behind.
#   tools/packaging/check_package.sh [MIRROR]     the default mirror is this host's
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tools/setup.sh
need_root
. tools/packaging/clean_root.sh

inside() { timeout -s KILL 300 chroot "$root" "${clean[@]}" "$@"; }

start_daemon() { # in the root; its keeper stands in for the service manager that does not run there
  chroot "$root" "${clean[@]}" okcvmd --keeper >>"$work/okcvmd.log" 2>&1 </dev/null &
  running=($!)
  for _ in $(seq 100); do
    inside okcvm status >/dev/null 2>&1 && return
    kill -0 "${running[0]}" 2>/dev/null || break
    sleep 0.1
  done
  cat "$work/okcvmd.log"
  fail "okcvmd does not answer"
}
stop_daemon() {
  kill -TERM "${running[0]}"
  wait "${running[0]}" || fail "okcvmd ended with status $?"
  running=()
}

step "building the packages: this version and the next"
build_packages
dpkg-deb --info "$package" | sed 's/^/   /'

step "a clean Debian 12 root"
make_root
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
[ -e "$root/dev/fuse" ] || mknod -m 0666 "$root/dev/fuse" c 10 229

step "install"
install_inside "$package"
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
install_inside "$upgrade"
kill -HUP "${running[0]}" # as postinst does by systemctl reload
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
