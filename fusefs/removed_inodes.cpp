#include "fusefs/removed_inodes.h"

#include <fcntl.h>

#include <atomic>
#include <utility>

namespace okcvm::fusefs {
namespace {

std::atomic<std::size_t> held_in_all{0};

}  // namespace

RemovedInodes::~RemovedInodes() {
  held_in_all -= held_.size();
}

void RemovedInodes::hold(NodeId id, FileDescriptor inode) {
  // Closed after the lock is released: it may take long to free what they held.
  FileDescriptor former;
  FileDescriptor oldest;
  const bool takes_too_many = !may_be_held(inode);
  MutexLock lock(mutex_);
  former = take(id);
  std::list<NodeId> age{id};  // first: it may need memory
  held_[id.value] = {std::move(inode), age.begin()};
  ages_.splice(ages_.end(), age);
  if (++held_in_all > kMostInAll || held_.size() > kMost || takes_too_many) oldest = take(ages_.front());
}

FileDescriptor RemovedInodes::again(NodeId id) const {
  MutexLock lock(mutex_);
  const auto found = held_.find(id.value);
  if (found == held_.end()) return {};
  return FileDescriptor(::fcntl(found->second.inode.get(), F_DUPFD_CLOEXEC, 0));
}

void RemovedInodes::let_go(NodeId id) {
  FileDescriptor last;  // closed late, as above
  MutexLock lock(mutex_);
  last = take(id);
}

FileDescriptor RemovedInodes::take(NodeId id) {
  const auto found = held_.find(id.value);
  if (found == held_.end()) return {};
  FileDescriptor inode = std::move(found->second.inode);
  ages_.erase(found->second.age);
  held_.erase(found);
  --held_in_all;
  return inode;
}

}  // namespace okcvm::fusefs
