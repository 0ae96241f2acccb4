#include "tests/bench/daemon_cost.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

#include "tests/support/process.h"
#include "tests/support/scratch.h"
#include "tests/support/watchdog.h"
#include "tests/tools/http_client.h"

namespace okcvm::bench {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// An okcvmd with private directories, stopped with this object.
class Daemon {
 public:
  Daemon() {
    run_ = std::filesystem::path("/dev/shm") / (scratch_.path().filename().string() + "-run");
    for (const auto& folder : {scratch_ / "state", run_, scratch_ / "mnt"}) {
      std::filesystem::create_directory(folder);
      std::filesystem::permissions(folder, std::filesystem::perms(0755));  // whatever the umask is
    }
    test::Watchdog::instance().guard(scratch_.path());
    pid_ = test::start_program({OKCVMD_PROGRAM, "--config", "/dev/null", "--state-dir", scratch_ / "state",
                                "--run-dir", run_, "--mount-root", scratch_ / "mnt"},
                               scratch_ / "log");
    while (test::HttpClient(socket()).ask("GET", "/v1/health").status != 200) {
      if (::waitpid(pid_, nullptr, WNOHANG) != 0) throw std::runtime_error("okcvmd ended at once");
      ::usleep(10'000);
    }
  }
  ~Daemon() {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
    test::end_mounts_below(scratch_.path());
    std::error_code ignored;
    std::filesystem::remove_all(run_, ignored);
  }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  std::string socket() const { return run_ / "control.sock"; }
  std::filesystem::path mount() const { return scratch_ / "mnt/okcvm-cost"; }

 private:
  test::ScratchDirectory scratch_{"daemon-cost"};
  std::filesystem::path run_;  // in memory, as /run is, wherever the rest is
  pid_t pid_ = -1;
};

class Measurement {
 public:
  DaemonCost run(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      test::Watchdog::instance().expect_progress(std::chrono::seconds(60));
      cost_.create_keep_alive.push_back(create(client_));
      cost_.delete_keep_alive.push_back(remove());
      cost_.create_fresh.push_back(create_fresh());
      remove();
      cost_.create_program.push_back(run_program({OKCVM_PROGRAM, "create", "--id", "cost"}));
      cost_.delete_program.push_back(run_program({OKCVM_PROGRAM, "delete", "cost"}));
    }
    return std::move(cost_);
  }

 private:
  double create(test::HttpClient& client) {
    const auto start = Clock::now();
    const auto status = client.ask("POST", "/v1/sessions", R"({"id":"cost"})").status;
    if (status != 201 || ::access((daemon_.mount() / "outputs").c_str(), F_OK) != 0)
      throw std::runtime_error("a session was not created: " + std::to_string(status));
    return milliseconds_since(start);
  }
  double create_fresh() {
    const auto start = Clock::now();
    test::HttpClient client(daemon_.socket());
    create(client);
    return milliseconds_since(start);
  }
  double remove() {
    const auto start = Clock::now();
    if (client_.ask("DELETE", "/v1/sessions/cost").status != 200)
      throw std::runtime_error("a session was not deleted");
    return milliseconds_since(start);
  }
  double run_program(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--socket", daemon_.socket()});
    const auto start = Clock::now();
    if (const auto ran = test::run({.arguments = arguments}); ran.exit_code != 0)
      throw std::runtime_error("okcvm failed: " + ran.output);
    return milliseconds_since(start);
  }

  Daemon daemon_;
  test::HttpClient client_{daemon_.socket()};
  DaemonCost cost_;
};

}  // namespace

DaemonCost measure_daemon(int rounds) {
  return Measurement().run(rounds);
}

}  // namespace okcvm::bench
