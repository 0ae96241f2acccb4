#include <getopt.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string_view>
#include <thread>

#include "tests/differential/runner.h"
#include "tests/differential/shared_phase.h"
#include "tests/support/manifest.h"
#include "tests/support/session.h"
#include "tests/support/watchdog.h"

namespace okcvm::differential {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kUsage =
    "usage: differential [options] DIR_A DIR_B\n"
    "       differential [options] --session      (mounts one below $OKCVM_TEST_DIR or /dev/shm)\n"
    "Runs the same random file operations in two directories and compares all that a program can see.\n"
    "  --seed N            the sequences to run (default: random, printed)\n"
    "  --steps N           operations a sequence (default 2000)\n"
    "  --threads N         sequences at a time, each in a directory of its own, and after each round a phase "
    "in\n"
    "                      which all share one (default 1: no shared phase)\n"
    "  --rounds N          sequences a thread, seeds counting up (default 1)\n"
    "  --seconds N         as many rounds as fit\n"
    "  --passthrough auto|off\n"
    "  --keep-going        report every mismatch instead of stopping at the first round with one\n"
    "  --without NAME      leave out a kind of operation, by the name that reports give it (repeatable)\n"
    "Exit status: 0 no difference, 1 a difference, 2 usage or set-up.\n";

struct Options {
  std::uint64_t seed = std::random_device{}();
  int steps = 2000;
  int threads = 1;
  int rounds = 1;
  int seconds = 0;
  bool session = false;
  bool keep_going = false;
  std::set<std::string> without;
  fusefs::Passthrough passthrough = fusefs::Passthrough::kAuto;
  fs::path a, b;
};

[[noreturn]] void usage() {
  std::cerr << kUsage;
  std::exit(2);
}

Options parse(int count, char** arguments) {
  static constexpr option kOptions[] = {{"seed", required_argument, nullptr, 's'},
                                        {"steps", required_argument, nullptr, 'n'},
                                        {"threads", required_argument, nullptr, 't'},
                                        {"rounds", required_argument, nullptr, 'r'},
                                        {"seconds", required_argument, nullptr, 'S'},
                                        {"session", no_argument, nullptr, 'm'},
                                        {"passthrough", required_argument, nullptr, 'p'},
                                        {"keep-going", no_argument, nullptr, 'k'},
                                        {"without", required_argument, nullptr, 'w'},
                                        {"without", required_argument, nullptr, 'w'},
                                        {nullptr, 0, nullptr, 0}};
  Options options;
  for (int letter; (letter = ::getopt_long(count, arguments, "", kOptions, nullptr)) != -1;) switch (letter) {
      case 's':
        options.seed = std::strtoull(optarg, nullptr, 10);
        break;
      case 'n':
        options.steps = std::atoi(optarg);
        break;
      case 't':
        options.threads = std::atoi(optarg);
        break;
      case 'r':
        options.rounds = std::atoi(optarg);
        break;
      case 'S':
        options.seconds = std::atoi(optarg);
        break;
      case 'm':
        options.session = true;
        break;
      case 'w':
        options.without.insert(optarg);
        break;
      case 'k':
        options.keep_going = true;
        break;
      case 'p':
        if (std::string_view(optarg) == "off") options.passthrough = fusefs::Passthrough::kOff;
        break;
      default:
        usage();
    }
  if (count - optind != (options.session ? 0 : 2) || options.threads < 1 || options.steps < 1) usage();
  if (!options.session) options.a = arguments[optind], options.b = arguments[optind + 1];
  return options;
}

class Comparison {
 public:
  explicit Comparison(const Options& options) : options_(options), a_(options.a), b_(options.b) {
    if (!options_.session) return;
    session_ = std::make_unique<test::Session>(
        "differential", [&](fusefs::MountConfig& config) { config.passthrough = options_.passthrough; });
    a_ = session_->outputs() / "work";
    b_ = session_->plain() / "work";
    backing_ = session_->workspace() / "outputs" / "work";
    fs::create_directory(a_);
    fs::create_directory(b_);
    ::chmod(a_.c_str(), 0777);
    ::chmod(b_.c_str(), 0777);
    std::cout << "passthrough: " << (session_->driver().statistics().passthrough ? "on" : "off") << "\n";
  }

  bool run() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(options_.seconds);
    const auto more = [&](int round) {
      return options_.seconds > 0 ? std::chrono::steady_clock::now() < end : round < options_.rounds;
    };
    for (int round = 0; more(round) && (options_.keep_going || !failed_); ++round) {
      test::Watchdog::instance().expect_progress(std::chrono::seconds(300));
      run_round(options_.seed +
                static_cast<std::uint64_t>(round) * static_cast<std::uint64_t>(options_.threads));
      ++rounds_;
    }
    std::cout << rounds_ << " rounds of " << options_.threads << " x " << options_.steps
              << " operations: " << (failed_ ? "DIFFERENCES" : "no difference") << std::endl;
    test::Watchdog::instance().rest();
    return !failed_;
  }

 private:
  void run_round(std::uint64_t seed) {
    std::vector<std::thread> running;
    for (int i = 0; i < options_.threads; ++i)
      running.emplace_back([&, i] {
        try {
          // A umask of its own; the driver's threads, in this process, keep theirs.
          if (::unshare(CLONE_FS) != 0) throw std::runtime_error("unshare");
          run_sequence(seed + static_cast<std::uint64_t>(i));
        } catch (const std::exception& error) {
          fail(std::string("cannot go on: ") + error.what());
        }
      });
    for (auto& thread : running) thread.join();
    if (options_.threads > 1) share(static_cast<unsigned int>(seed));
  }

  void run_sequence(std::uint64_t seed) {
    const std::string name = "seed" + std::to_string(seed);
    std::optional<Mismatch> mismatch;
    {
      const Arena arena(a_, b_, name);
      mismatch = run_random(arena, seed, options_.steps, options_.without);
      if (!mismatch) compare_with_backing(arena, seed);
    }
    if (!mismatch) return;
    const auto shown = shrink(*mismatch, a_, b_, name, 20);
    fail("seed " + std::to_string(seed) + ", operation " + std::to_string(mismatch->operations.size() - 1) +
         ":\n" + report(shown));
  }

  /// What the kernel has cached of a session must be what is on the disk, to the nanosecond.
  void compare_with_backing(const Arena& arena, std::uint64_t seed) {
    if (backing_.empty()) return;
    const auto seen = test::manifest_of(arena.a());
    const auto stored = test::manifest_of(backing_ / fs::relative(arena.a(), a_));
    std::string text;
    for (const auto& line : test::differences(seen, stored)) text += "\n  " + line;
    if (!text.empty())
      fail("seed " + std::to_string(seed) + ": the mount shows other than the backing has:" + text);
  }

  void share(unsigned int seed) {
    for (const auto& side : {a_, b_}) {
      const auto place = side / "shared";
      fs::create_directory(place);
      for (const auto& problem : run_shared_phase(place, options_.threads, seed))
        fail(std::string(side == a_ ? "A" : "B") + ", shared phase, seed " + std::to_string(seed) + ": " +
             problem);
      fs::remove_all(place);
    }
  }

  void fail(const std::string& text) {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    std::cout << text << std::endl;
  }

  const Options options_;
  fs::path a_, b_, backing_;
  std::unique_ptr<test::Session> session_;
  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  int rounds_ = 0;
};

int run(int count, char** arguments) try {
  const auto options = parse(count, arguments);
  test::Watchdog::instance();
  std::signal(SIGPIPE, SIG_IGN);  // writing to a FIFO that nobody reads is one of the operations
  if (const auto reason = test::why_no_mounts(); options.session && !reason.empty()) {
    std::cout << "skipped: " << reason << std::endl;
    return 77;
  }
  std::cout << "seed " << options.seed << std::endl;
  return Comparison(options).run() ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << "differential: " << error.what() << "\n";
  return 2;
}

}  // namespace
}  // namespace okcvm::differential

int main(int count, char** arguments) {
  return okcvm::differential::run(count, arguments);
}
