#include "snapshots/path_table.h"

#include <algorithm>
#include <charconv>

#include "policy/rel_path.h"
#include "snapshots/checksum.h"
#include "snapshots/names.h"
#include "snapshots/path_text.h"

namespace okcvm::snapshots {
namespace {

constexpr std::uint32_t kMostNumbers = 1U << 31;  // leaves room for those of a capture

/// Numbers that are taken once. Quick though many want the same, or those next to it: whoever makes names
/// decides that.
class Numbers final {
 public:
  /// This one, or the next that is free.
  std::uint32_t take(std::uint32_t wanted) {
    std::vector<std::uint32_t> passed;
    std::uint32_t free = wanted;
    for (auto at = next_.find(free); at != next_.end(); at = next_.find(free)) {
      passed.push_back(free);
      free = at->second;
    }
    passed.push_back(free);
    for (const auto number : passed) next_[number] = free % kMostNumbers + 1;
    return free;
  }
  std::uint32_t highest() const { return next_.empty() ? 0 : next_.rbegin()->first; }

 private:
  std::map<std::uint32_t, std::uint32_t> next_;  // of one that is taken: where a free one may be
};

}  // namespace

std::optional<std::uint32_t> PathTable::find(std::string_view path) const {
  const auto at = numbers_.find(path);
  return at == numbers_.end() ? std::nullopt : std::optional(at->second);
}

void PathTable::set(std::string path, std::uint32_t number) {
  const auto [at, is_new] = numbers_.try_emplace(std::move(path), number);
  if (!is_new && at->second == number) return;
  at->second = number;
  highest_ = std::max(highest_, number);
  has_changed_ = true;
}

void PathTable::remove(std::string_view path) {
  if (numbers_.contains(path)) gone_.emplace(path);
  take_out(path);
}

void PathTable::take_out(std::string_view path) {
  const auto at = numbers_.find(path);
  if (at == numbers_.end()) return;
  numbers_.erase(at);
  has_changed_ = true;
}

std::vector<std::string> PathTable::tree(std::string_view path) const {
  std::vector<std::string> found;
  if (numbers_.contains(path)) found.emplace_back(path);
  for (auto [at, end] = range_below(numbers_, path); at != end; ++at) found.push_back(at->first);
  return found;
}

void PathTable::remove_tree(std::string_view path) {
  if (numbers_.empty()) return;
  for (const auto& found : tree(path)) remove(found);
}

std::size_t PathTable::move_tree(std::string_view from, std::string_view to) {
  if (numbers_.empty()) return 0;
  const auto moved = tree(from);
  has_changed_ = has_changed_ || !moved.empty();
  for (const auto& found : moved) {
    auto entry = numbers_.extract(found);
    entry.key() = std::string(to) + found.substr(from.size());
    numbers_.insert(std::move(entry));
  }
  return moved.size();
}

std::map<std::uint32_t, std::vector<std::string>> PathTable::groups() const {
  std::map<std::uint32_t, std::vector<std::string>> found;
  for (const auto& [path, number] : numbers_) found[number].push_back(path);
  return found;
}

void PathTable::normalize() {
  std::map<std::uint32_t, std::uint32_t> sizes;
  for (const auto& entry : numbers_) ++sizes[entry.second];
  std::erase_if(numbers_, [&sizes](const auto& entry) { return sizes[entry.second] < 2; });
  std::map<std::uint32_t, std::uint32_t> renumbered;
  Numbers numbers;
  for (auto& [path, number] : numbers_) {
    const auto [at, is_first] = renumbered.try_emplace(number);
    if (is_first) at->second = numbers.take(crc_number(path) % kMostNumbers + 1);
    number = at->second;
  }
  highest_ = numbers.highest();
}

std::string PathTable::format() const {
  std::string text;
  for (const auto& [path, number] : numbers_)
    text.append(std::to_string(number)).append(" ").append(to_line(path)).append("\n");
  return text;
}

Result<PathTable> PathTable::parse(std::string_view text) {
  const auto damaged = [] { return fail(Code::kCorrupt, "a list in the metadata of a snapshot is damaged"); };
  PathTable table;
  while (!text.empty()) {
    const auto end = text.find('\n');
    if (end == text.npos) return damaged();
    const auto line = text.substr(0, end);
    std::uint32_t number = 0;
    const auto [after, error] = std::from_chars(line.data(), line.data() + line.size(), number);
    const auto used = static_cast<std::size_t>(after - line.data());
    if (error != std::errc() || used >= line.size() || line[used] != ' ') return damaged();
    std::string path = from_line(line.substr(used + 1));
    if (!RelPath::parse(path)) return damaged();
    table.set(std::move(path), number);
    text.remove_prefix(end + 1);
  }
  table.mark_stored();
  return table;
}

}  // namespace okcvm::snapshots
