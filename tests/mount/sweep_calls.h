#pragma once

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/mounted_session.h"

namespace okcvm::test {

/// The name of what open(2) answered.
std::string answer_of_open(const std::filesystem::path& path, int flags, mode_t mode = 0644);

// These work in `here`, and say what was answered and what the program saw.

/// Makes a file without a name, writes to it, and gives it the name `new`.
std::string link_nameless(const std::filesystem::path& here);
/// Three records, each by one write(2), to the end of `file`.
std::string append_records(const std::filesystem::path& here);

/// One call of a program, at whose every step the driver is to die.
struct Call {
  const char* name;
  /// Commands that make what the call works on, in a directory that everybody may write to.
  const char* prepare;
  /// Makes the call and says what it answered and what the program saw.
  std::string (*make)(const std::filesystem::path& here);
  /// What the record of changes must name, below that directory; "" for nothing.
  const char* changed;
  User user = {};
};

/// Of each kind that changes something, or that leaves something to be kept.
const std::vector<Call>& sweep_calls();

std::ostream& operator<<(std::ostream& out, const Call& call);

}  // namespace okcvm::test
