#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/differential/operation.h"

namespace okcvm::differential {

/// Where the two sides disagreed.
struct Mismatch {
  std::vector<Operation> operations;  // all up to and including the one that showed it
  std::string what;                   // "left | right"
  bool about_times = false;           // shows only when the last operation comes a while after the others
};

/// Two directories with the same name in the two trees under comparison; made empty, removed at the end (and
/// compared once more by removing).
class Arena final {
 public:
  /// Throws std::system_error.
  Arena(const std::filesystem::path& a, const std::filesystem::path& b, const std::string& name);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// The directories that operations start from, one level down, so that ".." stays inside.
  std::filesystem::path a() const { return a_ / "top"; }
  std::filesystem::path b() const { return b_ / "top"; }

 private:
  std::filesystem::path a_, b_;
};

/// Generates and runs `steps` operations from a seed on both sides, leaving out some kinds by name, then
/// compares the trees.
std::optional<Mismatch> run_random(const Arena& arena, std::uint64_t seed, int steps,
                                   const std::set<std::string>& without);
/// Runs given operations; with `pause`, waits before the last so that times can be told apart.
std::optional<Mismatch> run_given(const Arena& arena, const std::vector<Operation>& operations, bool pause);

/// Leaves out of a mismatch's operations whatever it can show itself without, within `seconds`.
Mismatch shrink(const Mismatch& mismatch, const std::filesystem::path& a, const std::filesystem::path& b,
                const std::string& name, int seconds);

/// The whole story for people: the difference, and the operations that led to it.
std::string report(const Mismatch& mismatch);

}  // namespace okcvm::differential
