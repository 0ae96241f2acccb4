#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "policy/error.h"

namespace okcvm::snapshots {

/// A few paths of a whole snapshot that share something: hard links (the number is that of the group) or what
/// was left out (the number is the letter of its type). It follows the moves and removals of a replay.
class PathTable final {
 public:
  bool empty() const { return numbers_.empty(); }
  const std::map<std::string, std::uint32_t, std::less<>>& numbers() const { return numbers_; }

  std::optional<std::uint32_t> find(std::string_view path) const;
  void set(std::string path, std::uint32_t number);
  void remove(std::string_view path);
  /// To be set again, with the same others.
  void take_out(std::string_view path);
  /// The path itself and all below it.
  void remove_tree(std::string_view path);
  /// Answers how many were moved.
  std::size_t move_tree(std::string_view from, std::string_view to);
  /// The path itself and all below it, in order.
  std::vector<std::string> tree(std::string_view path) const;

  /// Paths by number. Members of a group come in order.
  std::map<std::uint32_t, std::vector<std::string>> groups() const;
  /// Those that were removed since it was made or last stored, whatever they are now, and those of files that
  /// have others, which were not found.
  const std::set<std::string, std::less<>>& gone() const { return gone_; }
  bool misses_names() const { return misses_names_; }
  void note_missing_others(std::string_view path) {
    gone_.emplace(path);
    misses_names_ = true;
  }
  std::uint32_t unused_number() const { return highest_ + 1; }
  /// Drops groups of hard links of one member only, and gives each of the others a number that goes with its
  /// first member's path: which others there are changes nothing in its lines.
  void normalize();

  /// A line each, "NUMBER PATH", sorted by path.
  std::string format() const;
  static Result<PathTable> parse(std::string_view text);
  /// Whether it may differ from what was parsed or, since then, said to be stored.
  bool has_changed() const { return has_changed_; }
  void mark_stored() {
    has_changed_ = misses_names_ = false;
    gone_.clear();
  }

 private:
  std::map<std::string, std::uint32_t, std::less<>> numbers_;
  std::set<std::string, std::less<>> gone_;
  std::uint32_t highest_ = 0;  // that there ever was
  bool has_changed_ = false;
  bool misses_names_ = false;
};

}  // namespace okcvm::snapshots
