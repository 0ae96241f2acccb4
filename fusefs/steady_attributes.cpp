#include "fusefs/steady_attributes.h"

namespace okcvm::fusefs {
namespace {

bool same(const timespec& one, const timespec& other) {
  return one.tv_sec == other.tv_sec && one.tv_nsec == other.tv_nsec;
}

}  // namespace

bool SteadyAttributes::are_steady(NodeId id, const struct stat& status) {
  const MutexLock lock(mutex_);
  if (rows_.empty()) rows_.resize(kRows);
  Row& row = rows_[id.slot() % kRows];
  const bool is_as_before = row.id == id && same(row.modified, status.st_mtim) &&
                            same(row.changed, status.st_ctim) && row.blocks == status.st_blocks;
  row = {id, status.st_mtim, status.st_ctim, status.st_blocks, is_as_before ? row.times + 1 : 0};
  return row.times >= kOften;
}

}  // namespace okcvm::fusefs
