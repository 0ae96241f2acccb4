#include <getopt.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <thread>

#include "tests/soak/kept_daemon.h"
#include "tests/soak/pause_meter.h"
#include "tests/soak/workloads.h"
#include "tests/support/scratch.h"
#include "tests/support/session.h"
#include "tests/support/watchdog.h"

namespace okcvm::soak {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kUsage =
    "usage: soak [--sessions N] [--seconds N] [--kill-every SECONDS] [--upgrade-every SECONDS] [--seed N]\n"
    "            [--passthrough auto|off]\n"
    "Runs sessions under git, compilers, fio, sqlite, renames and snapshots while okcvmd is killed with "
    "SIGKILL and\n"
    "upgraded, and checks that no call fails and no byte is lost. See README.md.\n";

struct Options {
  int sessions = 20;
  int seconds = 900;
  double kill_every = 3;
  double upgrade_every = 40;
  unsigned int seed = std::random_device{}();
  std::string passthrough = "auto";
};

[[noreturn]] void usage() {
  std::cerr << kUsage;
  std::exit(2);
}

Options parse(int count, char** arguments) {
  static constexpr option kOptions[] = {{"sessions", required_argument, nullptr, 'n'},
                                        {"seconds", required_argument, nullptr, 's'},
                                        {"kill-every", required_argument, nullptr, 'k'},
                                        {"upgrade-every", required_argument, nullptr, 'u'},
                                        {"seed", required_argument, nullptr, 'r'},
                                        {"passthrough", required_argument, nullptr, 'p'},
                                        {nullptr, 0, nullptr, 0}};
  Options options;
  for (int letter; (letter = ::getopt_long(count, arguments, "", kOptions, nullptr)) != -1;) switch (letter) {
      case 'n':
        options.sessions = std::atoi(optarg);
        break;
      case 's':
        options.seconds = std::atoi(optarg);
        break;
      case 'k':
        options.kill_every = std::atof(optarg);
        break;
      case 'u':
        options.upgrade_every = std::atof(optarg);
        break;
      case 'r':
        options.seed = static_cast<unsigned int>(std::strtoul(optarg, nullptr, 10));
        break;
      case 'p':
        options.passthrough = optarg;
        break;
      default:
        usage();
    }
  if (optind != count || options.sessions < 1 || options.kill_every <= 0) usage();
  return options;
}

class Soak {
 public:
  explicit Soak(const Options& options)
      : options_(options), scratch_("soak"), stop_(scratch_ / "stop"), random_(options.seed) {
    test::Watchdog::instance().guard(scratch_.path());
    test::Watchdog::instance().expect_progress(std::chrono::seconds(options.seconds + 900));
    make_source(scratch_ / "source");
    daemon_ = std::make_unique<KeptDaemon>(scratch_.path(),
                                           std::vector<std::string>{"--passthrough", options.passthrough});
  }

  bool run() {
    start_workers();
    test::Watchdog::instance().note_mounts(scratch_.path());
    kill_and_upgrade();
    std::ofstream(stop_) << "stop";
    collect();
    daemon_->stop();
    for (const auto& left : fs::directory_iterator(scratch_ / "mnt"))
      fail("a mount point is left: " + left.path().filename().string());
    report();
    test::Watchdog::instance().rest();
    return failures_ == 0;
  }

 private:
  using Clock = PauseMeter::Clock;

  void start_workers() {
    for (int i = 0; i < options_.sessions; ++i) {
      const auto id = "soak" + std::to_string(i);
      const auto made = daemon_->command({"create", "--id", id}, std::chrono::seconds(30));
      if (made.exit_code != 0) throw std::runtime_error("okcvm create: " + made.output);
      const Work work{daemon_.get(), id, daemon_->mount_of(id) / "outputs", stop_, scratch_ / "source"};
      workers_.push_back(std::make_unique<test::ChildProcess>([this, i, work](test::ChildProcess&) {
        std::string problem;
        try {
          problem = do_work(i, work);
        } catch (const std::exception& error) {
          problem = error.what();
        }
        if (!problem.empty()) std::ofstream(scratch_ / ("problem" + std::to_string(i))) << problem;
        return problem.empty() ? 0 : 1;
      }));
    }
    meter_ = std::make_unique<PauseMeter>(daemon_->mount_of("soak0") / "temp", stop_);
  }

  std::chrono::milliseconds about(double seconds) {
    return std::chrono::milliseconds(
        static_cast<long>(seconds * (500.0 + static_cast<double>(random_() % 1000))));
  }

  void kill_and_upgrade() {
    const auto end = Clock::now() + std::chrono::seconds(options_.seconds);
    auto next_kill = Clock::now() + about(options_.kill_every);
    auto next_upgrade = Clock::now() + about(options_.upgrade_every);
    while (Clock::now() < end) {
      std::this_thread::sleep_until(std::min({next_kill, next_upgrade, end}));
      if (Clock::now() >= next_upgrade) {
        if (daemon_->upgrade()) upgrades_.push_back(Clock::now());
        next_upgrade = Clock::now() + about(options_.upgrade_every);
      } else if (Clock::now() >= next_kill) {
        late_ = daemon_->size();
        if (kills_.size() == 5) early_ = late_;
        if (daemon_->kill_daemon()) kills_.push_back(Clock::now());
        next_kill = Clock::now() + about(options_.kill_every);
      }
    }
  }

  void collect() {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i]->join() == 0) continue;
      std::ifstream problem(scratch_ / ("problem" + std::to_string(i)));
      fail("session " + std::to_string(i) + ", " + work_name(static_cast<int>(i)) + ": " +
           std::string(std::istreambuf_iterator<char>(problem), {}));
    }
    if (!meter_->join()) fail("the pause meter: one of its calls failed");
    const auto status = daemon_->command({"status"}, std::chrono::seconds(60));
    if (status.exit_code != 0) fail("okcvm status: " + status.output);
    for (int i = 0; i < options_.sessions; ++i) {
      const auto id = "soak" + std::to_string(i);
      const auto deleted = daemon_->command({"delete", id}, std::chrono::seconds(60));
      if (deleted.exit_code != 0) fail("okcvm delete " + id + ": " + deleted.output);
    }
  }

  void report() {
    std::vector<double> pauses;
    for (const auto& moment : kills_)
      pauses.push_back(meter_->longest_between(moment, moment + std::chrono::seconds(1)));
    for (const auto& moment : upgrades_)
      pauses.push_back(meter_->longest_between(moment, moment + std::chrono::seconds(1)));
    std::sort(pauses.begin(), pauses.end());
    std::cout << options_.sessions << " sessions, " << options_.seconds << " s, seed " << options_.seed
              << ": " << kills_.size() << " kills, " << upgrades_.size() << " upgrades, " << failures_
              << " failures\n";
    if (!pauses.empty())
      std::cout << "pause: median " << pauses[pauses.size() / 2] << " ms, worst " << pauses.back() << " ms\n";
    std::cout << "descriptors " << early_.descriptors << " at the sixth kill, " << late_.descriptors
              << " at the last; resident " << early_.resident_kib << " KiB, " << late_.resident_kib << " KiB"
              << std::endl;
    if (failures_ > 0) {
      const auto kept = test::scratch_base() / "okcvm-soak-daemon.log";
      fs::copy_file(daemon_->log(), kept, fs::copy_options::overwrite_existing);
      std::cout << "the daemon's log: " << kept.string() << std::endl;
    }
  }

  void fail(const std::string& what) {
    ++failures_;
    std::cout << "FAILED: " << what << std::endl;
  }

  const Options options_;
  test::ScratchDirectory scratch_;
  fs::path stop_;
  std::mt19937 random_;
  std::unique_ptr<KeptDaemon> daemon_;
  std::vector<std::unique_ptr<test::ChildProcess>> workers_;
  std::unique_ptr<PauseMeter> meter_;
  std::vector<Clock::time_point> kills_, upgrades_;
  KeptDaemon::Size early_, late_;
  int failures_ = 0;
};

}  // namespace
}  // namespace okcvm::soak

int main(int count, char** arguments) try {
  const auto options = okcvm::soak::parse(count, arguments);
  if (const auto reason = okcvm::test::why_no_mounts(); !reason.empty()) {
    std::cout << "skipped: " << reason << std::endl;
    return 77;
  }
  okcvm::test::Watchdog::instance();
  std::cout << "seed " << options.seed << std::endl;
  return okcvm::soak::Soak(options).run() ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << "soak: " << error.what() << "\n";
  return 2;
}
