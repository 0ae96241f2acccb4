#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "snapshots/store.h"
#include "tests/support/manifest.h"

namespace okcvm::test {

/// A session's folders, and what its driver would remember: the record of changes is a file here, which is
/// removed when a snapshot is told to be safe.
class Place {
 public:
  explicit Place(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::filesystem::path workspace() const { return folder_ / "workspaces/s1"; }
  std::filesystem::path repository() const { return folder_ / "snapshots/s1.git"; }
  std::filesystem::path answer() const { return folder_ / "answer"; }
  std::filesystem::path in(const std::string& path) const { return workspace() / path; }
  snapshots::StoreConfig config() const { return {repository(), workspace(), 0, 0}; }
  snapshots::StoreConfig forked() const {
    return {folder_ / "snapshots/f.git", folder_ / "workspaces/f", 0, 0};
  }

  void clear() const {
    std::filesystem::remove_all(folder_);
    for (const char* folder : {"workspaces", "snapshots"})
      std::filesystem::create_directories(folder_ / folder);
  }
  void note(ChangeKind kind, const std::string& path, const std::string& target = "-") const {
    std::ofstream(record(), std::ios::app) << static_cast<int>(kind) << ' ' << path << ' ' << target << '\n';
  }
  snapshots::Store::ChangeSource source() const {
    ChangeSet set;
    std::ifstream lines(record());
    int kind = 0;
    for (std::string path, target; lines >> kind >> path >> target;)
      set.changes.push_back({static_cast<ChangeKind>(kind), *RelPath::parse(path),
                             target == "-" ? RelPath() : *RelPath::parse(target)});
    return {[set] { return set; }, [file = record()](const ChangeSet&) { ::unlink(file.c_str()); }};
  }

 private:
  std::filesystem::path record() const { return folder_ / "changes"; }
  std::filesystem::path folder_;
};

template <typename T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message + " " + result.error().path);
  return std::move(*result);
}

std::unique_ptr<snapshots::Store> open(const Place& place);
snapshots::Store::RestoreHooks hooks(const Place& place);
/// Of what is in a session: without the backing folder itself.
Manifest manifest_of_zones(const std::filesystem::path& workspace);

/// What there is before the step, what there may be after it, and which snapshots were answered.
struct Expected {
  Manifest before, after;
  std::vector<std::string> answered;
};

struct Work {
  const char* name;
  std::function<Expected(const Place&)> prepare;
  std::function<std::string(const Place&)>
      step;  // answers the id of a snapshot that must then be there, or nothing
  bool forks = false;
};

/// All that is swept.
const std::vector<Work>& works();

}  // namespace okcvm::test
