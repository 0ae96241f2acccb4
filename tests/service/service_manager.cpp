#include "tests/service/service_manager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <sstream>

namespace okcvm::test {
namespace {

constexpr int kFirstPassed = 3;  // SD_LISTEN_FDS_START
constexpr int kOutOfTheWay = 200;
constexpr std::chrono::seconds kTimeout{30};

sockaddr_un address_of(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

FileDescriptor bound_socket(int type, const std::filesystem::path& path) {
  FileDescriptor socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  const auto address = address_of(path);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << path;
  return socket;
}

std::map<std::string, std::string> fields_of(const std::string& text) {
  std::map<std::string, std::string> fields;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    if (equals != line.npos) fields[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return fields;
}

}  // namespace

bool Notification::has(const std::string& name, const std::string& value) const {
  const auto found = fields.find(name);
  return found != fields.end() && found->second == value;
}

ServiceManager::ServiceManager(std::filesystem::path folder)
    : folder_(std::move(folder)),
      notify_socket_(bound_socket(SOCK_DGRAM, folder_ / "notify")),
      end_of_hearing_(::eventfd(0, EFD_CLOEXEC)) {
  const int on = 1;
  ::setsockopt(notify_socket_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  hearing_ = std::thread([this] { hear(); });
}

ServiceManager::~ServiceManager() {
  if (child_ > 0) {
    ::kill(child_, SIGTERM);
    wait_for_end();
  }
  ::eventfd_write(end_of_hearing_.get(), 1);
  hearing_.join();
}

void ServiceManager::listen(const std::filesystem::path& path, const std::string& name) {
  auto socket = bound_socket(SOCK_STREAM, path);
  EXPECT_EQ(::listen(socket.get(), 64), 0);
  listening_.emplace(name, std::move(socket));
}

void ServiceManager::store(const std::string& name, FileDescriptor descriptor) {
  const std::lock_guard lock(mutex_);
  stored_.emplace(name, std::move(descriptor));
}

/// In the order in which they are passed.
std::vector<std::pair<std::string, int>> ServiceManager::passed_descriptors() {
  std::vector<std::pair<std::string, int>> passed;
  if (listening_) passed.emplace_back(listening_->first, listening_->second.get());
  const std::lock_guard lock(mutex_);
  for (const auto& [name, descriptor] : stored_) passed.emplace_back(name, descriptor.get());
  return passed;
}

void ServiceManager::start(std::vector<std::string> arguments, const std::vector<std::string>& variables) {
  {
    const std::lock_guard lock(mutex_);
    notifications_.clear();
  }
  const auto passed = passed_descriptors();
  std::string names;
  for (const auto& [name, descriptor] : passed) names += (names.empty() ? "" : ":") + name;
  const auto notify = (folder_ / "notify").string();
  const auto log_file = (folder_ / "log").string();
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);

  child_ = ::fork();
  ASSERT_GE(child_, 0);
  if (child_ > 0) return;
  const int log = ::open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(log, 1);
  ::dup2(log, 2);
  // First out of the way, then to their numbers: these may be in use by each other.
  for (std::size_t i = 0; i < passed.size(); ++i)
    ::dup2(passed[i].second, kOutOfTheWay + static_cast<int>(i));
  for (std::size_t i = 0; i < passed.size(); ++i)
    ::dup2(kOutOfTheWay + static_cast<int>(i), kFirstPassed + static_cast<int>(i));
  ::close_range(kFirstPassed + static_cast<unsigned int>(passed.size()), ~0U, 0);
  ::setenv("NOTIFY_SOCKET", notify.c_str(), 1);
  if (!passed.empty()) {
    ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
    ::setenv("LISTEN_FDS", std::to_string(passed.size()).c_str(), 1);
    ::setenv("LISTEN_FDNAMES", names.c_str(), 1);
  }
  for (const auto& variable : variables) {
    const auto equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  ::execv(pointers.front(), pointers.data());
  ::_exit(127);
}

void ServiceManager::signal(int number) const {
  ::kill(child_, number);
}

int ServiceManager::wait_for_end() {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  int status = 0;
  bool killed = false;
  while (::waitpid(child_, &status, WNOHANG) != child_) {
    if (!killed && std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "the service does not end\n" << log();
      killed = ::kill(child_, SIGKILL) == 0;
    }
    ::usleep(2000);
  }
  child_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string ServiceManager::log() const {
  std::ostringstream text;
  text << std::ifstream(folder_ / "log").rdbuf();
  return text.str();
}

void ServiceManager::hear() {
  for (;;) {
    std::array waiting{pollfd{notify_socket_.get(), POLLIN, 0}, pollfd{end_of_hearing_.get(), POLLIN, 0}};
    ::poll(waiting.data(), waiting.size(), -1);
    if (waiting[1].revents != 0) return;

    std::array<char, 4096> text{};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(16 * sizeof(int))> control{};
    iovec vector{text.data(), text.size()};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const auto size = ::recvmsg(notify_socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (size < 0) continue;

    Notification notification;
    std::vector<FileDescriptor> descriptors;
    for (auto* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_level != SOL_SOCKET) continue;
      if (part->cmsg_type == SCM_RIGHTS) {
        const auto count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
          int descriptor = -1;
          std::memcpy(&descriptor, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
          descriptors.emplace_back(descriptor);
        }
      } else if (part->cmsg_type == SCM_CREDENTIALS) {
        ucred sender{};
        std::memcpy(&sender, CMSG_DATA(part), sizeof sender);
        notification.sender = sender.pid;
      }
    }
    notification.fields = fields_of(std::string(text.data(), static_cast<std::size_t>(size)));
    notification.descriptors = descriptors.size();
    notification.received = std::chrono::steady_clock::now();
    take(std::move(notification), std::move(descriptors));
  }
}

/// Descriptors that are not stored are closed on return; a barrier (sd_notify_barrier(3)) waits for just
/// that.
void ServiceManager::take(Notification notification, std::vector<FileDescriptor> descriptors) {
  const std::lock_guard lock(mutex_);
  const auto name = notification.fields.find("FDNAME");
  if (name != notification.fields.end()) {
    if (notification.has("FDSTOREREMOVE")) stored_.erase(name->second);
    if (notification.has("FDSTORE"))
      for (auto& descriptor : descriptors) stored_.emplace(name->second, std::move(descriptor));
  }
  notifications_.push_back(std::move(notification));
  heard_more_.notify_all();
}

std::optional<Notification> ServiceManager::heard(const Wanted& wanted, std::size_t how_many) {
  std::unique_lock lock(mutex_);
  std::optional<Notification> found;
  heard_more_.wait_for(lock, kTimeout, [&] {
    std::size_t seen = 0;
    for (const auto& notification : notifications_) {
      if (!wanted(notification)) continue;
      if (!found) found = notification;
      ++seen;
    }
    return seen >= how_many;
  });
  return found;
}

std::vector<Notification> ServiceManager::all_heard(const Wanted& wanted) {
  const std::lock_guard lock(mutex_);
  std::vector<Notification> found;
  for (const auto& notification : notifications_)
    if (wanted(notification)) found.push_back(notification);
  return found;
}

std::vector<std::string> ServiceManager::stored_names() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, descriptor] : stored_) names.push_back(name);
  return names;
}

std::string ServiceManager::stored_target(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = stored_.find(name);
  if (found == stored_.end()) return {};
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(found->second.get()), error)
      .string();
}

}  // namespace okcvm::test
