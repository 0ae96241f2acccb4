#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace okcvm::differential {

/// Several threads work on the same names and files of one directory at once; what must hold all the same is
/// checked: one winner of every exclusive creation, no lost or torn append, no lost or doubled name under
/// renames, link counts that add up, locks that exclude. Returns what did not hold.
std::vector<std::string> run_shared_phase(const std::filesystem::path& directory, int threads,
                                          unsigned int seed);

}  // namespace okcvm::differential
