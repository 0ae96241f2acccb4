#pragma once

/// Tight loops over many files in the current directory, one system call sequence a file. Each returns the
/// seconds it took and throws std::system_error when a call fails.
namespace okcvm::bench {

struct LoopSizes {
  int files = 2000;
  int passes = 10;  // of the loops that change nothing and are quick
};

double create_write_close(LoopSizes sizes);  // 4 KiB each
double stat_each(LoopSizes sizes);
double stat_missing(LoopSizes sizes);
double open_read_close(LoopSizes sizes);
double read_directory(LoopSizes sizes);
double rename_each(LoopSizes sizes);
double unlink_each(LoopSizes sizes);  // what rename_each left
double make_directories(LoopSizes sizes);
double remove_directories(LoopSizes sizes);

/// The same loop by several programs at once, each in a directory of its own; the seconds until all have
/// ended.
double by_programs(int programs, double (*loop)(LoopSizes), LoopSizes sizes);

}  // namespace okcvm::bench
