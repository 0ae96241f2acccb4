#include "snapshots/xattrs.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <unordered_map>

#include "policy/thread_annotations.h"

namespace okcvm::snapshots {
namespace {

using List = Xattrs::List;

constexpr std::size_t kLarge = 256;  // bytes

bool is_large(const List& list) {
  std::size_t size = 0;
  for (const auto& [name, value] : list) size += name.size() + value.size();
  return size >= kLarge;
}

std::size_t hash_of(const List& list) {
  std::size_t hash = list.size();
  for (const auto& xattr : list)
    for (const std::string_view text : {xattr.first, xattr.second})
      hash = hash * 31 + std::hash<std::string_view>()(text);
  return hash;
}

/// The large ones that are in use. Thread-safe.
class InUse final {
 public:
  std::shared_ptr<const List> one_of(List list) EXCLUDES(mutex_) {
    const auto hash = hash_of(list);
    const MutexLock lock(mutex_);
    const auto [begin, end] = lists_.equal_range(hash);
    for (auto at = begin; at != end; ++at)
      if (auto known = at->second.lock(); known && *known == list) return known;
    if (lists_.size() >= most_) drop_unused();
    auto made = std::make_shared<const List>(std::move(list));
    lists_.emplace(hash, made);
    return made;
  }

 private:
  void drop_unused() REQUIRES(mutex_) {
    std::erase_if(lists_, [](const auto& entry) { return entry.second.expired(); });
    most_ = std::max<std::size_t>(64, 2 * lists_.size());
  }

  Mutex mutex_;
  std::unordered_multimap<std::size_t, std::weak_ptr<const List>> lists_ GUARDED_BY(mutex_);  // by their hash
  std::size_t most_ GUARDED_BY(mutex_) = 64;  // before those that are not used any more are dropped
};

}  // namespace

Xattrs::Xattrs(List list) {
  static InUse in_use;
  if (list.empty()) return;
  list_ = is_large(list) ? in_use.one_of(std::move(list)) : std::make_shared<const List>(std::move(list));
}

const Xattrs::List& Xattrs::list() const {
  static const List none;
  return list_ ? *list_ : none;
}

bool Xattrs::are_large() const {
  return is_large(list());
}

}  // namespace okcvm::snapshots
