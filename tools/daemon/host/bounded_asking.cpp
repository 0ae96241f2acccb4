#include "tools/daemon/host/bounded_asking.h"

#include <cstddef>

#include "tools/daemon/host/log.h"

namespace okcvm::daemon {
namespace {

constexpr std::size_t kMostLate = 16;

}  // namespace

bool BoundedAsking::Late::may_ask(const std::string& path) {
  const MutexLock lock(mutex_);
  return paths_.size() < kMostLate && !paths_.contains(path);
}

bool BoundedAsking::Late::note(const std::string& path, const std::function<bool()>& has_come) {
  const MutexLock lock(mutex_);
  if (has_come()) return false;
  paths_.insert(path);
  log_warning("{}: its file system does not answer", path);
  return true;
}

void BoundedAsking::Late::answered(const std::string& path) {
  const MutexLock lock(mutex_);
  paths_.erase(path);
}

}  // namespace okcvm::daemon
