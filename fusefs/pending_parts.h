#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace okcvm::fusefs {

/// The components of a path that are still to come, those of a link's text before what comes behind the link.
/// Not thread-safe.
class PendingParts {
 public:
  explicit PendingParts(std::string_view path) {
    add(path);
    asked_for_ = parts_.size();
  }

  bool empty() const { return parts_.empty(); }

  void add(std::string_view text) {
    std::vector<std::string> parts;
    for (std::size_t start = 0; start < text.size();) {
      const auto end = std::min(text.find('/', start), text.size());
      if (end > start && text.substr(start, end - start) != ".")
        parts.emplace_back(text.substr(start, end - start));
      start = end + 1;
    }
    parts_.insert(parts_.end(), parts.rbegin(), parts.rend());
  }

  struct Part {
    std::string text;
    bool is_asked_for;  // it stands in the path itself
  };
  Part next() {
    Part part{std::move(parts_.back()), parts_.size() <= asked_for_};
    parts_.pop_back();
    asked_for_ = std::min(asked_for_, parts_.size());
    return part;
  }

 private:
  std::vector<std::string> parts_;  // the next one last
  std::size_t asked_for_ = 0;       // of them, the first ones
};

}  // namespace okcvm::fusefs
