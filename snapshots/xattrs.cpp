#include "snapshots/xattrs.h"

#include <algorithm>
#include <map>

#include "policy/thread_annotations.h"
#include "snapshots/oid.h"
#include "snapshots/repository.h"

namespace okcvm::snapshots {
namespace {

using List = Xattrs::List;

constexpr std::size_t kLarge = 256;  // bytes

bool is_large(const List& list) {
  std::size_t size = 0;
  for (const auto& [name, value] : list) size += name.size() + value.size();
  return size >= kLarge;
}

/// One for which nobody finds lists that share it: programs choose what they hold.
Oid digest_of(const List& list) {
  std::string text;
  for (const auto& [name, value] : list)
    text.append(name).append(1, '\0').append(std::to_string(value.size())).append(1, '\0').append(value);
  return hash_object(ObjectKind::kBlob, text);
}

/// The large ones that are in use. Thread-safe.
class InUse final {
 public:
  std::shared_ptr<const List> one_of(List list) EXCLUDES(mutex_) {
    const auto digest = digest_of(list);
    const MutexLock lock(mutex_);
    if (lists_.size() >= most_) drop_unused();
    auto& known = lists_[digest];
    auto one = known.lock();
    if (one && *one == list) return one;
    one = std::make_shared<const List>(std::move(list));
    known = one;
    return one;
  }

 private:
  void drop_unused() REQUIRES(mutex_) {
    std::erase_if(lists_, [](const auto& entry) { return entry.second.expired(); });
    most_ = std::max<std::size_t>(64, 2 * lists_.size());
  }

  Mutex mutex_;
  std::map<Oid, std::weak_ptr<const List>> lists_ GUARDED_BY(mutex_);  // by their digests
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
