#include "tools/daemon/sessions/session.h"

#include <algorithm>

#include "fusefs/session_mount.h"
#include "snapshots/store.h"
#include "tools/daemon/host/clock.h"

namespace okcvm::daemon {
namespace {

// Longer than a mount, an unmount or a listing takes; shorter than clients wait.
constexpr std::chrono::seconds kTimeout{20};
// What is in use for longer than this is so by long work, a snapshot say: the others need not wait for it,
// too.
constexpr std::chrono::seconds kCourtesy{1};

Unexpected in_use() {
  return fail(Code::kBusy, "the session is busy with other requests: try again");
}

}  // namespace

Unexpected no_such_session() {
  return fail(Code::kNotFound, "no such session: `okcvm list` shows them");
}

SessionGate::Pass::~Pass() {
  if (gate_) gate_->leave(alone_);
}

Result<SessionGate::Pass> SessionGate::share() {
  const auto start = std::chrono::steady_clock::now();
  const MutexLock lock(mutex_);
  // Who waits to be alone goes first, so that a stream of requests cannot keep a session from being
  // unmounted.
  for (auto now = start; !closed_; now = std::chrono::steady_clock::now()) {
    const bool steps_aside = waiting_alone_ > 0 && (ending_ > 0 || now < start + kCourtesy);
    if (!is_alone_ && !steps_aside) break;
    if (now >= start + kTimeout) return in_use();
    changed_.wait_until(mutex_, start + (is_alone_ || ending_ > 0 ? kTimeout : kCourtesy));
  }
  if (closed_) return no_such_session();
  ++sharing_;
  return Pass(*this, false);
}

Result<SessionGate::Pass> SessionGate::alone() {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  const MutexLock lock(mutex_);
  ++waiting_alone_;
  bool in_time = true;
  while (in_time && !closed_ && (is_alone_ || sharing_ > 0))
    in_time = changed_.wait_until(mutex_, deadline) == std::cv_status::no_timeout;
  --waiting_alone_;
  const bool is_free = !closed_ && !is_alone_ && sharing_ == 0;
  if (!is_free) {
    changed_.notify_all();
    if (closed_) return no_such_session();
    return in_use();
  }
  is_alone_ = true;
  return Pass(*this, true);
}

Result<SessionGate::Pass> SessionGate::alone_now() {
  const MutexLock lock(mutex_);
  if (closed_) return no_such_session();
  if (is_alone_ || sharing_ > 0 || waiting_alone_ > 0) return in_use();
  is_alone_ = true;
  return Pass(*this, true);
}

Result<SessionGate::Pass> SessionGate::alone_for_end() {
  ++ending_;
  auto pass = alone();
  --ending_;
  return pass;
}

void SessionGate::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void SessionGate::leave(bool alone) {
  const MutexLock lock(mutex_);
  if (alone)
    is_alone_ = false;
  else
    --sharing_;
  changed_.notify_all();
}

Session::Session(SessionRecord record)
    : id_(record.id),
      owner_(record.owner_uid),
      touched_(record.last_used),
      saved_(record.last_used),
      record_(std::move(record)) {}
Session::~Session() = default;

SessionRecord Session::record() const {
  const MutexLock lock(mutex_);
  return record_;
}
SessionRecord Session::record_as_mounted() const {
  const MutexLock lock(mutex_);
  auto record = record_;
  if (!unbound_workdir_) return record;
  record.workdir.reset();
  record.workdir_policy = WorkdirPolicy::kManaged;
  record.workdir_fallback = unbound_workdir_;
  return record;
}
void Session::set_record(SessionRecord record) {
  const MutexLock lock(mutex_);
  record_ = std::move(record);
}

std::shared_ptr<fusefs::SessionMount> Session::mount_object() const {
  const MutexLock lock(mutex_);
  return mount_;
}
std::shared_ptr<fusefs::SessionMount> Session::mount() const {
  auto mount = mount_object();
  return mount && mount->is_mounted() ? mount : nullptr;
}
void Session::set_mount(std::shared_ptr<fusefs::SessionMount> mount, std::optional<WorkdirFallback> unbound) {
  std::shared_ptr<fusefs::SessionMount> old;  // ends after the lock: unmounting takes time
  const MutexLock lock(mutex_);
  unbound_workdir_ = std::move(unbound);
  old = std::exchange(mount_, std::move(mount));
}
std::optional<WorkdirFallback> Session::unbound_workdir() const {
  const MutexLock lock(mutex_);
  return unbound_workdir_;
}

Result<std::shared_ptr<fusefs::SessionMount>> Session::need_mount() const {
  if (auto mounted = mount()) return mounted;
  return fail(Code::kBusy, "the session is not mounted: mount it first (okcvm load)");
}

std::shared_ptr<snapshots::Store> Session::store() const {
  const MutexLock lock(mutex_);
  return store_;
}
void Session::set_store(std::shared_ptr<snapshots::Store> store, std::string why_not) {
  const MutexLock lock(mutex_);
  store_ = std::move(store);
  store_error_ = std::move(why_not);
}
std::string Session::store_error() const {
  const MutexLock lock(mutex_);
  return store_error_;
}

void Session::touch() {
  touched_.store(to_milliseconds(time_now()), std::memory_order_relaxed);
}
std::int64_t Session::last_used() const {
  auto latest = touched_.load(std::memory_order_relaxed);
  if (const auto mount = mount_object()) {
    const auto used = mount->statistics().last_used.time_since_epoch();
    latest = std::max(latest, std::chrono::duration_cast<std::chrono::milliseconds>(used).count());
  }
  return latest;
}
std::optional<std::int64_t> Session::unsaved_use() const {
  const auto latest = last_used();
  if (saved_ == latest) return std::nullopt;
  return latest;
}

}  // namespace okcvm::daemon
