#include "snapshots/git_tree.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace okcvm::snapshots {
namespace {

/// Directories sort as if their names ended in a slash.
bool comes_first(const GitEntry& a, const GitEntry& b) {
  const std::size_t common = std::min(a.name.size(), b.name.size());
  if (const int order = std::memcmp(a.name.data(), b.name.data(), common); order != 0) return order < 0;
  const auto next = [common](const GitEntry& entry) -> unsigned char {
    if (entry.name.size() > common) return static_cast<unsigned char>(entry.name[common]);
    return entry.mode == kGitDirectory ? '/' : '\0';
  };
  return next(a) < next(b);
}

}  // namespace

std::string format_git_tree(std::vector<GitEntry>& entries) {
  if (!std::is_sorted(entries.begin(), entries.end(), comes_first))
    std::sort(entries.begin(), entries.end(), comes_first);
  std::string bytes;
  bytes.reserve(entries.size() * 48);
  for (const auto& entry : entries) {
    char mode[8];
    bytes.append(mode, std::to_chars(mode, mode + sizeof mode, entry.mode, 8).ptr);
    bytes.append(" ").append(entry.name);
    bytes += '\0';
    bytes.append(entry.oid.raw());
  }
  return bytes;
}

Result<std::vector<GitEntry>> parse_git_tree(std::string_view bytes) {
  std::vector<GitEntry> entries;
  while (!bytes.empty()) {
    GitEntry entry;
    const auto space = bytes.find(' ');
    const auto end = bytes.find('\0');
    if (space == bytes.npos || end == bytes.npos || space > end || bytes.size() - end - 1 < Oid::kSize)
      return fail(Code::kCorrupt, "a tree of a snapshot is damaged");
    std::from_chars(bytes.data(), bytes.data() + space, entry.mode, 8);
    entry.name = bytes.substr(space + 1, end - space - 1);
    entry.oid = Oid::from_raw(bytes.data() + end + 1);
    entries.push_back(std::move(entry));
    bytes.remove_prefix(end + 1 + Oid::kSize);
  }
  return entries;
}

}  // namespace okcvm::snapshots
