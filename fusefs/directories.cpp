#include "fusefs/directories.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

namespace okcvm::fusefs {

/// The caches of all sessions of this process. Its lock comes before theirs.
class Directories::All {
 public:
  static All& instance() {
    static auto& all = *new All;  // outlives every session
    return all;
  }

  void add(Directories& one) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    every_.push_back(&one);
  }
  void remove(Directories& one) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::erase(every_, &one);
  }
  /// Where all together keep more than one session may, none keeps more than its share.
  void make_room() EXCLUDES(mutex_) {
    const std::size_t most = descriptors_for_one_session();
    if (kept <= most) return;
    std::vector<Kept> evicted;  // closed after the lock is released
    MutexLock lock(mutex_);
    const std::size_t share = (most - most / 16) / every_.size();  // a bit less, so that it is seldom done
    for (Directories* one : every_) {
      MutexLock its(one->mutex_);
      while (one->cached_.size() > share) evicted.push_back(one->let_go_of_one());
    }
  }

  std::atomic<std::size_t> kept = 0;

 private:
  Mutex mutex_;
  std::vector<Directories*> every_ GUARDED_BY(mutex_);
};

FileDescriptor Directory::hold(const char* name) const {
  constexpr int kFlags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  if (!rule_of(zone).changes_underneath) return FileDescriptor(::openat(file.get(), name, kFlags));
  open_how how{};
  how.flags = kFlags;
  how.resolve = RESOLVE_NO_XDEV;
  return FileDescriptor(static_cast<int>(::syscall(SYS_openat2, file.get(), name, &how, sizeof how)));
}

int Directory::look_at(const char* name, struct stat& status) const {
  if (!rule_of(zone).changes_underneath) return ::fstatat(file.get(), name, &status, AT_SYMLINK_NOFOLLOW);
  const FileDescriptor held = hold(name);
  return held ? ::fstat(held.get(), &status) : -1;
}

Directories::Directories(Workspace& workspace, NodeTable& nodes) : workspace_(workspace), nodes_(nodes) {
  All::instance().add(*this);
}

Directories::~Directories() {
  All::instance().remove(*this);
  drop_all();
}

Result<std::shared_ptr<const Directory>> Directories::open(NodeId id) {
  {
    MutexLock lock(mutex_);
    if (const auto found = cached_.find(id.value); found != cached_.end()) {
      ages_.splice(ages_.begin(), ages_, found->second.age);
      return found->second.directory;
    }
  }
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  if (!node->is_directory()) return fail_errno(ENOTDIR);
  // Removed, or another node by now: what is done in it must not be done by two.
  if (node->dead && rule_of(node->zone).snapshotted) return fail_errno(ENOENT);

  auto file = is_zone_directory(id) ? workspace_.open_zone(node->zone)
                                    : workspace_.open(*node, O_RDONLY | O_DIRECTORY);
  // Known, but removed without the kernel's doing (by a restore, or by the host in a workdir).
  if (!file && file.error().errno_value == ESTALE) return fail_errno(ENOENT);
  if (!file) return fail(file.error());

  auto directory = std::make_shared<Directory>();
  directory->file = std::move(*file);
  directory->id = id;
  directory->zone = node->zone;
  directory->volume = node->key.volume;

  if (!may_be_held(directory->file)) return directory;
  Kept evicted;                            // closed after the lock is released
  std::list<std::uint64_t> age{id.value};  // first: it may need memory
  {
    MutexLock lock(mutex_);
    const auto [entry, inserted] = cached_.try_emplace(id.value);
    if (!inserted) return entry->second.directory;
    entry->second.directory = directory;
    entry->second.age = age.begin();
    ages_.splice(ages_.begin(), age);
    ++All::instance().kept;
    if (cached_.size() > kCapacity) evicted = let_go_of_one();
  }
  All::instance().make_room();
  return directory;
}

Directories::Kept Directories::let_go_of_one() {
  const auto oldest = cached_.find(ages_.back());
  auto directory = std::move(oldest->second.directory);
  cached_.erase(oldest);
  ages_.pop_back();
  --All::instance().kept;
  return directory;
}

Result<std::shared_ptr<const Directory>> Directories::open_for_change(NodeId id) {
  auto directory = open(id);
  if (directory || directory.error().errno_value != ENOENT || !is_zone_directory(id)) return directory;
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  if (auto made = workspace_.materialize(node->zone); !made) return fail(made.error());
  return open(id);
}

void Directories::drop(NodeId id) {
  std::shared_ptr<const Directory> dropped;
  MutexLock lock(mutex_);
  const auto found = cached_.find(id.value);
  if (found == cached_.end()) return;
  dropped = std::move(found->second.directory);
  ages_.erase(found->second.age);
  cached_.erase(found);
  --All::instance().kept;
}

void Directories::drop_all() {
  MutexLock lock(mutex_);
  All::instance().kept -= cached_.size();
  cached_.clear();
  ages_.clear();
  ++moves_;
}

Result<RelPath> Directories::path_of(const Directory& directory) const {
  std::uint64_t moves = 0;
  {
    MutexLock lock(mutex_);
    const auto found = cached_.find(directory.id.value);
    if (found != cached_.end() && found->second.has_path) return found->second.path;
    moves = moves_;
  }
  auto path = workspace_.path_of(directory.file.get());
  if (!path) return path;
  MutexLock lock(mutex_);
  const auto found = cached_.find(directory.id.value);
  if (found != cached_.end() && moves == moves_) {
    found->second.path = *path;
    found->second.has_path = true;
  }
  return path;
}

void Directories::paths_changed() {
  MutexLock lock(mutex_);
  for (auto& [id, entry] : cached_) entry.has_path = false;
  ++moves_;
}

std::uint64_t Directories::open_count() const {
  MutexLock lock(mutex_);
  return cached_.size();
}

}  // namespace okcvm::fusefs
