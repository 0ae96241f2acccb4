#include "fusefs/state_files.h"

#include <unistd.h>

#include <array>
#include <system_error>

namespace okcvm::fusefs {
namespace {

constexpr std::array<const char*, 4> kEndings{".state", ".nodes", ".changes", ".going"};

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

}  // namespace okcvm::fusefs
