#include "tests/mount/daemon_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "fusefs/teller.h"
#include "policy/fault.h"

namespace okcvm::test {
namespace {

/// Takes a name away as a restore does, behind the driver and with its knowledge.
void take_away(fusefs::SessionMount& driver, const SessionPlace& place, const std::string& path) {
  const auto hold = driver.hold();
  hold->will_replace({value_of(RelPath::parse(path))});
  std::filesystem::remove(place.workspace() / path);
  hold->invalidate({value_of(RelPath::parse(path))});
}

/// The same without a word to the kernel; the session is held until the process ends.
void take_away_and_stop(fusefs::SessionMount& driver, const SessionPlace& place, const std::string& path) {
  auto* const hold = driver.hold().release();
  hold->will_replace({value_of(RelPath::parse(path))});
  std::filesystem::remove(place.workspace() / path);
}

std::string answer(fusefs::SessionMount& driver, const SessionPlace& place, const std::string& question) {
  const auto statistics = driver.statistics();
  if (question == "open files") return std::to_string(statistics.open_files);
  if (question == "nodes") return std::to_string(statistics.nodes);
  if (question == "passthrough") return statistics.passthrough ? "on" : "off";
  if (question == "survives") return statistics.survives_daemon ? "yes" : "no";
  if (question.starts_with("count "))
    for (const auto& operation : statistics.operations)
      if (operation.name == question.substr(6)) return std::to_string(operation.count);
  if (question.starts_with("take away ")) take_away(driver, place, question.substr(10));
  if (question.starts_with("tell of "))
    driver.hold()->invalidate({value_of(RelPath::parse(question.substr(8)))});
  if (question.starts_with("begin to take away ")) take_away_and_stop(driver, place, question.substr(19));
  if (question == "forget changes") driver.retire_changes(driver.cut_changes());
  if (question.starts_with("changed ")) {
    const auto changes = driver.cut_changes();
    for (const auto& change : changes.changes)
      if (change.path.text() == question.substr(8)) return "yes";
    return changes.rescan ? "rescan" : "no";
  }
  return "0";
}

int serve(ChildProcess& self, SessionPlace& place, const Session::Adjust& adjust, bool fresh,
          FileDescriptor device) {
  if (auto started = fusefs::Teller::start([] { return true; }); !started) {
    self.send("failed: " + started.error().message);
    return 1;
  }
  auto config = place.config();
  if (adjust) adjust(config);
  auto driver = fresh ? fusefs::SessionMount::mount(std::move(config))
                      : fusefs::SessionMount::take_over(std::move(config), std::move(device));
  if (!driver) {
    self.send("failed: " + driver.error().message);
    return 1;
  }
  self.send(std::to_string((*driver)->device()));
  for (auto question = self.receive(); !question.empty(); question = self.receive()) {
    if (question == "abandon") {
      (*driver)->abandon();
      self.send("abandoned");
      ::_exit(0);
    }
    fault_point("asked");  // waits for a thread that is about to die at a point of its own
    self.send(answer(**driver, place, question));
  }
  return 0;
}

FileDescriptor handle_of(pid_t pid) {
  return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

/// A duplicate of another process's descriptor.
FileDescriptor descriptor_of(pid_t pid, int number) {
  const FileDescriptor process = handle_of(pid);
  return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), number, 0)));
}

}  // namespace

bool DaemonProcess::start(bool fresh) {
  process_ = std::make_unique<ChildProcess>([&](ChildProcess& self) {
    fault_reset();
    FileDescriptor device;
    if (!fresh) device = FileDescriptor(::fcntl(device_.get(), F_DUPFD_CLOEXEC, 3));
    return serve(self, place_, adjust_, fresh, std::move(device));
  });
  const auto number = process_->receive();
  if (number.empty() || number.starts_with("failed")) {
    failure_ = number.empty() ? "the process ended" : number;
    return false;
  }
  if (fresh) device_ = descriptor_of(process_->pid(), std::stoi(number));
  return static_cast<bool>(device_);
}

bool DaemonProcess::mount() {
  return start(true);
}

bool DaemonProcess::take_over() {
  return start(false);
}

void DaemonProcess::kill() {
  process_->kill(SIGKILL);
  process_->join();
}

int DaemonProcess::serve_until_end_of(pid_t other, const std::function<void()>& meanwhile) {
  constexpr int kMostDeaths = 50;
  const FileDescriptor client = handle_of(other);
  for (int takeovers = 0; takeovers < kMostDeaths;) {
    const FileDescriptor server = handle_of(process_->pid());
    std::array waiting{pollfd{client.get(), POLLIN, 0}, pollfd{server.get(), POLLIN, 0}};
    ::poll(waiting.data(), waiting.size(), -1);
    if (waiting[1].revents) {
      process_->join();
      do {
        ++takeovers;
        meanwhile();
      } while (!take_over() && takeovers < kMostDeaths);  // it may die at once
      continue;
    }
    return takeovers;
  }
  return kMostDeaths;
}

void DaemonProcess::abandon() {
  ask("abandon");
  process_->join();
}

std::string DaemonProcess::ask(const std::string& question) {
  process_->send(question);
  return process_->receive();
}

}  // namespace okcvm::test
