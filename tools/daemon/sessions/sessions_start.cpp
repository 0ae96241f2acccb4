#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <future>
#include <system_error>
#include <thread>

#include "fusefs/session_mount.h"
#include "policy/trees.h"
#include "tools/daemon/host/clock.h"
#include "tools/daemon/host/log.h"
#include "tools/daemon/sessions/sessions.h"

namespace okcvm::daemon {
namespace {

constexpr std::size_t kStartThreads = 8;
constexpr std::chrono::milliseconds kFirstRetry{50};
constexpr std::chrono::milliseconds kLongestRetries{3000};  // of all sessions together: a start must end
constexpr std::chrono::milliseconds kMoment{500};

/// Runs `work` for every index below `count` on a few threads; returns when all are done. One that throws, as
/// for lack of memory, keeps no other from being done.
template <typename Work>
void for_each_at_once(std::size_t count, Work work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&]() noexcept {
    for (auto index = next.fetch_add(1); index < count; index = next.fetch_add(1)) {
      try {
        work(index);
      } catch (const std::exception& error) {
        log_error("a session was not started, or stopped, to the end: {}", error.what());
      }
    }
  };
  std::vector<std::thread> threads;
  try {
    while (threads.size() + 1 < std::min(kStartThreads, count)) threads.emplace_back(run);
  } catch (const std::system_error&) {  // the host has no more threads: those that run do it all
  }
  run();
  for (auto& thread : threads) thread.join();
}

/// The session id in "okcvm-<id>"; empty for other names.
std::string_view id_in(std::string_view mount_name) {
  constexpr std::string_view kPrefix = "okcvm-";
  return mount_name.starts_with(kPrefix) ? mount_name.substr(kPrefix.size()) : std::string_view();
}

/// As far as the folder can be read.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    paths.push_back(entry->path());
  return paths;
}

/// Whether a name is one that Sessions::put_away() gives: ".<milliseconds>.<number>" is its end.
bool is_put_away(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  for (int part = 0; part < 2; ++part) {
    const auto dot = name.find_last_not_of(kDigits);
    if (dot == name.npos || dot + 1 == name.size() || name[dot] != '.') return false;
    name = name.substr(0, dot);
  }
  return !name.empty();
}

/// On a thread of its own, that ends with the process: the next start finds what is left then. Waits for a
/// moment, so that little is gone before anybody can ask.
void remove_meanwhile(std::vector<std::filesystem::path> folders) {
  if (folders.empty()) return;
  log_info("{} folders are left of deleted sessions and are being removed", folders.size());
  std::packaged_task<void()> removal([folders = std::move(folders)] {
    for (const auto& folder : folders) [[maybe_unused]] auto removed = remove_tree(AT_FDCWD, folder.c_str());
  });
  const auto all_removed = removal.get_future();
  try {
    std::thread(std::move(removal)).detach();
  } catch (const std::system_error& error) {
    return log_warning("they stay until the next start: {}", error.what());
  }
  all_removed.wait_for(kMoment);
}

}  // namespace

void Sessions::note_affected(const Session& session, std::string reason, Affected::Until until) {
  log_error("session {}: {}", session.id().text(), reason);
  const MutexLock lock(mutex_);
  // At each mount it may be the same again.
  std::erase_if(affected_,
                [&](const Affected& known) { return known.id == session.id() && known.reason == reason; });
  affected_.push_back({session.id(), session.owner(), std::move(reason), time_now(), until});
}

void Sessions::forget_affected(const SessionId& id, Affected::Until until) {
  const MutexLock lock(mutex_);
  std::erase_if(affected_, [&](const Affected& known) { return known.id == id && known.until == until; });
}

void Sessions::note_unreadable(const Registry::Unreadable& row) {
  log_error("registry: {}; the row is left out", row.reason);
  if (!row.id) return;
  const MutexLock lock(mutex_);
  unreadable_.insert(row.id->text());
  affected_.push_back({*row.id, 0,
                       "its row of sessions.db is damaged and left out: " + row.reason +
                           "; fix it while no daemon runs, or delete the session",
                       time_now(), Affected::Until::kDeleted});
}

void Sessions::note_unknown(const SessionId& id, std::string_view what, Affected::Until until) {
  const std::string reason =
      "the registry has no such session, as when sessions.db was damaged or is not the one of these files: " +
      std::string(what) + "; put the right sessions.db back, or remove what is left under this name";
  log_error("session {}: {}", id.text(), reason);
  const MutexLock lock(mutex_);
  affected_.push_back({id, 0, reason, time_now(), until});
}

void Sessions::forget_cleared() {
  const MutexLock lock(mutex_);
  std::erase_if(affected_, [this](const Affected& known) REQUIRES(mutex_) {
    std::error_code failed;
    return known.until == Affected::Until::kCleared &&
           (sessions_.contains(known.id.text()) ||
            (!std::filesystem::exists(config_.state_dir / "workspaces" / known.id.text(), failed) &&
             !failed));
  });
}

std::vector<Sessions::Affected> Sessions::affected() const {
  const MutexLock lock(mutex_);
  return affected_;
}

/// Ends a mount whose device was kept, and was closed by this daemon. What was known of it stays for a mount
/// that is made in its place.
void Sessions::end_kept(const SessionId& id) {
  if (backends_.forget_device) backends_.forget_device(id);
  backends_.detach_stale(config_.mount_root, config_.run_dir / "sessions",
                         [&](std::string_view name) { return id_in(name) == id.text(); });
}

/// Clears away all that a dead daemon left of a mount that is not to be taken over.
void Sessions::let_go(const SessionId& id, bool was_kept) {
  if (was_kept) end_kept(id);
  ::rmdir(mount_point_of(id).c_str());  // fails where something is mounted
  if (backends_.forget_mount) backends_.forget_mount(config_.run_dir / "sessions", id);
}

/// Programs have files open in the mount: where the host has no memory or threads left, it is tried again for
/// a while.
Result<void> Sessions::take_over(Session& session, const FileDescriptor& device, Deadline last_try) {
  for (auto pause = kFirstRetry;; pause *= 2) {
    FileDescriptor copy(::fcntl(device.get(), F_DUPFD_CLOEXEC, 0));
    auto taken = copy ? attach(session, std::move(copy)) : fail_errno(errno, "cannot copy its descriptor");
    constexpr std::array kFinal{Code::kCorrupt, Code::kBusy, Code::kNotFound};
    const bool is_final =
        taken || std::find(kFinal.begin(), kFinal.end(), taken.error().code) != kFinal.end();
    if (is_final || std::chrono::steady_clock::now() >= last_try) return taken;
    log_warning("session {}: its mount could not be taken over yet: {}", session.id().text(),
                taken.error().message);
    std::this_thread::sleep_for(pause);
  }
}

void Sessions::bring_back(Session& session, FileDescriptor kept_device, bool was_lost, Deadline last_try) {
  const auto pass = session.gate().alone();
  if (!pass) return;
  const bool should_be_mounted = session.record().state == SessionPhase::kMounted;
  std::string affected;
  if (was_lost) affected = "its mount was lost with the last daemon";
  const bool was_kept = static_cast<bool>(kept_device);
  if (was_kept) {
    const auto taken = take_over(session, kept_device, last_try);
    if (taken && should_be_mounted) return;
    if (taken) return end_unmounting(session);
    if (taken.error().code != Code::kNotFound)
      affected = "its mount could not be taken over: " + taken.error().message;
  }
  kept_device.reset();
  if (!should_be_mounted) {
    let_go(session.id(), was_kept);
    return open_store(session);
  }
  if (was_kept) end_kept(session.id());
  const auto mounted = attach(session);
  if (!affected.empty())
    note_affected(session,
                  affected + "; it was mounted anew and programs that used it must reopen their files");
  if (!mounted) note_affected(session, "it could not be mounted: " + mounted.error().message);
}

/// The last daemon noted that it is unmounted, and did not come to it: what programs stored in mapped files
/// is to be asked for first, and the record of changes to be kept.
void Sessions::end_unmounting(Session& session) {
  if (auto detached = detach_for_good(session); !detached)
    log_error("session {}: it could not be unmounted: {}", session.id().text(), detached.error().message);
}

void Sessions::note_unbound(const Session& session) {
  if (const auto unbound = session.unbound_workdir())
    note_affected(session, "its workdir " + unbound->requested + " is not bound: " + unbound->reason +
                               "; once that is fixed, `okcvm unmount` and `okcvm load` bind it");
}

/// What earlier daemons put away and did not get to remove. A link where they put it is none of theirs.
std::vector<std::filesystem::path> Sessions::folders_put_away() const {
  std::vector<std::filesystem::path> folders;
  std::error_code ignored;
  for (const auto& bin : {config_.state_dir / "discarded", config_.state_dir / "workspaces" / kOwnBin,
                          config_.state_dir / "snapshots" / kOwnBin, config_.state_dir / "changes" / kOwnBin})
    if (std::filesystem::is_directory(std::filesystem::symlink_status(bin, ignored)))
      for (auto& path : entries_of(bin))
        if (is_put_away(path.filename().string())) folders.push_back(std::move(path));
  return folders;
}

/// Of a session that was being made or deleted when the last daemon ended: adds its files to `left`.
void Sessions::finish_deletion(const Session& session, bool was_kept,
                               std::vector<std::filesystem::path>& left) {
  let_go(session.id(), was_kept);
  if (auto put = put_away(session, left); !put)
    log_error("session {}: {}", session.id().text(), put.error().message);
  else if (auto removed = registry_->remove(session.id()); !removed)
    log_error("session {}: {}", session.id().text(), removed.error().message);
}

/// Lets go of the devices that are no session's, and tells of the files that are none's.
void Sessions::tell_of_unknown(std::map<std::string, FileDescriptor>&& devices,
                               const std::set<std::string, std::less<>>& known) {
  for (auto& [name, device] : devices) {
    device.reset();
    auto id = SessionId::parse(name);
    if (!id) continue;
    let_go(*id, true);
    if (!known.contains(name))
      note_unknown(*id, "its mount, which was kept, is let go", Affected::Until::kDeleted);
  }
  for (const auto& path : entries_of(config_.state_dir / "workspaces"))
    if (auto id = SessionId::parse(path.filename().string()); id && !known.contains(id->text()))
      note_unknown(*id, "its files are kept in the state directory", Affected::Until::kCleared);
}

Result<void> Sessions::start(std::map<std::string, FileDescriptor> kept_devices) {
  auto loaded = registry_->load();
  if (!loaded) return fail(loaded.error());
  auto left = folders_put_away();

  std::set<std::string, std::less<>> known;
  for (const auto& row : loaded->unreadable) {
    note_unreadable(row);
    if (row.id) known.insert(row.id->text());
  }
  for (const auto& record : loaded->sessions) known.insert(record.id.text());
  const auto lost =
      backends_.detach_stale(config_.mount_root, config_.run_dir / "sessions", [&](std::string_view name) {
        const auto id = id_in(name);
        return known.contains(id) && !kept_devices.contains(std::string(id));
      });

  struct Returning {
    SessionPointer session;
    FileDescriptor device;
    bool was_lost;
  };
  std::vector<Returning> returning;
  for (auto& record : loaded->sessions) {
    FileDescriptor device;
    if (auto kept = kept_devices.extract(record.id.text())) device = std::move(kept.mapped());
    const bool is_unfinished =
        record.state == SessionPhase::kMaking || record.state == SessionPhase::kDeleting;
    auto session = std::make_shared<Session>(std::move(record));
    if (is_unfinished) {
      const bool was_kept = static_cast<bool>(device);
      device.reset();
      finish_deletion(*session, was_kept, left);
      continue;
    }
    const auto name = mount_point_of(session->id()).filename().string();
    const bool was_lost = std::find(lost.begin(), lost.end(), name) != lost.end();
    returning.push_back({session, std::move(device), was_lost});
    const MutexLock lock(mutex_);
    sessions_.emplace(session->id().text(), std::move(session));
  }
  tell_of_unknown(std::move(kept_devices), known);
  // A workdir may be on a file system that does not answer for long.
  std::stable_partition(returning.begin(), returning.end(),
                        [](const Returning& one) { return !one.session->record().workdir; });
  const auto last_try = std::chrono::steady_clock::now() + kLongestRetries;
  for_each_at_once(returning.size(), [&](std::size_t i) {
    auto& [session, device, was_lost] = returning[i];
    try {
      bring_back(*session, std::move(device), was_lost, last_try);
    } catch (const std::exception& error) {
      note_affected(*session, std::string("it could not be brought back: ") + error.what());
    }
  });
  remove_meanwhile(std::move(left));  // not before: programs in the mounts were waiting
  return {};
}

bool Sessions::stop(bool leave_mounts) {
  save_uses();
  const auto sessions = all();
  std::atomic<bool> have_ended{true};
  for_each_at_once(sessions.size(), [&](std::size_t i) {
    auto& session = *sessions[i];
    const auto mount = session.mount_object();
    if (!mount) return;
    if (leave_mounts) {
      mount->abandon();
    } else {
      const auto pass = session.gate().alone();
      if (auto detached = detach(session, true); !detached)
        log_error("session {}: it could not be unmounted: {}", session.id().text(), detached.error().message);
    }
    if (mount->is_held_up()) have_ended = false;
  });
  return have_ended;
}

void Sessions::count_all_as_used() {
  for (const auto& session : all()) session->touch();
  save_uses();
}

void Sessions::forget_unknown() {
  for (const auto& session : all())
    if (const auto mount = session->mount()) mount->forget_unknown();
}

void Sessions::save_uses() {
  std::vector<std::pair<SessionId, std::int64_t>> used;
  std::vector<SessionPointer> whose;
  for (const auto& session : all()) {
    if (const auto time = session->unsaved_use()) {
      used.emplace_back(session->id(), *time);
      whose.push_back(session);
    } else if (const auto store = session->store()) {
      store->release_memory();
    }
  }
  if (auto saved = registry_->touch(used); !saved)
    return log_error("last-used times are not saved: {}", saved.error().message);
  for (std::size_t i = 0; i < used.size(); ++i) whose[i]->note_saved(used[i].second);
}

void Sessions::try_again() {
  const auto is_missing = [](const Session& session) {
    return session.record().state == SessionPhase::kMounted && !session.mount_object();
  };
  for (const auto& session : all()) {
    const bool has_all = session->store() || !session->mount() || !config_.snapshots;
    if (has_all && !is_missing(*session)) continue;
    const auto pass = session->gate().alone_now();
    if (!pass) continue;
    if (!is_missing(*session))
      reopen_store(*session);
    else if (attach(*session))
      log_info("session {}: it could be mounted now", session->id().text());
  }
  forget_cleared();
}

}  // namespace okcvm::daemon
