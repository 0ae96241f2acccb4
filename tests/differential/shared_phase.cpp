#include "tests/differential/shared_phase.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "policy/file_descriptor.h"
#include "tests/support/file_io.h"

namespace okcvm::differential {
namespace fs = std::filesystem;
namespace {

constexpr int kFiles = 24;
constexpr int kRounds = 120;

class SharedPhase {
 public:
  SharedPhase(fs::path directory, int threads, unsigned int seed)
      : directory_(std::move(directory)), threads_(threads), seed_(seed) {}

  std::vector<std::string> run() {
    exclusive_creation();
    appends();
    rename_storm();
    link_counts();
    replaced_files();
    counter("flock", [](int file, bool take) { return ::flock(file, take ? LOCK_EX : LOCK_UN); });
    counter("ofd", [](int file, bool take) {
      struct flock range {};
      range.l_type = static_cast<short>(take ? F_WRLCK : F_UNLCK);
      return ::fcntl(file, F_OFD_SETLKW, &range);
    });
    directories();
    return std::move(problems_);
  }

 private:
  using Random = std::mt19937;

  void problem(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (problems_.size() < 20) problems_.push_back(text);
  }
  void problem(const std::string& what, int error) { problem(what + ": " + ::strerrorname_np(error)); }

  void in_parallel(const std::function<void(int thread, Random& random)>& body) {
    std::vector<std::thread> running;
    for (int i = 0; i < threads_; ++i)
      running.emplace_back([&, i] {
        Random random(seed_ + static_cast<unsigned int>(i));
        body(i, random);
      });
    for (auto& thread : running) thread.join();
  }

  fs::path make(const std::string& name) {
    const auto made = directory_ / name;
    if (::mkdir(made.c_str(), 0755) != 0) problem("mkdir " + name, errno);
    return made;
  }

  void exclusive_creation() {
    const auto place = make("exclusive");
    std::vector<std::atomic<int>> winners(kRounds);
    in_parallel([&](int, Random&) {
      for (int i = 0; i < kRounds; ++i) {
        const auto path = place / std::to_string(i);
        const bool directory = i % 3 == 0;
        const FileDescriptor made(
            directory ? -1 : ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644));
        if (directory ? ::mkdir(path.c_str(), 0755) == 0 : static_cast<bool>(made))
          ++winners[static_cast<std::size_t>(i)];
        else if (errno != EEXIST)
          problem("exclusive creation", errno);
      }
    });
    for (const auto& count : winners)
      if (count != 1) problem("an exclusive creation had " + std::to_string(count) + " winners");
    if (const auto names = test::list(place); names.size() != kRounds)
      problem("exclusive creation left " + std::to_string(names.size()) + " names");
  }

  void appends() {
    constexpr std::size_t kRecord = 64;
    const auto path = directory_ / "appended";
    in_parallel([&](int thread, Random&) {
      const FileDescriptor file(::open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644));
      for (int i = 0; i < kRounds; ++i) {
        std::string record = std::to_string(thread) + ":" + std::to_string(i);
        record.resize(kRecord - 1, '.');
        record += '\n';
        if (::write(file.get(), record.data(), record.size()) != static_cast<ssize_t>(kRecord))
          problem("append", errno);
      }
    });
    const auto bytes = test::read(path);
    std::map<std::string, int> seen;
    for (std::size_t at = 0; at + kRecord <= bytes.size(); at += kRecord) ++seen[bytes.substr(at, kRecord)];
    if (bytes.size() != kRecord * kRounds * static_cast<std::size_t>(threads_))
      problem("appends left " + std::to_string(bytes.size()) + " bytes");
    for (const auto& [record, count] : seen)
      if (count != 1 || record.back() != '\n') problem("a torn or doubled append: " + record);
  }

  void rename_storm() {
    const auto place = make("storm");
    for (const char* name : {"x", "y", "z"}) make(std::string("storm/") + name);
    for (int i = 0; i < kFiles; ++i) test::write(place / "x" / std::to_string(i), std::to_string(i));
    in_parallel([&](int, Random& random) {
      for (int i = 0; i < kRounds * 4; ++i) {
        const auto file = std::to_string(random() % kFiles);
        const auto from = place / std::string(1, static_cast<char>('x' + random() % 3)) / file;
        const auto to = place / std::string(1, static_cast<char>('x' + random() % 3)) / file;
        if (::rename(from.c_str(), to.c_str()) != 0 && errno != ENOENT) problem("rename storm", errno);
      }
    });
    std::map<std::string, int> found;
    for (const char* name : {"x", "y", "z"})
      for (const auto& file : test::list(place / name)) {
        ++found[file];
        if (test::read(place / name / file) != file) problem("the rename storm changed the bytes of " + file);
      }
    for (int i = 0; i < kFiles; ++i)
      if (found[std::to_string(i)] != 1)
        problem("the rename storm left " + std::to_string(i) + " not exactly once");
  }

  void link_counts() {
    const auto place = make("links");
    test::write(place / "file", "linked");
    in_parallel([&](int thread, Random& random) {
      for (int i = 0; i < kRounds; ++i) {
        const auto name = place / (std::to_string(thread) + "-" + std::to_string(random() % 6));
        if (::link((place / "file").c_str(), name.c_str()) != 0 && errno != EEXIST) problem("link", errno);
        if (random() % 2 && ::unlink(name.c_str()) != 0 && errno != ENOENT) problem("unlink", errno);
      }
    });
    const auto names = test::list(place).size();
    for (const auto& name : test::list(place))
      if (test::stat_of(place / name).st_nlink != names)
        problem("link count of " + name + " is " + std::to_string(test::stat_of(place / name).st_nlink) +
                ", not " + std::to_string(names));
  }

  void replaced_files() {
    const auto path = directory_ / "replaced";
    test::write(path, std::string(5000, 'a'));
    in_parallel([&](int thread, Random&) {
      const auto draft = directory_ / ("draft" + std::to_string(thread));
      for (int i = 0; i < kRounds; ++i) {
        if (thread % 2 == 0) {
          test::write(draft, std::string(5000, static_cast<char>('a' + i % 26)));
          if (::rename(draft.c_str(), path.c_str()) != 0) problem("replacing rename", errno);
          continue;
        }
        const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        if (!file) {
          problem("open of a file that is replaced all the time", errno);
          continue;
        }
        const auto bytes = test::read(file);
        if (bytes.size() != 5000 || bytes.find_first_not_of(bytes[0]) != std::string::npos)
          problem("a replaced file showed neither the old bytes nor the new");
      }
    });
  }

  void counter(const std::string& name, const std::function<int(int file, bool take)>& lock) {
    const auto path = directory_ / ("counter-" + name);
    test::write(path, "0");
    in_parallel([&](int, Random&) {
      const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      for (int i = 0; i < kRounds; ++i) {
        if (lock(file.get(), true) != 0) problem(name + " lock", errno);
        const auto next = std::to_string(std::atoi(test::read(file).c_str()) + 1);
        if (::pwrite(file.get(), next.data(), next.size(), 0) < 0) problem("counter write", errno);
        if (lock(file.get(), false) != 0) problem(name + " unlock", errno);
      }
    });
    if (const auto bytes = test::read(path); bytes != std::to_string(kRounds * threads_))
      problem("the counter under " + name + " is " + bytes);
  }

  void directories() {
    const auto place = make("directories");
    in_parallel([&](int, Random& random) {
      for (int i = 0; i < kRounds * 2; ++i) {
        const auto outer = place / std::to_string(random() % 3);
        const auto inner = outer / std::to_string(random() % 3);
        const int error = [&] {
          switch (random() % 4) {
            case 0:
              return ::mkdir(outer.c_str(), 0755) ? errno : 0;
            case 1:
              return ::mkdir(inner.c_str(), 0755) ? errno : 0;
            case 2:
              return ::rmdir(inner.c_str()) ? errno : 0;
            default:
              return ::rmdir(outer.c_str()) ? errno : 0;
          }
        }();
        if (error && error != EEXIST && error != ENOENT && error != ENOTEMPTY)
          problem("mkdir and rmdir", error);
      }
    });
    for (const auto& outer : test::list(place)) {
      const auto links = test::stat_of(place / outer).st_nlink;
      if (links > 1 && links != 2 + test::list(place / outer).size())
        problem("a directory's link count is " + std::to_string(links));
    }
  }

  fs::path directory_;
  int threads_;
  unsigned int seed_;
  std::mutex mutex_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> run_shared_phase(const fs::path& directory, int threads, unsigned int seed) {
  return SharedPhase(directory, threads, seed).run();
}

}  // namespace okcvm::differential
