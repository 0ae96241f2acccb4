#include <fcntl.h>
#include <getopt.h>
#include <linux/types.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <thread>

#include "tests/soak/kept_daemon.h"
#include "tests/soak/power_workers.h"
#include "tests/support/scratch.h"
#include "tests/support/session.h"
#include "tests/support/watchdog.h"

namespace okcvm::soak {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kUsage =
    "usage: power_loss [--rounds N] [--file-systems ext4,xfs] [--seconds N] [--seed N] [--passthrough "
    "auto|off]\n"
    "Runs programs in a session on a file system of its own that loses its power at a random moment, and "
    "checks\n"
    "that all is there of which they were told that it was safe. See README.md.\n";

// EXT4_IOC_SHUTDOWN (fs/ext4/ext4.h) and XFS_IOC_GOINGDOWN (fs/xfs/libxfs/xfs_fs.h), and "without flushing
// the log".
const unsigned long kShutdown = _IOR('X', 125, __u32);
constexpr __u32 kNoLogFlush = 2;

struct Options {
  int rounds = 20;
  std::vector<std::string> file_systems{"ext4", "xfs"};
  double seconds = 3;  // the longest that a round's programs work
  unsigned int seed = std::random_device{}();
  std::string passthrough = "auto";
};

[[noreturn]] void usage() {
  std::cerr << kUsage;
  std::exit(2);
}

Options parse(int count, char** arguments) {
  static constexpr option kOptions[] = {
      {"rounds", required_argument, nullptr, 'n'},      {"file-systems", required_argument, nullptr, 'f'},
      {"seconds", required_argument, nullptr, 's'},     {"seed", required_argument, nullptr, 'r'},
      {"passthrough", required_argument, nullptr, 'p'}, {nullptr, 0, nullptr, 0}};
  Options options;
  for (int letter; (letter = ::getopt_long(count, arguments, "", kOptions, nullptr)) != -1;) switch (letter) {
      case 'n':
        options.rounds = std::atoi(optarg);
        break;
      case 'f': {
        options.file_systems.clear();
        std::istringstream names(optarg);
        for (std::string name; std::getline(names, name, ',');) options.file_systems.push_back(name);
        break;
      }
      case 's':
        options.seconds = std::atof(optarg);
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
  if (optind != count || options.rounds < 1 || options.file_systems.empty()) usage();
  return options;
}

test::CommandResult shell(const std::string& script) {
  return test::run_script(script, "/", {}, kCommandLimit);
}

/// A file system in a file, mounted through a loop device.
class Disk final {
 public:
  Disk(fs::path image, fs::path point, const std::string& type)
      : image_(std::move(image)), point_(std::move(point)) {
    fs::create_directory(point_);
    const auto made =
        shell("truncate -s 512M " + image_.string() + " && mkfs." + type + " -q " + image_.string());
    if (made.exit_code != 0) throw std::runtime_error("mkfs." + type + ": " + made.output);
    mount();
  }
  ~Disk() { ::umount2(point_.c_str(), MNT_DETACH); }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  void mount() {
    const auto mounted = shell("mount -o loop " + image_.string() + " " + point_.string());
    if (mounted.exit_code != 0) throw std::runtime_error("mount: " + mounted.output);
  }
  /// Nothing that is not in the log on the device by now will ever get there.
  void cut_power() const {
    const FileDescriptor top(::open(point_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!top || ::ioctl(top.get(), kShutdown, &kNoLogFlush) != 0)
      throw std::runtime_error("the shutdown ioctl");
  }
  /// False when something still holds it after a while.
  bool unmount() const {
    bool is_unmounted = false;
    for (int i = 0; i < 500; ++i) {
      if (!is_unmounted) is_unmounted = ::umount2(point_.c_str(), 0) == 0;
      // A mount namespace that was made meanwhile has a copy of the mount; with that, the next mount would be
      // of the file system that was shut down.
      if (is_unmounted && shell("losetup -j " + image_.string()).output.empty()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // closing is not over when a process is
    }
    return false;
  }

 private:
  const fs::path image_;
  const fs::path point_;
};

/// All rounds on one type of file system.
class PowerLoss {
 public:
  PowerLoss(const Options& options, const std::string& type, unsigned int seed)
      : options_(options),
        type_(type),
        scratch_("power"),
        random_(seed),
        disk_(scratch_ / "image", scratch_ / "state", type) {
    test::Watchdog::instance().guard(scratch_.path());
  }

  int run() {
    for (round_ = 0; round_ < options_.rounds; ++round_) {
      test::Watchdog::instance().expect_progress(std::chrono::seconds(300));
      const int before = failures_;
      try {
        one_round();
      } catch (const std::exception& error) {
        fail(error.what());
        keep_log();
        break;  // whatever state the disk is in
      }
      if (failures_ > before) keep_log();
    }
    test::Watchdog::instance().rest();
    return failures_;
  }

  void report() const {
    std::cout << "{\"file_system\": \"" << type_ << "\", \"rounds\": " << options_.rounds
              << ", \"losses\": " << failures_;
    for (const auto& [kind, count] : promises_) std::cout << ", \"" << kind << "\": " << count;
    std::cout << "}" << std::endl;
  }

 private:
  void one_round() {
    start_daemon();
    id_ = "power" + std::string(static_cast<std::size_t>(1 + round_ % 2), 'a') + std::to_string(round_);
    const auto made = daemon_->command({"create", "--id", id_}, kCommandLimit);
    if (made.exit_code != 0) return fail("okcvm create: " + made.output);
    test::Watchdog::instance().note_mounts(scratch_.path());
    const auto workers = start_workers();
    const auto longest = static_cast<unsigned int>(options_.seconds * 1000);
    std::this_thread::sleep_for(
        std::chrono::milliseconds(random_() % (random_() % 4 ? longest : longest / 10 + 1)));

    std::ofstream(failed()) << "now";
    disk_.cut_power();
    daemon_->crash();
    end_workers(workers);
    daemon_.reset();
    for (const char* gone : {"run", "mnt"}) {  // as after a start of the host
      test::end_mounts_below(scratch_.path() / gone);
      fs::remove_all(scratch_ / gone);
    }
    if (!disk_.unmount()) throw std::runtime_error("the disk cannot be unmounted");
    disk_.mount();
    fs::remove(failed());

    check(workers.size());
    daemon_->stop();
    daemon_.reset();
  }

  void start_daemon() {
    daemon_ = std::make_unique<KeptDaemon>(scratch_.path(),
                                           std::vector<std::string>{"--passthrough", options_.passthrough});
  }

  fs::path failed() const { return scratch_ / "failed"; }

  Worker worker(std::size_t i) const {
    const auto number = std::to_string(i);
    return {daemon_.get(), id_, daemon_->mount_of(id_) / "outputs" / number,
            scratch_ / ("notes" + std::to_string(round_) + "." + number), failed()};
  }

  std::vector<std::unique_ptr<test::ChildProcess>> start_workers() {
    std::vector<std::unique_ptr<test::ChildProcess>> workers;
    for (std::size_t i = 0; i < std::size(kWorkerKinds); ++i)
      workers.push_back(std::make_unique<test::ChildProcess>([&, i](test::ChildProcess& self) {
        const auto& kind = kWorkerKinds[i];
        std::string problem;
        const auto mine = worker(i);
        if (test::have_program(kind.needs) && ::mkdir(mine.top.c_str(), 0755) == 0) problem = kind.work(mine);
        self.send(problem.empty() ? "done" : problem);
        return 0;
      }));
    return workers;
  }

  void end_workers(const std::vector<std::unique_ptr<test::ChildProcess>>& workers) {
    for (std::size_t i = 0; i < workers.size(); ++i) {
      // One that stored to a mapping of what is gone has died of that, without a word.
      const auto problem = workers[i]->receive();
      if (problem != "done" && !problem.empty())
        fail(std::string(kWorkerKinds[i].name) + " before the loss: " + problem);
      workers[i]->join();
    }
  }

  void check(std::size_t count) {
    start_daemon();
    for (std::size_t i = 0; i < count; ++i) {
      const auto& kind = kWorkerKinds[i];
      if (auto lost = kind.check(worker(i), promises_[kind.name]); !lost.empty())
        fail(std::string(kind.name) + ": " + lost);
    }
    const auto sound =
        shell("cd " + (scratch_ / "state").string() +
              "/snapshots; for r in *.git; do [ -d $r ] || continue; git -c safe.directory='*' "
              "--git-dir=$r fsck --strict --no-dangling 2>&1 || exit 1; done");
    if (sound.exit_code != 0) fail("git fsck --strict: " + sound.output);

    const auto outputs = daemon_->mount_of(id_) / "outputs";
    const auto snapshot = [&] { return daemon_->command({"snapshot", id_, "--json"}, kCommandLimit); };
    const bool has_files = fs::exists(scratch_ / "state" / "workspaces" / id_);
    const auto first = snapshot();
    if (first.exit_code != 0) fail("the next snapshot: " + first.output);
    if (has_files && first.output.find("\"rescanned\":true") == std::string::npos &&
        first.output.find("\"rescanned\": true") == std::string::npos)
      fail("the next snapshot does not say that it compared everything: " + first.output);
    std::ofstream(outputs / "after") << "works";
    const auto second = snapshot();
    if (second.exit_code != 0 || second.output.find("true") != std::string::npos)
      fail("the snapshot after that compares everything again: " + second.output);
    const auto verified = daemon_->command({"verify", id_}, kCommandLimit);
    if (verified.exit_code != 0) fail("verify: " + verified.output);
    if (daemon_->command({"delete", id_}, kCommandLimit).exit_code != 0) fail("delete");
  }

  void fail(const std::string& what) {
    ++failures_;
    std::cout << "LOST: " << type_ << ", round " << round_ << ": " << what << std::endl;
  }

  void keep_log() const {
    const auto kept = test::scratch_base() / ("okcvm-power-" + type_ + ".log");
    std::error_code ignored;
    fs::copy_file(scratch_ / "daemon.log", kept, fs::copy_options::overwrite_existing, ignored);
    std::cout << "the daemon's log: " << kept.string() << std::endl;
  }

  const Options options_;
  const std::string type_;
  test::ScratchDirectory scratch_;
  std::mt19937 random_;
  Disk disk_;
  std::unique_ptr<KeptDaemon> daemon_;
  std::string id_;
  int round_ = 0;
  std::map<std::string, int> promises_;
  int failures_ = 0;
};

std::string why_not(const Options& options) {
  if (const auto reason = test::why_no_mounts(); !reason.empty()) return reason;
  for (const auto& type : options.file_systems)
    if (!test::have_program("mkfs." + type)) return "there is no mkfs." + type;
  if (!test::have_program("losetup") || ::access("/dev/loop-control", R_OK | W_OK) != 0 ||
      shell("losetup -f").exit_code != 0)
    return "there are no loop devices";
  return {};
}

}  // namespace
}  // namespace okcvm::soak

int main(int count, char** arguments) try {
  using namespace okcvm;
  const auto options = soak::parse(count, arguments);
  if (const auto reason = soak::why_not(options); !reason.empty()) {
    std::cout << "skipped: " << reason << std::endl;
    return 77;
  }
  test::Watchdog::instance();
  std::cout << "seed " << options.seed << std::endl;
  int losses = 0;
  for (const auto& type : options.file_systems) {
    soak::PowerLoss rounds(options, type, options.seed);
    losses += rounds.run();
    rounds.report();
  }
  return losses ? 1 : 0;
} catch (const std::exception& error) {
  std::cerr << "power_loss: " << error.what() << "\n";
  return 2;
}
