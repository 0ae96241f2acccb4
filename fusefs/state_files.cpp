#include "fusefs/state_files.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <system_error>

namespace okcvm::fusefs {
namespace {

constexpr std::array<const char*, 5> kEndings{".state", ".nodes", ".changes", ".going", ".writers"};

}  // namespace

std::filesystem::path state_file(const std::filesystem::path& runtime_dir, const SessionId& id,
                                 StateFile purpose) {
  return runtime_dir / (id.text() + kEndings[static_cast<std::size_t>(purpose)]);
}

bool has_left_mount(const std::filesystem::path& runtime_dir, const SessionId& id) {
  std::error_code ignored;
  return std::filesystem::exists(state_file(runtime_dir, id, StateFile::kState), ignored);
}

void forget_mount(const std::filesystem::path& runtime_dir, const SessionId& id) {
  for (const char* ending : kEndings) ::unlink((runtime_dir / (id.text() + ending)).c_str());
}

void keep_writers(const std::filesystem::path& file, const std::unordered_set<std::uint64_t>& inodes) {
  if (inodes.empty()) return;
  std::ofstream out(file);
  for (const auto inode : inodes) out << inode << '\n';
}

std::unordered_set<std::uint64_t> kept_writers(const std::filesystem::path& file) {
  std::unordered_set<std::uint64_t> inodes;
  std::ifstream in(file);
  for (std::uint64_t inode = 0; in >> inode;) inodes.insert(inode);
  return inodes;
}

}  // namespace okcvm::fusefs
