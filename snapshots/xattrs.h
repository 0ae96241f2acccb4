#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace okcvm::snapshots {

/// The extended attributes of an entry: "user.*", sorted by name. Never changed once made, so copies share
/// them; and so do all large ones that are equal, as those of a file's many names are. Thread-safe.
class Xattrs final {
 public:
  using List = std::vector<std::pair<std::string, std::string>>;  // names and values

  Xattrs() = default;
  explicit Xattrs(List list);

  bool empty() const { return !list_; }
  const List& list() const;
  /// Whether each copy would count. All that are equal then have one list().
  bool are_large() const;

  friend bool operator==(const Xattrs& a, const Xattrs& b) {
    return a.list_ == b.list_ || a.list() == b.list();
  }

 private:
  std::shared_ptr<const List> list_;  // nullptr: none
};

}  // namespace okcvm::snapshots
