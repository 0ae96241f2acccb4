#include "fusefs/going_inodes.h"

namespace okcvm::fusefs {

void GoingInodes::add(NodeId id, Going going) {
  const MutexLock lock(mutex_);
  inodes_.try_emplace(id.value, std::move(going));
}

void GoingInodes::add_name(NodeId parent, const std::string& name, NodeId what) {
  const MutexLock lock(mutex_);
  names_.insert_or_assign({parent, name}, what);
  has_names_ = true;
}

std::optional<NodeId> GoingInodes::at_name(NodeId parent, const char* name) const {
  if (!has_names_) return std::nullopt;
  const MutexLock lock(mutex_);
  const auto found = names_.find({parent, name});
  return found == names_.end() ? std::nullopt : std::optional(found->second);
}

void GoingInodes::drop_name(NodeId parent, const char* name) {
  if (!has_names_) return;
  const MutexLock lock(mutex_);
  names_.erase({parent, name});
  has_names_ = !names_.empty();
}

std::optional<struct stat> GoingInodes::status(NodeId id) const {
  const MutexLock lock(mutex_);
  const auto found = inodes_.find(id.value);
  if (found == inodes_.end()) return std::nullopt;
  struct stat status = found->second.status;
  status.st_nlink = 0;
  return status;
}

bool GoingInodes::is_harmless(NodeId id) const {
  const MutexLock lock(mutex_);
  const auto found = inodes_.find(id.value);
  return found != inodes_.end() && found->second.stays_in;
}

std::vector<std::pair<NodeId, GoingInodes::Going>> GoingInodes::take() {
  const MutexLock lock(mutex_);
  std::vector<std::pair<NodeId, Going>> all;
  for (auto& [id, going] : inodes_)
    all.emplace_back(NodeId{id}, Going{going.status, std::move(going.inode), going.stays_in});
  return all;
}

void GoingInodes::clear() {
  const MutexLock lock(mutex_);
  inodes_.clear();
  names_.clear();
  has_names_ = false;
}

}  // namespace okcvm::fusefs
