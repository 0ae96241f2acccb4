#pragma once

#include <sqlite3.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "tests/fuzz/expect.h"
#include "tools/daemon/sessions/registry.h"

namespace okcvm::fuzz {

/// A private folder for the database; in memory, for speed.
inline std::filesystem::path registry_file() {
  static const std::filesystem::path folder = [] {
    const std::filesystem::path path = "/dev/shm/okcvm-fuzz-" + std::to_string(::getpid());
    std::filesystem::create_directories(path);
    std::atexit([] {
      std::error_code ignored;
      std::filesystem::remove_all("/dev/shm/okcvm-fuzz-" + std::to_string(::getpid()), ignored);
    });
    return path;
  }();
  return folder / "sessions.db";
}

inline void remove_registry() {
  for (const char* suffix : {"", "-wal", "-shm", "-journal"})
    ::unlink((registry_file().string() + suffix).c_str());
}

inline std::string registry_bytes() {
  std::ostringstream bytes;
  bytes << std::ifstream(registry_file(), std::ios::binary).rdbuf();
  return bytes.str();
}

/// Puts a file of these bytes in the registry's place.
inline void lay_out(const std::string& bytes) {
  remove_registry();
  std::ofstream(registry_file(), std::ios::binary) << bytes;
}

/// Asks a registry for everything that the daemon asks, and tells it everything; refusals are allowed.
inline void use(daemon::Registry& registry) {
  const auto loaded = registry.load();
  if (loaded) {
    for (const auto& record : loaded->sessions) {
      FUZZ_EXPECT(SessionId::parse(record.id.text()).has_value());
      FUZZ_EXPECT(record.root_mode <= 0777);
      FUZZ_EXPECT(record.owner_uid != static_cast<uid_t>(-1) && record.owner_gid != static_cast<gid_t>(-1));
      const auto checkpoints = registry.checkpoints(record.id, 10);
      if (checkpoints)
        for (const auto& checkpoint : *checkpoints) registry.checkpoint(record.id, checkpoint.id);
      registry.update(record);
      registry.touch({{record.id, record.last_used}});
    }
    const auto again = registry.load();
    FUZZ_EXPECT(!again || again->sessions.size() == loaded->sessions.size());
  }
  registry.agents(std::nullopt, "", 2);
  registry.agents(0, "s1", 2);
  registry.agents_named("a");
  registry.workdir_of_task(0, "s1", "d");
  registry.workdir_of_branch(0, "https://x/y", "main", std::nullopt);
  registry.recent_workdirs(0, 10);
  const auto id = *SessionId::parse("s1");
  registry.add_checkpoint(id, {"new", {}, {}, {}, 2, "{}"}, 100);
  registry.remove_checkpoints(id);
  registry.remove(id);
}

}  // namespace okcvm::fuzz
