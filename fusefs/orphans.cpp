#include "fusefs/orphans.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

constexpr std::string_view kPrefix = ".orphan-";

std::string hidden_name(NodeId id) {
  return std::string(kPrefix) + std::to_string(id.value);
}

}  // namespace

void Orphans::start(Start start) {
  auto folder = workspace_.open_folder();
  if (!folder) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(folder->get()), ::closedir);
  if (!listing) return;
  const int directory = folder->release();
  MutexLock lock(mutex_);
  while (const dirent* row = ::readdir(listing.get())) {
    const std::string_view name(row->d_name);
    std::uint64_t id = 0;
    if (!name.starts_with(kPrefix)) continue;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), id);
    if (start == Start::kTakeOver)
      kept_.insert(id);
    else
      ::unlinkat(directory, row->d_name, 0);
  }
}

void Orphans::keep(NodeId id, Zone zone, int file) {
  if (!rule_of(zone).snapshotted) return;
  auto folder = workspace_.open_folder();
  if (!folder) return;
  MutexLock lock(mutex_);
  if (with_faults("orphan.keep", [&] {
        return ::linkat(file, "", folder->get(), hidden_name(id).c_str(), AT_EMPTY_PATH);
      }) == 0)
    kept_.insert(id.value);
}

void Orphans::drop_unless(const std::function<bool(NodeId)>& is_open) {
  std::vector<NodeId> unused;
  {
    MutexLock lock(mutex_);
    for (const auto id : kept_)
      if (!is_open(NodeId{id})) unused.push_back(NodeId{id});
  }
  for (const NodeId id : unused) drop(id);
}

bool Orphans::keeps(NodeId id) const {
  MutexLock lock(mutex_);
  return kept_.contains(id.value);
}

void Orphans::drop(NodeId id) {
  MutexLock lock(mutex_);
  if (kept_.erase(id.value) == 0) return;
  if (auto folder = workspace_.open_folder()) ::unlinkat(folder->get(), hidden_name(id).c_str(), 0);
}

}  // namespace okcvm::fusefs
