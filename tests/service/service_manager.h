#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "policy/file_descriptor.h"

namespace okcvm::test {

/// One datagram of sd_notify(3).
struct Notification {
  std::map<std::string, std::string> fields;  // "READY": "1"
  std::size_t descriptors = 0;                // that came with it
  pid_t sender = 0;
  std::chrono::steady_clock::time_point received;

  bool has(const std::string& name, const std::string& value = "1") const;
};

/// What systemd is to a Type=notify service, as far as a service sees it: hears its notifications, keeps the
/// descriptors that it stores, starts it with those (LISTEN_FDS) and with a socket of its own if there is
/// one. Thread-safe.
class ServiceManager final {
 public:
  explicit ServiceManager(std::filesystem::path folder);
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  /// As a socket unit does; the service is given it under this name.
  void listen(const std::filesystem::path& path, const std::string& name);
  /// A descriptor that is passed with the stored ones, whatever it is.
  void store(const std::string& name, FileDescriptor descriptor);

  /// Runs a program with stored descriptors and more variables ("NAME=value"); its output goes to log().
  void start(std::vector<std::string> arguments, const std::vector<std::string>& variables = {});
  void signal(int number) const;
  /// The exit status, or 128 + the signal that ended it.
  int wait_for_end();
  pid_t pid() const { return child_; }
  std::string log() const;

  using Wanted = std::function<bool(const Notification&)>;
  /// The first notification of this kind since the last start(); waits up to 30 seconds for it.
  std::optional<Notification> heard(const Wanted& wanted, std::size_t how_many = 1);
  /// All notifications of this kind since the last start().
  std::vector<Notification> all_heard(const Wanted& wanted);

  std::vector<std::string> stored_names();
  /// What a stored descriptor refers to ("/dev/fuse"); empty if there is none of that name.
  std::string stored_target(const std::string& name);

 private:
  void hear();
  void take(Notification notification, std::vector<FileDescriptor> descriptors);
  std::vector<std::pair<std::string, int>> passed_descriptors();

  const std::filesystem::path folder_;
  FileDescriptor notify_socket_;
  FileDescriptor end_of_hearing_;
  std::optional<std::pair<std::string, FileDescriptor>> listening_;
  pid_t child_ = -1;

  std::mutex mutex_;  // of what follows
  std::condition_variable heard_more_;
  std::vector<Notification> notifications_;
  std::multimap<std::string, FileDescriptor> stored_;
  std::thread hearing_;
};

}  // namespace okcvm::test
