#include "fusefs/state_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>
#include <system_error>

namespace okcvm::fusefs {
namespace {

constexpr std::array<const char*, 8> kEndings{
    ".state",   ".nodes",   ".changes", ".going",
    ".writers", ".workdir", ".skills",  ".writers.new"};  // the draft of keep_writers()

std::string first_line(const std::filesystem::path& file) {
  std::string line;
  std::getline(std::ifstream(file) >> std::ws, line);
  return line;
}

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

void leave_only_writers(const std::filesystem::path& runtime_dir, const SessionId& id,
                        const std::unordered_set<std::uint64_t>& inodes) {
  const auto writers = state_file(runtime_dir, id, StateFile::kWriters);
  keep_writers(writers, inodes);
  for (const char* ending : kEndings)
    if (const auto file = runtime_dir / (id.text() + ending); file != writers) ::unlink(file.c_str());
}

void keep_writers(const std::filesystem::path& file, const std::unordered_set<std::uint64_t>& inodes) {
  if (inodes.empty()) {
    ::unlink(file.c_str());
    return;
  }
  auto draft = file;
  draft += ".new";
  std::ofstream out(draft);
  for (const auto inode : inodes) out << inode << '\n';
  out.close();
  ::rename(draft.c_str(), file.c_str());
}

std::unordered_set<std::uint64_t> kept_writers(const std::filesystem::path& file) {
  std::unordered_set<std::uint64_t> inodes;
  std::ifstream in(file);
  for (std::uint64_t inode = 0; in >> inode;) inodes.insert(inode);
  return inodes;
}

std::string identity_of(int directory) {
  struct statx status {};
  if (::statx(directory, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &status) != 0) return {};
  std::ostringstream text;
  text << status.stx_dev_major << ' ' << status.stx_dev_minor << ' ' << status.stx_ino << ' '
       << status.stx_btime.tv_sec << ' ' << status.stx_btime.tv_nsec;
  return text.str();
}

void note_workdir(const std::filesystem::path& file, int directory) {
  if (directory < 0) return void(::unlink(file.c_str()));
  if (const auto identity = identity_of(directory); first_line(file) != identity)
    std::ofstream(file) << identity << '\n';
}

bool may_be_workdir(const std::filesystem::path& runtime_dir, const SessionId& id, int directory) {
  const auto noted = first_line(state_file(runtime_dir, id, StateFile::kWorkdir));
  return noted.empty() || noted == identity_of(directory);
}

}  // namespace okcvm::fusefs
