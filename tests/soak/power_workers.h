#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "tests/soak/kept_daemon.h"

namespace okcvm::soak {

/// How long a command may take.
inline constexpr std::chrono::seconds kCommandLimit{60};

/// One of the programs that run in a session while the power fails. Each notes what it was told is safe, in a
/// file that is not on the failing disk, and is asked afterwards whether all of that is there.
struct Worker {
  const KeptDaemon* daemon;
  std::string id;                // of the session
  std::filesystem::path top;     // its own folder in the session's outputs/
  std::filesystem::path notes;   // what was acknowledged
  std::filesystem::path failed;  // there is no power any more, so a call may fail, and the work is over
};

struct WorkerKind {
  const char* name;
  const char* needs;  // a program
  /// Works until a call fails or `failed` is there. Answers what went wrong before that.
  std::string (*work)(const Worker& worker);
  /// Answers what was lost; `promises` is counted up by what was acknowledged.
  std::string (*check)(const Worker& worker, int& promises);
};

extern const WorkerKind kWorkerKinds[9];

}  // namespace okcvm::soak
