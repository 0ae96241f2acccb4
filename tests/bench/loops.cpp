#include "tests/bench/loops.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace okcvm::bench {
namespace {

constexpr std::size_t kFileSize = 4096;

/// Names are made before the clock starts.
std::vector<std::string> names(const char* prefix, int count) {
  std::vector<std::string> made;
  made.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) made.push_back(prefix + std::to_string(i));
  return made;
}

void check(bool succeeded, const char* what) {
  if (!succeeded) throw std::system_error(errno, std::generic_category(), what);
}

template <typename Body>
double timed(const std::vector<std::string>& over, int passes, const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  for (int pass = 0; pass < passes; ++pass)
    for (const auto& name : over) body(name);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double create_write_close(LoopSizes sizes) {
  const std::array<char, kFileSize> bytes{};
  return timed(names("f", sizes.files), 1, [&](const std::string& name) {
    const int file = ::open(name.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    check(file >= 0, "create");
    check(::write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "write");
    ::close(file);
  });
}

double stat_each(LoopSizes sizes) {
  return timed(names("f", sizes.files), sizes.passes, [](const std::string& name) {
    struct stat found {};
    check(::stat(name.c_str(), &found) == 0, "stat");
  });
}

double stat_missing(LoopSizes sizes) {
  return timed(names("missing", sizes.files), sizes.passes, [](const std::string& name) {
    struct stat found {};
    check(::stat(name.c_str(), &found) != 0 && errno == ENOENT, "stat of a missing name");
  });
}

double open_read_close(LoopSizes sizes) {
  std::array<char, kFileSize> bytes;
  return timed(names("f", sizes.files), 2, [&](const std::string& name) {
    const int file = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
    check(file >= 0, "open");
    check(::read(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "read");
    ::close(file);
  });
}

double read_directory(LoopSizes sizes) {
  return timed({"."}, sizes.passes, [&](const std::string& name) {
    DIR* const stream = ::opendir(name.c_str());
    check(stream != nullptr, "opendir");
    int count = 0;
    while (::readdir(stream)) ++count;
    ::closedir(stream);
    errno = 0;
    check(count >= sizes.files, "readdir");
  });
}

double rename_each(LoopSizes sizes) {
  return timed(names("f", sizes.files), 1, [](const std::string& name) {
    check(::rename(name.c_str(), ("r" + name).c_str()) == 0, "rename");
  });
}

double unlink_each(LoopSizes sizes) {
  return timed(names("rf", sizes.files), 1,
               [](const std::string& name) { check(::unlink(name.c_str()) == 0, "unlink"); });
}

double make_directories(LoopSizes sizes) {
  return timed(names("d", sizes.files), 1,
               [](const std::string& name) { check(::mkdir(name.c_str(), 0755) == 0, "mkdir"); });
}

double remove_directories(LoopSizes sizes) {
  return timed(names("d", sizes.files), 1,
               [](const std::string& name) { check(::rmdir(name.c_str()) == 0, "rmdir"); });
}

double by_programs(int programs, double (*loop)(LoopSizes), LoopSizes sizes) {
  int gate[2];
  check(::pipe2(gate, O_CLOEXEC) == 0, "pipe");
  std::vector<pid_t> started;
  for (int i = 0; i < programs; ++i) {
    const auto own = "program" + std::to_string(i);
    check(::mkdir(own.c_str(), 0755) == 0 || errno == EEXIST, "mkdir");
    const pid_t child = ::fork();
    check(child >= 0, "fork");
    if (child == 0) {
      ::close(gate[1]);
      char opens = 0;
      const bool ready = ::chdir(own.c_str()) == 0 && ::read(gate[0], &opens, 1) == 0;
      try {
        if (ready) loop(sizes);
      } catch (const std::exception&) {
        ::_exit(1);
      }
      ::_exit(ready ? 0 : 1);
    }
    started.push_back(child);
  }
  ::close(gate[0]);
  const auto start = std::chrono::steady_clock::now();
  ::close(gate[1]);  // opens the gate
  bool succeeded = true;
  for (const pid_t child : started) {
    int status = 0;
    succeeded = ::waitpid(child, &status, 0) == child && status == 0 && succeeded;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!succeeded) throw std::runtime_error("a program failed in its loop");
  return seconds;
}

}  // namespace okcvm::bench
