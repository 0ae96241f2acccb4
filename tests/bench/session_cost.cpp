#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/daemon_cost.h"
#include "tests/support/process.h"
#include "tests/support/session.h"
#include "tests/support/watchdog.h"

/// What sessions cost beside their requests: time to make and mount one, by the driver and by the daemon,
/// memory and wake-ups of many idle ones, memory of many known files. Prints a JSON array of {what, value,
/// unit, target}.
namespace okcvm::bench {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;

std::map<std::string, long> table_of(const fs::path& path) {
  std::map<std::string, long> values;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    long value = 0;
    if (words >> name >> value) values[name.substr(0, name.find(':'))] = value;
  }
  return values;
}

/// KiB in use by this process, shared mappings of its state files included.
long process_kib() {
  const auto values = table_of("/proc/self/smaps_rollup");
  return values.count("Pss") ? values.at("Pss") : 0;
}

/// KiB in use by the kernel outside of page cache and processes.
long kernel_kib() {
  const auto values = table_of("/proc/meminfo");
  return values.at("Slab") + values.at("KernelStack") + values.at("PageTables") + values.at("Percpu");
}

/// Context switches of all threads so far; one that ends meanwhile counts as none.
long wake_ups() {
  long sum = 0;
  for (const auto& task : fs::directory_iterator("/proc/self/task")) {
    auto values = table_of(task.path() / "status");
    sum += values["voluntary_ctxt_switches"] + values["nonvoluntary_ctxt_switches"];
  }
  return sum;
}

long count_in(const fs::path& directory) {
  return std::distance(fs::directory_iterator(directory), {});
}

class Report {
 public:
  void add(const std::string& what, double value, const std::string& unit, const std::string& target = "") {
    rows_.push_back(
        {{"what", what}, {"value", std::round(value * 100) / 100}, {"unit", unit}, {"target", target}});
  }
  void print() const { std::cout << rows_.dump(2) << "\n"; }

 private:
  nlohmann::json rows_ = nlohmann::json::array();
};

void creation_time(Report& report) {
  std::vector<double> created, removed;
  for (int i = 0; i < 60; ++i) {
    test::SessionPlace place("c" + std::to_string(i));
    auto config = place.config();
    const auto start = Clock::now();
    auto driver = test::value_of(fusefs::SessionMount::mount(std::move(config)));
    if (::access((place.outputs()).c_str(), F_OK) != 0) throw std::runtime_error("not mounted");
    created.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    const auto end = Clock::now();
    test::value_of(driver->unmount(true));
    driver.reset();
    removed.push_back(std::chrono::duration<double, std::milli>(Clock::now() - end).count());
  }
  std::sort(created.begin(), created.end());
  std::sort(removed.begin(), removed.end());
  report.add("creation to first answer, median", created[created.size() / 2], "ms", "≤ 5 ms");
  report.add("creation to first answer, worst of 60", created.back(), "ms");
  report.add("unmount, median", removed[removed.size() / 2], "ms");
}

/// The same as a client of the daemon sees it: registry, snapshots' store and control socket included.
void daemon_time(Report& report) {
  constexpr int kRounds = 200;
  auto cost = measure_daemon(kRounds);
  const auto add = [&](const std::string& what, std::vector<double>& times, const std::string& target = "") {
    std::sort(times.begin(), times.end());
    report.add(what + ", median of " + std::to_string(kRounds), times[times.size() / 2], "ms", target);
    report.add(what + ", 95th percentile", times[times.size() * 95 / 100], "ms");
  };
  add("creation over the control socket, connection kept", cost.create_keep_alive, "≤ 5 ms");
  add("creation over the control socket, new connection", cost.create_fresh, "≤ 5 ms");
  add("okcvm create, the whole program", cost.create_program);
  add("deletion over the control socket", cost.delete_keep_alive);
  add("okcvm delete, the whole program", cost.delete_program);
}

void idle_cost(Report& report, int count) {
  std::vector<std::unique_ptr<test::Session>> sessions;
  sessions.push_back(std::make_unique<test::Session>("first"));
  const long process = process_kib(), kernel = kernel_kib(), files = count_in("/proc/self/fd");
  for (int i = 0; i < count; ++i) {
    sessions.push_back(std::make_unique<test::Session>("i" + std::to_string(i)));
    if (::access(sessions.back()->outputs().c_str(), F_OK) != 0) throw std::runtime_error("not mounted");
  }
  // Threads that were busy with the mounts end or go to sleep in the next seconds.
  for (long now = count_in("/proc/self/task"), before = 0, tries = 0; now != before && tries < 20; ++tries) {
    ::sleep(2);
    before = std::exchange(now, count_in("/proc/self/task"));
  }
  report.add("idle session: memory of the process", double(process_kib() - process) / count, "KiB");
  report.add("idle session: memory of the kernel", double(kernel_kib() - kernel) / count, "KiB");
  report.add("idle session: both", double(process_kib() - process + kernel_kib() - kernel) / count, "KiB",
             "≤ 150 KiB");
  report.add("idle session: descriptors", double(count_in("/proc/self/fd") - files) / count, "");
  report.add("threads of " + std::to_string(count) + " sessions", double(count_in("/proc/self/task")), "");
  constexpr int kSeconds = 10;
  const long before = wake_ups();
  ::sleep(kSeconds);
  report.add("wake-ups a second of " + std::to_string(count) + " idle sessions",
             double(wake_ups() - before - 1) / kSeconds, "", "0");
}

/// Files are made underneath, then looked up through the mount, so that the kernel knows them.
void known_files(Report& report, long count) {
  test::SessionPlace place("files");
  constexpr long kPerDirectory = 1000;
  for (long at = 0; at < count; at += kPerDirectory) {
    const auto directory = place.workspace() / "outputs" / std::to_string(at / kPerDirectory);
    fs::create_directories(directory);
    const FileDescriptor opened(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (long i = 0; i < kPerDirectory; ++i)
      ::mknodat(opened.get(), std::to_string(i).c_str(), S_IFREG | 0644, 0);
  }
  auto driver = test::value_of(fusefs::SessionMount::mount(place.config()));
  const long process = process_kib(), kernel = kernel_kib(), files = count_in("/proc/self/fd");
  const auto start = Clock::now();
  const auto found =
      test::run({.arguments = {"find", place.outputs().string(), "-type", "f", "-printf", "%s"},
                 .timeout = std::chrono::seconds(300)});
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (found.exit_code != 0 || static_cast<long>(found.output.size()) != count)
    throw std::runtime_error("find saw " + std::to_string(found.output.size()) + " files");
  const auto known = driver->statistics().nodes;
  report.add("known files", static_cast<double>(known), "");
  report.add("find over them", seconds, "s");
  report.add("known file: memory of the process", double(process_kib() - process) * 1024 / double(known),
             "bytes", "≤ 250 bytes");
  report.add("known file: memory of the kernel", double(kernel_kib() - kernel) * 1024 / double(known),
             "bytes");
  report.add("descriptors more than before", double(count_in("/proc/self/fd") - files), "", "bounded");
  test::value_of(driver->unmount(true));
}

void run(int sessions, long files) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::umask(0);
  Report report;
  creation_time(report);
  daemon_time(report);
  test::Watchdog::instance().expect_progress(std::chrono::seconds(900));  // each round of the daemon got 60
  if (sessions > 0) idle_cost(report, sessions);
  if (files > 0) known_files(report, files);
  report.print();
  test::Watchdog::instance().rest();
}

}  // namespace
}  // namespace okcvm::bench

/// Arguments: number of idle sessions (1,000) and of known files (1,000,000).
int main(int count, char** arguments) try {
  okcvm::bench::run(count > 1 ? std::atoi(arguments[1]) : 1000,
                    count > 2 ? std::atol(arguments[2]) : 1'000'000);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "session_cost: " << error.what() << "\n";
  return 1;
}
