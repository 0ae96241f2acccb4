#pragma once

#include <filesystem>
#include <string>

#include "tests/soak/kept_daemon.h"

namespace okcvm::soak {

/// What one session's worker does until the file `stop` is there.
struct Work {
  const KeptDaemon* daemon;
  std::string id;
  std::filesystem::path top;  // outputs/ of the session
  std::filesystem::path stop;
  std::filesystem::path source;  // a git repository to clone
};

/// The kinds of work, in turn by session number. Each runs in a process of its own and returns the first
/// thing that went wrong, with all that is needed to look into it, or nothing.
std::string work_name(int number);
std::string do_work(int number, const Work& work);

/// Sources for the clone and compile workloads.
void make_source(const std::filesystem::path& where);

}  // namespace okcvm::soak
