#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace okcvm::bench {

/// A way to have a directory: natively, or through one of the file systems under comparison.
class Contestant {
 public:
  virtual ~Contestant() = default;
  virtual std::string name() const = 0;
  /// An empty directory to work in, on the file system in question.
  virtual std::filesystem::path directory() const = 0;
  /// Requests answered so far, by FUSE opcode, where that is known.
  virtual std::map<std::string, std::uint64_t> requests() { return {}; }
};

struct ContestantOptions {
  std::filesystem::path top;         // private, on the file system to be measured
  std::filesystem::path programs;    // where bench_session is
  std::string passthrough = "auto";  // of okcvm
  std::vector<std::string> names;    // which; all that are installed when empty
};

/// Native first, then okcvm, bindfs and fuse-overlayfs as far as they are installed and chosen. Throws
/// std::runtime_error when one cannot be mounted.
std::vector<std::unique_ptr<Contestant>> make_contestants(const ContestantOptions& options);

}  // namespace okcvm::bench
