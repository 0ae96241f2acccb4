#include "fusefs/notifier.h"

#include <climits>

namespace okcvm::fusefs {

void Notifier::push(Notice notice) {
  const std::lock_guard lock(mutex_);
  if (stopping_ || !session_) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  queue_.push_back(std::move(notice));
  changed_.notify_all();
}

void Notifier::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const Notice notice = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    tell(notice);
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

/// ENOENT: the kernel does not know it, so there is nothing to correct.
void Notifier::tell(const Notice& notice) {
  const auto id = notice.node.value;
  const std::string& name = notice.name;
  if (notice.then) {
    // No file has such a name; to look for it the kernel locks the directory, as renames do until their end.
    static const std::string no_name(NAME_MAX + 1, '?');
    fuse_lowlevel_notify_inval_entry(session_, id, no_name.c_str(), no_name.size());
    notice.then();
  } else if (name.empty()) {
    fuse_lowlevel_notify_inval_inode(session_, id, 0, 0);
  } else if (notice.expire_only) {
    fuse_lowlevel_notify_expire_entry(session_, id, name.c_str(), name.size(), FUSE_LL_EXPIRE_ONLY);
  } else {
    fuse_lowlevel_notify_inval_entry(session_, id, name.c_str(), name.size());
  }
}

void Notifier::inode_now(NodeId id) {
  fuse_lowlevel_notify_inval_inode(session_, id.value, 0, 0);
}

void Notifier::attributes_now(NodeId id) {
  fuse_lowlevel_notify_inval_inode(session_, id.value, -1, 0);
}

void Notifier::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || (queue_.empty() && !busy_); });
}

void Notifier::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace okcvm::fusefs
