#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/error.h"

namespace okcvm::daemon {

/// One option of okcvmd. The table is what `--help`, the man page and the completions are made from.
struct OptionRow {
  enum class Kind : std::uint8_t { kText, kPath, kInteger, kChoice, kFlag };
  std::string_view name;      // "state-dir"
  std::string_view argument;  // "PATH"; of kChoice: the choices, "on|off"; empty for flags
  std::string_view initial;   // the default; empty: none, or derived as the help says
  std::string_view help;
  Kind kind = Kind::kText;
  bool repeatable = false;
  bool only_command_line = false;
  std::int64_t least = 0;  // of kInteger
  std::int64_t most = 0;
};
std::span<const OptionRow> option_table();

/// Everything that okcvmd is told, checked and with defaults filled in. Paths are absolute.
struct Options {
  std::filesystem::path config;
  std::filesystem::path state_dir;
  std::filesystem::path run_dir;
  std::filesystem::path mount_root;
  std::filesystem::path socket;
  std::vector<std::filesystem::path> skills_dirs;
  std::int64_t session_ttl_days = 7;
  std::vector<std::string> symlink_host_roots;
  std::vector<std::string> workdir_allow_roots;
  bool snapshots = true;
  bool passthrough = true;
  std::string log_level;
  std::string log_format;
  std::int64_t max_connections = 0;
  std::int64_t max_connections_per_user = 0;
  std::int64_t idle_seconds = 0;
  std::int64_t max_sessions = 0;
  std::int64_t max_upload_bytes = 0;
  std::int64_t max_checkpoints = 0;
  bool keeper = false;
  bool help = false;
  bool help_table = false;
  bool version = false;
  bool print_config = false;

  /// Where each value came from, in the order of the table.
  struct Origin {
    std::string name;
    std::vector<std::string> values;
    std::string source;  // "command line", "OKCVM_STATE_DIR", "/etc/okcvm/okcvmd.conf", "default"
  };
  std::vector<Origin> origins;
};

/// Command line, then OKCVM_… of `environment` (a null-terminated envp), then the INI file. `invalid_request`
/// names the option, the variable or the file's line. A file that was not asked for by name may be absent.
Result<Options> read_options(int argc, const char* const* argv, const char* const* environment);

void print_help(std::ostream& out);
/// One option a line: name, argument, default, "repeatable" or "", help; separated by tabs.
void print_help_table(std::ostream& out);
/// Each value and where it came from.
void print_config(const Options& options, std::ostream& out);

}  // namespace okcvm::daemon
