#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace okcvm::bench {

/// One line of the table: something timed in a contestant's directory. Rows of one group build on each
/// other's files and run in order.
struct Row {
  std::string name;
  double target;  // ratio to native to be reached (issue 3 of the tracker); 0: none given
  /// Works below `directory`, which keeps what earlier rows left, and returns seconds, or a time per byte.
  std::function<double(const std::filesystem::path& directory)> run;
};

struct RowOptions {
  std::filesystem::path repository;  // to be cloned
  int files = 2000;                  // of the tight loops
  int fio_megabytes = 256;
  bool with_fio = true;
};

/// Makes a git repository of `files` files of one to eight KiB in directories of thirty.
void make_repository(const std::filesystem::path& where, int files);

std::vector<Row> make_rows(const RowOptions& options);

}  // namespace okcvm::bench
