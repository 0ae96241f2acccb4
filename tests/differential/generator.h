#pragma once

#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/differential/operation.h"

namespace okcvm::differential {

/// Chooses operations at random, mostly such that they can succeed. The same seed and the same answers give
/// the same sequence.
class Generator final {
 public:
  /// Kinds whose names are in `without` are left out.
  Generator(std::uint64_t seed, const std::set<std::string>& without);

  Operation next();
  /// What came of it (on the reference side), so that later choices can use it.
  void learn(const Operation& operation, bool succeeded);

 private:
  bool chance(int percent) { return number(100) < percent; }
  int number(int below) { return static_cast<int>(random_() % static_cast<unsigned int>(below)); }
  template <typename List>
  auto pick(const List& list) {
    return *(std::begin(list) + number(static_cast<int>(std::size(list))));
  }

  Kind kind();
  std::string leaf();
  std::string new_path();
  std::string any_path();
  std::string some_directory();
  int open_slot();
  mode_t mode();
  off_t offset();
  timespec time();
  void choose_open(Operation& operation);
  void choose_for_open_file(Operation& operation);
  void choose_for_path(Operation& operation);
  void choose_link_text(Operation& operation);
  void remember(std::vector<std::string>& list, const std::string& path);

  std::mt19937_64 random_;
  const std::set<std::string>& without_;
  std::vector<std::string> known_;        // paths that something was made at, newest last
  std::vector<std::string> directories_;  // likewise, and were directories then
  std::vector<int> open_;                 // slots that hold a file
};

}  // namespace okcvm::differential
